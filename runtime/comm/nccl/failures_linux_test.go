package nccl

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu/double"
	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
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

func wantRankError(t *testing.T, err error, r int, words ...string) {
	t.Helper()
	var e *comm.Error
	if !errors.As(err, &e) || e.Rank != r {
		t.Errorf("rank %d: %v, expected a comm.Error of its own", r, err)
		return
	}
	wantWords(t, err, words...)
}

func TestAMissingRankIsNamedOnAllRanksAtTheDeadline(t *testing.T) {
	for name, call := range collectives {
		t.Run(name, func(t *testing.T) {
			libraries(t)
			w, start := newWorld(t, 3, 300*time.Millisecond), time.Now()
			awake, meet := make(chan struct{}), meeting(3)
			errs := w.onEach(func(r int, c *Communicator) {
				c.Barrier("start")
				_ = finished(c, c.gather)
				meet()
				if r == 1 {
					<-awake
				}
				call(t, w, c)
				_ = finished(c, c.gather)
				if r == 0 {
					_ = finished(c, c.reduce)
					close(awake)
				}
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

var collectives = map[string]func(*testing.T, *world, *Communicator){
	"all-gather": func(t *testing.T, w *world, c *Communicator) {
		m := memory(t, w.devices[c.rank], make([]byte, 4*c.size))
		c.AllGather("h.3/bf16", m, m.Slice(int64(4*c.rank), 4))
	},
	"reduce-scatter": func(t *testing.T, w *world, c *Communicator) {
		m := memory(t, w.devices[c.rank], make([]byte, 4*c.size))
		c.ReduceScatter("h.3/bf16", m.Slice(int64(4*c.rank), 4), m, dtype.Float32)
	},
	"all-reduce": func(t *testing.T, w *world, c *Communicator) {
		c.AllReduce("h.3/bf16", memory(t, w.devices[c.rank], make([]byte, 12)), dtype.Float32)
	},
	"broadcast": func(t *testing.T, w *world, c *Communicator) {
		c.Broadcast("h.3/bf16", memory(t, w.devices[c.rank], make([]byte, 4)), 1)
	},
	"barrier": func(_ *testing.T, _ *world, c *Communicator) { c.Barrier("h.3/bf16") },
}

// The rank has asked for the collective, but its GPU never comes to it.
func TestAGPUThatIsStuckFailsAllRanksAtTheDeadline(t *testing.T) {
	l := libraries(t)
	w, start := newWorld(t, 2, 200*time.Millisecond), time.Now()
	fault(t, l, "dead:rank=1")
	errs := w.onEach(func(r int, c *Communicator) { collectives["all-reduce"](t, w, c) })
	wantErrors(t, errs, "all-reduce of h.3/bf16 (sequence 1)", "though all ranks have asked for it")
	inTime(t, start)
}

// Rank 0 is done with the first collective, which has no bytes, and waits in the
// second; rank 1 has asked for both.
func TestARankWhoseGPUIsStuckInAnEarlierCollectiveIsNamed(t *testing.T) {
	l := libraries(t)
	w := openDevices(t, 2)
	for range 2 { // so that rank 1's streams have numbers of their own
		openStream(t, w.devices[1])
	}
	checkAll(t, w.joinEach([]time.Duration{150 * time.Millisecond, long}, w.controls))
	const gatherOfRank1 = 3
	fault(t, l, fmt.Sprintf("slow:stream=%d:ms=500", gatherOfRank1))
	start := time.Now()
	errs := w.onEach(func(r int, c *Communicator) {
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

func openStream(t *testing.T, d *cuda.Device) {
	t.Helper()
	s, err := d.OpenStream("another")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
}

func TestAQueueLongerThanTheTimeoutIsInTimeWhileItProgresses(t *testing.T) {
	l := libraries(t)
	const timeout = 400 * time.Millisecond
	w := newWorld(t, 1, timeout)
	fault(t, l, "slow:stream:ms=20")
	start := time.Now()
	checkAll(t, w.onEach(func(_ int, c *Communicator) {
		for range 20 {
			c.Barrier("b")
		}
	}))
	if took := time.Since(start); took <= timeout {
		t.Errorf("the queue is done after %v, expected more than the timeout of %v", took, timeout)
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
			w, start := newWorld(t, 3, 300*time.Millisecond), time.Now()
			fault(t, l, "mixed")
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

func TestCommunicatorsThatDoNotBlockAreRefused(t *testing.T) {
	l := libraries(t)
	t.Setenv("NCCL_COMM_BLOCKING", "0")
	w, start := openDevices(t, 2), time.Now()
	for r, err := range w.join(long, w.controls) {
		wantWords(t, err, fmt.Sprintf("rank %d of 2 joins the communicator", r), "unset NCCL_COMM_BLOCKING")
	}
	// A rank that hears of the other's refusal first is back before its abort is.
	leaked := func() bool {
		return slices.ContainsFunc(l.Check(), func(finding string) bool { return strings.Contains(finding, "communicators") })
	}
	for leaked() && time.Since(start) < 5*time.Second {
		time.Sleep(5 * time.Millisecond)
	}
	if leaked() {
		t.Error("a communicator is never destroyed")
	}
	inTime(t, start)
}

func TestAFirstConnectionThatFailsIsTheErrorOfNew(t *testing.T) {
	l := libraries(t)
	fault(t, l, "ncclReduceScatter:2:device=1")
	w, start := openDevices(t, 2), time.Now()
	errs := w.join(long, w.controls)
	wantWords(t, errs[1], "connecting the ranks")
	for r, err := range errs {
		wantWords(t, err, fmt.Sprintf("rank %d of 2 joins the communicator", r), "reduce-scatter of the first connection", "ncclReduceScatter: unhandled system error")
	}
	inTime(t, start)
	for _, d := range w.devices {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, finding := range l.Check() {
		t.Error(finding)
	}
}

func TestTheContextEndsTheFirstConnections(t *testing.T) {
	l := libraries(t)
	fault(t, l, "dead:rank=0")
	w, start := openDevices(t, 1), time.Now()
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err = New(ctx, Options{Device: w.devices[0], Size: 1, ID: id, Timeout: long})
	wantWords(t, err, "connecting the ranks", "enough")
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
	errs := w.onEach(func(r int, c *Communicator) {
		c.Barrier("start")
		_ = finished(c, c.gather)
		if r == 1 {
			return
		}
		collectives["all-gather"](t, w, c)
		if r == 0 {
			go func() { _ = w.ranks[1].Close() }()
		}
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

func TestAGroupsEndIsThatOfItsSplits(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	halves := make([]comm.Communicator, 2)
	errs := w.onEach(func(r int, c *Communicator) {
		half, err := c.Split(context.Background(), "all again", 0, r)
		if err != nil {
			t.Error(err)
			return
		}
		halves[r] = half
		if r == 0 {
			half.Barrier("in the split")
			time.AfterFunc(20*time.Millisecond, func() { c.Abort(errors.New("over")) })
			wantWords(t, finished(half, half.GatherStream()), "barrier of in the split", "over")
		}
	})
	checkAll(t, errs)
	for _, half := range halves {
		_ = half.Close()
	}
	inTime(t, start)
}

func TestASplitThatARankDoesNotJoinNamesIt(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 3, 200*time.Millisecond), time.Now()
	w.onEach(func(r int, c *Communicator) {
		if r == 2 {
			return
		}
		_, err := c.Split(context.Background(), "experts", 0, 0)
		wantWords(t, err, "splitting the group", "all-gather of experts", "no sign of ranks [2]")
	})
	inTime(t, start)
}

func TestTheContextEndsASplit(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err := w.ranks[0].Split(ctx, "experts", 0, 0)
	wantWords(t, err, "enough")
	inTime(t, start)
}

func TestWithoutControlTheDeadlineStillHolds(t *testing.T) {
	libraries(t)
	w := openDevices(t, 2)
	if err := errors.Join(w.join(200*time.Millisecond, nil)...); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.ranks[0].Barrier("alone")
	wantRankError(t, finished(w.ranks[0], w.ranks[0].gather), 0, "barrier of alone (sequence 1)", "it is not done after 200ms")
	inTime(t, start)
}

func TestNewRefusesWhatMakesNoSense(t *testing.T) {
	libraries(t)
	w := openDevices(t, 1)
	good := Options{Device: w.devices[0], Size: 1, ID: ID{1}}
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"device":  {func(o *Options) { o.Device = nil }, "cuda.Open"},
		"size":    {func(o *Options) { o.Size = 0 }, "0 ranks"},
		"huge":    {func(o *Options) { o.Size = maxRanks + 1 }, "expected 1 to"},
		"rank":    {func(o *Options) { o.Rank = 1 }, "rank 1 of 1"},
		"id":      {func(o *Options) { o.ID = ID{} }, "NewID"},
		"timeout": {func(o *Options) { o.Timeout = -1 }, "negative"},
		"control": {func(o *Options) { o.Size, o.Control = 2, w.controls[0] }, "the control group has 1 ranks"},
	} {
		o := good
		c.change(&o)
		_, err := New(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnIDServesOnce(t *testing.T) {
	libraries(t)
	w := openDevices(t, 1)
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c, err := New(context.Background(), Options{Device: w.devices[0], Size: 1, ID: id, Control: w.controls[0]})
		if i == 0 && err != nil || i == 1 && (err == nil || !strings.Contains(err.Error(), "id may be used once")) {
			t.Errorf("use %d: %v", i, err)
		}
		if c != nil {
			_ = c.Close()
		}
	}
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

// Rank 2 waits inside NCCL when rank 0 comes, whose deadline is over first.
func TestARankThatDoesNotJoinIsNamed(t *testing.T) {
	l := libraries(t)
	w := openDevices(t, 3)
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	join := func(r int, timeout time.Duration) error {
		_, err := New(context.Background(), Options{Device: w.devices[r], Rank: r, Size: 3, ID: id, Timeout: timeout, Control: w.controls[r]})
		return err
	}
	second := make(chan error)
	go func() { second <- join(2, long) }()
	for l.Calls("ncclCommInitRank") == 0 {
		time.Sleep(time.Millisecond)
	}
	wantWords(t, join(0, 100*time.Millisecond), "rank 0 of 3 joins the communicator", "no sign of ranks [1] within 100ms")
	wantWords(t, <-second, "rank 2 of 3 joins the communicator", "rank 0: no sign of ranks [1] within 100ms")
	inTime(t, start)
}

func TestWhatEndsJoiningEndsItOnAllRanks(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(w *world, cancel func(error))
		want string
	}{
		"context": {func(_ *world, cancel func(error)) { cancel(errors.New("enough")) }, "enough"},
		"job":     {func(w *world, _ func(error)) { w.controls[1].Abort(errors.New("out of memory")) }, "out of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			libraries(t)
			w, start := openDevices(t, 2), time.Now()
			id, err := NewID()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(50*time.Millisecond, func() { c.end(w, cancel) })
			_, err = New(ctx, Options{Device: w.devices[0], Rank: 0, Size: 2, ID: id, Timeout: long, Control: w.controls[0]})
			wantWords(t, err, c.want)
			inTime(t, start)
		})
	}
}

// A launcher closes the device while NCCL still waits for the other rank, which
// comes after all.
func TestAnAbandonedInitIsAbortedAlsoWhereTheDeviceIsClosed(t *testing.T) {
	l := libraries(t)
	w, start := openDevices(t, 2), time.Now()
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		for l.Calls("ncclCommInitRank") == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel(errors.New("enough"))
	}()
	_, err = New(ctx, Options{Device: w.devices[0], Rank: 0, Size: 2, ID: id, Timeout: long})
	wantWords(t, err, "enough")
	if err := w.devices[0].Close(); err != nil {
		t.Error(err)
	}
	_, err = New(context.Background(), Options{Device: w.devices[1], Rank: 1, Size: 2, ID: id, Timeout: 100 * time.Millisecond})
	wantWords(t, err, "connecting the ranks")
	double.AwaitAbandoned()
	if err := w.devices[1].Close(); err != nil {
		t.Error(err)
	}
	for _, finding := range l.Check() {
		t.Error(finding)
	}
	if held, released := l.Calls("cuDevicePrimaryCtxRetain"), l.Calls("cuDevicePrimaryCtxRelease_v2"); held != released {
		t.Errorf("contexts: %d retained, %d released", held, released)
	}
	inTime(t, start)
}

func TestAnErrorOfJoiningFailsAllRanks(t *testing.T) {
	l := libraries(t)
	fault(t, l, "nccl_init:code=6:ms=10")
	w := openDevices(t, 2)
	start := time.Now()
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(context.Background(), Options{Device: w.devices[0], Rank: 0, Size: 2, ID: id, Timeout: long, Control: w.controls[0]})
	var status *Error
	if !errors.As(err, &status) || status.Operation != "ncclCommInitRank" || status.Code != 6 {
		t.Errorf("%v", err)
	}
	_, err = New(context.Background(), Options{Device: w.devices[1], Rank: 1, Size: 2, ID: id, Timeout: long, Control: w.controls[1]})
	wantWords(t, err, "ncclCommInitRank")
	inTime(t, start)
}

func TestBothRanksOnOneGPUIsNCCLsError(t *testing.T) {
	libraries(t)
	w := openDevices(t, 2)
	second, err := cuda.Open(0, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.devices[1] = second
	start := time.Now()
	for _, err := range w.join(long, w.controls) {
		wantWords(t, err, "Duplicate GPU")
	}
	inTime(t, start)
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}
