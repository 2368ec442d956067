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
	if !t.IsFloat() {
		d.fillIntegers(dst, t)
		return
	}
	var values [chunkElements]float64
	sample := d.sampler(t)
	for len(dst) > 0 {
		n := min(int64(len(dst))/t.Bytes(), chunkElements)
		sample.values(values[:n], s, first)
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

// sampler holds what all elements of a distribution share.
type sampler struct {
	Distribution
	base, width  float64 // a uniform number u becomes base + u*width
	lower, upper float64 // bounds on the result
	bounded      bool
}

func (d Distribution) sampler(t dtype.DType) sampler {
	s := sampler{Distribution: d, width: 1}
	switch d.Kind {
	case Ones:
		s.Value = 1
	case Zeros:
		s.Value = 0
	case TruncatedNormal:
		s.base = lowerTail(d.Cut)
		s.width = 1 - float64(2*s.base)
	case Uniform:
		s.base, s.width = d.Low, d.High-d.Low
		s.lower, s.upper = atLeast(d.Low, t), below(d.High, t)
		s.bounded = s.lower <= s.upper
	}
	return s
}

// values makes the elements from first on.
func (s *sampler) values(dst []float64, stream Stream, first int64) {
	if !s.Kind.random() {
		for i := range dst {
			dst[i] = s.Value
		}
		return
	}
	stream.uniforms(dst, first)
	switch s.Kind {
	case Normal:
		for i, u := range dst {
			dst[i] = float64(s.Std*quantile(u)) + s.Mean
		}
	case TruncatedNormal:
		for i, u := range dst {
			z := quantile(float64(u*s.width) + s.base)
			dst[i] = float64(s.Std*max(-s.Cut, min(z, s.Cut))) + s.Mean
		}
	case Uniform:
		s.scaleUniforms(dst)
	}
}

func (s *sampler) scaleUniforms(dst []float64) {
	for i, u := range dst {
		x := float64(u*s.width) + s.base
		if s.bounded {
			x = max(s.lower, min(x, s.upper))
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

// fillIntegers writes a constant over elements of an integer type or bool.
func (d Distribution) fillIntegers(dst []byte, t dtype.DType) {
	value := d.sampler(t).Value
	code := uint64(int64(value))
	if value >= 1<<63 {
		code = uint64(value)
	}
	var bytes [8]byte
	binary.LittleEndian.PutUint64(bytes[:], code)
	for size := t.Bytes(); int64(len(dst)) >= size; dst = dst[size:] {
		copy(dst[:size], bytes[:size])
	}
}
