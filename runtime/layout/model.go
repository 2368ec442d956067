// Package layout is the arithmetic of sharding: where every parameter lies in
// its bucket, what each rank owns of it, and where each thing has its place in
// a rank's memory.
//
// Generator and runtime both read their offsets from here; nothing computes an
// offset a second way. The package is a leaf: it imports only its fellow leaves
// dtype, optim and random.
package layout

import (
	"iter"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/random"
)

// Model describes how one model is sharded at each of the listed world sizes.
// A generated package holds it as constants.
type Model struct {
	AlignBytes int64       // every payload is a multiple of it
	MaxLive    int64       // gather slots; the block at position p uses slot p mod MaxLive
	Prefetch   int64       // blocks gathered ahead of the trainer
	GradSlots  int64       // full-size gradient buffers
	Reduce     dtype.DType // what gradients are sent as; f64 parameters always use f64
	DivideBy   int64       // divisor of a summed gradient; 0 means the world size
	Optimizer  Optimizer
	Worlds     []int64  // world sizes, ascending
	Kinds      []Kind   // in the order of the blocks
	Shared     []Bucket // parameters that more than one block uses, one each; templates without placeholder
}

// Optimizer says how a step updates parameters, and so which state is kept beside
// each trainable one's shard.
type Optimizer struct {
	Kind    OptimizerKind
	Masters bool // f32 copies of bf16 and f16 parameters
}

// OptimizerKind is what a step does. The zero value is a trainer's own, which has
// no state in the plan.
type OptimizerKind uint8

// The kinds of optimizers.
const (
	NoOptimizer OptimizerKind = iota
	SGD                       // without momentum
	MomentumSGD               // with a buffer for it; a step may do without
	AdamW
)

// kinds has the name of each kind and its buffers of the master's type.
var kinds = [...]struct {
	name    string
	moments int64
}{NoOptimizer: {"none", 0}, SGD: {"sgd", 0}, MomentumSGD: {"sgd with momentum", 1}, AdamW: {"adamw", 2}}

func (k OptimizerKind) String() string { return kinds[k].name }

// Moments returns how many buffers of the master's type a parameter has.
func (k OptimizerKind) Moments() int64 { return kinds[k].moments }

// Kind is a block, or the family of blocks that a repeat makes. Its instances
// stand next to each other in the order of blocks. All names in it, those of
// its buckets and parameters too, are templates: Instance expands them.
type Kind struct {
	Name    string // "h.{i}"; no placeholder where Var is empty
	Var     string // "i"
	First   int64  // index of the first instance; 0 where Var is empty
	Count   int64  // instances; 1 where Var is empty
	Buckets []Bucket
	Uses    []int // indices in Model.Shared of the shared parameters the block reads
}

// Bucket is the parameters that one collective moves.
type Bucket struct {
	Name          string // "h.{i}/bf16"
	DType         dtype.DType
	Trainable     bool
	Unit          int64 // elements; see Unit
	Params        []Param
	End           int64   // elements without the padding that sharding adds; see Starts
	ShardElements []int64 // elements that each rank owns, for each of Model.Worlds
}

// Param is a parameter that owns its storage.
type Param struct {
	Name  string // "h.{i}.mlp.weight"
	Shape []int64
	Numel int64 // product of Shape
	Start int64 // elements from the bucket's start
	Decay bool  // weight decay applies
	Init  *random.Distribution
}

// Instance replaces the kind's placeholder in a name by the index of instance
// n, counted from 0.
func (k *Kind) Instance(template string, n int64) string {
	return expand(template, k.Var, k.First+n)
}

// Blocks returns the number of blocks, every instance counted.
func (m *Model) Blocks() int64 {
	var n int64
	for i := range m.Kinds {
		n += m.Kinds[i].Count
	}
	return n
}

// Buckets yields the own buckets of the kinds in order, those of a repeated kind
// once, then the shared ones.
func (m *Model) Buckets() iter.Seq[*Bucket] {
	return func(yield func(*Bucket) bool) {
		for k := range m.Kinds {
			for b := range m.Kinds[k].Buckets {
				if !yield(&m.Kinds[k].Buckets[b]) {
					return
				}
			}
		}
		for i := range m.Shared {
			if !yield(&m.Shared[i]) {
				return
			}
		}
	}
}

// WorldIndex returns the place of a world size in Worlds, or -1.
func (m *Model) WorldIndex(world int64) int {
	for i, w := range m.Worlds {
		if w == world {
			return i
		}
	}
	return -1
}

// GradType returns the type in which a gradient of the bucket is accumulated
// and its master and moments are kept: f64 for f64, f32 for all others.
func (b *Bucket) GradType() dtype.DType {
	if b.DType == dtype.Float64 {
		return dtype.Float64
	}
	return dtype.Float32
}

// WireType returns the type in which a gradient of the bucket is reduced.
func (m *Model) WireType(b *Bucket) dtype.DType {
	if b.DType == dtype.Float64 {
		return dtype.Float64
	}
	return m.Reduce
}

// HasMaster reports whether the bucket's parameters have a copy of higher
// precision; f32 and f64 parameters are their own.
func (m *Model) HasMaster(b *Bucket) bool {
	return m.Optimizer.Masters && b.Trainable && b.DType != b.GradType()
}
