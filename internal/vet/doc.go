// Package vet holds the analyzers of shardvet. They take the type-checked code
// of a trainer that uses generated packages and give diagnostics about what the
// compiler can't see: blocks that are gathered and never released, gradients
// that are neither reduced nor discarded, passes that are opened and never
// ended, handles that are used after they were given back, and writes to
// gathered parameters, which change no shard.
//
// A generated package is recognised by the structure of its types: a struct
// with a field shard.Block and a method Release is a block, one with a field
// shard.Grads and the methods Reduce and Discard is gradients, one with a field
// shard.Pass and a method End is a pass.
//
// Each handle is followed along the paths of the function that asked for it.
// Where the analyzers can't know who gives a handle back (it is stored,
// returned, captured, or passed to a function that may release it), they say
// nothing: a report is meant to be a fault.
//
// A write is reported where the tensor or slice is a block's on all paths: taken
// from a field of a block, or a local variable that is never set to anything
// else. What a function does to a slice that it is passed is not known, apart
// from copy, clear and sorting.
//
// The package may import golang.org/x/tools/go/analysis and what belongs to it,
// and nothing of this module: it knows the runtime by its import path alone.
package vet

import (
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
)

// Analyzers returns all analyzers of shardvet, in the order of their names.
func Analyzers() []*analysis.Analyzer {
	return []*analysis.Analyzer{
		newAnalyzer(block, "shardblock", "check that gathered blocks are released once and not used afterwards"),
		newAnalyzer(grads, "shardgrads", "check that gradients are reduced or discarded once and not used afterwards"),
		{
			Name: "shardparam",
			Doc:  "check that gathered parameters are not written to, since that changes no shard",
			Run:  func(p *analysis.Pass) (any, error) { checkWrites(p); return nil, nil },
		},
		newAnalyzer(pass, "shardpass", "check that passes are ended and not used afterwards"),
	}
}

func newAnalyzer(k kind, name, doc string) *analysis.Analyzer {
	return &analysis.Analyzer{
		Name:     name,
		Doc:      doc,
		Requires: []*analysis.Analyzer{ctrlflow.Analyzer, borrowAnalyzer},
		Run:      func(p *analysis.Pass) (any, error) { return nil, check(p, k) },
	}
}
