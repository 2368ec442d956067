package goemit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// fixture is a model in short, from which a plan is made by hand: the tests of
// the emitter do not depend on the planner.
type fixture struct {
	name   string
	worlds []int64
	kind   spec.OptimizerKind
	blocks []fixtureBlock
}

type fixtureBlock struct {
	name, goName, variable string
	first, count           int64
	params                 []fixtureParam
}

// fixtureParam owns its storage, unless owner is set: then it is another name
// (or, with the same name, a use) of a parameter of an earlier block.
type fixtureParam struct {
	name, goName string
	shape        []int64
	dtype        dtype.DType
	frozen       bool
	shared       bool
	owner        string
	init         *random.Distribution
}

func (x *fixture) plan(t *testing.T) *plan.Plan {
	t.Helper()
	b := &fixtureBuilder{t: t, worlds: x.worlds}
	b.plan = &plan.Plan{Spec: &spec.Model{Path: "specs/" + x.name + ".yaml"}, Hashes: plan.Hashes{Model: "m0d31"}}
	b.plan.Spec.Name.V = x.name
	b.plan.Spec.Package.V = strings.NewReplacer("-", "", ".", "").Replace(x.name)
	b.plan.Spec.Optimizer.Kind.V = x.kind
	b.plan.Layout = &layout.Model{AlignBytes: 256, MaxLive: 2, Prefetch: 1, GradSlots: 2, Reduce: dtype.Float32, Worlds: x.worlds}
	if x.kind == spec.OptimizerAdamW {
		b.plan.Layout.Optimizer = layout.Optimizer{Kind: layout.AdamW, Masters: true}
	}
	for i := range x.blocks {
		b.block(&x.blocks[i])
	}
	b.worldsOf()
	return b.plan
}

type fixtureBuilder struct {
	t      *testing.T
	worlds []int64
	plan   *plan.Plan
	owners []plan.Field
}

func (b *fixtureBuilder) block(x *fixtureBlock) {
	k := layout.Kind{Name: x.name, Var: x.variable, First: x.first, Count: x.count}
	kind := plan.Kind{GoName: x.goName}
	for i := range x.params {
		kind.Fields = append(kind.Fields, b.field(&k, &x.params[i]))
	}
	for i := range k.Buckets {
		b.layOut(&k.Buckets[i])
	}
	b.plan.Layout.Kinds = append(b.plan.Layout.Kinds, k)
	b.plan.Kinds = append(b.plan.Kinds, kind)
}

func (b *fixtureBuilder) field(k *layout.Kind, x *fixtureParam) plan.Field {
	if x.owner != "" {
		return b.alias(k, x)
	}
	numel, err := layout.Numel(x.shape)
	if err != nil {
		b.t.Fatal(err)
	}
	f := plan.Field{GoName: x.goName, Name: x.name, Owner: x.name, DType: x.dtype, Shape: x.shape, Numel: numel, Own: true}
	p := layout.Param{Name: x.name, Shape: x.shape, Numel: numel, Decay: true, Init: x.init}
	f.At = b.put(k, x, p)
	b.owners = append(b.owners, f)
	return f
}

func (b *fixtureBuilder) put(k *layout.Kind, x *fixtureParam, p layout.Param) plan.Ref {
	trainable := x.dtype.Trainable() && !x.frozen
	unit := layout.Unit(256, x.dtype.Bytes(), 1)
	if x.shared {
		bucket := layout.Bucket{Name: "shared/" + x.name, DType: x.dtype, Trainable: trainable, Unit: unit, Params: []layout.Param{p}}
		b.layOut(&bucket)
		b.plan.Layout.Shared = append(b.plan.Layout.Shared, bucket)
		at := plan.Ref{Shared: true, Bucket: len(b.plan.Layout.Shared) - 1}
		k.Uses = append(k.Uses, at.Bucket)
		return at
	}
	for i := range k.Buckets {
		if k.Buckets[i].DType == x.dtype && k.Buckets[i].Trainable == trainable {
			k.Buckets[i].Params = append(k.Buckets[i].Params, p)
			return plan.Ref{Bucket: i, Param: len(k.Buckets[i].Params) - 1}
		}
	}
	name := fmt.Sprintf("%s/%v", k.Name, x.dtype)
	k.Buckets = append(k.Buckets, layout.Bucket{Name: name, DType: x.dtype, Trainable: trainable, Unit: unit, Params: []layout.Param{p}})
	return plan.Ref{Bucket: len(k.Buckets) - 1}
}

