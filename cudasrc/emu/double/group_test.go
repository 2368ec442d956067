package double

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// grouped calls f in a group.
func (r *rank) grouped(f func()) {
	r.ok("start", collect.GroupStart())
	f()
	r.ok("end", collect.GroupEnd())
}

func TestAGroupStartsAtItsEndAndAllOfIt(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} { // the second: as in different processes
		t.Setenv("EMU_SHARED", folder)
		libraries(t)
		for _, policy := range policies {
			schedule(t, policy)
			runAll(t, 3, group)
		}
		clean(t)
	}
}

// group gathers and scatters in one launch.
func group(r *rank) {
	const part = 5
	own := bytes.Repeat([]byte{byte(1 + r.rank)}, part)
	in, all := r.memory(own), r.memory(make([]byte, part*r.ranks))
	addends, sum := r.memory(bytes.Repeat(own, r.ranks)), r.memory(make([]byte, part))
	r.grouped(func() {
		r.ok("gather", collect.AllGather(in, all, part, 1, r.comm, r.stream))
		r.ok("scatter", collect.ReduceScatter(addends, sum, part, 1, 0, r.comm, r.stream))
		r.ok("nothing to wait for", driver.StreamSynchronize(r.stream))
		r.equal("before the end", r.content(all, part*r.ranks), make([]byte, part*r.ranks))
	})
	var want []byte
	for k := range r.ranks {
		want = append(want, bytes.Repeat([]byte{byte(1 + k)}, part)...)
	}
	r.equal("gathered", r.content(all, len(want)), want)
	r.equal("summed", r.content(sum, part), bytes.Repeat([]byte{byte(r.ranks * (r.ranks + 1) / 2)}, part))
}

// NCCL gives the calls of a group no order.
func TestACallOfAGroupReadsNothingThatAnotherWrites(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} {
		t.Setenv("EMU_SHARED", folder)
		libraries(t)
		runAll(t, 2, func(r *rank) {
			a, b, c := r.memory([]byte{1}), r.memory([]byte{10}), r.memory([]byte{100})
			r.grouped(func() {
				r.ok("reduce", collect.AllReduce(a, b, 1, 1, 0, r.comm, r.stream))
				r.ok("reduce", collect.AllReduce(b, c, 1, 1, 0, r.comm, r.stream))
			})
			r.equal("first", r.content(b, 1), []byte{2})
			r.equal("second", r.content(c, 1), []byte{20})
		})
		clean(t)
	}
}

func TestRanksWithDifferentGroupsHaveAnAsynchronousError(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} {
		t.Setenv("EMU_SHARED", folder)
		for name, odd := range map[string][]uintptr{"alone": {1}, "more": {1, 2, 3}, "another order": {2, 1}} {
			libraries(t)
			runAll(t, 2, func(r *rank) {
				a, counts := r.memory(make([]byte, 16)), []uintptr{1, 2}
				if r.rank == 1 {
					counts = odd
				}
				r.grouped(func() {
					for at, count := range counts {
						own := a + uint64(4*at)
						r.ok("reduce", collect.AllReduce(own, own, count, 1, 0, r.comm, r.stream))
					}
				})
				if status := awaitAsync(r); status != 5 {
					r.err = fmt.Errorf("%s, rank %d: asynchronous error %d, want 5", name, r.rank, status)
				}
				if text := collect.LastError(0); !strings.Contains(text, "rank 0 calls a group of 2: ncclAllReduce(count 1") {
					r.err = fmt.Errorf("%s, rank %d: last error %q", name, r.rank, text)
				}
				abort(r)
				r.ok("wait", driver.StreamSynchronize(r.stream)) // what was queued is dropped
			})
			clean(t)
		}
	}
}

func TestACallThatFailsMakesItsGroupFail(t *testing.T) {
	libraries(t)
	runAll(t, 2, func(r *rank) {
		a := r.memory([]byte{1})
		for what, fails := range map[string]func() int32{
			"argument": func() int32 { return collect.AllReduce(a, a, 1, 99, 0, r.comm, r.stream) - 4 },
			"handle":   func() int32 { return collect.AllReduce(a, a, 1, 1, 0, 4711, r.stream) - 4 },
		} {
			r.ok("start", collect.GroupStart())
			r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
			r.ok("the status of a wrong "+what, fails())
			r.ok("the status of the end", collect.GroupEnd()-4)
			r.equal("memory", r.content(a, 1), []byte{1})
		}
		r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream)) // it works on
		r.equal("memory", r.content(a, 1), []byte{2})
	})
	clean(t)
}

