package random

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"slices"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"pgregory.net/rapid"
)

// The known answers published with Random123 (kat_vectors, philox4x32 10).
func TestPhiloxGivesTheKnownAnswers(t *testing.T) {
	for _, c := range []struct {
		counter [4]uint32
		key     [2]uint32
		want    [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{
			[4]uint32{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, [2]uint32{0xffffffff, 0xffffffff},
			[4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		},
		{ // digits of pi
			[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1},
		},
	} {
		var got [4]uint32
		got[0], got[1], got[2], got[3] = philox(c.counter[0], c.counter[1], c.counter[2], c.counter[3], c.key[0], c.key[1])
		if got != c.want {
			t.Errorf("counter %x key %x: got %x, want %x", c.counter, c.key, got, c.want)
		}
	}
}

func TestStreamHashesTheNameByFNV1a(t *testing.T) {
	for _, name := range []string{"", "a", "h.3.mlp.weight", "müll\x00"} {
		h := fnv.New64a()
		h.Write([]byte(name))
		if got := NewStream(7, name); got != (Stream{Seed: 7, Owner: h.Sum64()}) {
			t.Errorf("NewStream(7, %q) = %x, the hash is %x", name, got, h.Sum64())
		}
	}
}

func TestStreamsOfOtherSeedsAndNamesDiffer(t *testing.T) {
	seen := map[uint64]Stream{}
	for seed := range uint64(64) {
		for _, name := range []string{"a", "b", "aa", "h.0.w", "h.1.w", "h.10.w"} {
			s := NewStream(seed<<32^seed, name)
			for index := range uint64(16) {
				low, _ := s.block(index)
				if other, ok := seen[low]; ok {
					t.Fatalf("%v and %v share a number", s, other)
				}
				seen[low] = s
			}
		}
	}
}

func TestUnitIsInsideZeroAndOneAndSymmetric(t *testing.T) {
	for _, w := range []uint64{0, 1, 1 << 12, 1 << 63, math.MaxUint64 - 1<<12, math.MaxUint64} {
		if u := unit(w); !(u > 0 && u < 1) || u+unit(^w) != 1 {
			t.Errorf("unit(%x) = %v, its mirror %v", w, u, unit(^w))
		}
	}
}

func TestLogIsGoodToTwoUnitsInTheLastPlace(t *testing.T) {
	check := func(x float64) {
		got, want := log(x), math.Log(x)
		if math.Abs(got-want) > 2*0x1p-52*math.Abs(want) {
			t.Errorf("log(%v) = %v, want %v", x, got, want)
		}
	}
	for e := -1020; e < 1020; e++ {
		for _, m := range []float64{1, 1.1, 1.414213562373095, 1.4142135623730951, 1.5, 1.99999999} {
			check(math.Ldexp(m, e))
		}
	}
	for _, x := range []float64{1 - 0x1p-53, 1 + 0x1p-52, 0.999, 1.001} {
		check(x)
	}
}

func phi(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

func TestQuantileInvertsTheNormalDistribution(t *testing.T) {
	for z := -37.0; z <= 8; z += 1.0 / 64 {
		p := phi(z)
		if p >= 1 || p == 0.5 && z != 0 {
			continue
		}
		// An error of an ulp in p moves z by ulp/density; far right, p is coarse.
		density := math.Exp(-z*z/2) / math.Sqrt(2*math.Pi)
		slack := 4e-15*max(1, math.Abs(z)) + 0x1p-52*p/density
		if got := quantile(p); math.Abs(got-z) > slack {
			t.Errorf("quantile(%v) = %v, want %v", p, got, z)
		}
	}
}

func TestLowerTailIsPhiToTwelveDigits(t *testing.T) {
	for cut := 0.01; cut < 37; cut += 0.173 {
		want := phi(-cut)
		if got := lowerTail(cut); math.Abs(got-want) > 1e-12*want {
			t.Errorf("lowerTail(%v) = %v, want %v", cut, got, want)
		}
	}
	for _, cut := range []float64{39, 1e300} {
		if got := lowerTail(cut); got != 0 {
			t.Errorf("lowerTail(%v) = %v, want 0", cut, got)
		}
	}
}

var distributions = []Distribution{
	{Kind: Zeros},
	{Kind: Ones},
	{Kind: Constant, Value: -2.5},
	{Kind: Normal, Mean: 0.25, Std: 0.02},
	{Kind: TruncatedNormal, Mean: -1, Std: 0.5, Cut: 2},
	{Kind: Uniform, Low: -0.1, High: 0.3},
}

var floats = []dtype.DType{
	dtype.Float64, dtype.Float32, dtype.BFloat16, dtype.Float16, dtype.Float8E4M3, dtype.Float8E5M2,
}

func TestAnySplitGivesTheSameBits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.SampledFrom(distributions).Draw(t, "distribution")
		kind := rapid.SampledFrom(floats).Draw(t, "type")
		s := NewStream(rapid.Uint64().Draw(t, "seed"), rapid.String().Draw(t, "name"))
		first := rapid.Int64Range(0, 1<<40).Draw(t, "first")
		n := rapid.Int64Range(0, 700).Draw(t, "n")
		cut := rapid.Int64Range(0, n).Draw(t, "cut")
		whole, parts := make([]byte, n*kind.Bytes()), make([]byte, n*kind.Bytes())
		d.Fill(whole, kind, s, first)
		d.Fill(parts[:cut*kind.Bytes()], kind, s, first)
		d.Fill(parts[cut*kind.Bytes():], kind, s, first+cut)
		if !slices.Equal(whole, parts) {
			t.Fatalf("%v of %s: split at %d of %d gives other bits", d, kind, cut, n)
		}
	})
}

func TestLowPrecisionIsTheRoundedFloat32(t *testing.T) {
	const n = 1000
	s := NewStream(3, "w")
	d := Distribution{Kind: Normal, Std: 1}
	master := make([]float32, n)
	d.FillFloat32(master, s, 5)
	for _, kind := range floats[2:] {
		got, want := make([]byte, n*kind.Bytes()), make([]byte, n*kind.Bytes())
		d.Fill(got, kind, s, 5)
		dtype.Convert(want, kind, dtype.Bytes(master), dtype.Float32, n)
		if !slices.Equal(got, want) {
			t.Errorf("%s is not its f32 master rounded", kind)
		}
	}
}

// sample returns n sorted elements as f64.
func sample(d Distribution, n int) []float64 {
	x := make([]float64, n)
	d.Fill(dtype.Bytes(x), dtype.Float64, NewStream(42, "statistics"), 0)
	slices.Sort(x)
	return x
}

// checkKS compares sorted numbers with a distribution function by the
// Kolmogorov-Smirnov distance; 1.95/sqrt(n) is exceeded once in 1000 samples.
func checkKS(t *testing.T, x []float64, cdf func(float64) float64) {
	t.Helper()
	distance, n := 0.0, float64(len(x))
	for i, v := range x {
		p := cdf(v)
		distance = max(distance, p-float64(i)/n, float64(i+1)/n-p)
	}
	if distance > 1.95/math.Sqrt(n) {
		t.Errorf("Kolmogorov-Smirnov distance %v, expected below %v", distance, 1.95/math.Sqrt(n))
	}
}

func moments(x []float64) (mean, std float64) {
	for _, v := range x {
		mean += v / float64(len(x))
	}
	for _, v := range x {
		std += (v - mean) * (v - mean) / float64(len(x))
	}
	return mean, math.Sqrt(std)
}

const samples = 1 << 19

func TestNormalHasItsMeanDeviationAndTails(t *testing.T) {
	x := sample(Distribution{Kind: Normal, Mean: 3, Std: 0.5}, samples)
	checkKS(t, x, func(v float64) float64 { return phi((v - 3) / 0.5) })
	mean, std := moments(x)
	if math.Abs(mean-3) > 4*0.5/math.Sqrt(samples) || math.Abs(std-0.5) > 4*0.5/math.Sqrt(2*samples) {
		t.Errorf("mean %v and deviation %v, expected 3 and 0.5", mean, std)
	}
	for _, z := range []float64{2, 3, 4} {
		i, _ := slices.BinarySearch(x, 3-z*0.5)
		j, _ := slices.BinarySearch(x, 3+z*0.5)
		got, want := float64(i+samples-j), 2*phi(-z)*samples
		if math.Abs(got-want) > 4*math.Sqrt(want) {
			t.Errorf("%v elements beyond %v deviations, expected about %v", got, z, want)
		}
	}
}

func TestTruncatedNormalStaysWithinItsCut(t *testing.T) {
	for _, cut := range []float64{0.1, 1, 2, 3.5, 9, 100} {
		d := Distribution{Kind: TruncatedNormal, Mean: 1, Std: 2, Cut: cut}
		x := sample(d, samples/8)
		if x[0] < 1-2*cut || x[len(x)-1] > 1+2*cut {
			t.Errorf("cut %v: elements from %v to %v", cut, x[0], x[len(x)-1])
		}
		tail := phi(-cut)
		checkKS(t, x, func(v float64) float64 { return (phi((v-1)/2) - tail) / (1 - 2*tail) })
	}
}

func TestUniformIsUniform(t *testing.T) {
	x := sample(Distribution{Kind: Uniform, Low: -2, High: 6}, samples)
	checkKS(t, x, func(v float64) float64 { return (v + 2) / 8 })
}

func TestUniformStaysInsideItsBoundsInEveryType(t *testing.T) {
	for _, d := range []Distribution{
		{Kind: Uniform, Low: 0, High: 1},
		{Kind: Uniform, Low: -0.1, High: 0.1},
		{Kind: Uniform, Low: -0.3, High: -0.1},
		{Kind: Uniform, Low: -1, High: 0},
		{Kind: Uniform, Low: -1e9, High: 1e9},
	} {
		for _, kind := range floats {
			codes := make([]byte, 4096*kind.Bytes())
			d.Fill(codes, kind, NewStream(1, "u"), 0)
			x := make([]float64, 4096)
			dtype.Convert(dtype.Bytes(x), dtype.Float64, codes, kind, 4096)
			if low, high := slices.Min(x), slices.Max(x); !(low >= d.Low && high < d.High) {
				t.Errorf("%s: elements from %v to %v, expected within [%v, %v)", kind, low, high, d.Low, d.High)
			}
		}
	}
}

func TestUniformWithoutAValueInsideGivesTheNearest(t *testing.T) {
	got := make([]dtype.F8E4M3, 8)
	d := Distribution{Kind: Uniform, Low: 1.01, High: 1.02} // E4M3 has 1 and 1.125 there
	d.Fill(dtype.Bytes(got), dtype.Float8E4M3, NewStream(1, "u"), 0)
	for _, x := range got {
		if x.Float32() != 1 {
			t.Fatalf("got %v, expected 1", x.Float32())
		}
	}
}

func TestBoundsAreTheNeighbouringValues(t *testing.T) {
	for _, c := range []struct {
		x              float64
		t              dtype.DType
		below, atLeast float64
	}{
		{1, dtype.BFloat16, 1 - 0x1p-8, 1},
		{0, dtype.Float16, -0x1p-24, 0},
		{-1, dtype.Float16, -1 - 0x1p-10, -1},
		{0.1, dtype.Float32, 0.099999994, float64(float32(0.1))},
		{1e9, dtype.Float16, 65504, math.Inf(1)},
		{-1e9, dtype.Float8E4M3, math.NaN(), -448},
		{0.1, dtype.Float64, math.Nextafter(0.1, 0), 0.1},
	} {
		if got := below(c.x, c.t); !(math.Abs(got-c.below) < 1e-9) && !math.IsNaN(c.below) {
			t.Errorf("below(%v, %s) = %v, want %v", c.x, c.t, got, c.below)
		}
		if got := atLeast(c.x, c.t); got != c.atLeast {
			t.Errorf("atLeast(%v, %s) = %v, want %v", c.x, c.t, got, c.atLeast)
		}
	}
}

func TestIntegersTakeConstants(t *testing.T) {
	for _, c := range []struct {
		d    Distribution
		t    dtype.DType
		want []byte
	}{
		{Distribution{Kind: Constant, Value: -2}, dtype.Int16, []byte{0xfe, 0xff, 0xfe, 0xff}},
		{Distribution{Kind: Ones}, dtype.Uint32, []byte{1, 0, 0, 0}},
		{Distribution{Kind: Zeros}, dtype.Int8, []byte{0, 0}},
		{Distribution{Kind: Ones}, dtype.Bool, []byte{1, 1, 1}},
		{Distribution{Kind: Constant, Value: 1 << 63}, dtype.Uint64, []byte{0, 0, 0, 0, 0, 0, 0, 0x80}},
		{Distribution{Kind: Constant, Value: -1 << 63}, dtype.Int64, []byte{0, 0, 0, 0, 0, 0, 0, 0x80}},
	} {
		got := slices.Repeat([]byte{0xaa}, len(c.want))
		c.d.Fill(got, c.t, Stream{}, 0)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v of %s: got %x, want %x", c.d, c.t, got, c.want)
		}
	}
}

func TestValidateNamesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		d    Distribution
		t    dtype.DType
		want string
	}{
		{Distribution{}, dtype.Float32, `init: unknown distribution ""`},
		{Distribution{Kind: Ones}, dtype.Invalid, "init: the parameter has no dtype"},
		{Distribution{Kind: Normal, Std: math.NaN()}, dtype.Float32, "init normal: NaN is no finite number"},
		{Distribution{Kind: Normal, Std: -1}, dtype.Float32, "init normal: std is -1, expected 0 or more"},
		{Distribution{Kind: TruncatedNormal, Std: 1}, dtype.Float32, "init truncated_normal: cut is 0, expected a number above 0, in units of std"},
		{Distribution{Kind: Uniform, Low: 1, High: 1}, dtype.Float32, "init uniform: low is 1 and high is 1, expected low < high"},
		{Distribution{Kind: Uniform, Low: -1e308, High: 1e308}, dtype.Float64, "init uniform: from -1e+308 to 1e+308 is more than a float64 holds, expected a smaller range"},
		{Distribution{Kind: Uniform, High: 1}, dtype.Int32, "init uniform: a parameter of type i32 can only be ones, zeros or a constant"},
		{Distribution{Kind: Constant, Value: 128}, dtype.Int8, "init constant: 128 is no value of type i8"},
		{Distribution{Kind: Constant, Value: 2}, dtype.Bool, "init constant: 2 is no value of type bool"},
		{Distribution{Kind: Constant, Value: -1}, dtype.Uint8, "init constant: -1 is no value of type u8"},
		{Distribution{Kind: Constant, Value: 0.5}, dtype.Int64, "init constant: 0.5 is no value of type i64"},
		{Distribution{Kind: Constant, Value: 255}, dtype.Uint8, ""},
		{Distribution{Kind: Constant, Value: 0.5}, dtype.BFloat16, ""},
		{Distribution{Kind: Normal, Std: 0}, dtype.Float16, ""},
	} {
		got := ""
		if err := c.d.Validate(c.t); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%v of %s: got %q, want %q", c.d, c.t, got, c.want)
		}
	}
}

