package dtype

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// format describes a storage format by its fields, for an oracle that knows
// nothing of the conversions' tricks.
type format struct {
	t              DType
	mantissa, bias int
	infinities     bool // IEEE: the highest exponent is for infinities and NaNs
	to             func(float32) uint16
	to64           func(float64) uint16
	from           func(uint16) float32
}

var formats = []format{
	{
		BFloat16, 7, 127, true, func(x float32) uint16 { return uint16(BF16FromFloat32(x)) },
		func(x float64) uint16 { return uint16(BF16FromFloat64(x)) }, func(c uint16) float32 { return BF16(c).Float32() },
	},
	{
		Float16, 10, 15, true, func(x float32) uint16 { return uint16(F16FromFloat32(x)) },
		func(x float64) uint16 { return uint16(F16FromFloat64(x)) }, func(c uint16) float32 { return F16(c).Float32() },
	},
	{
		Float8E4M3, 3, 7, false, func(x float32) uint16 { return uint16(F8E4M3FromFloat32(x)) },
		func(x float64) uint16 { return uint16(F8E4M3FromFloat64(x)) }, func(c uint16) float32 { return F8E4M3(c).Float32() },
	},
	{
		Float8E5M2, 2, 15, true, func(x float32) uint16 { return uint16(F8E5M2FromFloat32(x)) },
		func(x float64) uint16 { return uint16(F8E5M2FromFloat64(x)) }, func(c uint16) float32 { return F8E5M2(c).Float32() },
	},
}

func (f format) signBit() uint16 { return 1 << (8*f.t.Bytes() - 1) }

// value decodes a code by the definition of its fields.
func (f format) value(code uint16) float64 {
	sign := 1.0
	if code&f.signBit() != 0 {
		sign = -1
	}
	magnitude := int(code &^ f.signBit())
	exponent, fraction := magnitude>>f.mantissa, magnitude&(1<<f.mantissa-1)
	top := int(f.signBit()-1) >> f.mantissa
	switch {
	case exponent == top && f.infinities && fraction == 0:
		return math.Inf(int(sign))
	case exponent == top && (f.infinities || fraction == 1<<f.mantissa-1):
		return math.NaN()
	case exponent == 0:
		return sign * math.Ldexp(float64(fraction), 1-f.bias-f.mantissa)
	}
	return sign * math.Ldexp(float64(fraction+1<<f.mantissa), exponent-f.bias-f.mantissa)
}

// limit returns the code above the largest finite one, and the value that it
// would have if the format went on.
func (f format) limit() (code uint16, value float64) {
	for code = 0; !math.IsNaN(f.value(code)) && !math.IsInf(f.value(code), 0); code++ {
	}
	return code, 2*f.value(code-1) - f.value(code-2)
}

func (f format) codes() []uint16 {
	codes := make([]uint16, 2*int(f.signBit()))
	for i := range codes {
		codes[i] = uint16(i)
	}
	return codes
}

func sameFloat(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || a == b && math.Signbit(a) == math.Signbit(b)
}

func TestEveryCodeDecodesByItsFields(t *testing.T) {
	for _, f := range formats {
		for _, code := range f.codes() {
			if got, want := float64(f.from(code)), f.value(code); !sameFloat(got, want) {
				t.Fatalf("%s code %#x: got %v, want %v", f.t, code, got, want)
			}
		}
	}
}

func TestEveryCodeSurvivesARoundTrip(t *testing.T) {
	for _, f := range formats {
		for _, code := range f.codes() {
			got, got64 := f.to(f.from(code)), f.to64(float64(f.from(code)))
			if math.IsNaN(f.value(code)) {
				if !math.IsNaN(f.value(got)) || !math.IsNaN(f.value(got64)) || (got^code)&f.signBit() != 0 {
					t.Fatalf("%s NaN %#x became %#x and %#x", f.t, code, got, got64)
				}
			} else if got != code || got64 != code {
				t.Fatalf("%s code %#x became %#x and %#x", f.t, code, got, got64)
			}
		}
	}
}

// Between any two neighbours, the midpoint goes to the even code and what is
// next to it, in f32 or f64, to its own side; beyond the largest finite value
// the neighbour is the infinity, or NaN where the format has none.
func TestEveryMidpointRoundsToEven(t *testing.T) {
	for _, f := range formats {
		limit, beyond := f.limit()
		for code := range limit {
			low, high := f.value(code), f.value(code+1)
			if code+1 == limit {
				high = beyond
			}
			checkMidpoint(t, f, code, (low+high)/2)
		}
	}
}

