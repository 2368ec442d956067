// Package constname names the constants of generated packages, in Go and in CUDA
// alike. It takes a *plan.Plan and gives names; it imports gen/plan, gen/output
// and the runtime's leaves.
//
// Constants are named after the Go names that the plan gives to kinds and
// fields, with the kind's first letter in lower case:
//
//	h_bf16_unit, h_bf16_end, h_bf16_shard: a bucket of kind H
//	embed_shared_Wte_unit and so on: the bucket of a shared parameter
//	h_numel_Mlp, h_start_Mlp: a parameter
//	h_position, h_gradientBytes: a kind
//	h_bf16_shardOffset, h_bf16_masterFirst, h_mastersF32Stride: where a part of a
//	bucket lies
//
// A constant that depends on the world size is a member of World<8> in CUDA; Go
// has one for each size, h_bf16_shard_world8.
//
// Such names never meet: behind the first word, no word of a plan's name is a
// Go word in lower case alone or one that begins so, so numel, start, shared,
// position, gradientBytes and the bucket's type are found again in any of them.
// Constants of the whole model have no underscore.
package constname

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Name is the name of a constant.
type Name struct {
	base     string
	PerWorld bool // it has a value for each world size
}

// String is the name in CUDA, where a constant that depends on the world size is
// a member of World<N>.
func (n Name) String() string { return n.base }

// Go is the name in Go, at a world size where it depends on that: shardBytes
// becomes shardBytesWorld8, h_shard becomes h_shard_world8.
func (n Name) Go(ranks int64) string {
	switch {
	case !n.PerWorld:
		return n.base
	case n == World():
		return fmt.Sprintf("world%d", ranks)
	case strings.Contains(n.base, "_"):
		return fmt.Sprintf("%s_world%d", n.base, ranks)
	}
	return fmt.Sprintf("%sWorld%d", n.base, ranks)
}

// OfModel names a constant of the whole model.
func OfModel(what string) Name { return Name{base: what} }

// OfWorld names a constant of the whole model that depends on the world size.
func OfWorld(what string) Name { return Name{base: what, PerWorld: true} }

// World names the world size.
func World() Name { return OfWorld("world") }

// Rest names the bytes that a rank has between passes.
func Rest() Name { return OfWorld("restBytes") }

// Peak names the bytes of all that a rank allocates.
func Peak() Name { return OfWorld("peakBytes") }

// Arena names the bytes of an arena: shardsBf16Bytes, slotsBytes.
func Arena(a layout.Arena) Name { return OfWorld(arenaName(a) + "Bytes") }

// arenaName joins the words of an arena's role and its type.
func arenaName(a layout.Arena) string {
	words := strings.Fields(a.Role.String())
	if a.DType != dtype.Invalid {
		words = append(words, a.DType.String())
	}
	name := words[0]
	for _, w := range words[1:] {
		name += strings.ToUpper(w[:1]) + w[1:]
	}
	return name
}

// Bucket has the names of the constants of one bucket.
type Bucket struct {
	prefix string
	Params []Param // in the bucket's order
}

// Param has the names of the constants of one parameter.
type Param struct{ Numel, Start Name }

// Unit names the bucket's unit, in elements.
func (b *Bucket) Unit() Name { return Name{base: b.prefix + "_unit"} }

// End names the bucket's end, in elements.
func (b *Bucket) End() Name { return Name{base: b.prefix + "_end"} }

// Shard names the elements that each of the ranks owns.
func (b *Bucket) Shard() Name { return b.of("shard", "") }

// Part is something that a rank keeps of a bucket, or of its copy.
type Part string

// The parts of a bucket.
const (
	ShardPart     Part = "shard"         // this rank's parameters
	MasterPart    Part = "master"        // their high-precision copies
	Moment1Part   Part = "moment1"       // optimizer state
	Moment2Part   Part = "moment2"       // optimizer state
	GradShardPart Part = "gradientShard" // reduced and accumulated gradients
	SlotPart      Part = "slot"          // the gathered bucket, in the arena of slots
	BlockPart     Part = "block"         // the gathered bucket, in its block's slot
	GradPart      Part = "gradient"      // the full gradient, in a gradient buffer
)

// Offset names where a part lies: a constant, or a function of the instance of
// a repeated kind.
func (b *Bucket) Offset(part Part) Name { return b.of(part, "Offset") }

// First names where a part of a repeated kind's first instance lies.
func (b *Bucket) First(part Part) Name { return b.of(part, "First") }

// Gathered names the bytes of the gathered bucket.
func (b *Bucket) Gathered() Name { return b.of("gathered", "Bytes") }

func (b *Bucket) of(part Part, what string) Name {
	return OfWorld(b.prefix + "_" + string(part) + what)
}

// Kind has the names of the constants of a block kind.
type Kind struct{ prefix string }

// Position names the place of the kind's first block in the order of blocks.
func (k Kind) Position() Name { return Name{base: k.prefix + "_position"} }

// Stride names the bytes from one instance of a kind to the next in an arena.
func (k Kind) Stride(a layout.Arena) Name {
	return OfWorld(k.prefix + "_" + arenaName(a) + "Stride")
}

// GradBytes names the bytes of a block's full gradients.
func (k Kind) GradBytes() Name { return OfWorld(k.prefix + "_gradientBytes") }

// SharedGrad names where a block's gradient of a shared bucket lies in a gradient
// buffer.
func (k Kind) SharedGrad(shared *Bucket) Name {
	return OfWorld(k.prefix + "_gradientOffset_" + shared.prefix)
}

