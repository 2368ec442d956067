package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm/fake"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

func TestAPanickingRankEndsTheOthersWithItsError(t *testing.T) {
	tm := testModel{worlds: []int64{3}, blocks: []testBlock{{name: "b", params: []param{f32("w", 8)}}}}
	onBackends(t, func(t *testing.T, b *backend) {
		start := time.Now()
		err := b.run(3, tm.descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			if m.rank.Rank() == 1 {
				panic("lost my mind")
			}
			return gatherAlone(ctx, m, 0)
		})
		var rank *RankError
		wantWords(t, err, "lost my mind")
		if b.name == "cpu" && (!errors.As(err, &rank) || rank.Rank != 1) {
			t.Error(err)
		}
		if time.Since(start) > 2*time.Second {
			t.Error("the other ranks waited for the deadline")
		}
	})
}

func TestRunRefusesNoRanksAndLeavesNoGoroutines(t *testing.T) {
	if err := Run(context.Background(), Local(0), func(context.Context, *Rank) error { return nil }); err == nil || !strings.Contains(err.Error(), "expected 1 to") {
		t.Error(err)
	}
	onBackends(t, func(t *testing.T, b *backend) {
		before := runtime.NumGoroutine()
		for range 5 {
			_ = b.run(3, trainable(3).descriptor(t), func(ctx context.Context, m *Model) error {
				if m.rank.Rank() == 2 {
					return errors.New("no")
				}
				return fill(ctx, m)
			})
		}
		for range 50 {
			if runtime.NumGoroutine() <= before {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
	})
}

func TestRunRefusesWhatIsNotThere(t *testing.T) {
	run := func(context.Context, *Rank) error { return nil }
	for name, err := range map[string]error{
		"context":          Run(nil, Local(1), run),
		"launcher":         Run(t.Context(), nil, run),
		"function":         Run(t.Context(), Local(1), nil),
		"negative ranks":   Run(t.Context(), Local(-1), run),
		"too many":         Run(t.Context(), Local(1<<20), run),
		"negative timeout": Run(t.Context(), LocalRanks{Ranks: 1, Timeout: -1}, run),
		"device":           Run(t.Context(), LocalRanks{Ranks: 1, Device: func(int) (device.Device, error) { return nil, nil }}, run),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestWhateverEndsARankEndsTheOthersWithItsError(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		end   func() error
		words string
	}{
		"error":  {func() error { return boom }, "rank 1: boom"},
		"panic":  {func() error { panic(boom) }, "rank 1: panic: boom"},
		"goexit": {func() error { runtime.Goexit(); return nil }, "rank 1: its function ended the goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			onBackends(t, func(t *testing.T, b *backend) {
				start := time.Now()
				err, errs := endRank1(t, b, c.end)
				var rank *RankError
				wantWords(t, err, c.words)
				if b.name == "cpu" && (!errors.As(err, &rank) || rank.Rank != 1 || !strings.HasPrefix(err.Error(), c.words) || name != "goexit" && !errors.Is(err, boom)) {
					t.Errorf("Run returned %v", err)
				}
				for _, r := range []int{0, 2} {
					if errs[r] == nil || !strings.Contains(errs[r].Error(), "gather") || !strings.Contains(errs[r].Error(), c.words) {
						t.Errorf("rank %d: %v", r, errs[r])
					}
				}
				if time.Since(start) > 2*time.Second {
					t.Error("the other ranks waited for the deadline")
				}
			})
		})
	}
}

// endRank1 ends rank 1 in some way while the others gather. It returns what Run
// does and what the passes of the others do.
func endRank1(t *testing.T, b *backend, end func() error) (error, []error) {
	errs := make([]error, 3)
	var filled sync.WaitGroup
	filled.Add(3)
	err := b.run(3, trainable(3).descriptor(t), func(ctx context.Context, m *Model) error {
		err := fill(ctx, m)
		filled.Done()
		filled.Wait()
		if m.rank.Rank() == 1 {
			return end()
		}
		errs[m.rank.Rank()] = errors.Join(err, gatherAlone(context.WithoutCancel(ctx), m, 0))
		return nil
	})
	return err, errs
}

// gatherAlone is a pass over one block of the first kind. It returns the gather's
// error where the host waits for gathers, else that of End.
func gatherAlone(ctx context.Context, m *Model, index int) error {
	p := m.Forward(ctx)
	b, err := p.Gather(0, index)
	if err != nil {
		return err
	}
	b.Release()
	return p.End()
}

func TestARankThatReturnsWhileOthersGatherIsNamed(t *testing.T) {
	onBackends(t, func(t *testing.T, b *backend) {
		err := b.run(2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil || m.rank.Rank() == 1 {
				return err
			}
			return gatherAlone(ctx, m, 2)
		})
		if err == nil || !strings.Contains(err.Error(), "all-gather of h.2/f32") || !strings.Contains(err.Error(), "rank 1 left the group") {
			t.Fatal(err)
		}
	})
}

