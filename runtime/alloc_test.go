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

func countAllocations(t *testing.T, ranks int) {
	const attempts, steps = 5, 40
	counted := make(chan struct{}) // until then no rank closes anything
	filled(t, ranks, mixed(int64(ranks)).descriptor(t), func(ctx context.Context, m *Model) error {
		for range 200 { // the scheduler makes what blocked goroutines need, once
			if err := trainOnce(ctx, m); err != nil {
				return err
			}
		}
		fewest := uint64(math.MaxUint64) // the scheduler makes more under load, but not in every attempt
		for range attempts {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range steps {
				if err := trainOnce(ctx, m); err != nil {
					return err
				}
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
	n := testing.AllocsPerRun(20, func() { err = errors.Join(err, trainOnce(ctx, m)) })
	if n != 0 || err != nil {
		t.Errorf("%v allocations per step, %v", n, err)
	}
}
