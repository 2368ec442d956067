package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu/double"
	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// parts are the bytes of a rank's parts in a launch; one has none.
var parts = []int64{5, 0, 64, 1}

func TestGathersOfALaunchAreExactInOneGroup(t *testing.T) {
	eachSize(t, func(t *testing.T, w *world) {
		size := int64(len(w.ranks))
		before := built.libraries.Calls("ncclAllGather")
		checkAll(t, w.onEach(func(r int, c *Communicator) {
			var all []comm.Gather
			for i, n := range parts {
				src := memory(t, w.devices[r], bytes.Repeat([]byte{byte(10*i + r)}, int(n)))
				all = append(all, comm.Gather{Subject: fmt.Sprint("bucket ", i), Src: src, Dst: memory(t, w.devices[r], make([]byte, n*size))})
			}
			c.AllGathers(all)
			clear(all[1:]) // it isn't kept
			if finished(c, c.gather) != nil {
				return
			}
			var want []byte
			for k := range size {
				want = append(want, bytes.Repeat([]byte{byte(k)}, int(parts[0]))...)
			}
			wantContent(t, fmt.Sprintf("rank %d, bucket 0", r), w.devices[r], all[0].Dst, want)
		}))
		wantGroups(t, size, size)
		if got := built.libraries.Calls("ncclAllGather") - before; got != 3*size {
			t.Errorf("%d gathers, expected %d", got, 3*size)
		}
	})
}

// wantGroups checks how many groups were begun and ended so far.
func wantGroups(t *testing.T, starts, ends int64) {
	t.Helper()
	l := built.libraries
	if s, e := l.Calls("ncclGroupStart"), l.Calls("ncclGroupEnd"); s != starts || e != ends {
		t.Errorf("%d groups begun and %d ended, expected %d and %d", s, e, starts, ends)
	}
}

func TestReductionsOfALaunchAreExactInOneGroup(t *testing.T) {
	eachSize(t, func(t *testing.T, w *world) {
		size := len(w.ranks)
		checkAll(t, w.onEach(func(r int, c *Communicator) {
			d := w.devices[r]
			var all []comm.Reduction
			types := []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Int64}
			for _, e := range types { // element k of rank r has k+r
				values := make([]int64, 3*size)
				for k := range values {
					values[k] = int64(k + r)
				}
				src := memory(t, d, whole(t, e, values))
				part := src.Bytes() / int64(size)
				all = append(all, comm.Reduction{Subject: e.String(), Src: src, Dst: src.Slice(int64(r)*part, part), Type: e})
			}
			c.ReduceScatters(all)
			if finished(c, c.reduce) != nil {
				return
			}
			for i, e := range types {
				var want []int64
				for k := 3 * r; k < 3*r+3; k++ {
					want = append(want, int64(k*size+size*(size-1)/2))
				}
				wantContent(t, fmt.Sprintf("rank %d, %v", r, e), d, all[i].Dst, whole(t, e, want))
			}
		}))
		wantGroups(t, int64(size), int64(size))
	})
}

func TestALaunchOfOneOrNoneNeedsNoGroup(t *testing.T) {
	libraries(t)
	w := newWorld(t, 2, long)
	checkAll(t, w.onEach(func(r int, c *Communicator) {
		one, none := gathers(t, w, c, 1)[0], comm.Gather{Subject: "none"}
		for _, all := range [][]comm.Gather{nil, {none}, {none, none}, {one}, {none, one, none}} {
			c.AllGathers(all)
		}
		c.ReduceScatters(nil)
	}))
	wantGroups(t, 0, 0)
	if p := (member{w.ranks[0]}).Progress(0); p.Issued != warmUps+7 {
		t.Errorf("%d collectives were asked for, expected 7", p.Issued-warmUps)
	}
}

// gathers returns n gathers of four bytes a rank.
func gathers(t *testing.T, w *world, c *Communicator, n int) (all []comm.Gather) {
	for i := range n {
		m := memory(t, w.devices[c.rank], make([]byte, 4*c.size))
		all = append(all, comm.Gather{Subject: fmt.Sprint("h.3/", i), Dst: m, Src: m.Slice(int64(4*c.rank), 4)})
	}
	return all
}

func TestALaunchLongerThanTheRing(t *testing.T) {
	libraries(t)
	w := newWorld(t, 2, long)
	checkAll(t, w.onEach(func(r int, c *Communicator) {
		one := gathers(t, w, c, 1)[0]
		all := make([]comm.Gather, 2*ringLength+1)
		for i := range all {
			all[i] = comm.Gather{Subject: one.Subject}
		}
		all[0], all[1] = one, one
		c.AllGathers(all)
	}))
	wantGroups(t, 2, 2)
}

func TestWhatIsWrongInALaunchIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		fault string
		wrong int // a gather whose arguments are, on rank 1
		want  []string
	}{
		"arguments": {"", 1, []string{"all-gather of h.3/1 (sequence 3)", "expected 2 times the part"}},
		"call":      {"ncclAllGather:3:after=1:device=1", -1, []string{"all-gather of h.3/1 (sequence 3)", "ncclAllGather: internal error"}},
		"start":     {"ncclGroupStart:3:device=1", -1, []string{"all-gather of h.3/0 (sequence 2)", "ncclGroupStart: internal error"}},
		"end":       {"ncclGroupEnd:2:device=1", -1, []string{"all-gather of h.3/0 (sequence 2)", "started together with 2 others: ncclGroupEnd: unhandled system error"}},
		"later":     {"nccl_async:code=6:rank=1", -1, []string{"all-gather of h.3/0 (sequence 2)", "asynchronous error of NCCL"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := libraries(t)
			w, start := newWorld(t, 2, long), time.Now()
			checkAll(t, w.onEach(func(_ int, c *Communicator) { c.Barrier("start") }))
			if test.fault != "" {
				fault(t, l, test.fault)
			}
			errs := w.onEach(func(r int, c *Communicator) {
				all := gathers(t, w, c, 3)
				if r == test.wrong {
					all[1].Src = all[1].Src.Slice(0, 3)
				}
				c.AllGathers(all)
			})
			wantRankError(t, errs[1], 1, test.want...)
			wantWords(t, errs[0], test.want...)
			wantRankError(t, errs[0], 0)
			inTime(t, start)
			_ = w.close()
			wantNoFindings(t, l, "group", "Group") // also where the end failed
		})
	}
}