func TestFillPanicsWhereValidateFails(t *testing.T) {
	defer func() {
		if got, want := recover(), `random: Fill: init: unknown distribution ""`; got != want {
			t.Errorf("panicked with %v, want %q", got, want)
		}
	}()
	Distribution{}.FillFloat32(make([]float32, 1), Stream{}, 0)
}

// A change of these bits changes every model that is initialised from a seed.
func TestBitsStayWhatTheyAre(t *testing.T) {
	want := map[Kind]uint64{
		Normal:          0x590a76605c2a20b9,
		TruncatedNormal: 0xb6678f58df5ccaab,
		Uniform:         0x5a086b8f02a0cc4f,
	}
	for _, d := range distributions[3:] {
		h := fnv.New64a()
		for _, kind := range floats {
			values := make([]byte, 999*kind.Bytes())
			d.Fill(values, kind, NewStream(2024, "h.3.mlp.weight"), 1<<33+1)
			h.Write(values)
		}
		if got := h.Sum64(); got != want[d.Kind] {
			t.Errorf("%s: the values hash to %#x, expected %#x", d.Kind, got, want[d.Kind])
		}
	}
}

// The far tails take the third branch of the quantile, which few elements reach.
func TestBitsOfTheQuantileStayWhatTheyAre(t *testing.T) {
	const want = uint64(0x97481710bb9f2da6)
	h := fnv.New64a()
	for e := 1; e <= 1000; e++ {
		for _, m := range []float64{1, 1.25, 1.75} {
			binary.Write(h, binary.LittleEndian, []float64{quantile(math.Ldexp(m, -e-1)), lowerTail(float64(e) / 32)})
		}
	}
	if got := h.Sum64(); got != want {
		t.Errorf("the quantiles hash to %#x, expected %#x", got, want)
	}
}

