package spec

import "github.com/shardgen/shardgen/runtime/dtype"

// Pos is a place in a spec file. Lines and columns count from 1, columns in
// runes. The zero Pos means that the value is a default.
type Pos struct{ Line, Col int }

// At is a value with its place. For a default, Pos is the place of the nearest
// enclosing map, and Set is false.
type At[T any] struct {
	V   T
	Pos Pos
	Set bool
}

// Model is a parsed and validated spec: every key is known, every value has its
// kind, every default is filled in. Names still hold their {i} placeholders.
type Model struct {
	Path   string // as given to Parse, for diagnostics
	Source []byte

	APIVersion At[string]
	Name       At[string] // key `model`
	Package    At[string] // Go package name
	DType      At[dtype.DType]
	Topology   Topology
	Shard      Shard
	Gather     Gather
	Gradients  Gradients
	Optimizer  Optimizer
	Budget     Budget
	Blocks     []Block
	Overrides  []Override
}

// Topology says over how many ranks the model is sharded.
type Topology struct {
	Pos          Pos
	Worlds       []At[int64] // key `world`, ascending, no duplicates, each >= 1
	RanksPerNode At[int64]   // 0 where the spec is silent: all ranks on one node
}

// Shard says how buckets are cut into shards.
type Shard struct {
	Pos        Pos
	Layout     At[string] // "flat"
	AlignBytes At[int64]  // power of two, 16 to 65,536
}

// Gather bounds how many blocks are gathered at once.
type Gather struct {
	Pos      Pos
	MaxLive  At[int64]  // slots, >= 1 + Prefetch
	Prefetch At[int64]  // blocks gathered ahead of the trainer, >= 0
	Mode     At[string] // "all_gather"
}

// Gradients says how gradients are reduced.
type Gradients struct {
	Pos      Pos
	Reduce   At[dtype.DType] // what is sent: f32, bf16 or f16; f64 parameters always reduce in f64
	Slots    At[int64]       // full-size gradient buffers, >= 1
	DivideBy At[int64]       // divisor of the summed gradient; 0 means the world size
}

// OptimizerKind selects the optimizer whose state the plan holds.
type OptimizerKind string

// The optimizers of the language.
const (
	OptimizerNone  OptimizerKind = "none"
	OptimizerAdamW OptimizerKind = "adamw"
	OptimizerSGD   OptimizerKind = "sgd"
)

// Optimizer says which optimizer state is sharded beside the parameters.
type Optimizer struct {
	Pos      Pos
	Kind     At[OptimizerKind]
	Master   At[dtype.DType] // dtype.Float32; low-precision parameters have a master of this type
	Moments  At[dtype.DType] // adamw: both moments
	Momentum At[bool]        // sgd: whether a momentum buffer is kept
}

// Budget bounds what Open may allocate, in bytes. A bound of 0 is no bound.
type Budget struct {
	Pos     Pos
	Device  At[int64]
	Host    At[int64]
	Reserve At[int64] // part of Device that the driver and activations need
}

// Block is a group of parameters gathered and released together, or with
// Repeat a family of such groups.
type Block struct {
	Pos    Pos
	Name   At[string] // holds {Var} once where Repeat is set
	Repeat *Repeat
	Params []Param
	Uses   []At[string] // owners in other blocks, read under their own names
}

// Repeat makes instances First..Last (both included) of a block.
type Repeat struct {
	Pos         Pos
	Var         string
	First, Last int64
}

// Len returns the number of instances.
func (r *Repeat) Len() int64 { return r.Last - r.First + 1 }

// Param is a parameter as written. A tied parameter (TiedTo set) has a name
// only; shape, dtype and the rest are its owner's.
type Param struct {
	Pos       Pos
	Name      At[string] // may hold the block's {Var}
	Shape     []At[int64]
	DType     At[dtype.DType] // the model's default where Set is false
	Init      *Init           // nil: the spec gives none
	Trainable At[bool]        // default: DType.Trainable()
	Decay     At[bool]        // default: true
	TiedTo    At[string]      // empty: the parameter owns its storage
}

// InitKind selects a distribution of initial values.
type InitKind string

// The initial distributions of the language.
const (
	InitOnes            InitKind = "ones"
	InitZeros           InitKind = "zeros"
	InitConstant        InitKind = "constant"
	InitNormal          InitKind = "normal"
	InitTruncatedNormal InitKind = "truncated_normal"
	InitUniform         InitKind = "uniform"
)

// Init is the distribution of a parameter's initial values.
type Init struct {
	Pos       Pos
	Kind      InitKind
	Value     float64 // constant
	Mean, Std float64 // normal, truncated_normal
	Cut       float64 // truncated_normal: values stay within Mean ± Cut*Std
	Low, High float64 // uniform: [Low, High)
}

// Override changes keys of every owner whose name matches. Per key the last
// matching rule wins.
type Override struct {
	Pos       Pos
	Match     At[string] // `*` stands for any characters, dots included
	DType     *At[dtype.DType]
	Init      *Init
	Trainable *At[bool]
	Decay     *At[bool]
}
