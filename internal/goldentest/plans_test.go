package goldentest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/spec"
)

// planned is what a package generated from a spec of one block tells the
// runtime.
func planned(t *testing.T, params string) *shard.Descriptor {
	t.Helper()
	text := "apiVersion: shardgen/v1alpha1\nmodel: m\ntopology: {world: [2]}\nblocks:\n  - name: b\n    params: [" + params + "]\n"
	m, faults := spec.Parse("m.yaml", []byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	p, faults := plan.Build(m)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	w := p.Worlds[0]
	return &shard.Descriptor{
		Model: "m", Package: "m", ModelHash: p.Hashes.Model, Layout: *p.Layout,
		Worlds: []shard.World{{LayoutHash: w.Layout, PlanHash: w.Plan, RestBytes: w.Placement.RestBytes(), PeakBytes: w.Placement.PeakBytes()}},
	}
}

// The sizes of each collective are the same in most of these, so that nothing but
// the hash tells the plans apart.
func TestRanksBuiltFromDifferentSpecsDoNotOpen(t *testing.T) {
	const eight = "{name: a, shape: [8]}, {name: c, shape: [8]}"
	for name, other := range map[string]string{
		"another size":       "{name: a, shape: [8]}, {name: c, shape: [6]}",
		"swapped parameters": "{name: c, shape: [8]}, {name: a, shape: [8]}",
		"another shape":      "{name: a, shape: [8]}, {name: c, shape: [2, 4]}",
		"another dtype":      "{name: a, shape: [8]}, {name: c, shape: [8], dtype: i32}",
	} {
		t.Run(name, func(t *testing.T) {
			descriptors := []*shard.Descriptor{planned(t, eight), planned(t, other)}
			t.Run("cpu", func(t *testing.T) { refuseToOpen(t, ranks(2), descriptors) })
			t.Run("emulated", func(t *testing.T) {
				m := emulated.Require(t)
				for _, d := range descriptors {
					d.Code = m.AllKernels(t, d.Layout.AlignBytes)
				}
				refuseToOpen(t, m.Launcher(2), descriptors)
				m.Clean(t)
			})
		})
	}
}

func refuseToOpen(t *testing.T, l shard.Launcher, descriptors []*shard.Descriptor) {
	t.Helper()
	errs := make([]error, len(descriptors))
	err := shard.Run(t.Context(), l, func(ctx context.Context, rank *shard.Rank) error {
		_, errs[rank.Rank()] = shard.Open(ctx, rank, descriptors[rank.Rank()], shard.Options{})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("rank 0 has plan %s (m), rank 1 has plan %s (m)", descriptors[0].Worlds[0].PlanHash, descriptors[1].Worlds[0].PlanHash)
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}