// wantNoFindings checks that the double found nothing about the words.
func wantNoFindings(t *testing.T, l *double.Libraries, words ...string) {
	t.Helper()
	for _, finding := range l.Check() {
		for _, word := range words {
			if strings.Contains(finding, word) {
				t.Error(finding)
			}
		}
	}
}

func TestAMissingRankOfALaunchIsNamedAtTheDeadline(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 3, long), time.Now()
	awake := make(chan struct{})
	go func() {
		defer close(awake)
		w.overdue(1, 0, 2)
		<-w.ranks[1].watched // it has heard of it
	}()
	errs := w.onEach(func(r int, c *Communicator) {
		if r == 1 {
			<-awake
		}
		c.AllGathers(gathers(t, w, c, 2))
	})
	for r := range errs {
		wantRankError(t, errs[r], r, "all-gather of h.3/0 (sequence 1)", "no sign of ranks [1]")
	}
	inTime(t, start)
}

// NCCL itself says nothing of ranks that put other things together.
func TestRanksWithOtherLaunchesAreNamed(t *testing.T) {
	for name, test := range map[string]struct {
		odd  func(c *Communicator, all []comm.Gather)
		want string
	}{
		"one by one": {func(c *Communicator, all []comm.Gather) {
			for _, g := range all {
				c.AllGather(g.Subject, g.Dst, g.Src)
			}
		}, "sequence 1 rank 0 asked for all-gather of h.3/0 (4 bytes, one of 2 in a launch), rank 1 for all-gather of h.3/0 (4 bytes)"},
		"fewer": {func(c *Communicator, all []comm.Gather) { c.AllGathers(all[:1]) },
			"sequence 1 rank 0 asked for all-gather of h.3/0 (4 bytes, one of 2 in a launch), rank 1 for all-gather of h.3/0 (4 bytes)"},
		"another behind the first": {func(c *Communicator, all []comm.Gather) {
			all[1] = comm.Gather{Subject: "h.4/1", Dst: all[1].Dst.Slice(0, 9), Src: all[1].Dst.Slice(3, 3)}
			c.AllGathers(all)
		}, "sequence 2 rank 0 asked for all-gather of h.3/1 (4 bytes, one of 2 in a launch), rank 1 for all-gather of h.4/1 (3 bytes, one of 2 in a launch)"},
	} {
		t.Run(name, func(t *testing.T) {
			l := libraries(t)
			w, start := newWorld(t, 3, long), time.Now()
			fault(t, l, "mixed")
			go w.overdue(1, 0, 1, 2)
			wantErrors(t, w.onEach(func(r int, c *Communicator) {
				all := gathers(t, w, c, 2)
				if r == 1 {
					test.odd(c, all)
				} else {
					c.AllGathers(all)
				}
			}), "all-gather of h.3/0 (sequence 1)", "different collectives", test.want)
			inTime(t, start)
		})
	}
}

// No abort comes between the calls of a group, whenever it is asked for.
func TestAnAbortDuringLaunchesLeavesNoGroupBehind(t *testing.T) {
	for round := range 10 {
		l := libraries(t)
		w, start := newWorld(t, 2, long), time.Now()
		cause := errors.New("the loss is NaN")
		time.AfterFunc(time.Duration(round)*time.Millisecond, func() { w.ranks[round%2].Abort(cause) })
		errs := w.onEach(func(r int, c *Communicator) {
			all := gathers(t, w, c, 3)
			for c.Err() == nil {
				c.AllGathers(all)
			}
			c.AllGathers(all)
		})
		for r, err := range errs {
			wantRankError(t, err, r, "all-gather of h.3/", "the loss is NaN")
		}
		_ = w.close()
		wantNoFindings(t, l, "group", "Group", "communicator")
		inTime(t, start)
	}
}

func TestALaunchThatNeverReturnsIsEndedByTheAbort(t *testing.T) {
	shorten(t, &callWait)
	join, count := stuck(t)
	c, err := join(inCollective, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	start, under := time.Now(), count("stuck_under")
	m := device.DeviceMemory(64, 8)
	one := comm.Gather{Subject: "h.3", Dst: m, Src: m}
	c.AllGathers([]comm.Gather{one, one})
	wantRankError(t, finished(c, c.gather), 0, "all-gather of h.3 (sequence 1)", "it is not done after 100ms", "aborted under it")
	if got := count("stuck_under") - under; got != 1 {
		t.Errorf("%d aborts under the launch", got)
	}
	_ = c.Close()
	inTime(t, start)
}

func TestASplitsLaunchesAreItsOwn(t *testing.T) {
	libraries(t)
	w := newWorld(t, 2, long)
	checkAll(t, w.onEach(func(r int, c *Communicator) {
		half, err := c.Split(context.Background(), "again", 0, r)
		if err != nil {
			t.Error(err)
			return
		}
		half.AllGathers(gathers(t, w, c, 2))
		if err := errors.Join(finished(half, half.GatherStream()), half.Close()); err != nil {
			t.Error(err)
		}
	}))
	wantGroups(t, 2, 2)
}
