package kernel

import (
	"cmp"
	"maps"
	"slices"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
)

// Family is what entries that differ in types and choices only have in common.
type Family uint8

// The families, each called after the function that names its entries.
const (
	FamilyZero Family = iota
	FamilyCast
	FamilyAccumulate
	FamilyFill // with random values
	FamilyFillConstant
	FamilyNorm
	FamilyNormTotal
	FamilyScale
	FamilyAdamW
	FamilySGD
)

// Use is an entry that the runtime launches for a model: the arguments of the
// function that names it. What a family does not take is the zero value, so that
// equal entries have equal uses.
type Use struct {
	Family       Family
	From         dtype.DType // Cast: the source's; Accumulate: that of the reduced gradient
	Type         dtype.DType // of what is written, or read by Norm; of masters
	Own          dtype.DType // AdamW, SGD: of the parameters
	Distribution random.Kind // Fill
	ElementBytes int64       // FillConstant
	Store        bool        // Accumulate
	Momentum     bool        // SGD
}

// Name returns the name of the entry.
func (u Use) Name() string {
	switch u.Family {
	case FamilyCast:
		return Cast(u.From, u.Type)
	case FamilyAccumulate:
		return Accumulate(u.From, u.Type, u.Store)
	case FamilyFill:
		return Fill(u.Distribution, u.Type)
	case FamilyFillConstant:
		return FillConstant(u.ElementBytes)
	case FamilyNorm:
		return Norm(u.Type)
	case FamilyNormTotal:
		return NormTotal()
	case FamilyScale:
		return Scale(u.Type)
	case FamilyAdamW:
		return AdamW(u.Type, u.Own)
	case FamilySGD:
		return SGD(u.Type, u.Own, u.Momentum)
	default:
		return Zero()
	}
}

// Uses returns the entries that the runtime launches for a model, each once,
// sorted by name: what its package's code must have. They follow from the layout
// alone.
func Uses(m *layout.Model) []Use {
	c := collector{layout: m, set: map[Use]bool{{Family: FamilyZero}: true}}
	for b := range m.Buckets() {
		c.bucket(b)
	}
	return slices.SortedFunc(maps.Keys(c.set), func(a, b Use) int { return cmp.Compare(a.Name(), b.Name()) })
}

// Needed returns the names of Uses.
func Needed(m *layout.Model) []string {
	var names []string
	for _, u := range Uses(m) {
		names = append(names, u.Name())
	}
	return names
}

// collector collects uses.
type collector struct {
	layout *layout.Model
	set    map[Use]bool
}

// bucket adds what Init launches for a bucket: parameters are filled in their
// master where they have one, and the low-precision shard is cast from it, as
// after an update.
func (c *collector) bucket(b *layout.Bucket) {
	value := b.DType
	if c.layout.HasMaster(b) {
		value = b.GradType()
		c.cast(value, b.DType)
	}
	for _, p := range b.Params {
		if p.Numel > 0 && p.Init != nil {
			c.fill(p.Init.Kind, value)
		}
	}
	if b.Trainable {
		c.trained(b)
	}
}

// trained adds what a backward pass and a step launch: a gradient is cast to the
// type that it is sent in, divided, and stored or added to one before it; then the
// norm, Unscale, and the optimizer of the plan.
func (c *collector) trained(b *layout.Bucket) {
	wire, sum := c.layout.WireType(b), b.GradType()
	c.cast(b.DType, wire)
	c.set[Use{Family: FamilyAccumulate, From: wire, Type: sum, Store: true}] = true
	c.set[Use{Family: FamilyAccumulate, From: wire, Type: sum}] = true
	c.set[Use{Family: FamilyNorm, Type: sum}] = true
	c.set[Use{Family: FamilyNormTotal}] = true
	c.set[Use{Family: FamilyScale, Type: sum}] = true
	switch c.layout.Optimizer.Kind {
	case layout.AdamW:
		c.set[Use{Family: FamilyAdamW, Type: sum, Own: b.DType}] = true
	case layout.MomentumSGD:
		c.set[Use{Family: FamilySGD, Type: sum, Own: b.DType, Momentum: true}] = true
		c.set[Use{Family: FamilySGD, Type: sum, Own: b.DType}] = true
	case layout.SGD:
		c.set[Use{Family: FamilySGD, Type: sum, Own: b.DType}] = true
	}
}

func (c *collector) cast(from, to dtype.DType) {
	if from != to {
		c.set[Use{Family: FamilyCast, From: from, Type: to}] = true
	}
}

// fill adds what initial values need; constants differ by the size of an element
// only.
func (c *collector) fill(kind random.Kind, t dtype.DType) {
	u := Use{Family: FamilyFillConstant, ElementBytes: t.Bytes()}
	if kind.Random() {
		u = Use{Family: FamilyFill, Type: t, Distribution: kind}
	}
	c.set[u] = true
}
