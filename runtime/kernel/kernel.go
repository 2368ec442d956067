// Package kernel names the entries of a package's CUDA module, and the shape of
// their launches.
//
// It takes the element types and choices that an entry is made for and gives its
// name, such as "shardgen_cast_f32_bf16", and says which entries a model's layout
// needs; see [Uses]. Package gen/cuemit emits those and a GPU's runtime looks
// entries up by their names, so that the two can't differ. It imports leaves of
// the runtime only: dtype, layout, optim and random.
//
// A launch is one-dimensional: any number of blocks of [ThreadsPerBlock] threads,
// each of which takes its share of the range, so that the number of blocks
// changes no bit. Only [NormTotal] has one block of [TotalThreads].
package kernel

import (
	"fmt"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// What launches and headers agree on: kThreads, kBlocks and kAccessBytes of
// range.cuh, kSumNorms of norm.cuh.
const (
	ThreadsPerBlock         = 256            // of all kernels but NormTotal
	BlocksPerMultiprocessor = 4              // that a multiprocessor can run at once, at least
	TotalThreads            = optim.SumNorms // of NormTotal's one block
	AccessBytes             = 16             // the widest access of a thread; ranges start at its multiples
)

const prefix = "shardgen_"

// Zero names the kernel that clears bytes: (target, bytes int64).
func Zero() string { return prefix + "zero" }

// Cast names the conversion of elements of one type to another, which differs:
// (target, source, elements int64).
func Cast(from, to dtype.DType) string { return fmt.Sprintf(prefix+"cast_%s_%s", from, to) }

// Accumulate names the kernel that takes a reduced gradient of type wire into a
// shard of type sum, stored where store is true, else added:
// (sum, source, elements int64, divisor float64).
func Accumulate(wire, sum dtype.DType, store bool) string {
	mode := "add"
	if store {
		mode = "store"
	}
	return fmt.Sprintf(prefix+"accumulate_%s_%s_%s", wire, sum, mode)
}

// Fill names the kernel that makes the initial values of a parameter. Where the
// distribution is random: (target, sampler random.Sampler, first, elements int64);
// where it is a constant it is that of [FillConstant].
func Fill(kind random.Kind, t dtype.DType) string {
	if !kind.Random() {
		return FillConstant(t.Bytes())
	}
	return fmt.Sprintf(prefix+"fill_%s_%s", kind, t)
}

// FillConstant names the kernel that writes a constant over elements of the
// given size: (target, bits uint64, elements int64).
func FillConstant(elementBytes int64) string {
	return fmt.Sprintf(prefix+"fill_constant_%d", elementBytes)
}

// Norm names the kernel that writes the norm of each chunk of a gradient:
// (partials, gradient, elements int64).
func Norm(t dtype.DType) string { return prefix + "norm_" + t.String() }

// NormTotal names the kernel that adds norms to a total:
// (total, norms, count int64).
func NormTotal() string { return prefix + "norm_total" }

// Scale names the kernel that multiplies a gradient by a factor:
// (gradient, elements int64, factor float64).
func Scale(t dtype.DType) string { return prefix + "scale_" + t.String() }

// AdamW names the optimizer step on masters of a type whose parameters are of
// type own: (step optim.AdamWStep, master, moment1, moment2, gradient, copy,
// elements int64), without copy where the types are equal.
func AdamW(t, own dtype.DType) string { return update("adamw", t, own) }

// SGD is AdamW's counterpart: (step optim.SGDStep, master, momentum, gradient,
// copy, elements int64), without momentum where that is false and without copy
// where the types are equal.
func SGD(t, own dtype.DType, momentum bool) string {
	if momentum {
		return update("sgd_momentum", t, own)
	}
	return update("sgd", t, own)
}

func update(optimizer string, t, own dtype.DType) string {
	name := prefix + optimizer + "_" + t.String()
	if t != own {
		name += "_" + own.String()
	}
	return name
}

// Threads returns the threads of a block of the named kernel.
func Threads(name string) int64 {
	if name == NormTotal() {
		return TotalThreads
	}
	return ThreadsPerBlock
}

// PackElements returns how many elements a thread handles at a time: those of the
// smallest of the types have [AccessBytes].
func PackElements(types ...dtype.DType) int64 {
	smallest := int64(AccessBytes)
	for _, t := range types {
		smallest = min(smallest, t.Bytes())
	}
	return AccessBytes / smallest
}
