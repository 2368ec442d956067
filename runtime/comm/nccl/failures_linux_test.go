package nccl

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

func TestWrongArgumentsFailAllRanks(t *testing.T) {
	host := device.HostMemory(make([]byte, 8))
	for _, test := range []struct {
		name string
		call func(c *Communicator, m device.Memory) // of 64 bytes
		want string
	}{
		{"gather", func(c *Communicator, m device.Memory) { c.AllGather("w", m.Slice(0, 10), m.Slice(0, 4)) }, "expected 2 times the part"},
		{"scatter", func(c *Communicator, m device.Memory) {
			c.ReduceScatter("w", m.Slice(0, 10), m.Slice(0, 16), dtype.Float32)
		}, "expected 2 times the part"},
		{"bool", func(c *Communicator, m device.Memory) { c.AllReduce("w", m, dtype.Bool) }, "elements of bool can't be summed"},
		{"f8", func(c *Communicator, m device.Memory) { c.AllReduce("w", m, dtype.Float8E4M3) }, "elements of f8e4m3 can't be summed"},
		{"i16", func(c *Communicator, m device.Memory) { c.ReduceScatter("w", m.Slice(0, 32), m, dtype.Int16) }, "elements of i16 can't be summed"},
		{"no dtype", func(c *Communicator, m device.Memory) { c.AllReduce("w", m, dtype.Invalid) }, "can't be summed"},
		{"half an element", func(c *Communicator, m device.Memory) { c.AllReduce("w", m.Slice(0, 6), dtype.Float32) }, "not whole"},
		{"unaligned", func(c *Communicator, m device.Memory) { c.AllReduce("w", m.Slice(2, 4), dtype.Float32) }, "aligned"},
		{"root", func(c *Communicator, m device.Memory) { c.Broadcast("w", m, 2) }, "ranks 0 to 1"},
		{"negative root", func(c *Communicator, m device.Memory) { c.Broadcast("w", m, -1) }, "ranks 0 to 1"},
		{"host", func(c *Communicator, m device.Memory) { c.Broadcast("w", host, 0) }, "host's memory"},
		{"host part", func(c *Communicator, m device.Memory) { c.AllGather("w", m.Slice(0, 16), host) }, "host's memory"},
		{"foreign", func(c *Communicator, m device.Memory) { c.Broadcast("w", device.DeviceMemory(64, 64), 0) }, "ncclBroadcast: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			libraries(t)
			w, start := newWorld(t, 2, long), time.Now()
			wantErrors(t, w.onEach(func(r int, c *Communicator) {
				if r == 1 {
					test.call(c, memory(t, w.devices[1], make([]byte, 64)))
					return
				}
				c.Barrier("w")
			}), "of w", test.want)
			inTime(t, start)
		})
	}
}

func TestAnAsynchronousErrorFailsAllRanks(t *testing.T) {
	l := libraries(t)
	w, start := newWorld(t, 3, long), time.Now()
	fault(t, l, "nccl_async:code=6:rank=1")
	errs := w.onEach(func(r int, c *Communicator) { collectives["all-gather"](t, w, c) })
	wantErrors(t, errs, "all-gather of h.3/bf16 (sequence 1)", "asynchronous error of NCCL", "(6)")
	var status *Error
	if !errors.As(errs[1], &status) || status.Code != 6 || status.Text == "" {
		t.Errorf("rank 1: %v", errs[1])
	}
	inTime(t, start)
}

func TestRanksThatDisagreeFail(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	errs := w.onEach(func(r int, c *Communicator) {
		c.AllReduce("w", memory(t, w.devices[r], make([]byte, 8+8*r)), dtype.Float32)
	})
	wantErrors(t, errs, "all-reduce of w", "rank 1 calls ncclAllReduce(count 4")
	inTime(t, start)
}

func TestAStatusIsAnErrorWithNCCLsWords(t *testing.T) {
	l := libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	fault(t, l, "ncclAllGather:3")
	errs := w.onEach(func(_ int, c *Communicator) { collectives["all-gather"](t, w, c) })
	wantErrors(t, errs, "all-gather of h.3/bf16 (sequence 1)", "ncclAllGather: internal error", "(3)")
	inTime(t, start)
}

