package conformance

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// key turns a name and numbers into the seed of a parameter's values.
func key(name string, numbers ...int) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, name, numbers)
	return h.Sum64()
}

// mix returns random bits for element i (the finalizer of SplitMix64: Steele,
// Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
func mix(seed uint64, i int64) uint64 {
	z := seed + uint64(i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// exponents are the bits that are all set in what is no finite number.
var exponents = map[dtype.DType]uint64{
	dtype.Float64: 0x7ff << 52, dtype.Float32: 0xff << 23, dtype.BFloat16: 0xff << 7, dtype.Float16: 0x1f << 10,
	dtype.Float8E4M3: 0x7f, dtype.Float8E5M2: 0x1f << 2,
}

// wildBits returns the bits of a finite value of any size, sign and exponent.
// The first element of an 8-byte integer is 2^53+1, which no float64 holds.
func wildBits(seed uint64, i int64, t dtype.DType) uint64 {
	bits := mix(seed, i)
	exponent := exponents[t]
	switch {
	case t == dtype.Bool:
		return bits & 1
	case i == 0 && t.Bytes() == 8 && !t.IsFloat():
		return 1<<53 + 1
	case exponent != 0 && bits&exponent == exponent:
		return bits &^ (exponent & -exponent)
	}
	return bits
}

// wild returns the values of an owner for tests of movement: all bits matter.
func wild(w *Owner) []byte {
	var out []byte
	seed, size := key(w.Name), int(w.Type.Bytes())
	for i := range w.Numel {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], wildBits(seed, i, w.Type))
		out = append(out, b[:size]...)
	}
	return out
}

// tame returns n numbers within [-2, 2) that f32 holds, most of them finer than
// a bf16 can.
func tame(seed uint64, n int64) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(int64(mix(seed, int64(i))>>52)-2048) / 1024
	}
	return out
}

// contribution returns the gradient that a rank gives an owner in the block at a
// position, in the owner's type.
func contribution(w *Owner, round, position, rank int) []byte {
	return encode(tame(key(w.Name, round, position, rank), w.Numel), w.Type)
}

// float is the arithmetic type of gradients and masters.
type float interface{ float32 | float64 }

// encode rounds numbers to a float type.
func encode[F float](x []F, t dtype.DType) []byte {
	return convert(dtype.Bytes(x), dtype.Of[F](), t)
}

// decode widens values of a float type.
func decode[F float](b []byte, t dtype.DType) []F {
	return dtype.Slice[F](convert(b, t, dtype.Of[F]()))
}

func convert(src []byte, from, to dtype.DType) []byte {
	n := int64(len(src)) / from.Bytes()
	aligned := make([]uint64, (n*to.Bytes()+7)/8)
	dst := dtype.Bytes(aligned)[:n*to.Bytes()]
	dtype.Convert(dst, to, src, from, n)
	return dst
}

// difference says where values differ, "" where they don't.
func difference(what string, got, want []byte, t dtype.DType) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d bytes, want %d", what, len(got), len(want))
	}
	size := int(t.Bytes())
	at := 0
	for bytes.Equal(got[at:at+size], want[at:at+size]) {
		at += size
	}
	return fmt.Errorf("%s: element %d of %d is %s, want %s", what, at/size, len(got)/size, show(got[at:at+size], t), show(want[at:at+size], t))
}

func show(b []byte, t dtype.DType) string {
	if t.IsFloat() {
		return fmt.Sprintf("%v (%x)", decode[float64](bytes.Clone(b), t)[0], b)
	}
	return fmt.Sprintf("%x", b)
}
