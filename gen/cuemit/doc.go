// Package cuemit writes a plan as CUDA source: a header of all offsets and sizes
// and a .cu of kernels.
//
// It takes a *plan.Plan and gives files in memory; package output writes them.
// zz_layout.cuh holds the constants of the generated Go package under the same
// names, and what the placements say: where every part of every bucket lies, as
// constants, and as functions of the instance for repeated blocks. What depends on
// the world size is a member of World<N>, written once for all sizes. The relations
// between them are static_asserts; C++17 can include it by itself (testdata/places.cc
// does). It grows with block kinds, not with layers, and by a number a constant with
// world sizes. zz_kernels.cu has an extern "C" entry for each configuration that
// the plan's buckets need of the kernels in cudasrc; equal configurations share
// one, so their number is bounded by the element types and does not grow with
// layers, world sizes or parameters.
//
// All numbers come from the plan; the package computes no offset, and refuses a
// placement that its formulas can't say. It imports gen/plan,
// gen/constname, gen/relation, gen/output, templates and the runtime's leaves.
package cuemit