func BenchmarkFill(b *testing.B) {
	dst := make([]float32, 1<<14)
	for _, d := range distributions[3:] {
		b.Run(string(d.Kind), func(b *testing.B) {
			b.SetBytes(4 * int64(len(dst)))
			b.ReportAllocs()
			for b.Loop() {
				d.FillFloat32(dst, NewStream(1, "w"), 0)
			}
		})
	}
}

func TestConstantBitsAreThoseOfOneElement(t *testing.T) {
	for _, c := range []struct {
		d    Distribution
		t    dtype.DType
		want uint64
	}{
		{Distribution{Kind: Ones}, dtype.BFloat16, 0x3f80},
		{Distribution{Kind: Zeros, Value: 7}, dtype.Float32, 0},
		{Distribution{Kind: Constant, Value: -2}, dtype.Float64, 0xc000000000000000},
		{Distribution{Kind: Constant, Value: 0.1}, dtype.Float32, 0x3dcccccd},
		{Distribution{Kind: Constant, Value: -1}, dtype.Int8, 0xff},
		{Distribution{Kind: Constant, Value: 1 << 63}, dtype.Uint64, 1 << 63},
		{Distribution{Kind: Ones}, dtype.Bool, 1},
	} {
		if got, ok := c.d.ConstantBits(c.t); got != c.want || !ok {
			t.Errorf("%+v in %s: %#x, %t, want %#x", c.d, c.t, got, ok, c.want)
		}
	}
	if _, ok := (Distribution{Kind: Normal, Std: 1}).ConstantBits(dtype.Float32); ok {
		t.Error("normal numbers are a constant")
	}
}

func TestASamplerHasWhatElementsShare(t *testing.T) {
	s := NewStream(3, "w")
	u := Distribution{Kind: Uniform, Low: 0.25, High: 1}.Sampler(dtype.BFloat16, s)
	if want := (Sampler{Base: 0.25, Width: 0.75, Lower: 0.25, Upper: 1 - 1.0/256, Stream: s, Bounded: true}); u != want {
		t.Errorf("%+v, want %+v", u, want)
	}
	n := Distribution{Kind: TruncatedNormal, Mean: 1, Std: 2, Cut: 40}.Sampler(dtype.Float32, s)
	if want := (Sampler{Mean: 1, Std: 2, Cut: 40, Width: 1, Stream: s}); n != want {
		t.Errorf("%+v, want %+v", n, want)
	}
}
