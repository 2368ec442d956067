// Package constname names the constants of generated packages, in Go and in CUDA
// alike. It takes a *plan.Plan and gives names; it imports gen/plan, gen/output
// and the runtime's leaves.
//
// Constants are named after the Go names that the plan gives to kinds and
// fields, with the kind's first letter in lower case:
//
//	h_bf16_unit, h_bf16_end, h_bf16_shard_world8: a bucket of kind H
//	embed_shared_Wte_unit and so on: the bucket of a shared parameter
//	h_numel_Mlp, h_start_Mlp: a parameter
//	h_position, h_gradientBytes_world8: a kind
//	h_bf16_shardOffset_world8, h_bf16_masterFirst_world8, h_mastersF32Stride_world8:
//	where a part of a bucket lies
//
// Such names never meet: behind the first word, no word of a plan's name is a
// Go word in lower case alone or one that begins so, so numel, start, shared,
// position, gradientBytes and the bucket's type are found again in any of them. Constants of the whole model have no
// underscore.
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

// Bucket has the names of the constants of one bucket.
type Bucket struct {
	prefix string
	Params []Param // in the bucket's order
}

// Param has the names of the constants of one parameter.
type Param struct{ Numel, Start string }

// Unit names the bucket's unit, in elements.
func (b *Bucket) Unit() string { return b.prefix + "_unit" }

// End names the bucket's end, in elements.
func (b *Bucket) End() string { return b.prefix + "_end" }

// Shard names the elements that each of the ranks owns.
func (b *Bucket) Shard(ranks int64) string {
	return fmt.Sprintf("%s_shard_world%d", b.prefix, ranks)
}

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
func (b *Bucket) Offset(part Part, ranks int64) string { return b.of(part, "Offset", ranks) }

// First names where a part of a repeated kind's first instance lies.
func (b *Bucket) First(part Part, ranks int64) string { return b.of(part, "First", ranks) }

// Gathered names the bytes of the gathered bucket.
func (b *Bucket) Gathered(ranks int64) string { return b.of("gathered", "Bytes", ranks) }

func (b *Bucket) of(part Part, what string, ranks int64) string {
	return fmt.Sprintf("%s_%s%s_world%d", b.prefix, part, what, ranks)
}

// Kind has the names of the constants of a block kind.
type Kind struct{ prefix string }

// Position names the place of the kind's first block in the order of blocks.
func (k Kind) Position() string { return k.prefix + "_position" }

// Stride names the bytes from one instance of a kind to the next in an arena.
func (k Kind) Stride(a layout.Arena, ranks int64) string {
	return fmt.Sprintf("%s_%sStride_world%d", k.prefix, arenaName(a), ranks)
}

// GradBytes names the bytes of a block's full gradients.
func (k Kind) GradBytes(ranks int64) string {
	return fmt.Sprintf("%s_gradientBytes_world%d", k.prefix, ranks)
}

// SharedGrad names where a block's gradient of a shared bucket lies in a gradient
// buffer.
func (k Kind) SharedGrad(shared *Bucket, ranks int64) string {
	return fmt.Sprintf("%s_gradientOffset_%s_world%d", k.prefix, shared.prefix, ranks)
}

// OfWorld names a constant of the whole model at one world size, of which what
// begins in lower case: slotBytes becomes slotBytesWorld8.
func OfWorld(what string, ranks int64) string { return fmt.Sprintf("%sWorld%d", what, ranks) }

// StartFormula says, for a comment, where the parameter at index i starts; at
// the number of parameters, where the bucket ends.
func (b *Bucket) StartFormula(i int) string {
	if i == 0 {
		return "the bucket's start"
	}
	return fmt.Sprintf("roundup(%s + %s, unit)", b.Params[i-1].Start, b.Params[i-1].Numel)
}

// Arena names the bytes of an arena: shardsBf16BytesWorld8, slotsBytesWorld8.
func Arena(a layout.Arena, ranks int64) string { return OfWorld(arenaName(a)+"Bytes", ranks) }

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

// World names the constant of a world size.
func World(ranks int64) string { return fmt.Sprintf("world%d", ranks) }

// Rest names the bytes that a rank has between passes.
func Rest(ranks int64) string { return OfWorld("restBytes", ranks) }

// Peak names the bytes of all that a rank allocates.
func Peak(ranks int64) string { return OfWorld("peakBytes", ranks) }

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

// EachBucket visits own buckets of kinds in order, then the shared ones.
// instances names the constant of how often a repeated kind is there, and is
// empty for any other.
func (n *Names) EachBucket(visit func(b *layout.Bucket, n *Bucket, instances string)) {
	m := n.plan.Layout
	for k := range m.Kinds {
		instances := ""
		if m.Kinds[k].Var != "" {
			instances = n.plan.Kinds[k].GoName + "Len"
		}
		for b := range m.Kinds[k].Buckets {
			visit(&m.Kinds[k].Buckets[b], &n.Own[k][b], instances)
		}
	}
	for s := range m.Shared {
		visit(&m.Shared[s], &n.Shared[s], "")
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
	if param.Numel != "" {
		return fmt.Errorf("parameter %s: its place in the plan has two owners", output.Printable(f.Name))
	}
	prefix := lowerFirst(n.plan.Kinds[kind].GoName)
	param.Numel, param.Start = prefix+"_numel_"+f.GoName, prefix+"_start_"+f.GoName
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
			if list[b].Params[i].Numel == "" {
				return fmt.Errorf("parameter %s: no block of the plan owns it", output.Printable(buckets[b].Params[i].Name))
			}
		}
	}
	return nil
}

func lowerFirst(goName string) string { return strings.ToLower(goName[:1]) + goName[1:] }
