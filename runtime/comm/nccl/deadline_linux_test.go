package nccl

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
)

func TestAMissingRankIsNamedOnAllRanksAtTheDeadline(t *testing.T) {
	for name, call := range collectives {
		t.Run(name, func(t *testing.T) {
			libraries(t)
			w, start := newWorld(t, 3, long), time.Now()
			awake := make(chan struct{})
			go func() {
				defer close(awake)
				w.overdue(2, 0, 2)
				<-w.ranks[1].watched // it has heard of it
			}()
			errs := w.onEach(func(r int, c *Communicator) {
				c.Barrier("start")
				if r == 1 {
					<-awake
				}
				call(t, w, c)
			})
			for _, r := range []int{0, 2} {
				var e *comm.Error
				wantRankError(t, errs[r], r, name+" of h.3/bf16 (sequence 2)", "no sign of ranks [1]")
				if errors.As(errs[r], &e) && (!slices.Equal(e.Missing, []int{1}) || e.Sequence != 2) {
					t.Errorf("rank %d: %+v", r, e)
				}
			}
			wantRankError(t, errs[1], 1, "no sign of ranks [1]")
			inTime(t, start)
		})
	}
}

// The rank has asked for the collective, but its GPU never comes to it.
func TestAGPUThatIsStuckFailsAllRanksAtTheDeadline(t *testing.T) {
	l := libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	fault(t, l, "dead:rank=1")
	go w.overdue(1, 0, 1)
	errs := w.onEach(func(r int, c *Communicator) { collectives["all-reduce"](t, w, c) })
	wantErrors(t, errs, "all-reduce of h.3/bf16 (sequence 1)", "though all ranks have asked for it")
	inTime(t, start)
}

// Rank 0 is done with the first collective, which has no bytes, and waits in the
// second; rank 1 has asked for both, but its GPU has other work before them.
func TestARankWhoseGPUIsStuckInAnEarlierCollectiveIsNamed(t *testing.T) {
	l := libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	const sideOfRank1 = 3 // rank 0 has no such stream
	side := openStream(t, w.devices[1])
	fault(t, l, fmt.Sprintf("slow:stream=%d:ms=500", sideOfRank1))
	go w.overdue(2, 0)
	errs := w.onEach(func(r int, c *Communicator) {
		if r == 1 {
			c.gather.Wait(side.Record())
		}
		c.AllGather("nothing", device.Memory{}, device.Memory{})
		collectives["all-gather"](t, w, c)
	})
	var e *comm.Error
	wantRankError(t, errs[0], 0, "all-gather of h.3/bf16 (sequence 2)", "no sign of ranks [1]")
	if errors.As(errs[0], &e) && !slices.Equal(e.Missing, []int{1}) {
		t.Errorf("%+v", e)
	}
	wantRankError(t, errs[1], 1, "all-gather of nothing (sequence 1)")
	inTime(t, start)
}

func openStream(t *testing.T, d *cuda.Device) *cuda.Stream {
	t.Helper()
	s, err := d.OpenStream("another")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestAQueueLongerThanTheTimeoutIsInTimeWhileItProgresses(t *testing.T) {
	l := libraries(t)
	const timeout = 200 * time.Millisecond
	w := newWorld(t, 1, timeout)
	fault(t, l, "slow:stream:ms=20")
	start := time.Now()
	checkAll(t, w.onEach(func(_ int, c *Communicator) {
		for range 8 {
			c.Barrier("b")
		}
	}))
	if took := time.Since(start); took <= timeout {
		t.Errorf("the queue is done after %v, expected more than the timeout of %v", took, timeout)
	}
}

// NCCL itself says nothing of ranks that disagree.
func TestRanksThatDisagreeAreNamedAtTheDeadlineWhereNCCLHangs(t *testing.T) {
	gather := func(c *Communicator, m device.Memory, r int) {
		c.AllGather("h.3/bf16", m.Slice(0, 12), m.Slice(int64(4*r), 4))
	}
	for name, test := range map[string]struct {
		odd  func(c *Communicator, m device.Memory) // of rank 1
		want string
	}{
		"operation": {func(c *Communicator, m device.Memory) { c.AllReduce("h.3/bf16", m.Slice(0, 4), dtype.Float32) }, "rank 1 for all-reduce of h.3/bf16 (4 bytes)"},
		"subject": {func(c *Communicator, m device.Memory) {
			c.AllGather("h.2/bf16", m.Slice(0, 24), m.Slice(8, 8))
		}, "rank 1 for all-gather of h.2/bf16 (8 bytes)"},
		"root":    {func(c *Communicator, m device.Memory) { c.Broadcast("h.3/bf16", m, 2) }, "rank 1 for broadcast of h.3/bf16 (64 bytes from rank 2)"},
		"barrier": {func(c *Communicator, m device.Memory) { c.Barrier("end") }, "rank 1 for barrier of end"},
	} {
		t.Run(name, func(t *testing.T) {
			l := libraries(t)
			w, start := newWorld(t, 3, long), time.Now()
			fault(t, l, "mixed")
			go w.overdue(2, 0, 1, 2)
			wantErrors(t, w.onEach(func(r int, c *Communicator) {
				c.Barrier("start")
				m := memory(t, w.devices[r], make([]byte, 64))
				if r == 1 {
					test.odd(c, m)
				} else {
					gather(c, m, r)
				}
				c.Barrier("behind it")
			}), "different collectives", "as sequence 2 rank 0 asked for all-gather of h.3/bf16 (4 bytes), "+test.want)
			inTime(t, start)
		})
	}
}

// What is done on one rank may be what another hangs in.
func TestRequestsAreKnownWhenTheyAreDone(t *testing.T) {
	libraries(t)
	w := newWorld(t, 1, long)
	c := w.ranks[0]
	for range 2 * ringLength {
		c.Barrier("b")
	}
	if err := finished(c, c.gather); err != nil {
		t.Fatal(err)
	}
	last := uint64(warmUps + 2*ringLength)
	for until, want := range map[uint64]int{0: 0, last: comparedRequests, last - 100: comparedRequests, last + 7: comparedRequests, last - ringLength + 1: 1, 3: 0} {
		p := member{c}.Progress(until)
		if len(p.Requests) != want {
			t.Errorf("until %d: %d requests, expected %d", until, len(p.Requests), want)
		}
		for _, q := range p.Requests {
			if q.Operation != comm.Barrier || q.Subject != "b" || q.Sequence > until {
				t.Errorf("until %d: %+v", until, q)
			}
		}
	}
}

func TestWithoutControlTheDeadlineStillHolds(t *testing.T) {
	libraries(t)
	w := openDevices(t, 2)
	if err := errors.Join(w.join(long, nil)...); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.ranks[0].Barrier("alone")
	w.overdue(1, 0)
	wantRankError(t, finished(w.ranks[0], w.ranks[0].gather), 0, "barrier of alone (sequence 1)", "it is not done after 1h0m0s")
	inTime(t, start)
}