func TestADeviceThatFailsOnOneRankEndsTheOthers(t *testing.T) {
	boom := errors.New("boom")
	for name, device := range map[string]func(int) (device.Device, error){
		"error": func(r int) (device.Device, error) { return cpu.New(), map[int]error{1: boom}[r] },
		"panic": func(r int) (device.Device, error) {
			if r == 1 {
				panic(boom)
			}
			return cpu.New(), nil
		},
	} {
		d := trainable(2).descriptor(t)
		err := Run(t.Context(), LocalRanks{Ranks: 2, Device: device}, func(ctx context.Context, rank *Rank) error {
			_, err := Open(ctx, rank, d, Options{})
			return err
		})
		if !errors.Is(err, boom) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAModelThatOutlivesItsGroupFails(t *testing.T) {
	onBackends(t, func(t *testing.T, b *backend) {
		var kept *Model
		b.must(t, 1, trainable(1).descriptor(t), func(ctx context.Context, m *Model) error {
			other, err := Open(ctx, m.rank, m.descriptor, Options{})
			kept = other
			return errors.Join(err, fill(ctx, other))
		})
		if err := gatherAlone(t.Context(), kept, 0); err == nil || !strings.Contains(err.Error(), "after Close") {
			t.Errorf("gather: %v", err)
		}
		err := kept.Close()
		if b.name == "cpu" && err != nil {
			t.Error(err)
		}
		if b.name == "cuda" { // it has gone with its GPU's context
			wantWords(t, err, "after Close", "freed before")
			b.begin(t)
		}
	})
}

func TestRanksNeedACommunicatorAndADevice(t *testing.T) {
	if _, err := NewRank(nil, cpu.New()); err == nil {
		t.Error("no communicator, no error")
	}
	if _, err := NewRank(fake.New(0, 1), nil); err == nil {
		t.Error("no device, no error")
	}
}

func TestARankThatNeverReturnsIsLeftBehindAndNamed(t *testing.T) {
	shortenGrace(t)
	release := make(chan struct{})
	defer close(release)
	start := time.Now()
	err := Run(context.Background(), Local(2), func(_ context.Context, rank *Rank) error {
		if rank.Rank() == 1 {
			<-release
			return nil
		}
		return errors.New("lost")
	})
	if err == nil || !strings.Contains(err.Error(), "lost") || !strings.Contains(err.Error(), "ranks [1] have not returned") {
		t.Error(err)
	}
	if spent := time.Since(start); spent < grace || spent > grace+2*time.Second {
		t.Errorf("after %v", spent)
	}
}

func TestSumAddsUpOverTheRanks(t *testing.T) {
	onBackends(t, func(t *testing.T, b *backend) {
		err := Run(t.Context(), b.launcher(3, 10*time.Second), func(ctx context.Context, rank *Rank) error {
			x := []float64{float64(rank.Rank()), 0.5}
			err := errors.Join(rank.Sum(ctx, "losses", x), rank.Sum(ctx, "nothing", nil))
			if err == nil && (x[0] != 3 || x[1] != 1.5) {
				err = fmt.Errorf("sums %v", x)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestSumsThatDifferInLengthOrAreAloneFail(t *testing.T) {
	for want, n := range map[string][2]int{"the ranks disagree": {1, 2}, "no sign of ranks [1]": {1, -1}} {
		onBackends(t, func(t *testing.T, b *backend) {
			err := Run(t.Context(), b.launcher(2, b.short), func(ctx context.Context, rank *Rank) error {
				if n[rank.Rank()] < 0 {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return rank.Sum(ctx, "losses", make([]float64, n[rank.Rank()]))
			})
			if b.name == "cuda" && n[1] > 0 {
				want = "invalid usage" // NCCL's words
			}
			wantWords(t, err, want)
		})
	}
}

// shortenGrace makes the grace short until the test ends.
func shortenGrace(t *testing.T) {
	before := grace
	grace = 200 * time.Millisecond
	t.Cleanup(func() { grace = before })
}

// The rank where it began is named, even where another returns first.
func TestRunNamesTheRankWhereItBegan(t *testing.T) {
	ran := make(chan struct{})
	err := Run(t.Context(), LocalRanks{Ranks: 3, Timeout: time.Second}, func(ctx context.Context, rank *Rank) error {
		if rank.Rank() == 1 {
			rank.comm.Abort(errors.New("the disk is full"))
			<-ran // rank 0 has returned
			return errors.New("late")
		}
		err := rank.Sum(ctx, "losses", []float64{1})
		if rank.Rank() == 0 {
			defer close(ran)
		}
		return err
	})
	var failed *RankError
	if !errors.As(err, &failed) || failed.Rank != 1 || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("error %v", err)
	}
}

func TestAClosedRankSumsNothing(t *testing.T) {
	rank, err := NewRank(fake.New(0, 2), cpu.New())
	if err != nil {
		t.Fatal(err)
	}
	if err := rank.Close(); err != nil {
		t.Fatal(err)
	}
	var state *StateError
	if err := rank.Sum(t.Context(), "losses", []float64{1}); !errors.As(err, &state) {
		t.Errorf("error %v", err)
	}
}
