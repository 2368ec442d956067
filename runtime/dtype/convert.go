package dtype

import (
	"fmt"
	"math"
)

// chunkElements is how many elements Convert holds as float32 at a time where
// neither side is f32; the buffer stays on the stack.
const chunkElements = 256

// Convert converts n elements of src to dst between any two float types. Equal
// types are copied byte for byte, NaN payloads included; all other pairs round
// once as the constructors do ([BF16FromFloat64], ...). The buffers must not
// overlap, must be aligned to their element types, and hold at least n elements;
// it panics if they don't, or if a type is not a float: those are programming
// errors.
func Convert(dst []byte, dstType DType, src []byte, srcType DType, n int64) {
	dst = checked("destination", dst, dstType, n)
	src = checked("source", src, srcType, n)
	switch {
	case srcType == dstType:
		copy(dst, src)
	case srcType == Float32:
		narrow(dst, dstType, Slice[float32](src))
	case dstType == Float32 && srcType == Float64:
		round64(Slice[float32](dst), Slice[float64](src))
	case dstType == Float32:
		widen(Slice[float32](dst), src, srcType)
	default:
		convertChunks(dst, dstType, src, srcType)
	}
}

// checked cuts b to n elements of a float type.
func checked(side string, b []byte, t DType, n int64) []byte {
	if !t.IsFloat() {
		panic(fmt.Sprintf("dtype: Convert: the %s type is %s, expected a float type", side, t))
	}
	if n < 0 || n > int64(len(b))/t.Bytes() {
		panic(fmt.Sprintf("dtype: Convert: %d elements of %s asked, the %s has %d bytes", n, t, side, len(b)))
	}
	return b[:n*t.Bytes()]
}

func convertChunks(dst []byte, dstType DType, src []byte, srcType DType) {
	var chunk [chunkElements]float32
	for len(src) > 0 {
		n := min(int64(len(src))/srcType.Bytes(), chunkElements)
		widen(chunk[:n], src[:n*srcType.Bytes()], srcType)
		narrow(dst[:n*dstType.Bytes()], dstType, chunk[:n])
		src, dst = src[n*srcType.Bytes():], dst[n*dstType.Bytes():]
	}
}

// widen converts to float32: exactly, but for f64, which is rounded to odd for
// the narrowing that follows.
func widen(dst []float32, src []byte, t DType) {
	switch t {
	case Float64:
		for i, x := range Slice[float64](src) {
			dst[i] = roundToOdd(x)
		}
	case BFloat16:
		widenBF16(dst, Slice[BF16](src))
	case Float16:
		widenF16(dst, Slice[F16](src))
	case Float8E4M3:
		for i, x := range Slice[F8E4M3](src) {
			dst[i] = x.Float32()
		}
	case Float8E5M2:
		for i, x := range Slice[F8E5M2](src) {
			dst[i] = x.Float32()
		}
	}
}

// narrow converts from float32, rounding once (to f64: exactly).
func narrow(dst []byte, t DType, src []float32) {
	switch t {
	case Float64:
		for i, out := 0, Slice[float64](dst)[:len(src)]; i < len(src); i++ {
			out[i] = float64(src[i])
		}
	case BFloat16:
		narrowBF16(Slice[BF16](dst), src)
	case Float16:
		narrowF16(Slice[F16](dst), src)
	case Float8E4M3:
		for i, out := 0, Slice[F8E4M3](dst)[:len(src)]; i < len(src); i++ {
			out[i] = F8E4M3FromFloat32(src[i])
		}
	case Float8E5M2:
		for i, out := 0, Slice[F8E5M2](dst)[:len(src)]; i < len(src); i++ {
			out[i] = F8E5M2FromFloat32(src[i])
		}
	}
}

func widenBF16(dst []float32, src []BF16) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = math.Float32frombits(uint32(x) << 16)
	}
}

func widenF16(dst []float32, src []F16) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = x.Float32()
	}
}

func narrowBF16(dst []BF16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = BF16FromFloat32(x)
	}
}

func narrowF16(dst []F16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F16FromFloat32(x)
	}
}

func round64(dst []float32, src []float64) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = float32(x)
	}
}
