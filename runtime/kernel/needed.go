package kernel

import (
	"maps"
	"slices"

	"github.com/shardgen/shardgen/runtime/layout"
)

// Needed returns the names of the kernels that the runtime launches for a model,
// sorted: what its package's code must have. They follow from the layout alone.
func Needed(m *layout.Model) []string {
	n := names{layout: m, set: map[string]bool{Zero(): true}}
	for k := range m.Kinds {
		for b := range m.Kinds[k].Buckets {
			n.bucket(&m.Kinds[k].Buckets[b])
		}
	}
	for i := range m.Shared {
		n.bucket(&m.Shared[i])
	}
	return slices.Sorted(maps.Keys(n.set))
}

// names collects the names of kernels.
type names struct {
	layout *layout.Model
	set    map[string]bool
}

// bucket adds what Init launches for a bucket: parameters are filled in their
// master where they have one, and the low-precision shard is cast from it, as
// after an update.
func (n *names) bucket(b *layout.Bucket) {
	value := b.DType
	if n.layout.HasMaster(b) {
		value = b.GradType()
		n.set[Cast(value, b.DType)] = true
	}
	for _, p := range b.Params {
		if p.Numel > 0 && p.Init != nil {
			n.set[Fill(p.Init.Kind, value)] = true
		}
	}
	if b.Trainable {
		n.trained(b)
	}
}

// trained adds what a backward pass and a step launch: a gradient is cast to the
// type that it is sent in, divided, and stored or added to one before it; then the
// norm, Unscale, and the optimizer that the plan has state for.
func (n *names) trained(b *layout.Bucket) {
	wire, sum := n.layout.WireType(b), b.GradType()
	if wire != b.DType {
		n.set[Cast(b.DType, wire)] = true
	}
	n.set[Accumulate(wire, sum, true)] = true
	n.set[Accumulate(wire, sum, false)] = true
	n.set[Norm(sum)] = true
	n.set[NormTotal()] = true
	n.set[Scale(sum)] = true
	switch o := n.layout.Optimizer; {
	case o.Moments == 2:
		n.set[AdamW(sum, b.DType)] = true
	case o.Moments == 1:
		n.set[SGD(sum, b.DType, true)] = true
		n.set[SGD(sum, b.DType, false)] = true
	case o.Masters:
		n.set[SGD(sum, b.DType, false)] = true
	}
}