func TestAbortFailsPendingAndFutureCollectivesOfAllRanks(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 3, long), time.Now()
	cause := errors.New("the loss is NaN")
	time.AfterFunc(50*time.Millisecond, func() { w.ranks[0].Abort(cause) })
	errs := w.onEach(func(r int, c *Communicator) {
		if r > 0 {
			c.Barrier("step 4")
		}
		for r == 0 && c.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		if r == 0 {
			c.Barrier("step 4")
		}
	})
	wantErrors(t, errs, "barrier of step 4 (sequence 1)", "the loss is NaN")
	for r, err := range errs {
		if !errors.Is(err, cause) || !errors.Is(w.ranks[r].Err(), cause) {
			t.Errorf("rank %d: %v does not wrap the cause", r, err)
		}
		var began *comm.AbortError
		if !errors.As(err, &began) || began.Rank != 0 {
			t.Errorf("rank %d: %v does not say where it began", r, err)
		}
		w.ranks[r].Barrier("step 5")
		wantRankError(t, finished(w.ranks[r], w.ranks[r].gather), r, "the loss is NaN")
	}
	w.ranks[1].Abort(nil)
	inTime(t, start)
}

func TestAFailedCopyFailsThePeersToo(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	errs := w.onEach(func(r int, c *Communicator) {
		m := memory(t, w.devices[r], make([]byte, 8))
		if r == 1 {
			c.gather.Copy(m.Slice(0, 4), m.Slice(0, 5))
		}
		c.AllGather("w", m, m.Slice(int64(4*r), 4))
	})
	wantRankError(t, errs[0], 0, "all-gather of w", "the destination has 4 bytes, the source 5")
	wantWords(t, errs[1], "the destination has 4 bytes, the source 5")
	inTime(t, start)
}

func TestARankThatClosesFailsThoseThatWaitForIt(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 3, long), time.Now()
	var wait sync.WaitGroup // for those that ask for a collective after the barrier
	wait.Add(2)
	errs := w.onEach(func(r int, c *Communicator) {
		c.Barrier("start")
		_ = finished(c, c.gather)
		if r == 1 {
			go func() {
				wait.Wait()
				_ = c.Close()
			}()
			return
		}
		collectives["all-gather"](t, w, c)
		wait.Done()
	})
	for _, r := range []int{0, 2} {
		wantRankError(t, errs[r], r, "all-gather of h.3/bf16 (sequence 2)", "rank 1 left the group after 1 collectives")
	}
	inTime(t, start)
}

func TestAFailedJobFailsItsCommunicators(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	boom := errors.New("boom")
	time.AfterFunc(50*time.Millisecond, func() { w.controls[1].Abort(boom) })
	errs := w.onEach(func(r int, c *Communicator) {
		for r == 1 && c.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		c.Barrier("step")
	})
	wantErrors(t, errs, "barrier of step", "boom")
	inTime(t, start)
}

// A launcher cancels the context when it hears of the failure; the collective is
// named all the same.
func TestAContextThatEndsWithTheJobNamesTheCollective(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	ctx, cancel := context.WithCancelCause(context.Background())
	c := w.ranks[0]
	c.Barrier("step")
	e := c.gather.Record()
	boom := errors.New("boom")
	w.controls[1].Abort(boom)
	<-w.controls[0].Failed()
	cancel(boom)
	wantRankError(t, c.Synchronize(ctx, e), 0, "barrier of step (sequence 1)", "rank 1: boom")
	inTime(t, start)
}

func TestCollectivesAfterCloseFail(t *testing.T) {
	libraries(t)
	w := newWorld(t, 1, long)
	c := w.ranks[0]
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.Barrier("late")
	wantRankError(t, finished(c, c.gather), 0, "barrier of late", "after Close")
}

func TestCloseEndsTheGoroutines(t *testing.T) {
	libraries(t)
	w := openDevices(t, 3)
	before := runtime.NumGoroutine()
	for range 3 {
		if err := errors.Join(w.join(long, w.controls)...); err != nil {
			t.Fatal(err)
		}
		checkAll(t, w.onEach(func(_ int, c *Communicator) { c.Barrier("b") }))
		if err := w.close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
}
