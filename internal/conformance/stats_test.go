package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/shardgen/shardgen/generated/alldtypes"
	"github.com/shardgen/shardgen/generated/goldenmlp"
	"github.com/shardgen/shardgen/generated/goldenodd"
	"github.com/shardgen/shardgen/generated/gpt2"
	"github.com/shardgen/shardgen/generated/oddshapes"
	"github.com/shardgen/shardgen/generated/tied"
	"github.com/shardgen/shardgen/generated/tiny"
	"github.com/shardgen/shardgen/internal/cli"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/fake"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

// moved is what a rank receives in a step.
type moved struct {
	Gathered int64 `json:"gather_bytes_per_step"`
	Reduced  int64 `json:"reduce_bytes_per_step"`
}

// The plan promises bytes before anything runs, the runtime counts those that it
// asked for, and the transport was asked for them.
func TestAStepMovesTheBytesOfThePlan(t *testing.T) {
	for _, d := range []*shard.Descriptor{
		alldtypes.Descriptor(), goldenmlp.Descriptor(), goldenodd.Descriptor(), oddshapes.Descriptor(), tied.Descriptor(), tiny.Descriptor(),
	} {
		for _, world := range d.Layout.Worlds {
			t.Run(fmt.Sprintf("%s/%d", d.Package, world), func(t *testing.T) {
				want := plannedBytes(t, filepath.Join("../../spec/samples", d.Package+".yaml"), int(world))
				for rank := range int(world) {
					movesInAStep(t, d, rank, int(world), want)
				}
			})
		}
	}
	t.Run("gpt2/8", func(t *testing.T) {
		movesInAStep(t, gpt2.Descriptor(), 5, 8, plannedBytes(t, "../../spec/models/gpt2.yaml", 8))
	})
}

func movesInAStep(t *testing.T, d *shard.Descriptor, rank, world int, want moved) {
	t.Helper()
	stats, asked, err := countStep(t.Context(), d, fake.New(rank, world))
	if err != nil {
		t.Fatal(err)
	}
	if stats != want || asked != want || (want.Gathered > 0) != (world > 1) {
		t.Errorf("rank %d: the plan says %+v, the runtime counted %+v, the transport was asked for %+v", rank, want, stats, asked)
	}
}

// plannedBytes reads them from what the command prints.
func plannedBytes(t *testing.T, path string, world int) moved {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if status := cli.Run([]string{"plan", path, "--world", fmt.Sprint(world), "--format", "json"}, nil, &stdout, &stderr); status != 0 {
		t.Fatalf("status %d\n%s", status, &stderr)
	}
	var plan struct{ Totals *moved }
	if err := json.Unmarshal(stdout.Bytes(), &plan); err != nil || plan.Totals == nil {
		t.Fatalf("%v\n%s", err, &stdout)
	}
	return *plan.Totals
}

// countStep makes the passes of a second step and returns what the runtime counted
// meanwhile, and what the transport did.
func countStep(ctx context.Context, d *shard.Descriptor, c *fake.Communicator) (stats, asked moved, err error) {
	rank, err := shard.NewRank(c, cpu.New())
	if err != nil {
		return stats, asked, err
	}
	defer func() { err = errors.Join(err, rank.Close()) }()
	m, err := shard.Open(ctx, rank, d, shard.Options{})
	if err != nil {
		return stats, asked, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := errors.Join(m.Update(ctx, func(*shard.Shards) error { return nil }), passes(ctx, m, d)); err != nil {
		return stats, asked, err
	}
	before := m.Stats()
	c.Reset()
	err = passes(ctx, m, d)
	after, others := m.Stats(), int64(c.Size()-1)
	stats = moved{after.GatheredBytes - before.GatheredBytes, after.ReducedBytes - before.ReducedBytes}
	asked = moved{c.Count(comm.AllGather).Bytes * others, c.Count(comm.ReduceScatter).Bytes * others}
	return stats, asked, err
}

// passes goes forward through all blocks and backward, and reduces their
// gradients.
func passes(ctx context.Context, m *shard.Model, d *shard.Descriptor) error {
	forward := m.Forward(ctx)
	for _, at := range instances(d) {
		b, err := forward.Gather(at.kind, at.index)
		if err != nil {
			return err
		}
		b.Release()
	}
	if err := forward.End(); err != nil {
		return err
	}
	backward := m.Backward(ctx)
	all := instances(d)
	for i := len(all) - 1; i >= 0; i-- {
		b, g, err := backward.GatherWithGrads(all[i].kind, all[i].index)
		if err != nil {
			return err
		}
		b.Release()
		g.Reduce()
	}
	return errors.Join(backward.End(), m.ZeroGrad())
}

// instance is a block of a model.
type instance struct{ kind, index int }

// instances returns all blocks in the order of the spec.
func instances(d *shard.Descriptor) []instance {
	var all []instance
	for k := range d.Layout.Kinds {
		kind := &d.Layout.Kinds[k]
		for i := range kind.Count {
			all = append(all, instance{k, int(kind.First + i)})
		}
	}
	return all
}