func (b *fixtureBuilder) alias(k *layout.Kind, x *fixtureParam) plan.Field {
	for _, f := range b.owners {
		if f.Name == x.owner {
			f.GoName, f.Name, f.Own = x.goName, x.name, false
			if f.At.Shared {
				k.Uses = append(k.Uses, f.At.Bucket)
			}
			return f
		}
	}
	b.t.Fatalf("no owner %s", x.owner)
	return plan.Field{}
}

func (b *fixtureBuilder) layOut(bucket *layout.Bucket) {
	var numels []int64
	for i := range bucket.Params {
		numels = append(numels, bucket.Params[i].Numel)
	}
	starts, end, err := layout.Starts(numels, bucket.Unit)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range bucket.Params {
		bucket.Params[i].Start = starts[i]
	}
	bucket.End = end
	for _, ranks := range b.worlds {
		shard, err := layout.ShardElements(end, ranks, bucket.Unit)
		if err != nil {
			b.t.Fatal(err)
		}
		bucket.ShardElements = append(bucket.ShardElements, shard)
	}
}

func (b *fixtureBuilder) worldsOf() {
	for w, ranks := range b.worlds {
		place, err := b.plan.Layout.Place(w)
		if err != nil {
			b.t.Fatal(err)
		}
		b.plan.Worlds = append(b.plan.Worlds, plan.World{Ranks: ranks, Placement: place,
			Layout: fmt.Sprintf("1a%d", ranks), Plan: fmt.Sprintf("91a%d", ranks)})
	}
}

// odd is a model of everything that is unusual: empty, scalar and prime shapes,
// every dtype, ties, uses, frozen buckets and a block without parameters.
func odd() *fixture {
	normal := &random.Distribution{Kind: random.Normal, Std: 0.02}
	return &fixture{
		name: "odd", worlds: []int64{1, 3, 8}, kind: spec.OptimizerAdamW,
		blocks: []fixtureBlock{
			{name: "embed", goName: "Embed", count: 1, params: []fixtureParam{
				{name: "wte.weight", goName: "Wte", shape: []int64{7, 3}, dtype: dtype.BFloat16, shared: true, init: normal},
				{name: "steps", goName: "Steps", shape: []int64{}, dtype: dtype.Int64},
				{name: "none", goName: "None", shape: []int64{0, 1 << 40, 1 << 40}, dtype: dtype.Float32},
				{name: "odd name\n\"q\"/λ", goName: "X___oddZ20name", shape: []int64{31}, dtype: dtype.Float32},
			}},
			{name: "h.{i}", goName: "H", variable: "i", first: 3, count: 4, params: []fixtureParam{
				{name: "h.{i}.ln_1.weight", goName: "Ln_1", shape: []int64{33}, dtype: dtype.Float32, init: &random.Distribution{Kind: random.Ones}},
				{name: "h.{i}.mlp.weight", goName: "Mlp", shape: []int64{33, 101}, dtype: dtype.BFloat16,
					init: &random.Distribution{Kind: random.TruncatedNormal, Mean: 1, Std: 1e-300, Cut: 0.1 + 0.2}},
				{name: "h.{i}.mlp.bias", goName: "Mlp_Bias", shape: []int64{101}, dtype: dtype.BFloat16},
				{name: "h.{i}.rope", goName: "Rope", shape: []int64{5}, dtype: dtype.Float32, frozen: true},
				{name: "wte.weight", goName: "Wte", owner: "wte.weight"},
			}},
			{name: "types", goName: "Types", count: 1, params: everyType()},
			{name: "head", goName: "Head", count: 1, params: []fixtureParam{
				{name: "ln_f.weight", goName: "Ln_f", shape: []int64{33}, dtype: dtype.BFloat16},
				{name: "ln_g.weight", goName: "Ln_g", owner: "ln_f.weight"},
				{name: "lm_head.weight", goName: "LmHead", owner: "wte.weight"},
			}},
			{name: "reader", goName: "Reader", count: 1, params: []fixtureParam{{name: "wte.weight", goName: "Wte", owner: "wte.weight"}}},
			{name: "empty", goName: "Empty", count: 1},
		},
	}
}

func everyType() []fixtureParam {
	var params []fixtureParam
	for _, t := range dtype.All() {
		name := t.String()
		params = append(params, fixtureParam{name: name, goName: strings.ToUpper(name[:1]) + name[1:], shape: []int64{13}, dtype: t})
	}
	return params
}
