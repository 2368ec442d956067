//go:build amd64 && !race

package shard

import (
	"context"
	"errors"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/cudasrc/emu/idle"
	"github.com/shardgen/shardgen/runtime/comm/nccl"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/random"
)

// The race detector allocates on its own account: this test counts without it.

// idleRank is rank 0 of 8 on a GPU that does nothing.
func idleRank(t *testing.T) *Rank {
	t.Helper()
	emu.Need(t, idle.Available())
	libraries, err := idle.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SHARDGEN_LIBNCCL", libraries.NCCL)
	gpu, err := cuda.Open(0, cuda.Options{Library: libraries.CUDA})
	if err != nil {
		t.Fatal(err)
	}
	id, err := nccl.NewID()
	if err != nil {
		t.Fatal(err)
	}
	c, err := nccl.New(t.Context(), nccl.Options{Device: gpu, Size: 8, ID: id})
	if err != nil {
		t.Fatal(err)
	}
	rank, err := NewRank(c, gpu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(rank.Close(), c.Close(), gpu.Close()); err != nil {
			t.Error(err)
		}
	})
	return rank
}

func TestPassesThroughCUDAAndNCCLAllocateNothing(t *testing.T) {
	tm := mixed(8)
	ones := &random.Distribution{Kind: random.Ones}
	for i := range tm.blocks[0].params {
		tm.blocks[0].params[i].init = ones
	}
	tm.shared[0].init = ones
	d := tm.descriptor(t)
	const source = "00"
	d.Code = device.Code{Source: source, Fatbin: string(fatbin.Seal([]byte("\x50\xed\x55\xba\x01\x00\x10\x00\x04\x00\x00\x00\x00\x00\x00\x00none"), fatbin.Record{Source: source}))}
	m, err := Open(t.Context(), idleRank(t), d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Init(t.Context(), 1); err != nil { // it reads back what it wrote last: nothing is moved
		t.Fatal(err)
	}
	passes := bothPasses(t.Context(), m)
	if n := testing.AllocsPerRun(100, func() { err = errors.Join(err, passes()) }); n != 0 || err != nil {
		t.Errorf("%v allocations in a forward and a backward pass, %v", n, err)
	}
}

// bothPasses goes forward and backward through four blocks.
func bothPasses(ctx context.Context, m *Model) func() error {
	return func() error {
		f := m.Forward(ctx)
		for i := range 4 {
			b, err := f.Gather(0, i)
			if err != nil {
				return err
			}
			b.Release()
		}
		if err := f.End(); err != nil {
			return err
		}
		p := m.Backward(ctx)
		for i := 3; i >= 0; i-- {
			b, g, err := p.GatherWithGrads(0, i)
			if err != nil {
				return err
			}
			b.Release()
			g.Reduce()
		}
		return p.End()
	}
}