// Names holds the constants' names of all buckets.
type Names struct {
	Kinds  []Kind
	Own    [][]Bucket // for each kind and bucket
	Shared []Bucket
	plan   *plan.Plan
}

// New names the constants of a plan. A plan that contradicts its own layout, or
// in which a parameter has no owner, or two, is an error.
func New(p *plan.Plan) (*Names, error) {
	if len(p.Kinds) != len(p.Layout.Kinds) || len(p.Worlds) != len(p.Layout.Worlds) {
		return nil, fmt.Errorf("the plan has %d block kinds and %d worlds, but its layout %d and %d",
			len(p.Kinds), len(p.Worlds), len(p.Layout.Kinds), len(p.Layout.Worlds))
	}
	n := &Names{Shared: emptyNames(p.Layout.Shared), plan: p}
	for k := range p.Layout.Kinds {
		own, prefix := emptyNames(p.Layout.Kinds[k].Buckets), lowerFirst(p.Kinds[k].GoName)
		nameBuckets(own, p.Layout.Kinds[k].Buckets, prefix)
		n.Kinds = append(n.Kinds, Kind{prefix})
		n.Own = append(n.Own, own)
		for f := range p.Kinds[k].Fields {
			if err := n.nameField(k, &p.Kinds[k].Fields[f]); err != nil {
				return nil, err
			}
		}
	}
	return n, n.complete()
}

// Of returns the names of the bucket that a reference points into, seen from a
// kind.
func (n *Names) Of(kind int, at plan.Ref) *Bucket {
	if at.Shared {
		return &n.Shared[at.Bucket]
	}
	return &n.Own[kind][at.Bucket]
}

// RepeatFirst names the first index of a repeated kind.
func (n *Names) RepeatFirst(kind int) Name { return OfModel(n.plan.Kinds[kind].GoName + "First") }

// RepeatLen names how often a repeated kind is there.
func (n *Names) RepeatLen(kind int) Name { return OfModel(n.plan.Kinds[kind].GoName + "Len") }

// Shared is the kind of shared buckets, which belong to none.
const Shared = -1

// EachBucket visits own buckets of kinds in order, then the shared ones.
func (n *Names) EachBucket(visit func(kind int, b *layout.Bucket, n *Bucket)) {
	m := n.plan.Layout
	for k := range m.Kinds {
		for b := range m.Kinds[k].Buckets {
			visit(k, &m.Kinds[k].Buckets[b], &n.Own[k][b])
		}
	}
	for s := range m.Shared {
		visit(Shared, &m.Shared[s], &n.Shared[s])
	}
}

func emptyNames(buckets []layout.Bucket) []Bucket {
	list := make([]Bucket, len(buckets))
	for i := range buckets {
		list[i].Params = make([]Param, len(buckets[i].Params))
	}
	return list
}

// nameBuckets calls a bucket after its type, marks one that is frozen though its
// type could be trained, and counts where that is not enough.
func nameBuckets(list []Bucket, buckets []layout.Bucket, kind string) {
	for i := range buckets {
		prefix := kind + "_" + buckets[i].DType.String()
		if !buckets[i].Trainable && buckets[i].DType.Trainable() {
			prefix += "frozen"
		}
		unique := prefix
		same := func(b Bucket) bool { return b.prefix == unique }
		for n := 2; slices.ContainsFunc(list[:i], same); n++ {
			unique = fmt.Sprintf("%sn%d", prefix, n)
		}
		list[i].prefix = unique
	}
}

// nameField names the constants of the parameter that a field owns.
func (n *Names) nameField(kind int, f *plan.Field) error {
	if err := checkRef(n.plan.Layout, kind, f); err != nil {
		return err
	}
	if !f.Own {
		return nil
	}
	bucket := n.Of(kind, f.At)
	param := &bucket.Params[f.At.Param]
	if param.Numel != (Name{}) {
		return fmt.Errorf("parameter %s: its place in the plan has two owners", output.Printable(f.Name))
	}
	prefix := lowerFirst(n.plan.Kinds[kind].GoName)
	param.Numel, param.Start = OfModel(prefix+"_numel_"+f.GoName), OfModel(prefix+"_start_"+f.GoName)
	if f.At.Shared && bucket.prefix == "" {
		bucket.prefix = prefix + "_shared_" + f.GoName
	}
	return nil
}

func checkRef(m *layout.Model, kind int, f *plan.Field) error {
	buckets := m.Kinds[kind].Buckets
	if f.At.Shared {
		buckets = m.Shared
	}
	if f.At.Bucket < 0 || f.At.Bucket >= len(buckets) || f.At.Param < 0 || f.At.Param >= len(buckets[f.At.Bucket].Params) {
		return fmt.Errorf("parameter %s of block %s: the plan has no place for it", output.Printable(f.Name), output.Printable(m.Kinds[kind].Name))
	}
	return nil
}

// complete reports the first parameter that no field owns.
func (n *Names) complete() error {
	for k := range n.Own {
		if err := owned(n.Own[k], n.plan.Layout.Kinds[k].Buckets); err != nil {
			return err
		}
	}
	return owned(n.Shared, n.plan.Layout.Shared)
}

func owned(list []Bucket, buckets []layout.Bucket) error {
	for b := range list {
		for i := range list[b].Params {
			if list[b].Params[i].Numel == (Name{}) {
				return fmt.Errorf("parameter %s: no block of the plan owns it", output.Printable(buckets[b].Params[i].Name))
			}
		}
	}
	return nil
}

func lowerFirst(goName string) string { return strings.ToLower(goName[:1]) + goName[1:] }