func TestAGroupThatFailsInjectedStartsNothing(t *testing.T) {
	for call, code := range map[string]int32{"ncclAllReduce": 2, "ncclGroupEnd": 3} {
		libraries(t)
		fault(t, fmt.Sprintf("%s:%d", call, code))
		runAll(t, 1, func(r *rank) {
			a := r.memory([]byte{7})
			_ = collect.GroupStart()
			_ = collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream)
			r.ok("the status of the end", collect.GroupEnd()-code)
			r.ok("a second end", collect.GroupEnd()-5)
			r.equal("memory", r.content(a, 1), []byte{7})
		})
		clean(t)
	}
}

func TestGroupsNestAndTheOutermostEndStartsThem(t *testing.T) {
	libraries(t)
	runAll(t, 2, func(r *rank) {
		a := r.memory([]byte{1})
		r.grouped(func() {
			r.grouped(func() { r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream)) })
			r.equal("before the end", r.content(a, 1), []byte{1})
		})
		r.equal("behind the end", r.content(a, 1), []byte{2})
	})
	clean(t)
}

func TestAGroupThatIsNeverEndedIsFound(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	ok(t, collect.GroupStart())
	ok(t, collect.GroupStart())
	ok(t, collect.GroupEnd())
	if got := shared.Check(); !slices.Contains(got, "1 groups never ended") {
		t.Errorf("findings %q", got)
	}
	shared.Reset()
	onDevice(t, 0)
	want(t, collect.GroupEnd(), 5) // a reset ended it
	clean(t)
}

func TestACommunicatorThatEndsInsideAGroupIsFound(t *testing.T) {
	libraries(t)
	runAll(t, 1, func(r *rank) {
		a := r.memory([]byte{1})
		r.ok("start", collect.GroupStart())
		r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
		r.ok("abort", collect.Abort(r.comm))
		r.ok("the status of the end", collect.GroupEnd()-5)
		var id uniqueID
		r.ok("id", collect.GetUniqueID(&id))
		r.ok("init", collect.InitRank(&r.comm, 1, id, 0))
	})
	if got := shared.Check(); len(got) == 0 || !strings.Contains(got[0], "aborted or destroyed since the call") {
		t.Errorf("findings %q", got)
	}
	shared.Reset()
}

func TestGroupsThatTheDoubleOrNCCLRefuses(t *testing.T) {
	libraries(t)
	runAll(t, 1, func(r *rank) {
		a := r.memory([]byte{1})
		var other, second handle
		r.ok("stream", driver.StreamCreate(&other, 1))
		r.ok("start", collect.GroupStart())
		r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
		r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, other))
		r.ok("the status of two streams", collect.GroupEnd()-5)

		var id uniqueID
		r.ok("id", collect.GetUniqueID(&id))
		r.ok("start", collect.GroupStart())
		r.ok("init", collect.InitRank(&second, 1, id, 0))
		r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
		r.ok("the status of making and using", collect.GroupEnd()-5)
		r.ok("destroy", collect.Destroy(second))
		r.ok("stream", driver.StreamDestroy(other))
		r.equal("memory", r.content(a, 1), []byte{1})
	})
	clean(t)
}

func TestTheEndOfAGroupOfCommunicatorsThatDoNotBlockIsInProgress(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	t.Setenv("NCCL_COMM_BLOCKING", "0")
	var id uniqueID
	var comm handle
	ok(t, collect.GetUniqueID(&id))
	want(t, collect.InitRank(&comm, 1, id, 0), 7)
	a := alloc(t, 1)
	ok(t, collect.GroupStart())
	ok(t, collect.AllReduce(a, a, 1, 1, 0, comm, 0))
	want(t, collect.GroupEnd(), 7)
	for start, status := time.Now(), int32(7); status != 0; time.Sleep(time.Millisecond) {
		ok(t, collect.AsyncError(comm, &status))
		if time.Since(start) > 10*time.Second {
			t.Fatal("it is in progress for good")
		}
	}
	ok(t, driver.CtxSynchronize())
	ok(t, collect.Destroy(comm))
	free(t, a)
	clean(t)
}

func TestProcessesGroup(t *testing.T) {
	startGood(t, 3, "group")
	startGood(t, 2, "group", "EMU_SCHEDULE=lazy")
}