func checkMidpoint(t *testing.T, f format, code uint16, midpoint float64) {
	t.Helper()
	even := code + code&1
	m := float32(midpoint)
	if float64(m) == midpoint {
		checkRounded(t, f, even, f.to(m), float64(m))
		down, up := math.Nextafter32(m, 0), math.Nextafter32(m, math.MaxFloat32)
		checkRounded(t, f, code, f.to(down), float64(down))
		checkRounded(t, f, code+1, f.to(up), float64(up))
		checkRounded(t, f, even|f.signBit(), f.to(-m), float64(-m))
	}
	down, up := math.Nextafter(midpoint, 0), math.Nextafter(midpoint, math.MaxFloat64)
	checkRounded(t, f, even, f.to64(midpoint), midpoint)
	checkRounded(t, f, code, f.to64(down), down)
	checkRounded(t, f, code+1, f.to64(up), up)
	checkRounded(t, f, (code+1)|f.signBit(), f.to64(-up), -up)
}

func checkRounded(t *testing.T, f format, want, got uint16, x float64) {
	t.Helper()
	if got != want {
		t.Fatalf("%s of %v (%x): got %#x, want %#x", f.t, x, x, got, want)
	}
}

func TestExtremesRoundAsTheFormatsSay(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, c := range []struct {
		x    float64
		want [4]float64 // bf16, f16, f8e4m3, f8e5m2
	}{
		{inf, [4]float64{inf, inf, nan, inf}},
		{-inf, [4]float64{-inf, -inf, nan, -inf}},
		{nan, [4]float64{nan, nan, nan, nan}},
		{1e300, [4]float64{inf, inf, nan, inf}},
		{-1e300, [4]float64{-inf, -inf, nan, -inf}},
		{1e-300, [4]float64{0, 0, 0, 0}},
		{-1e-300, [4]float64{math.Copysign(0, -1), math.Copysign(0, -1), math.Copysign(0, -1), math.Copysign(0, -1)}},
		{math.MaxFloat32, [4]float64{inf, inf, nan, inf}},
		{65519, [4]float64{65536, 65504, nan, inf}},
		{65520, [4]float64{65536, inf, nan, inf}},
		{464, [4]float64{464, 464, 448, 448}},
		{465, [4]float64{464, 465, nan, 448}},
	} {
		for i, f := range formats {
			if got := float64(f.from(f.to64(c.x))); !sameFloat(got, c.want[i]) {
				t.Errorf("%s of %v: got %v, want %v", f.t, c.x, got, c.want[i])
			}
			if got := float64(f.from(f.to(float32(c.x)))); !sameFloat(got, c.want[i]) {
				t.Errorf("%s of %v through f32: got %v, want %v", f.t, c.x, got, c.want[i])
			}
		}
	}
}

func TestNaNWithALowPayloadStaysNaN(t *testing.T) {
	x := math.Float32frombits(0x7f800001)
	for _, f := range formats {
		if got := f.value(f.to(x)); !math.IsNaN(got) {
			t.Errorf("%s: a NaN became %v", f.t, got)
		}
	}
}

// one converts a single f64 to a type and back, as the constructors do.
func one(x float64, t DType) float64 {
	switch t {
	case Float64:
		return x
	case Float32:
		return float64(float32(x))
	}
	for _, f := range formats {
		if f.t == t {
			return float64(f.from(f.to64(x)))
		}
	}
	return math.NaN()
}

func convertible() []DType {
	return slices.DeleteFunc(All(), func(d DType) bool { return !d.IsFloat() })
}

func TestConvertAgreesWithTheConstructorsForEveryPair(t *testing.T) {
	for _, n := range []int64{1, 31, chunkElements, chunkElements + 1, 700} {
		for _, from := range convertible() {
			src, values := sourceOf(from, n)
			for _, to := range convertible() {
				dst, back := aligned(n*to.Bytes()+3), make([]float64, n)
				dst[n*to.Bytes()] = 0xaa
				Convert(dst, to, src, from, n)
				Convert(Bytes(back), Float64, dst, to, n)
				for i, x := range back {
					if want := one(values[i], to); !sameFloat(x, want) {
						t.Fatalf("%s to %s, element %d of %d: %v became %v, want %v", from, to, i, n, values[i], x, want)
					}
				}
				if dst[n*to.Bytes()] != 0xaa {
					t.Fatalf("%s to %s wrote past element %d", from, to, n)
				}
			}
		}
	}
}

// aligned makes a buffer that every type can live in.
func aligned(bytes int64) []byte { return Bytes(make([]uint64, (bytes+7)/8))[:bytes] }

