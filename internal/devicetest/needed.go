package devicetest

import (
	"maps"
	"slices"

	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Needed returns the names of the kernels that the runtime launches for a model,
// sorted: what its package's code must have.
func Needed(m *layout.Model) []string {
	n := names{layout: m, set: map[string]bool{kernel.Zero(): true}}
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

// bucket adds what Init, a backward pass and a step launch for a bucket.
func (n *names) bucket(b *layout.Bucket) {
	value := b.DType
	if n.layout.HasMaster(b) {
		value = b.GradType()
		n.set[kernel.Cast(value, b.DType)] = true
	}
	for _, p := range b.Params {
		if p.Numel > 0 && p.Init != nil {
			n.set[kernel.Fill(p.Init.Kind, value)] = true
		}
	}
	if b.Trainable {
		n.trained(b)
	}
}

func (n *names) trained(b *layout.Bucket) {
	wire, sum := n.layout.WireType(b), b.GradType()
	if wire != b.DType {
		n.set[kernel.Cast(b.DType, wire)] = true
	}
	n.set[kernel.Accumulate(wire, sum, true)] = true
	n.set[kernel.Accumulate(wire, sum, false)] = true
	n.set[kernel.Norm(sum)] = true
	n.set[kernel.NormTotal()] = true
	n.set[kernel.Scale(sum)] = true
	switch o := n.layout.Optimizer; {
	case o.Moments == 2:
		n.set[kernel.AdamW(sum, b.DType)] = true
	case o.Moments == 1:
		n.set[kernel.SGD(sum, b.DType, true)] = true
		n.set[kernel.SGD(sum, b.DType, false)] = true
	case o.Masters:
		n.set[kernel.SGD(sum, b.DType, false)] = true
	}
}
