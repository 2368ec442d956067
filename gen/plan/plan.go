// Package plan turns a spec into a Plan: which parameters share a bucket, where
// each lies, what every rank owns, how much memory a rank needs, and the hashes
// that ranks and files are compared by.
//
// It is pure arithmetic: no I/O, no Go and no CUDA text. It imports spec,
// the runtime's leaves, and of gen/output how names are printed.
package plan

import (
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// Plan is everything that emitters and reports need to know of a model.
type Plan struct {
	Spec   *spec.Model
	Layout *layout.Model // what the generated package holds as constants
	Kinds  []Kind        // for each of Layout.Kinds
	Shared []Owner       // for each of Layout.Shared
	Params []Param       // every name, aliases too, in spec order, repeats expanded
	Hashes Hashes
	Worlds []World // for each of Layout.Worlds
}

// Kind is what a trainer sees of a block kind.
type Kind struct {
	Block  *spec.Block
	GoName string
	Fields []Field // in spec order: parameters, aliases, then used parameters
}

// Field is a parameter as a block kind sees it: its own, an alias, or a
// parameter of another block that it uses.
type Field struct {
	GoName string
	Name   string // as the block calls it, a template
	Owner  string // the owner's name, a template; equal to Name unless the field is an alias
	DType  dtype.DType
	Shape  []int64
	Numel  int64
	At     Ref
	Rules  []Rule // which override set what; owners only
	Pos    spec.Pos
	Own    bool // declared in this block and owner of its storage; false for an alias or a use
}

// Ref points at a parameter in the layout.
type Ref struct {
	Shared bool
	Bucket int // index in the kind's Buckets, or in Layout.Shared
	Param  int // index in that bucket's Params
}

// Owner points at the field that owns the storage of a shared parameter.
type Owner struct {
	Kind  int // index in Plan.Kinds
	Field int // index in the kind's Fields
}

// Rule says which override set a key of a parameter.
type Rule struct {
	Key   string // "trainable", "decay", "init", "dtype"
	Match string // the rule's pattern
	Pos   spec.Pos
}

// Param is a parameter of one instance.
type Param struct {
	Name     string
	Block    string // instance name, "h.3"
	Kind     int
	Instance int64
	Field    int    // index in the kind's Fields
	AliasOf  string // the owner's name, empty for an owner
}

// Hashes of the model, in hexadecimal; those of layout and plan are kept per
// world size.
type Hashes struct{ Model string }

// World is what depends on the world size.
type World struct {
	Ranks              int64
	Placement          *layout.Placement
	Layout             string // hash
	Plan               string // hash
	GatherBytesPerStep int64  // received by one rank
	ReduceBytesPerStep int64
}

// Bucket returns the bucket that a reference from a kind points at.
func (p *Plan) Bucket(kind int, at Ref) *layout.Bucket {
	if at.Shared {
		return &p.Layout.Shared[at.Bucket]
	}
	return &p.Layout.Kinds[kind].Buckets[at.Bucket]
}
