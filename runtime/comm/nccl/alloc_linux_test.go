//go:build !race

package nccl

import (
	"context"
	"runtime"
	"testing"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// The race detector allocates on its own account, and makes pools forget what
// they hold: this test counts without it.

func TestNothingIsAllocatedInASteadyState(t *testing.T) {
	const limit = 20 // of 1800 collectives: the Go runtime's own
	libraries(t)
	w := newWorld(t, 1, long)
	c := w.ranks[0]
	src, dst := memory(t, w.devices[0], make([]byte, 64)), memory(t, w.devices[0], make([]byte, 64))
	gathers := []comm.Gather{{Subject: "f", Dst: dst, Src: src}, {Subject: "g", Dst: dst, Src: src}}
	reductions := []comm.Reduction{{Subject: "h", Dst: dst, Src: src, Type: dtype.Float32}, {Subject: "i", Dst: dst, Src: src, Type: dtype.Float32}}
	round := func() {
		c.AllGather("a", dst, src)
		c.ReduceScatter("b", dst, src, dtype.Float32)
		c.AllReduce("c", dst, dtype.Float64)
		c.Broadcast("d", dst, 0)
		c.Barrier("e")
		c.AllGathers(gathers)
		c.ReduceScatters(reductions)
		_ = c.Synchronize(context.Background(), c.gather.Record())
	}
	for range 100 {
		round()
	}
	var least uint64 = 1 << 30
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 200 {
			round()
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least > limit {
		t.Errorf("%d allocations in 1800 collectives", least)
	}
}
