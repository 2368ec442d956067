package random

import (
	"encoding/binary"
	"fmt"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// chunkElements is how many elements are made at a time; they stay on the stack.
const chunkElements = 256

// Fill writes the elements from first on, of type t, over dst, whose length is
// a multiple of t's size, in little-endian order, that of every host this runs
// on. Values are made in f64. An f64 parameter stores them;
// others round them to f32 and that to t, both times to nearest even, so that a
// low-precision parameter is its f32 master rounded.
//
// Element i takes its uniform number from half i%2 of block i/2 of the stream.
// A normal number is the inverse of the cumulative distribution there. A
// truncated one maps the uniform number into [Phi(-Cut), Phi(Cut)] first;
// rounding can move it to the value of t that is nearest to the bound. Uniform
// numbers are rounded to values of t within [Low, High), High itself never,
// unless t has no value in that range: then they are the nearest to it.
//
// It panics where [Distribution.Validate] fails: that is a programming error.
func (d Distribution) Fill(dst []byte, t dtype.DType, s Stream, first int64) {
	if err := d.Validate(t); err != nil {
		panic(fmt.Sprintf("random: Fill: %v", err))
	}
	if bits, ok := d.ConstantBits(t); ok {
		fillConstant(dst, t, bits)
		return
	}
	var values [chunkElements]float64
	sampler := d.Sampler(t, s)
	for len(dst) > 0 {
		n := min(int64(len(dst))/t.Bytes(), chunkElements)
		sampler.values(values[:n], d.Kind, first)
		store(dst[:n*t.Bytes()], t, values[:n])
		dst, first = dst[n*t.Bytes():], first+n
	}
}

// FillFloat32 is [Distribution.Fill] for elements of type f32.
func (d Distribution) FillFloat32(dst []float32, s Stream, first int64) {
	d.Fill(dtype.Bytes(dst), dtype.Float32, s, first)
}

// store rounds values to t through f32.
func store(dst []byte, t dtype.DType, values []float64) {
	n := int64(len(values))
	if t == dtype.Float64 {
		copy(dtype.Slice[float64](dst), values)
		return
	}
	var rounded [chunkElements]float32
	for i, x := range values {
		rounded[i] = float32(x)
	}
	dtype.Convert(dst, t, dtype.Bytes(rounded[:n]), dtype.Float32, n)
}

// Sampler holds what all elements of a parameter share. A uniform number u
// becomes Base + u*Width. Kernels read it as it lies in memory: shardgen::Sampler
// of fill.cuh, 80 bytes.
type Sampler struct {
	Mean, Std    float64 // normal, truncated_normal
	Cut          float64 // truncated_normal, in units of Std; Base is the probability below -Cut
	Base, Width  float64 // truncated_normal, uniform
	Lower, Upper float64 // uniform: bounds on the result
	Stream       Stream
	Bounded      bool
	_            [7]byte // so that it is as long where 64-bit words are aligned to 4 bytes
}

// Sampler returns what the elements of a parameter of type t share, in the
// given stream. The distribution is valid for t, and random: see [Kind.Random].
func (d Distribution) Sampler(t dtype.DType, s Stream) Sampler {
	r := Sampler{Mean: d.Mean, Std: d.Std, Cut: d.Cut, Width: 1, Stream: s}
	switch d.Kind {
	case TruncatedNormal:
		r.Base = lowerTail(d.Cut)
		r.Width = 1 - float64(2*r.Base)
	case Uniform:
		r.Base, r.Width = d.Low, d.High-d.Low
		r.Lower, r.Upper = atLeast(d.Low, t), below(d.High, t)
		r.Bounded = r.Lower <= r.Upper
	}
	return r
}

// ConstantBits returns the bits of each element of a parameter of type t, those
// above its size zero, and whether the distribution is a constant at all. It is
// valid for t.
func (d Distribution) ConstantBits(t dtype.DType) (bits uint64, ok bool) {
	if d.Kind.Random() {
		return 0, false
	}
	value := d.Value
	switch d.Kind {
	case Ones:
		value = 1
	case Zeros:
		value = 0
	}
	var word [1]uint64
	b := dtype.Bytes(word[:])
	if t.IsFloat() {
		store(b[:t.Bytes()], t, []float64{value})
	} else {
		binary.LittleEndian.PutUint64(b, integerCode(value))
	}
	return littleEndian(b, t), true
}

// integerCode returns an integer in two's complement.
func integerCode(value float64) uint64 {
	if value >= 1<<63 {
		return uint64(value)
	}
	return uint64(int64(value))
}

// fillConstant writes an element's bits over each of dst.
func fillConstant(dst []byte, t dtype.DType, bits uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], bits)
	done := copy(dst, b[:t.Bytes()])
	for done > 0 && done < len(dst) {
		done += copy(dst[done:], dst[:done])
	}
}

// values makes the elements from first on, of a family of random distributions.
func (s *Sampler) values(dst []float64, family Kind, first int64) {
	s.Stream.uniforms(dst, first)
	switch family {
	case Normal:
		for i, u := range dst {
			dst[i] = float64(s.Std*quantile(u)) + s.Mean
		}
	case TruncatedNormal:
		for i, u := range dst {
			z := quantile(float64(u*s.Width) + s.Base)
			dst[i] = float64(s.Std*max(-s.Cut, min(z, s.Cut))) + s.Mean
		}
	case Uniform:
		s.scaleUniforms(dst)
	}
}

func (s *Sampler) scaleUniforms(dst []float64) {
	for i, u := range dst {
		x := float64(u*s.Width) + s.Base
		if s.Bounded {
			x = max(s.Lower, min(x, s.Upper))
		}
		dst[i] = x
	}
}

// below returns the largest value of a float type that is less than x.
func below(x float64, t dtype.DType) float64 { return -above(-x, t, false) }

// atLeast returns the smallest value of a float type that is not less than x.
func atLeast(x float64, t dtype.DType) float64 { return above(x, t, true) }

// above returns the smallest value of a float type that is greater than x, or
// equal to it where that is allowed.
func above(x float64, t dtype.DType, equal bool) float64 {
	code := encode(x, t)
	if y := decode(code, t); y > x || equal && y == x {
		return y
	}
	sign := uint64(1) << (8*t.Bytes() - 1)
	switch {
	case code == sign || code == 0: // from either zero to the smallest positive value
		code = 1
	case code&sign != 0: // a negative value's code falls as the value rises
		code--
	default:
		code++
	}
	return decode(code, t)
}

// encode returns the bits of the value of a float type nearest to x.
func encode(x float64, t dtype.DType) uint64 {
	var value [1]float64
	var code [1]uint64
	value[0] = x
	bytes := dtype.Bytes(code[:])
	dtype.Convert(bytes, t, dtype.Bytes(value[:]), dtype.Float64, 1)
	return littleEndian(bytes, t)
}

// decode returns the value with the given bits.
func decode(code uint64, t dtype.DType) float64 {
	var value [1]float64
	var bytes [1]uint64
	binary.LittleEndian.PutUint64(dtype.Bytes(bytes[:]), code)
	dtype.Convert(dtype.Bytes(value[:]), dtype.Float64, dtype.Bytes(bytes[:]), t, 1)
	return value[0]
}

func littleEndian(b []byte, t dtype.DType) uint64 {
	var padded [8]byte
	copy(padded[:], b[:t.Bytes()])
	return binary.LittleEndian.Uint64(padded[:])
}
