// Package launch runs the ranks of a process group that live in this process,
// one goroutine each, by the rules that hold for all launchers: the first rank
// that fails, panics or ends its goroutine ends the others, and none is waited for
// longer than a grace.
//
// It takes a [Group], which ends the ranks' collectives, and gives the error of
// the rank that failed first. It imports the standard library alone.
package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Grace is how long the others have to return once a rank failed or the context
// was cancelled: their collectives have ended by then.
const Grace = 5 * time.Second

// ErrGone is what happens to a rank when its function calls a test's FailNow.
var ErrGone = errors.New("its function ended the goroutine (runtime.Goexit) instead of returning")

// Group is the process group of the ranks.
type Group interface {
	// Abort fails the pending and future collectives of this process's ranks. Only
	// the first call counts.
	Abort(cause error)
	// Leave says that a rank's function has returned, with nil or an error.
	Leave(rank int, err error)
	// Close frees the group when all ranks of this process have returned.
	Close() error
}

// Launch are ranks to run.
type Launch struct {
	Ranks    []int // of this process, by their number in the group
	Group    Group
	Failed   func(rank int, err error) error     // the error of a rank that failed with err
	Panicked func(value any, stack []byte) error // the error of a panic
	Free     func(rank int) error                // gives back what a rank had, once the group knows that it has left; may be nil
	Grace    time.Duration                       // 0 means the constant
}

// Run calls run for every rank and returns when all have returned: nil, or the
// error of the rank that failed first. A rank that fails ends the others: their
// context is cancelled and the group aborted, both with its error. Ranks that have
// not returned after the grace are left behind, and named in the error; the group
// is not closed then.
func (l Launch) Run(ctx context.Context, run func(ctx context.Context, rank int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { l.Group.Abort(context.Cause(ctx)) })
	defer stop()

	var first firstError
	report := func(rank int, err error) error {
		if err != nil {
			err = l.Failed(rank, err)
			first.set(err)
			cancel(err)
		}
		return err
	}
	returned := make(chan int, len(l.Ranks))
	for _, r := range l.Ranks {
		go func() {
			err := ErrGone // stands where run does not return
			defer func() {
				err = report(r, err) // before the others hear of it and fail in turn
				l.Group.Leave(r, err)
				if freed := l.free(r); err == nil {
					report(r, freed)
				}
				returned <- r
			}()
			err = l.protect(func() error { return run(ctx, r) })
		}()
	}
	if missing := l.await(ctx, returned); len(missing) > 0 {
		return fmt.Errorf("%w; ranks %v have not returned within %v after it and are left behind", cmp.Or(first.get(), context.Cause(ctx)), missing, l.grace())
	}
	stop()
	err := l.Group.Close()
	return cmp.Or(first.get(), err)
}

func (l Launch) grace() time.Duration { return cmp.Or(l.Grace, Grace) }

func (l Launch) free(rank int) error {
	if l.Free == nil {
		return nil
	}
	return l.protect(func() error { return l.Free(rank) })
}

// protect calls f and turns a panic into an error.
func (l Launch) protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = l.Panicked(v, debug.Stack())
		}
	}()
	return f()
}

// await returns when all ranks have returned, or names those that have not in
// time.
func (l Launch) await(ctx context.Context, returned <-chan int) (missing []int) {
	ended := ctx.Done()
	var late <-chan time.Time
	out := make(map[int]bool, len(l.Ranks))
	for len(out) < len(l.Ranks) {
		select {
		case r := <-returned:
			out[r] = true
		case <-ended:
			ended = nil
			timer := time.NewTimer(l.grace())
			defer timer.Stop()
			late = timer.C
		case <-late:
			for _, r := range l.Ranks {
				if !out[r] {
					missing = append(missing, r)
				}
			}
			return missing
		}
	}
	return nil
}

// firstError keeps the first of several errors.
type firstError struct {
	mu  sync.Mutex
	err error
}

func (f *firstError) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = cmp.Or(f.err, err)
}

func (f *firstError) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
