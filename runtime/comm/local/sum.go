package local

import (
	"unsafe"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// blockElements is how many elements are summed over all ranks before the next:
// partial sums stay in the nearest cache.
const blockElements = 1024

// word is a type that is summed in itself. Signed integers are summed as
// unsigned ones, which gives the same bits.
type word interface {
	float64 | float32 | uint8 | uint16 | uint32 | uint64
}

func summable(t dtype.DType) bool {
	switch t {
	case dtype.Invalid, dtype.Bool, dtype.Float8E4M3, dtype.Float8E5M2:
		return false
	}
	return t.Bytes() > 0
}

// sum adds up the parts, which have dst's length, in order. dst may be one of
// the parts. The type must be summable and all slices aligned to it.
func sum(dst []byte, parts [][]byte, t dtype.DType) {
	switch t {
	case dtype.Float64:
		sumWords[float64](dst, parts)
	case dtype.Float32:
		sumWords[float32](dst, parts)
	case dtype.BFloat16, dtype.Float16:
		sumHalves(dst, parts, t)
	case dtype.Int8, dtype.Uint8:
		sumWords[uint8](dst, parts)
	case dtype.Int16, dtype.Uint16:
		sumWords[uint16](dst, parts)
	case dtype.Int32, dtype.Uint32:
		sumWords[uint32](dst, parts)
	case dtype.Int64, dtype.Uint64:
		sumWords[uint64](dst, parts)
	}
}

func sumWords[T word](dst []byte, parts [][]byte) {
	var sums [blockElements]T
	size := int(unsafe.Sizeof(sums[0]))
	for low := 0; low < len(dst); low += blockElements * size {
		high := min(low+blockElements*size, len(dst))
		sumBlock(dtype.Slice[T](dst[low:high]), sums[:(high-low)/size], parts, low, high)
	}
}

// sumBlock sums the bytes [low, high) of the parts, up to four at a time;
// partial sums are in sums. dst is written last, since it may be a part.
func sumBlock[T word](dst, sums []T, parts [][]byte, low, high int) {
	if len(parts) == 1 {
		copy(dst, dtype.Slice[T](parts[0][low:high]))
		return
	}
	so, next := dtype.Slice[T](parts[0][low:high]), 1
	for next < len(parts) {
		out, n := sums, min(3, len(parts)-next)
		if next+n == len(parts) {
			out = dst
		}
		a := dtype.Slice[T](parts[next][low:high])
		switch n {
		case 1:
			sum2(out, so, a)
		case 2:
			sum3(out, so, a, dtype.Slice[T](parts[next+1][low:high]))
		case 3:
			sum4(out, so, a, dtype.Slice[T](parts[next+1][low:high]), dtype.Slice[T](parts[next+2][low:high]))
		}
		so, next = sums, next+n
	}
}

// lanes is how many elements a turn of a loop adds: enough that its own cost
// does not show.
const lanes = 8

func sum2[T word](dst, a, b []T) {
	for len(dst) >= lanes && len(a) >= lanes && len(b) >= lanes {
		d, x, y := (*[lanes]T)(dst), (*[lanes]T)(a), (*[lanes]T)(b)
		d[0], d[1], d[2], d[3] = x[0]+y[0], x[1]+y[1], x[2]+y[2], x[3]+y[3]
		d[4], d[5], d[6], d[7] = x[4]+y[4], x[5]+y[5], x[6]+y[6], x[7]+y[7]
		dst, a, b = dst[lanes:], a[lanes:], b[lanes:]
	}
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

func sum3[T word](dst, a, b, c []T) {
	a, b, c = a[:len(dst)], b[:len(dst)], c[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i] + c[i]
	}
}

func sum4[T word](dst, a, b, c, d []T) {
	a, b, c, d = a[:len(dst)], b[:len(dst)], c[:len(dst)], d[:len(dst)]
	for i := range dst {
		dst[i] = a[i] + b[i] + c[i] + d[i]
	}
}

// sumHalves sums 2-byte floats in f32 and rounds once.
func sumHalves(dst []byte, parts [][]byte, t dtype.DType) {
	const size = 2
	var sums [blockElements]float32
	for low := 0; low < len(dst); low += blockElements * size {
		high := min(low+blockElements*size, len(dst))
		n := (high - low) / size
		widen(sums[:n], parts[0][low:high], t)
		for _, part := range parts[1:] {
			addHalves(sums[:n], part[low:high], t)
		}
		dtype.Convert(dst[low:high], t, dtype.Bytes(sums[:n]), dtype.Float32, int64(n))
	}
}

func addHalves(sums []float32, part []byte, t dtype.DType) {
	if t == dtype.BFloat16 {
		addBF16(sums, dtype.Slice[dtype.BF16](part))
		return
	}
	var wide [blockElements]float32
	widen(wide[:len(sums)], part, t)
	sum2(sums, sums, wide[:len(sums)])
}

func addBF16(sums []float32, part []dtype.BF16) {
	for len(sums) >= lanes && len(part) >= lanes {
		s, x := (*[lanes]float32)(sums), (*[lanes]dtype.BF16)(part)
		s[0], s[1], s[2], s[3] = s[0]+x[0].Float32(), s[1]+x[1].Float32(), s[2]+x[2].Float32(), s[3]+x[3].Float32()
		s[4], s[5], s[6], s[7] = s[4]+x[4].Float32(), s[5]+x[5].Float32(), s[6]+x[6].Float32(), s[7]+x[7].Float32()
		sums, part = sums[lanes:], part[lanes:]
	}
	for i := range sums {
		sums[i] += part[i].Float32()
	}
}

func widen(dst []float32, src []byte, t dtype.DType) {
	dtype.Convert(dtype.Bytes(dst), dtype.Float32, src, t, int64(len(dst)))
}
