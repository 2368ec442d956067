package local_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/local"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// long is a deadline that no test reaches: what fails before it fails by other
// means. A second is far from both.
const long = time.Hour

func inTime(t *testing.T, start time.Time) {
	t.Helper()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// wantErrors checks that every rank has a comm.Error of its own that mentions
// all the words.
func wantErrors(t *testing.T, errs []error, words ...string) {
	t.Helper()
	for r, err := range errs {
		var e *comm.Error
		if !errors.As(err, &e) || e.Rank != r {
			t.Errorf("rank %d: %v, expected a comm.Error of its own", r, err)
			continue
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("rank %d: %q does not mention %q", r, err, word)
			}
		}
	}
}

func TestDisagreementFailsAllRanksAtOnceAndNamesBothSides(t *testing.T) {
	small, large := dirty(t, 64), dirty(t, 128)
	gather := func(subject string, bytes int64) func(comm.Communicator) {
		return func(c comm.Communicator) { c.AllGather(subject, dirty(t, 2*bytes), dirty(t, bytes)) }
	}
	for _, test := range []struct {
		name  string
		calls [2]func(comm.Communicator)
		words []string
	}{
		{"subject", [2]func(comm.Communicator){gather("h.0/bf16", 32), gather("h.1/bf16", 32)},
			[]string{"rank 0 wants all-gather of h.0/bf16", "rank 1 wants all-gather of h.1/bf16"}},
		{"size", [2]func(comm.Communicator){gather("w", 8), gather("w", 6)},
			[]string{"rank 0 wants all-gather of w (8 bytes a rank)", "rank 1 wants all-gather of w (6 bytes a rank)"}},
		{"operation", [2]func(comm.Communicator){
			gather("w", 8),
			func(c comm.Communicator) { c.ReduceScatter("w", small, large, dtype.Float32) },
		}, []string{"rank 0 wants all-gather of w", "rank 1 wants reduce-scatter of w (64 bytes of f32)"}},
		{"dtype", [2]func(comm.Communicator){
			func(c comm.Communicator) { c.AllReduce("w", small, dtype.Float32) },
			func(c comm.Communicator) { c.AllReduce("w", large.Slice(0, 64), dtype.Float64) },
		}, []string{"bytes of f32", "bytes of f64"}},
		{"root", [2]func(comm.Communicator){
			func(c comm.Communicator) { c.Broadcast("w", small, 0) },
			func(c comm.Communicator) { c.Broadcast("w", large.Slice(0, 64), 1) },
		}, []string{"from rank 0", "from rank 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, start := newGroup(t, 2, long), time.Now()
			wantErrors(t, onEach(g, func(r int, c comm.Communicator) { test.calls[r](c) }), test.words...)
			inTime(t, start)
			if g.Err() == nil {
				t.Error("the group works on")
			}
		})
	}
}

func TestARankThatSkipsAGatherIsNamedAtItsNext(t *testing.T) {
	g, start := newGroup(t, 4, long), time.Now()
	errs := onEach(g, func(r int, c comm.Communicator) {
		for _, expert := range []string{"expert.0", "expert.1"} {
			if r != 2 || expert != "expert.0" {
				c.AllGather(expert, dirty(t, 16), dirty(t, 4))
			}
		}
	})
	wantErrors(t, errs, "wants all-gather of expert.0", "rank 2 wants all-gather of expert.1")
	inTime(t, start)
}

