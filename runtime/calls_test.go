package shard

import (
	"context"
	"fmt"
	"maps"
	"testing"
)

// gatherCalls is how often a gather and a release of a block of one bucket call
// the driver and NCCL. The gather stream waits for the slot's last reader, NCCL
// moves, its watchdog's point is recorded and then the gather's; the compute stream
// waits for that, and the release is recorded on it. Each of the six enters the
// GPU's context.
var gatherCalls = map[string]int64{
	"cuCtxSetCurrent": 6, "cuStreamWaitEvent": 2, "cuEventRecord": 3, "ncclAllGather": 1,
	"cuEventQuery": 0, "cuStreamQuery": 0, "cuThreadExchangeStreamCaptureMode": 0, "cuLaunchKernel": 0,
	"cuMemcpyDtoDAsync_v2": 0, "cuMemcpyHtoDAsync_v2": 0, "cuMemcpyDtoHAsync_v2": 0, "cuMemGetInfo_v2": 0,
	"ncclCommGetAsyncError": 0, "ncclAllReduce": 0, "ncclBroadcast": 0, "ncclReduceScatter": 0,
}

// nineParams is a model of one block of nine parameters, which one collective
// gathers.
func nineParams(world int64) testModel {
	tm := testModel{worlds: []int64{world}, blocks: []testBlock{{name: "h"}}}
	for i := range 9 {
		tm.blocks[0].params = append(tm.blocks[0].params, f32(fmt.Sprintf("h.%d", i), 8, 8))
	}
	return tm
}

// The watchdog calls the driver when it likes: what a gather does shows in a round
// in which it did not.
func TestAGatherMakesNoMoreCallsThanItNeeds(t *testing.T) {
	const rounds, gathers = 50, 50
	backends[1].test(t, func(t *testing.T, b *backend) {
		fewest := map[string]int64{}
		b.must(t, 1, nineParams(1).descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			f := m.Forward(ctx)
			err := gatherOften(f, 1) // it finds no reader in the slot
			for round := 0; err == nil && round < rounds; round++ {
				before := callsSoFar()
				err = gatherOften(f, gathers)
				for name, calls := range callsSoFar() {
					if n := calls - before[name]; round == 0 || n < fewest[name] {
						fewest[name] = n
					}
				}
			}
			if err != nil {
				return err
			}
			return f.End()
		})
		want := maps.Clone(gatherCalls)
		for name := range want {
			want[name] *= gathers
		}
		if !maps.Equal(fewest, want) {
			t.Errorf("%d gathers make the calls %v, want %v", gathers, fewest, want)
		}
	})
}

func callsSoFar() map[string]int64 {
	calls := map[string]int64{}
	for name := range gatherCalls {
		calls[name] = machine.Calls(name)
	}
	return calls
}

// gatherOften gathers and releases the first block.
func gatherOften(p Pass, times int) error {
	for range times {
		b, err := p.Gather(0, 0)
		if err != nil {
			return err
		}
		b.Release()
	}
	return nil
}
