package constname

import (
	"slices"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

const model = `apiVersion: shardgen/v1alpha1
model: m
topology: {world: [1, 8]}
dtype: bf16
blocks:
  - name: embed
    params: [{name: wte.weight, shape: [5]}]
  - name: "h.{i}"
    repeat: {i: 3}
    params:
      - {name: "h.{i}.mlp.weight", shape: [7]}
      - {name: "h.{i}.position", shape: [4], trainable: false}
      - {name: "h.{i}.mask", dtype: i16, shape: [4]}
  - name: head
    params: [{name: lm_head.weight, tied_to: wte.weight}]
`

func planned(t *testing.T) *plan.Plan {
	t.Helper()
	m, faults := spec.Parse("m.yaml", []byte(model))
	if m == nil {
		t.Fatal(faults)
	}
	p, faults := plan.Build(m)
	if p == nil {
		t.Fatal(faults)
	}
	return p
}

func TestConstantsAreNamedAfterKindsTypesAndFields(t *testing.T) {
	n, err := New(planned(t))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	n.EachBucket(func(kind int, b *layout.Bucket, n *Bucket) {
		got = append(got, n.Unit().String(), n.End().String(), n.Shard().String())
		for _, p := range n.Params {
			got = append(got, p.Numel.String(), p.Start.String())
		}
	})
	for _, want := range []string{
		"h_bf16_unit", "h_bf16_end", "h_bf16_shard", "h_numel_Mlp", "h_start_Mlp",
		"h_bf16frozen_unit", "h_numel_Position", "h_i16_unit", "h_start_Mask",
		"embed_shared_Wte_unit", "embed_numel_Wte",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("%s is not among %q", want, got)
		}
	}
}

func TestPlacesAreNamedAfterPartAndInGoAfterTheWorld(t *testing.T) {
	n, err := New(planned(t))
	if err != nil {
		t.Fatal(err)
	}
	h, embed := &n.Own[1][0], &n.Shared[0]
	for _, c := range []struct {
		name      Name
		cuda, go8 string
	}{
		{n.RepeatFirst(1), "HFirst", "HFirst"},
		{n.RepeatLen(1), "HLen", "HLen"},
		{n.Kinds[1].Position(), "h_position", "h_position"},
		{World(), "world", "world8"},
		{Rest(), "restBytes", "restBytesWorld8"},
		{Arena(layout.Arena{Role: layout.GradBuffers}), "gradientBuffersBytes", "gradientBuffersBytesWorld8"},
		{h.Shard(), "h_bf16_shard", "h_bf16_shard_world8"},
		{h.Offset(ShardPart), "h_bf16_shardOffset", "h_bf16_shardOffset_world8"},
		{h.First(MasterPart), "h_bf16_masterFirst", "h_bf16_masterFirst_world8"},
		{h.Gathered(), "h_bf16_gatheredBytes", "h_bf16_gatheredBytes_world8"},
		{embed.Offset(GradShardPart), "embed_shared_Wte_gradientShardOffset", "embed_shared_Wte_gradientShardOffset_world8"},
		{n.Kinds[1].GradBytes(), "h_gradientBytes", "h_gradientBytes_world8"},
		{n.Kinds[1].SharedGrad(embed), "h_gradientOffset_embed_shared_Wte", "h_gradientOffset_embed_shared_Wte_world8"},
		{n.Kinds[1].Stride(layout.Arena{Role: layout.GradShards, DType: dtype.Float32}), "h_gradientShardsF32Stride", "h_gradientShardsF32Stride_world8"},
	} {
		if c.name.String() != c.cuda || c.name.Go(8) != c.go8 {
			t.Errorf("%s and %s, want %s and %s", c.name, c.name.Go(8), c.cuda, c.go8)
		}
	}
}

func TestBucketsOfOneTypeAreCounted(t *testing.T) {
	bucket := planned(t).Layout.Shared[0]
	list := make([]Bucket, 3)
	nameBuckets(list, []layout.Bucket{bucket, bucket, bucket}, "h")
	for i, want := range []string{"h_bf16_unit", "h_bf16n2_unit", "h_bf16n3_unit"} {
		if got := list[i].Unit().String(); got != want {
			t.Errorf("bucket %d has %s, want %s", i, got, want)
		}
	}
}

func TestAPlanThatContradictsItselfIsAnError(t *testing.T) {
	for want, breakIt := range map[string]func(*plan.Plan){
		"the plan has 3 block kinds and 1 worlds, but its layout 3 and 2":         func(p *plan.Plan) { p.Worlds = p.Worlds[:1] },
		"parameter wte.weight: no block of the plan owns it":                      func(p *plan.Plan) { p.Kinds[0].Fields[0].Own = false },
		"parameter lm_head.weight: its place in the plan has two owners":          func(p *plan.Plan) { p.Kinds[2].Fields[0].Own = true },
		"parameter h.{i}.mlp.weight of block h.{i}: the plan has no place for it": func(p *plan.Plan) { p.Kinds[1].Fields[0].At.Bucket = 9 },
	} {
		p := planned(t)
		breakIt(p)
		if _, err := New(p); err == nil || err.Error() != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}
