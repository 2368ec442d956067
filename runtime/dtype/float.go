package dtype

import "math"

// BF16 is the storage of one bfloat16 number: the upper half of a binary32.
type BF16 uint16

// F16 is the storage of one IEEE 754 binary16 number.
type F16 uint16

// F8E4M3 is the storage of one OCP 8-bit E4M3 number (the "fn" variant: no
// infinities, S.1111.111 is NaN, the largest finite value is 448).
type F8E4M3 uint8

// F8E5M2 is the storage of one OCP 8-bit E5M2 number (IEEE 754 rules: it has
// infinities, the largest finite value is 57344).
type F8E5M2 uint8

// Bit patterns of binary32.
const (
	signMask32 = 0x80000000
	absMask32  = 0x7fffffff
	inf32      = 0x7f800000
)

// Float32 returns the number, exactly.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// Float32 returns the number, exactly.
func (h F16) Float32() float32 {
	// Placed in a binary32's fields the number is too small by the difference of
	// the biases, 127-15; the product is exact, subnormals included.
	const rescale = 1 << 112
	bits := math.Float32bits(math.Float32frombits(uint32(h&0x7fff)<<13) * rescale)
	if h&0x7c00 == 0x7c00 {
		bits |= inf32
	}
	return math.Float32frombits(bits | uint32(h&0x8000)<<16)
}

// Float32 returns the number, exactly.
func (b F8E4M3) Float32() float32 {
	const rescale = 1 << 120 // 127-7 more in the exponent, as in [F16.Float32]
	bits := math.Float32bits(math.Float32frombits(uint32(b&0x7f)<<20) * rescale)
	if b&0x7f == 0x7f {
		bits = inf32 | 1<<22
	}
	return math.Float32frombits(bits | uint32(b&0x80)<<24)
}

// Float32 returns the number, exactly: E5M2 is the upper byte of a binary16.
func (b F8E5M2) Float32() float32 { return F16(uint16(b) << 8).Float32() }

// BF16FromFloat32 rounds to nearest even; what is beyond the largest finite
// bf16 by half a step or more becomes an infinity.
func BF16FromFloat32(x float32) BF16 {
	bits := math.Float32bits(x)
	if bits&absMask32 > inf32 {
		return BF16(bits>>16 | 0x40)
	}
	return BF16((bits + 0x7fff + bits>>16&1) >> 16)
}

// F16FromFloat32 rounds to nearest even; magnitudes from 65520 up become
// infinities.
func F16FromFloat32(x float32) F16 {
	bits := math.Float32bits(x)
	sign, abs := F16(bits&signMask32>>16), bits&absMask32
	switch {
	case abs > inf32:
		return sign | 0x7e00 | F16(abs>>13&0x3ff)
	case abs >= 0x477ff000: // 65520, half a step above the largest finite number
		return sign | 0x7c00
	case abs < 0x38800000: // 2^-14, the smallest normal number
		return sign | F16(roundByAdding(abs, 0.5))
	}
	return sign | F16((abs-112<<23+0xfff+abs>>13&1)>>13)
}

// F8E4M3FromFloat32 rounds to nearest even. The format has no infinities:
// what would round above 448 becomes NaN, as in the non-saturating conversion
// of the OCP specification and torch's cast to float8_e4m3fn.
func F8E4M3FromFloat32(x float32) F8E4M3 {
	bits := math.Float32bits(x)
	sign, abs := F8E4M3(bits&signMask32>>24), bits&absMask32
	switch {
	case abs > 0x43e80000: // 464, half a step above 448; 464 itself is a tie, to even
		return sign | 0x7f
	case abs < 0x3c800000: // 2^-6, the smallest normal number
		return sign | F8E4M3(roundByAdding(abs, 1<<14))
	}
	return sign | F8E4M3((abs-120<<23+0x7ffff+abs>>20&1)>>20)
}

// F8E5M2FromFloat32 rounds to nearest even; magnitudes from 61440 up become
// infinities.
func F8E5M2FromFloat32(x float32) F8E5M2 {
	bits := math.Float32bits(x)
	sign, abs := F8E5M2(bits&signMask32>>24), bits&absMask32
	switch {
	case abs > inf32:
		return sign | 0x7e | F8E5M2(abs>>21&3)
	case abs >= 0x47700000: // 61440, half a step above the largest finite number
		return sign | 0x7c
	case abs < 0x38800000: // 2^-14, the smallest normal number
		return sign | F8E5M2(roundByAdding(abs, 1<<7))
	}
	return sign | F8E5M2((abs-112<<23+0xfffff+abs>>21&1)>>21)
}

// roundByAdding rounds a small positive number to a multiple of the last place
// of anchor, a power of two, and returns the multiple: the sum's own rounding
// is the rounding to nearest even of a subnormal target.
func roundByAdding(abs uint32, anchor float32) uint32 {
	sum := math.Float32frombits(abs) + anchor
	return math.Float32bits(sum) - math.Float32bits(anchor)
}

// BF16FromFloat64 is [BF16FromFloat32] for a float64, rounded once.
func BF16FromFloat64(x float64) BF16 { return BF16FromFloat32(roundToOdd(x)) }

// F16FromFloat64 is [F16FromFloat32] for a float64, rounded once.
func F16FromFloat64(x float64) F16 { return F16FromFloat32(roundToOdd(x)) }

// F8E4M3FromFloat64 is [F8E4M3FromFloat32] for a float64, rounded once.
func F8E4M3FromFloat64(x float64) F8E4M3 { return F8E4M3FromFloat32(roundToOdd(x)) }

// F8E5M2FromFloat64 is [F8E5M2FromFloat32] for a float64, rounded once.
func F8E5M2FromFloat64(x float64) F8E5M2 { return F8E5M2FromFloat32(roundToOdd(x)) }

// roundToOdd returns x if a float32 holds it, else the one of its two float32
// neighbours whose last bit is set. A later rounding to a format at least two
// bits shorter then gives what rounding x directly gives (Boldo and Melquiond,
// "Emulation of FMA and correctly rounded sums", 2008).
func roundToOdd(x float64) float32 {
	f := float32(x)
	near := float64(f)
	if near == x || x != x {
		return f
	}
	bits := math.Float32bits(f)
	if bits&1 == 1 {
		return f
	}
	if math.Abs(near) < math.Abs(x) {
		return math.Float32frombits(bits + 1)
	}
	return math.Float32frombits(bits - 1)
}