func TestWrongArgumentsFailAllRanks(t *testing.T) {
	for _, test := range []struct {
		name string
		call func(comm.Communicator)
		want string
	}{
		{"gather", func(c comm.Communicator) { c.AllGather("w", dirty(t, 10), dirty(t, 4)) }, "expected 2 times the part"},
		{"scatter", func(c comm.Communicator) { c.ReduceScatter("w", dirty(t, 10), dirty(t, 16), dtype.Float32) }, "expected 2 times the part"},
		{"bool", func(c comm.Communicator) { c.AllReduce("w", dirty(t, 8), dtype.Bool) }, "elements of bool can't be summed"},
		{"f8", func(c comm.Communicator) { c.AllReduce("w", dirty(t, 8), dtype.Float8E4M3) }, "elements of f8e4m3 can't be summed"},
		{"no dtype", func(c comm.Communicator) { c.AllReduce("w", dirty(t, 8), dtype.Invalid) }, "can't be summed"},
		{"half an element", func(c comm.Communicator) { c.AllReduce("w", dirty(t, 6), dtype.Float32) }, "not whole"},
		{"unaligned", func(c comm.Communicator) { c.AllReduce("w", dirty(t, 8).Slice(2, 4), dtype.Float32) }, "aligned"},
		{"root", func(c comm.Communicator) { c.Broadcast("w", dirty(t, 8), 2) }, "ranks 0 to 1"},
		{"device", func(c comm.Communicator) { c.Broadcast("w", device.DeviceMemory(64, 64), 0) }, "can't address"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g, start := newGroup(t, 2, long), time.Now()
			wantErrors(t, onEach(g, func(r int, c comm.Communicator) {
				if r == 1 {
					test.call(c)
					return
				}
				c.Barrier("w")
			}), "of w", test.want)
			inTime(t, start)
		})
	}
}

var collectives = map[string]func(*testing.T, comm.Communicator){
	"all-gather": func(t *testing.T, c comm.Communicator) { c.AllGather("h.3/bf16", dirty(t, 12), dirty(t, 4)) },
	"reduce-scatter": func(t *testing.T, c comm.Communicator) {
		c.ReduceScatter("h.3/bf16", dirty(t, 4), dirty(t, 12), dtype.Float32)
	},
	"all-reduce": func(t *testing.T, c comm.Communicator) { c.AllReduce("h.3/bf16", dirty(t, 12), dtype.Float32) },
	"broadcast":  func(t *testing.T, c comm.Communicator) { c.Broadcast("h.3/bf16", dirty(t, 4), 1) },
	"barrier":    func(_ *testing.T, c comm.Communicator) { c.Barrier("h.3/bf16") },
}

func TestARankThatLeavesFailsThoseThatWaitForIt(t *testing.T) {
	for name, call := range collectives {
		for _, before := range []bool{true, false} {
			g, start := newGroup(t, 3, long), time.Now()
			errs := onEach(g, func(r int, c comm.Communicator) {
				c.Barrier("start")
				_ = c.Synchronize(context.Background(), c.GatherStream().Record())
				if r != 1 {
					call(t, c)
					return
				}
				if !before {
					time.Sleep(20 * time.Millisecond) // the others are asleep by now
				}
				g.Leave(1, errors.New("out of luck"))
			})
			if errs[1] != nil {
				t.Errorf("%s: the rank that left had no collective, but %v", name, errs[1])
			}
			for _, r := range []int{0, 2} {
				var e *comm.Error
				if !errors.As(errs[r], &e) || e.Subject != "h.3/bf16" || e.Operation.String() != name ||
					!strings.Contains(errs[r].Error(), "rank 1 left the group: out of luck") {
					t.Errorf("%s: rank %d: %v", name, r, errs[r])
				}
			}
			inTime(t, start)
		}
	}
}

// The rank's memory may be gone by the time that the others come.
func TestARankThatLeavesWithAnErrorTakesItsCollectivesAlong(t *testing.T) {
	g := newGroup(t, 2, long)
	start, left := time.Now(), make(chan struct{})
	wantErrors(t, onEach(g, func(r int, c comm.Communicator) {
		if r == 0 {
			<-left
		}
		c.AllGather("h.3/bf16", dirty(t, 8), dirty(t, 4))
		if r == 1 {
			g.Leave(1, errors.New("out of luck"))
			close(left)
		}
	}), "all-gather of h.3/bf16", "rank 1 left the group: out of luck")
	inTime(t, start)
}

func TestCloseReturnsWhatNobodyWasTold(t *testing.T) {
	for _, told := range []bool{true, false} {
		g := newGroup(t, 2, long)
		g.Communicator(0).AllGather("w", dirty(t, 8), dirty(t, 4))
		if told {
			g.Leave(0, errors.New("known"))
		}
		err := g.Close()
		if told && err != nil || !told && (err == nil || !strings.Contains(err.Error(), "rank 1 left the group")) {
			t.Errorf("told %v: Close returned %v", told, err)
		}
	}
}

