package optim

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// ChunkElements is how many elements share a norm of their own, which a block of
// a GPU's threads sums.
const ChunkElements = 8192

// NormBytes is the size of a [Norm] in memory, the host's and a device's: the
// sum of squares and the count, each an f64, so that ranks can all-reduce both
// as such. Counts are exact below 2^53.
const NormBytes = 16

// PartialBytes returns the room that the norms of the chunks of n elements need:
// NormBytes * ceil(n / ChunkElements).
func PartialBytes(n int64) int64 {
	chunks := n / ChunkElements
	if n%ChunkElements != 0 {
		chunks++
	}
	return NormBytes * chunks
}

// Norm gathers what a step must know of a gradient before it applies it.
type Norm struct {
	SumSquares float64 // NaN or infinite if an element is
	NonFinite  int64   // elements that are NaN or infinite
}

// Put writes the norm over the first [NormBytes] of b, which must have them.
func (n Norm) Put(b []byte) {
	_ = b[NormBytes-1]
	binary.LittleEndian.PutUint64(b, math.Float64bits(n.SumSquares))
	binary.LittleEndian.PutUint64(b[8:], math.Float64bits(float64(n.NonFinite)))
}

// NormOf reads the norm in the first [NormBytes] of b, which must have them.
func NormOf(b []byte) Norm {
	_ = b[NormBytes-1]
	return Norm{
		SumSquares: math.Float64frombits(binary.LittleEndian.Uint64(b)),
		NonFinite:  int64(math.Float64frombits(binary.LittleEndian.Uint64(b[8:]))),
	}
}

// PutNorms writes the norm of each chunk of x, [ChunkElements] long or what is
// left, over partials, which must have [PartialBytes] of len(x). The squares of a
// chunk are taken in f64 and added up pairwise: neighbours first, then neighbouring
// sums, as if zeros filled the chunk. So no bit depends on who sums which part.
func PutNorms(partials []byte, x []float32) { putNorms(partials, x) }

// PutNorms64 is [PutNorms] for f64 gradients.
func PutNorms64(partials []byte, x []float64) { putNorms(partials, x) }

// SumNorms is how many sums [Norm.AddAll] adds norms to.
const SumNorms = 1024

// AddAll adds the norms in partials, [NormBytes] each: norm i to sum i mod
// [SumNorms], in order of i; then the sums pairwise, neighbours first; then their
// sum to n.
func (n *Norm) AddAll(partials []byte) {
	var sums [SumNorms]float64
	var nonFinite int64
	for i := 0; len(partials) >= NormBytes; i = (i + 1) % SumNorms {
		one := NormOf(partials)
		sums[i] += one.SumSquares
		nonFinite += one.NonFinite
		partials = partials[NormBytes:]
	}
	n.SumSquares += addPairwise(sums[:])
	n.NonFinite += nonFinite
}

// Finite reports whether a step may apply the gradient: no element is NaN or
// infinite, and neither is the sum of squares (which, for f64 gradients, may
// overflow by itself).
func (n Norm) Finite() bool { return n.NonFinite == 0 && isFinite(n.SumSquares) }

func putNorms[F float](partials []byte, x []F) {
	for len(x) > 0 {
		chunk := x[:min(len(x), ChunkElements)]
		n := Norm{SumSquares: sumSquares(chunk)}
		if !isFinite(n.SumSquares) {
			n.NonFinite = countNonFinite(chunk)
		}
		n.Put(partials)
		partials, x = partials[NormBytes:], x[len(chunk):]
	}
}

// blockElements is how many squares are added up in registers.
const blockElements = 64

// sumSquares returns the sum of a chunk. Zeros that fill it change no sum, so only
// those up to a power of two of blocks are added.
func sumSquares[F float](chunk []F) float64 {
	var sums [ChunkElements / blockElements]float64
	whole := len(chunk) / blockElements
	for i := range whole {
		sums[i] = sumBlock((*[blockElements]F)(chunk[i*blockElements:]))
	}
	blocks := whole
	if rest := chunk[whole*blockElements:]; len(rest) > 0 {
		var filled [blockElements]F
		copy(filled[:], rest)
		sums[whole] = sumBlock(&filled)
		blocks++
	}
	return addPairwise(sums[:1<<bits.Len(uint(max(blocks, 1)-1))])
}

func sumBlock[F float](x *[blockElements]F) float64 {
	var sums [blockElements / 8]float64
	for i := range sums {
		y := (*[8]F)(x[8*i:])
		sums[i] = ((square(y[0]) + square(y[1])) + (square(y[2]) + square(y[3]))) +
			((square(y[4]) + square(y[5])) + (square(y[6]) + square(y[7])))
	}
	return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]))
}

// addPairwise returns the sum of a power of two of numbers, which it overwrites.
func addPairwise(x []float64) float64 {
	for len(x) > 1 {
		for i := range len(x) / 2 {
			x[i] = x[2*i] + x[2*i+1]
		}
		x = x[:len(x)/2]
	}
	return x[0]
}

func square[F float](x F) float64 { return float64(float64(x) * float64(x)) }

func countNonFinite[F float](x []F) int64 {
	var n int64
	for _, v := range x {
		if !isFinite(float64(v)) {
			n++
		}
	}
	return n
}

func isFinite(x float64) bool { return x-x == 0 }

// ClipCoefficient returns the factor that brings a gradient's norm down to
// maxNorm: min(1, maxNorm/(norm+1e-6)), as torch.nn.utils.clip_grad_norm_
// does. A maxNorm of 0 means no clipping: 1.
func ClipCoefficient(norm, maxNorm float64) float64 {
	if maxNorm == 0 {
		return 1
	}
	return min(1, maxNorm/(norm+1e-6))
}

// GradScale returns the one factor that unscales and clips a gradient of the
// given norm, ClipCoefficient(norm, clipNorm) / lossScale, and the norm of the
// unscaled gradient before clipping, sqrt(SumSquares) / lossScale. A loss scale
// of 0 means 1. The norm must be finite (see [Norm.Finite]).
func GradScale(n Norm, lossScale, clipNorm float64) (scale, norm float64) {
	if lossScale == 0 {
		lossScale = 1
	}
	norm = math.Sqrt(n.SumSquares) / lossScale
	return ClipCoefficient(norm, clipNorm) / lossScale, norm
}
