package launch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// group notes what is done to it.
type group struct {
	mu      sync.Mutex
	aborted error
	ended   chan struct{}
	left    map[int]error
	closed  int
	err     error // of Close
}

func newGroup() *group { return &group{ended: make(chan struct{}), left: map[int]error{}} }

func (g *group) Abort(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.aborted == nil {
		g.aborted = cause
		close(g.ended)
	}
}

func (g *group) Leave(rank int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left[rank] = err
}

func (g *group) Close() error {
	g.closed++
	return g.err
}

func launch(g *group, ranks ...int) Launch {
	return Launch{
		Ranks: ranks, Group: g,
		Failed:   func(rank int, err error) error { return fmt.Errorf("rank %d: %w", rank, err) },
		Panicked: func(v any, stack []byte) error { return fmt.Errorf("panic %v with %d bytes", v, len(stack)) },
	}
}

func TestAllRanksRunAndLeave(t *testing.T) {
	g := newGroup()
	var mu sync.Mutex
	var ran []int
	err := launch(g, 2, 5, 7).Run(t.Context(), func(_ context.Context, rank int) error {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, rank)
		return nil
	})
	slices.Sort(ran)
	if err != nil || !slices.Equal(ran, []int{2, 5, 7}) || len(g.left) != 3 || g.aborted != nil || g.closed != 1 {
		t.Errorf("%v, ran %v, group %+v", err, ran, g)
	}
}

func TestTheGroupsErrorIsReturnedWhereNoRankFailed(t *testing.T) {
	g := newGroup()
	g.err = errors.New("stream")
	if err := launch(g, 0).Run(t.Context(), func(context.Context, int) error { return nil }); err != g.err {
		t.Error(err)
	}
	boom := errors.New("boom")
	if err := launch(g, 0).Run(t.Context(), func(context.Context, int) error { return boom }); !errors.Is(err, boom) {
		t.Error(err)
	}
}

func TestWhateverEndsARankEndsTheOthersWithItsError(t *testing.T) {
	boom := errors.New("boom")
	for want, end := range map[string]func() error{
		"rank 1: boom":       func() error { return boom },
		"rank 1: panic boom": func() error { panic(boom) },
		"rank 1: its function ended the goroutine": func() error { runtime.Goexit(); return nil },
	} {
		g := newGroup()
		err := launch(g, 0, 1, 2).Run(t.Context(), func(ctx context.Context, rank int) error {
			if rank == 1 {
				return end()
			}
			<-g.ended
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if err == nil || !strings.HasPrefix(err.Error(), want) || g.aborted == nil || !strings.HasPrefix(g.aborted.Error(), want) {
			t.Errorf("%v, aborted with %v, expected %s", err, g.aborted, want)
		}
		if len(g.left) != 3 || g.left[1] == nil || g.left[0] == nil || g.closed != 1 {
			t.Errorf("%s: left %v, closed %d", want, g.left, g.closed)
		}
	}
}

func TestTheContextEndsAllRanks(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	g := newGroup()
	time.AfterFunc(10*time.Millisecond, func() { cancel(enough) })
	err := launch(g, 0, 1).Run(ctx, func(ctx context.Context, _ int) error {
		<-g.ended
		return context.Cause(ctx)
	})
	if !errors.Is(err, enough) || !errors.Is(g.aborted, enough) {
		t.Errorf("%v, aborted with %v", err, g.aborted)
	}
}

func TestARankThatNeverReturnsIsLeftBehindAndNamed(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	g, start := newGroup(), time.Now()
	err := launch(g, 3, 4).Run(t.Context(), func(_ context.Context, rank int) error {
		if rank == 4 {
			<-release
			return nil
		}
		return errors.New("lost")
	})
	if err == nil || !strings.Contains(err.Error(), "rank 3: lost") || !strings.Contains(err.Error(), "ranks [4] have not returned") || g.closed != 0 {
		t.Errorf("%v, closed %d", err, g.closed)
	}
	if spent := time.Since(start); spent < Grace || spent > Grace+5*time.Second {
		t.Errorf("after %v", spent)
	}
}