// sourceOf makes n elements of a type, bytes and values, from the values near
// 1 that lie between those of all shorter types, and the special ones.
func sourceOf(t DType, n int64) ([]byte, []float64) {
	values := make([]float64, n)
	for i := range values {
		values[i] = one(math.Ldexp(1+float64(i)/700+float64(i%3-1)*0x1p-40, i%37-18), t)
	}
	for i, x := range []float64{math.NaN(), math.Inf(-1), 0, math.Copysign(0, -1)} {
		if int64(i) < n {
			values[i] = one(x, t)
		}
	}
	src := aligned(n * t.Bytes())
	Convert(src, t, Bytes(values), Float64, n)
	return src, values
}

func TestConvertCopiesEqualTypesWithNaNPayloads(t *testing.T) {
	src, dst := []uint16{0x7f81, 0x3f80}, make([]uint16, 2)
	Convert(Bytes(dst), BFloat16, Bytes(src), BFloat16, 2)
	if dst[0] != src[0] || dst[1] != src[1] {
		t.Errorf("got %x, want %x", dst, src)
	}
}

func TestSliceAndBytesViewTheSameMemory(t *testing.T) {
	s := []float32{1, 2, 3}
	b := Bytes(s)
	binary.NativeEndian.PutUint32(b[4:], math.Float32bits(-7))
	if view := Slice[float32](b); len(b) != 12 || len(view) != 3 || view[1] != -7 || &view[0] != &s[0] {
		t.Errorf("bytes %v, view %v, want the memory of %v", b, view, s)
	}
	if len(Slice[int64](nil)) != 0 || len(Bytes[BF16](nil)) != 0 {
		t.Error("views of nothing are not empty")
	}
}

func TestMisuseSaysWhatIsWrong(t *testing.T) {
	buffer := Bytes(make([]uint64, 4))
	for _, c := range []struct {
		name, want string
		call       func()
	}{
		{"length", "3 bytes are no multiple of the 2 bytes of a bf16", func() { Slice[BF16](buffer[:3]) }},
		{"alignment", "are not aligned to the 4 bytes of a f32", func() { Slice[float32](buffer[2:10]) }},
		{"type", "the source type is i32, expected a float type", func() { Convert(buffer, Float32, buffer, Int32, 1) }},
		{"short", "9 elements of f32 asked, the destination has 32 bytes", func() { Convert(buffer, Float32, buffer, BFloat16, 9) }},
		{"negative", "-1 elements of f32 asked", func() { Convert(buffer, Float32, buffer, BFloat16, -1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, c.want) {
					t.Errorf("panicked with %q, want %q in it", got, c.want)
				}
			}()
			c.call()
		})
	}
}

// element is what Of says of a Go type, and its size.
type element struct {
	t     DType
	bytes int64
}

func elementOf[T Element]() element {
	var zero T
	return element{Of[T](), int64(unsafe.Sizeof(zero))}
}

func TestEveryDTypeHasItsElementType(t *testing.T) {
	elements := []element{
		elementOf[float64](), elementOf[float32](), elementOf[BF16](), elementOf[F16](), elementOf[F8E4M3](), elementOf[F8E5M2](),
		elementOf[int8](), elementOf[int16](), elementOf[int32](), elementOf[int64](),
		elementOf[uint8](), elementOf[uint16](), elementOf[uint32](), elementOf[uint64](), elementOf[bool](),
	}
	var want []element
	for _, d := range All() {
		want = append(want, element{d, d.Bytes()})
	}
	if !slices.Equal(elements, want) {
		t.Errorf("%v, want %v", elements, want)
	}
}

func TestNamesParseBack(t *testing.T) {
	for _, d := range All() {
		if got, err := Parse(d.String()); got != d || err != nil {
			t.Errorf("Parse(%q) = %s, %v", d, got, err)
		}
	}
	for _, name := range []string{"invalid", "", "fp32", "BF16"} {
		if got, err := Parse(name); err == nil {
			t.Errorf("Parse(%q) = %s, expected an error", name, got)
		}
	}
	if got := DType(200); got.String() != "invalid" || got.Bytes() != 0 || got.IsFloat() || got.Trainable() {
		t.Errorf("an unknown type is %s with %d bytes", got, got.Bytes())
	}
}

func BenchmarkConvert(b *testing.B) {
	const elements = 1 << 14
	src, dst := make([]float64, elements), make([]float64, elements)
	for _, c := range [][2]DType{{Float32, BFloat16}, {BFloat16, Float32}, {Float32, Float16}, {Float16, Float32}, {Float64, Float32}} {
		b.Run(c[0].String()+"-"+c[1].String(), func(b *testing.B) {
			b.SetBytes(elements * (c[0].Bytes() + c[1].Bytes()))
			for b.Loop() {
				Convert(Bytes(dst), c[1], Bytes(src), c[0], elements)
			}
		})
	}
}
