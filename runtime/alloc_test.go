//go:build !race

package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/shardgen/shardgen/runtime/comm/fake"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

// The race detector allocates on its own account: these tests count without it.

func TestNothingIsAllocatedByRanksThatMeet(t *testing.T) {
	for _, ranks := range []int{1, 2, 4} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) { countAllocations(t, ranks) })
	}
}

// countAllocations trains until the scheduler has what it needs, once, and then
// counts. What it makes under load it does not make in every attempt.
func countAllocations(t *testing.T, ranks int) {
	const attempts = 5
	counted := make(chan struct{}) // until then no rank closes anything
	b := backends[0]
	b.must(t, ranks, mixed(int64(ranks)).descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		scratch := make([]float32, 9)
		if err := train(ctx, m, scratch, 200); err != nil {
			return err
		}
		const steps = 40
		fewest := uint64(math.MaxUint64)
		for range attempts {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := train(ctx, m, scratch, steps); err != nil {
				return err
			}
			runtime.ReadMemStats(&after)
			fewest = min(fewest, after.Mallocs-before.Mallocs)
		}
		if m.rank.Rank() != 0 {
			<-counted
			return nil
		}
		defer close(counted)
		if fewest >= steps {
			return fmt.Errorf("%d allocations in %d steps of %d ranks", fewest, steps, ranks)
		}
		return nil
	})
}

func train(ctx context.Context, m *Model, scratch []float32, steps int) error {
	for range steps {
		if err := trainOnce(ctx, m, scratch); err != nil {
			return err
		}
	}
	return nil
}

func TestNothingIsAllocatedWithATransportThatDoesNothing(t *testing.T) {
	rank, err := NewRank(fake.New(0, 8), cpu.New())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	m, err := Open(ctx, rank, mixed(8).descriptor(t), Options{})
	if err == nil {
		defer m.Close()
		err = fill(ctx, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	scratch := make([]float32, 9)
	n := testing.AllocsPerRun(20, func() { err = errors.Join(err, trainOnce(ctx, m, scratch)) })
	if n != 0 || err != nil {
		t.Errorf("%v allocations per step, %v", n, err)
	}
}
