package plan

import (
	"cmp"
	"slices"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// bucket collects the parameters that one collective moves: those of a block
// with the same type and trainability, in the order of their first; a shared
// parameter is a bucket of its own.
func (b *builder) bucket() {
	for _, bl := range b.blocks {
		kind := layout.Kind{Name: bl.spec.Name.V, Var: bl.variable(), First: bl.first(), Count: bl.count()}
		for _, p := range bl.params {
			b.bucketParam(&kind, p)
		}
		for _, owner := range bl.uses {
			b.share(&kind, owner)
		}
		b.plan.Layout.Kinds = append(b.plan.Layout.Kinds, kind)
	}
	b.plan.Shared = make([]Owner, len(b.shared))
	for i := range b.blocks {
		b.fillKind(i)
	}
	b.expandParams()
	b.checkBucketNames()
}

func (b *builder) bucketParam(kind *layout.Kind, p *param) {
	if p.owner.shared {
		b.share(kind, p.owner)
		return
	}
	if p.alias() {
		return
	}
	i := slices.IndexFunc(kind.Buckets, func(k layout.Bucket) bool {
		return k.DType == p.field.DType && k.Trainable == p.trainable
	})
	if i < 0 {
		i = len(kind.Buckets)
		kind.Buckets = append(kind.Buckets, layout.Bucket{
			Name: bucketName(kind.Name, p.field.DType, p.trainable), DType: p.field.DType, Trainable: p.trainable,
		})
	}
	bucket := &kind.Buckets[i]
	p.field.At = Ref{Bucket: i, Param: len(bucket.Params)}
	bucket.Params = append(bucket.Params, p.layoutParam())
}

// share makes the block a user of a shared parameter, whose bucket is made at
// its first appearance.
func (b *builder) share(kind *layout.Kind, owner *param) {
	i := owner.field.At.Bucket
	if !owner.field.At.Shared {
		i = len(b.shared)
		b.shared = append(b.shared, owner)
		b.plan.Layout.Shared = append(b.plan.Layout.Shared, layout.Bucket{
			Name: "shared/" + owner.name(), DType: owner.field.DType, Trainable: owner.trainable,
			Params: []layout.Param{owner.layoutParam()},
		})
		owner.field.At = Ref{Shared: true, Bucket: i}
	}
	if !slices.Contains(kind.Uses, i) {
		kind.Uses = append(kind.Uses, i)
	}
}

func bucketName(block string, t dtype.DType, trainable bool) string {
	name := block + "/" + t.String()
	if !trainable && t.Trainable() {
		name += "/frozen"
	}
	return name
}

func (p *param) layoutParam() layout.Param {
	return layout.Param{Name: p.name(), Shape: p.field.Shape, Numel: p.field.Numel, Decay: p.decay, Init: p.init}
}

// fillKind writes the fields of a kind: what the block declares in the spec's
// order, then what it uses.
func (b *builder) fillKind(i int) {
	kind := &b.plan.Kinds[i]
	for j, p := range b.blocks[i].params {
		f := p.owner.field
		f.Name, f.GoName, f.Pos, f.Own = p.name(), p.goName, p.spec.Name.Pos, !p.alias()
		if p.alias() {
			f.Rules = nil
		}
		if p.owner == p && f.At.Shared {
			b.plan.Shared[f.At.Bucket] = Owner{Kind: i, Field: j}
		}
		kind.Fields = append(kind.Fields, f)
	}
	for j, owner := range b.blocks[i].uses {
		f := owner.field
		f.GoName = FieldName(kind.Block.Name.V, owner.name())
		f.Pos, f.Own, f.Rules = kind.Block.Uses[j].Pos, false, nil
		kind.Fields = append(kind.Fields, f)
	}
}

// expandParams lists every name of every instance.
func (b *builder) expandParams() {
	for k, bl := range b.blocks {
		for n := range bl.count() {
			name := bl.instance(bl.spec.Name.V, n)
			for j, p := range bl.params {
				param := Param{Name: bl.instance(p.name(), n), Block: name, Kind: k, Instance: n, Field: j}
				if p.alias() {
					param.AliasOf = bl.instance(p.owner.name(), n)
				}
				b.plan.Params = append(b.plan.Params, param)
			}
		}
	}
}

// checkBucketNames refuses a block and a shared parameter whose buckets would
// have one name.
func (b *builder) checkBucketNames() {
	names := map[string]bool{}
	for i := range b.plan.Layout.Shared {
		names[spec.Literal(b.plan.Layout.Shared[i].Name)] = true
	}
	for i, bl := range b.blocks {
		for _, bucket := range b.plan.Layout.Kinds[i].Buckets {
			for n := range bl.count() {
				name := bl.instance(bucket.Name, n)
				if names[name] {
					b.fault(spec.Errorf(bl.spec.Name.Pos, spec.CodeDuplicateName, "two buckets would be called %q", name).
						WithHint("give block %q another name", bl.spec.Name.V))
				}
				names[name] = true
			}
		}
	}
}

// layOut computes where every parameter starts in its bucket and how many
// elements each rank owns.
func (b *builder) layOut() {
	m := b.plan.Layout
	s := b.spec
	m.AlignBytes, m.MaxLive, m.Prefetch = s.Shard.AlignBytes.V, s.Gather.MaxLive.V, s.Gather.Prefetch.V
	m.GradSlots, m.Reduce, m.DivideBy = s.Gradients.Slots.V, s.Gradients.Reduce.V, s.Gradients.DivideBy.V
	m.Optimizer = optimizerState(&s.Optimizer)
	m.Worlds = b.worlds
	for i := range m.Kinds {
		for j := range m.Kinds[i].Buckets {
			b.layOutBucket(&m.Kinds[i].Buckets[j], b.blocks[i].spec.Name.Pos)
		}
	}
	for i := range m.Shared {
		b.layOutBucket(&m.Shared[i], b.shared[i].spec.Name.Pos)
	}
}

func optimizerState(o *spec.Optimizer) layout.Optimizer {
	switch {
	case o.Kind.V == spec.OptimizerAdamW:
		return layout.Optimizer{Kind: layout.AdamW, Masters: true}
	case o.Kind.V == spec.OptimizerSGD && o.Momentum.V:
		return layout.Optimizer{Kind: layout.MomentumSGD, Masters: true}
	case o.Kind.V == spec.OptimizerSGD:
		return layout.Optimizer{Kind: layout.SGD, Masters: true}
	}
	return layout.Optimizer{}
}

func (b *builder) layOutBucket(k *layout.Bucket, pos spec.Pos) {
	k.Unit = layout.Unit(b.plan.Layout.AlignBytes, k.DType.Bytes(), 1)
	numels := make([]int64, len(k.Params))
	for i := range k.Params {
		numels[i] = k.Params[i].Numel
	}
	starts, end, err := layout.Starts(numels, k.Unit)
	for i := range k.Params {
		k.Params[i].Start = starts[i]
	}
	k.End = end
	for _, world := range b.worlds {
		shard, overflow := layout.ShardElements(end, world, k.Unit)
		k.ShardElements = append(k.ShardElements, shard)
		err = cmp.Or(err, overflow)
	}
	if err != nil {
		b.fault(spec.Errorf(pos, spec.CodeOverflow, "bucket %q has more than 2^63-1 elements, padding included", k.Name).WithHint("%s", smaller))
	}
}
