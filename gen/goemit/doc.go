// Package goemit writes a plan as Go source: the package that a trainer
// imports.
//
// It takes a *plan.Plan and gives files in memory; package output writes them.
// Each file of a generated package is a section of it: layout (constants, the
// relations that the compiler checks, the descriptor), model (Model and passes)
// and blocks (a type for each block kind). The size of the output grows with
// the block kinds, not with layers or world sizes.
//
// All numbers come from the plan; the package computes no offset. It imports
// spec, gen/plan, gen/constname, gen/relation, gen/output and the runtime's leaves,
// and writes Go through jennifer, whose quirks are dealt with in source.go alone.
package goemit
