//go:build !race

package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/shardgen/shardgen/runtime/comm/fake"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// The race detector allocates on its own account: these tests count without it.

func TestNothingIsAllocatedAfterTheFirstStep(t *testing.T) {
	tm := testModel{worlds: []int64{1}, prefetch: 1, optimizer: layout.Optimizer{Masters: true, Moments: 2}, reduce: dtype.BFloat16, blocks: []testBlock{
		{name: "h.{i}", count: 4, params: []param{f32("h.{i}.w", 7), {name: "h.{i}.low", shape: []int64{19}, dtype: dtype.BFloat16}}},
	}}
	mustRun(t, 1, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		var failed error
		step := func() {
			if err := trainOnce(ctx, m); err != nil {
				failed = err
			}
		}
		step()
		if n := testing.AllocsPerRun(20, step); n != 0 {
			return fmt.Errorf("%v allocations per step", n)
		}
		return failed
	})
}

func TestNothingIsAllocatedByRanksThatMeet(t *testing.T) {
	tm := trainable(4)
	tm.prefetch = 1
	tm.blocks[0].count = 4
	counted := make(chan struct{}) // until then no rank closes anything
	mustRun(t, 4, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		for range 200 { // the scheduler makes what blocked goroutines need, once
			if err := trainOnce(ctx, m); err != nil {
				return err
			}
		}
		const steps = 40
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range steps {
			if err := trainOnce(ctx, m); err != nil {
				return err
			}
		}
		if m.rank.Rank() != 0 {
			<-counted
			return nil
		}
		defer close(counted)
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n >= steps { // the runtime's own, once in a while
			return fmt.Errorf("%d allocations in %d steps of 4 ranks", n, steps)
		}
		return nil
	})
}

func TestNothingIsAllocatedWithATransportThatDoesNothing(t *testing.T) {
	tm := trainable(8)
	tm.prefetch = 1
	tm.blocks[0].count = 4
	rank, err := NewRank(fake.New(0, 8), cpu.New())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	m, err := Open(ctx, rank, tm.descriptor(t), Options{})
	if err == nil {
		defer m.Close()
		err = fill(ctx, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(20, func() { err = errors.Join(err, trainOnce(ctx, m)) })
	if n != 0 || err != nil {
		t.Errorf("%v allocations per step, %v", n, err)
	}
}