func TestASleepingRankIsNamedAtTheDeadline(t *testing.T) {
	for name, call := range collectives {
		g := newGroup(t, 3, 50*time.Millisecond)
		start, awake := time.Now(), make(chan struct{})
		errs := onEach(g, func(r int, c comm.Communicator) {
			if r == 1 {
				<-awake
			}
			call(t, c)
			err := c.Synchronize(context.Background(), c.GatherStream().Record())
			if r == 0 {
				close(awake)
			}
			var e *comm.Error
			if r != 1 && (!errors.As(err, &e) || !slices.Equal(e.Missing, []int{1}) || e.Rank != r || e.Sequence != 1 || e.Subject != "h.3/bf16") {
				t.Errorf("%s: rank %d: %v, expected an error that names rank 1", name, r, err)
			}
		})
		if errs[1] == nil || !strings.Contains(errs[1].Error(), "no sign of ranks [1]") {
			t.Errorf("%s: the rank that slept: %v", name, errs[1])
		}
		inTime(t, start)
	}
}

func TestAPanicIsTheErrorOfTheOthers(t *testing.T) {
	g, start := newGroup(t, 4, long), time.Now()
	errs := onEach(g, func(r int, c comm.Communicator) {
		if r == 3 {
			defer func() { g.Leave(3, errors.New(recover().(string))) }()
			panic("index out of range")
		}
		c.AllReduce("norm", dirty(t, 16), dtype.Float64)
	})
	wantErrors(t, errs[:3], "all-reduce of norm", "rank 3 left the group: index out of range")
	inTime(t, start)
}

func TestLeavingAfterTheWorkIsFine(t *testing.T) {
	g := newGroup(t, 3, long)
	checkAll(t, onEach(g, func(r int, c comm.Communicator) {
		for range 10 {
			c.Broadcast("w", dirty(t, 8), 0)
		}
		if r == 2 {
			g.Leave(r, nil) // its collectives are on its stream
		}
	}))
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

func TestAbortWakesAllRanks(t *testing.T) {
	cause := errors.New("the loss is NaN")
	for _, test := range []struct {
		name  string
		abort func(*local.Group)
	}{
		{"group", func(g *local.Group) { g.Abort(cause) }},
		{"rank", func(g *local.Group) { g.Communicator(0).Abort(cause) }},
	} {
		g, start := newGroup(t, 3, long), time.Now()
		time.AfterFunc(20*time.Millisecond, func() { test.abort(g) })
		errs := onEach(g, func(r int, c comm.Communicator) {
			if r > 0 {
				c.Barrier("step 4")
				c.Barrier("step 5")
			}
			for r == 0 && c.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			c.Barrier("step 4")
		})
		wantErrors(t, errs, "barrier of step 4 (sequence 1)", "the loss is NaN")
		for _, err := range errs {
			if !errors.Is(err, cause) {
				t.Errorf("%s: %v does not wrap the cause", test.name, err)
			}
		}
		inTime(t, start)
	}
}

func TestAFailedKernelFailsThePeersToo(t *testing.T) {
	g, start := newGroup(t, 2, long), time.Now()
	errs := onEach(g, func(r int, c comm.Communicator) {
		if r == 1 {
			c.GatherStream().Copy(dirty(t, 4), dirty(t, 5))
		}
		c.AllGather("w", dirty(t, 8), dirty(t, 4))
	})
	wantErrors(t, errs[:1], "all-gather of w", "the destination has 4 bytes, the source 5")
	if errs[1] == nil || strings.Contains(errs[1].Error(), "all-gather") {
		t.Errorf("rank 1: %v, expected its own copy's error", errs[1])
	}
	inTime(t, start)
}

// Ranks give their memory back as soon as their collective has failed. A peer
// that still read it would be killed by the system, or show in the race
// detector.
func TestNoRankTouchesMemoryOfAFailedCollective(t *testing.T) {
	for i := range 200 {
		g := newGroup(t, 3, long)
		var wait sync.WaitGroup
		wait.Go(func() {
			time.Sleep(time.Duration(i) * time.Microsecond)
			g.Abort(errors.New("now"))
		})
		onEach(g, gatherAndFree(t))
		wait.Wait()
	}
}
