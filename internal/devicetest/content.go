package devicetest

import (
	"encoding/binary"
	"math"
	"math/rand/v2"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// content makes n elements of a range's values before a kernel runs.
type content func(random *rand.Rand, t dtype.DType, n int64) []byte

// alignedBytes returns room for bytes that can be viewed as any element type.
func alignedBytes(bytes int64) []byte { return dtype.Bytes(make([]uint64, bytes/8+1))[:bytes] }

func randomBytes(random *rand.Rand, bytes int64) []byte {
	b := alignedBytes((bytes + 7) / 8 * 8)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], random.Uint64())
	}
	return b[:bytes]
}

// ordinary are numbers as gradients and parameters are: around 0, of about 1.
func ordinary(random *rand.Rand, t dtype.DType, n int64) []byte {
	return drawn(t, n, func(int64) float64 { return random.NormFloat64() })
}

// squares are like second moments: small, and none negative.
func squares(random *rand.Rand, t dtype.DType, n int64) []byte {
	return drawn(t, n, func(int64) float64 { x := random.NormFloat64(); return 0.01 * float64(x*x) })
}

// numbers returns content of given values, over and over.
func numbers(values ...float64) content {
	return func(_ *rand.Rand, t dtype.DType, n int64) []byte {
		return drawn(t, n, func(i int64) float64 { return values[i%int64(len(values))] })
	}
}

func drawn(t dtype.DType, n int64, value func(i int64) float64) []byte {
	wide := make([]float64, n)
	for i := range wide {
		wide[i] = value(int64(i))
	}
	if t == dtype.Float64 {
		return dtype.Bytes(wide)
	}
	b := alignedBytes(n * t.Bytes())
	dtype.Convert(b, t, dtype.Bytes(wide), dtype.Float64, n)
	return b
}

// every are all codes of a type of one or two bytes, in their order, and for wider
// types random codes, every third a special one: signs, NaNs, infinities, the
// smallest and largest numbers, and what lies around the limits of narrower types.
func every(random *rand.Rand, t dtype.DType, n int64) []byte {
	b := randomBytes(random, n*t.Bytes())
	for i := range n {
		switch element := b[i*t.Bytes():]; t.Bytes() {
		case 1:
			element[0] = byte(i)
		case 2:
			binary.LittleEndian.PutUint16(element, uint16(i))
		case 4:
			if i%3 == 0 {
				binary.LittleEndian.PutUint32(element, special32(i/3))
			}
		case 8:
			if i%3 == 0 {
				binary.LittleEndian.PutUint64(element, special64(i/3))
			}
		}
	}
	return b
}

// specials are magnitudes at which something changes: the limits of f32, bf16,
// f16, f8e5m2 and f8e4m3, halves of their smallest numbers, and ties between two.
var specials = []float64{
	0, 1, 1.00390625, 1.01171875, 1.00048828125, 1.00146484375, 1.0625, 1.1875, 1.125, 1.375,
	math.SmallestNonzeroFloat64, math.SmallestNonzeroFloat32, 0x1p-1022, 0x1p-1023, 0x1p-126, 0x1p-127, 0x1p-133, 0x1p-134,
	0x1p-14, 0x1p-15, 0x1p-24, 0x1p-25, 0x1.8p-25, 0x1p-6, 0x1p-9, 0x1p-10, 0x1p-16, 0x1p-17,
	448, 464, 465, 57344, 61440, 61439, 65504, 65519, 65520, 0x1.fep127, 0x1.ffp127, math.MaxFloat32, math.MaxFloat64,
	math.Inf(1), math.NaN(),
}

// special returns the i-th special magnitude, a neighbour of it or its negative:
// step is -1, 0 or 1 in the last place.
func special(i int64) (x float64, negative bool, step int64) {
	count := int64(len(specials))
	return specials[i%count], i/count%2 == 1, (i/count/2+1)%3 - 1
}

func special32(i int64) uint32 {
	x, negative, step := special(i)
	bits := math.Float32bits(float32(x)) &^ (1 << 31)
	if bits != 0 || step > 0 {
		bits += uint32(step)
	}
	if negative {
		bits |= 1 << 31
	}
	return bits
}

func special64(i int64) uint64 {
	x, negative, step := special(i)
	bits := math.Float64bits(x) &^ (1 << 63)
	if bits != 0 || step > 0 {
		bits += uint64(step)
	}
	if negative {
		bits |= 1 << 63
	}
	return bits
}
