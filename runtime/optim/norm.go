package optim

import (
	"encoding/binary"
	"math"
)

// ChunkElements is the chunk of the tree in which squares are summed.
const ChunkElements = 4096

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

// lanes is how many partial sums a chunk has.
const lanes = 8

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

// Accumulate adds the elements of x to the norm. The order of the additions is
// fixed: x is cut into chunks of [ChunkElements]; in a chunk, element i is
// squared in f64 and added to lane i mod 8, in order of i; the lanes add up as
// ((0+4)+(2+6))+((1+5)+(3+7)); chunk sums are added to SumSquares in order. So
// cutting x into several calls at multiples of ChunkElements changes no bit.
func (n *Norm) Accumulate(x []float32) { accumulate(n, x) }

// Accumulate64 is [Norm.Accumulate] for f64 gradients.
func (n *Norm) Accumulate64(x []float64) { accumulate(n, x) }

// Add adds the norm of other elements, such as another rank's.
func (n *Norm) Add(other Norm) {
	n.SumSquares += other.SumSquares
	n.NonFinite += other.NonFinite
}

// Finite reports whether a step may apply the gradient: no element is NaN or
// infinite, and neither is the sum of squares (which, for f64 gradients, may
// overflow by itself).
func (n Norm) Finite() bool { return n.NonFinite == 0 && isFinite(n.SumSquares) }

func accumulate[F float](n *Norm, x []F) {
	for len(x) > 0 {
		chunk := x[:min(len(x), ChunkElements)]
		sum := sumSquares(chunk)
		if !isFinite(sum) {
			n.NonFinite += countNonFinite(chunk)
		}
		n.SumSquares += sum
		x = x[len(chunk):]
	}
}

func sumSquares[F float](x []F) float64 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float64
	for ; len(x) >= lanes; x = x[lanes:] {
		y := x[:lanes:lanes]
		s0 += square(y[0])
		s1 += square(y[1])
		s2 += square(y[2])
		s3 += square(y[3])
		s4 += square(y[4])
		s5 += square(y[5])
		s6 += square(y[6])
		s7 += square(y[7])
	}
	var rest [lanes]float64
	for i, v := range x {
		rest[i] = square(v)
	}
	s0, s1, s2, s3 = s0+rest[0], s1+rest[1], s2+rest[2], s3+rest[3]
	s4, s5, s6, s7 = s4+rest[4], s5+rest[5], s6+rest[6], s7+rest[7]
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
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
