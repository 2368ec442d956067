package cpu_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

func TestAllocIsAlignedAndDirtyWhereAsked(t *testing.T) {
	d := cpu.Poisoned()
	for _, n := range []int64{1, 31, 64 << 10, 5<<20 + 1} {
		m, err := d.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if m.Addr()%cpu.AlignBytes != 0 || m.Bytes() != n || int64(len(m.Host())) != n {
			t.Errorf("%d bytes: got %d at %#x", n, m.Bytes(), m.Addr())
		}
		if bytes.Count(m.Host(), []byte{0xff}) != int(n) {
			t.Errorf("%d bytes: not all are poisoned", n)
		}
		if err := d.Free(m); err != nil {
			t.Error(err)
		}
		if err := d.Free(m); err == nil || !strings.Contains(err.Error(), "freed before") {
			t.Errorf("the second Free returned %v", err)
		}
	}
}

func TestAllocAndFreeOfNothingAndOfNonsense(t *testing.T) {
	d := cpu.New()
	m, err := d.Alloc(0)
	if err := errors.Join(err, d.Free(m)); err != nil || m.Bytes() != 0 {
		t.Errorf("no bytes: %v, %v", m, err)
	}
	for _, n := range []int64{-1, math.MaxInt64} {
		if _, err := d.Alloc(n); err == nil || !strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("Alloc(%d) returned %v", n, err)
		}
	}
	m, _ = d.Alloc(64)
	if d.Free(m.Slice(0, 32)) == nil || d.Free(device.HostMemory(make([]byte, 8))) == nil {
		t.Error("freed what it had not allocated")
	}
	if err := d.Free(m); err != nil {
		t.Error(err)
	}
}

func TestReadAndWrite(t *testing.T) {
	d, ctx := cpu.New(), context.Background()
	m, got := device.HostMemory(make([]byte, 5)), make([]byte, 5)
	if err := errors.Join(d.Write(ctx, m, []byte("bytes")), d.Read(ctx, got, m)); err != nil || string(got) != "bytes" {
		t.Errorf("read %q, %v", got, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for _, err := range []error{
		d.Write(ctx, m, []byte("four")), d.Read(ctx, got[:3], m),
		d.Read(ctx, got, device.DeviceMemory(1, 5)), d.Read(ended, got, m),
	} {
		if err == nil {
			t.Error("an error is missing")
		}
	}
}

var kernels = cpu.Kernels()

// bytesOf returns fresh memory with the values of x rounded to t.
func bytesOf(t dtype.DType, x []float64) device.Memory {
	b := make([]byte, int64(len(x))*t.Bytes())
	dtype.Convert(b, t, dtype.Bytes(slices.Clone(x)), dtype.Float64, int64(len(x)))
	return device.HostMemory(b)
}

func floats(m device.Memory, t dtype.DType) []float64 {
	x := make([]float64, m.Bytes()/t.Bytes())
	dtype.Convert(dtype.Bytes(x), dtype.Float64, m.Host(), t, int64(len(x)))
	return x
}

func normals(n int) []float64 {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64() * math.Exp2(float64(rng.IntN(20)-10))
	}
	return x
}

func TestAccumulateDividesOnceInTheDestinationsType(t *testing.T) {
	for _, dstType := range []dtype.DType{dtype.Float32, dtype.Float64} {
		for _, srcType := range []dtype.DType{dtype.Float64, dtype.Float32, dtype.BFloat16, dtype.Float16} {
			for _, divisor := range []float64{1, 2, 3, 7, 8, 0.3, -4} {
				for _, n := range []int{0, 1, 33, 2500} {
					checkAccumulate(t, dstType, srcType, divisor, n)
				}
			}
		}
	}
}

func checkAccumulate(t *testing.T, dstType, srcType dtype.DType, divisor float64, n int) {
	t.Helper()
	s := cpu.NewStream("compute", true)
	src := bytesOf(srcType, normals(n))
	dst := device.HostMemory(bytes.Repeat([]byte{0xff}, n*int(dstType.Bytes())))
	kernels.Accumulate(s, dst, dstType, src, srcType, int64(n), divisor, true)
	stored := floats(dst, dstType)
	kernels.Accumulate(s, dst, dstType, src, srcType, int64(n), divisor, false)
	synchronize(t, s)
	for i, x := range floats(src, srcType) {
		quotient, twice := x/divisor, x/divisor+x/divisor
		if dstType == dtype.Float32 {
			quotient = float64(float32(x) / float32(divisor))
			twice = float64(float32(quotient) + float32(quotient))
		}
		if got := floats(dst, dstType)[i]; stored[i] != quotient || got != twice {
			t.Fatalf("%v += %v/%v: stored %v, expected %v, then %v, expected %v", dstType, x, divisor, stored[i], quotient, got, twice)
		}
		if i > 40 {
			return
		}
	}
}

func TestReciprocalsGiveTheBitsOfDivision(t *testing.T) {
	extreme := []float64{math.SmallestNonzeroFloat32, 3 * math.SmallestNonzeroFloat32, 0x1p-126, math.MaxFloat32, math.Inf(1), 0, math.Copysign(0, -1)}
	for _, divisor := range []float64{0.5, 8, 1024, 0x1p100, 0x1p130} {
		s := cpu.NewStream("compute", true)
		src := bytesOf(dtype.Float32, extreme)
		dst := device.HostMemory(make([]byte, src.Bytes()))
		kernels.Accumulate(s, dst, dtype.Float32, src, dtype.Float32, int64(len(extreme)), divisor, true)
		synchronize(t, s)
		for i, x := range dtype.Slice[float32](src.Host()) {
			want := x / float32(divisor)
			if got := dtype.Slice[float32](dst.Host())[i]; math.Float32bits(got) != math.Float32bits(want) {
				t.Errorf("%v/%v = %v, expected %v", x, divisor, got, want)
			}
		}
	}
}

func TestZeroCopyAndCast(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		const n = 9<<20/4 + 5 // more than one piece of a copy
		src := bytesOf(dtype.Float32, normals(n))
		dst := device.HostMemory(bytes.Repeat([]byte{0xff}, 4*n))
		half := device.HostMemory(make([]byte, 2*n))
		s.Copy(dst, src)
		kernels.Cast(s, half, dtype.BFloat16, src, dtype.Float32, n)
		kernels.Cast(s, half.Slice(0, 2), dtype.Int16, half.Slice(2, 2), dtype.Int16, 1)
		synchronize(t, s)
		if !bytes.Equal(dst.Host(), src.Host()) {
			t.Error("the copy differs")
		}
		want := make([]byte, 2*n)
		dtype.Convert(want, dtype.BFloat16, src.Host(), dtype.Float32, n)
		copy(want, want[2:4])
		if !bytes.Equal(half.Host(), want) {
			t.Error("the cast differs")
		}
		kernels.Zero(s, dst.Slice(1, 4*n-2))
		synchronize(t, s)
		if got := dst.Host(); got[0] != src.Host()[0] || bytes.ContainsFunc(got[1:4*n-1], func(r rune) bool { return r != 0 }) || got[4*n-1] != src.Host()[4*n-1] {
			t.Error("zeroed something else")
		}
	})
}

func TestFillAndNormAreThePackagesOwn(t *testing.T) {
	d := random.Distribution{Kind: random.Normal, Std: 0.5}
	r := random.NewStream(7, "wte.weight")
	want := make([]float32, 5000)
	d.FillFloat32(want, r, 3)
	both(t, func(t *testing.T, s *cpu.Stream) {
		dst := device.HostMemory(make([]byte, 20000))
		var norm optim.Norm
		total := device.HostMemory(make([]byte, optim.NormBytes))
		kernels.Fill(s, dst, dtype.Float32, &d, r, 3, 5000)
		partials := device.HostMemory(make([]byte, optim.PartialBytes(5000)))
		kernels.Norm(s, partials, dst, dtype.Float32, 5000)
		kernels.NormTotal(s, total, partials)
		synchronize(t, s)
		expected := make([]byte, optim.PartialBytes(5000))
		optim.PutNorms(expected, want)
		norm.AddAll(expected)
		got := optim.NormOf(total.Host())
		if !slices.Equal(dtype.Slice[float32](dst.Host()), want) || got != norm {
			t.Errorf("other values, or norm %v, expected %v", got, norm)
		}
	})
}

func TestScaleRoundsTheFactorAndTheProduct(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		x := bytesOf(dtype.Float32, []float64{3, -0.1, 1e38})
		y := bytesOf(dtype.Float64, []float64{3, -0.1, 1e38})
		third := 1.0 / 3
		kernels.Scale(s, x, dtype.Float32, 3, third)
		kernels.Scale(s, y, dtype.Float64, 2, third)
		synchronize(t, s)
		tenth := float32(-0.1)
		if got, want := floats(x, dtype.Float32)[1], float64(tenth*float32(third)); got != want {
			t.Errorf("f32: %v, expected %v", got, want)
		}
		if got := floats(y, dtype.Float64); got[0] != 3*third || got[2] != 1e38 {
			t.Errorf("f64: %v", got)
		}
	})
}

// stepState returns a state of n elements and its copy as slices to compare.
func stepState(n int, t dtype.DType) device.State {
	x := normals(5 * n)
	return device.State{
		N: int64(n), Type: t, Master: bytesOf(t, x[:n]), Grad: bytesOf(t, x[n:2*n]),
		Moments: [2]device.Memory{bytesOf(t, x[2*n:3*n]), bytesOf(t, make([]float64, n))},
		Copy:    device.HostMemory(bytes.Repeat([]byte{0xff}, 2*n)), CopyType: dtype.BFloat16,
	}
}

func TestStepsAreThePackagesOwnAndWriteTheCopy(t *testing.T) {
	adamw, err := optim.AdamW{LR: 0.1, WeightDecay: 0.1}.Prepare(3, 1)
	sgd, err2 := optim.SGD{LR: 0.1, Momentum: 0.9}.Prepare(2, 0.5)
	plain, err3 := optim.SGD{LR: 0.1}.Prepare(2, 0.5)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 1023, 1024, 1025, 5000} {
		checkStep(t, n, func(s device.Stream, x device.State) { kernels.AdamW(s, adamw, x) }, func(master, m, v, grad []float32) { adamw.Update(master, m, v, grad) })
		checkStep(t, n, func(s device.Stream, x device.State) { kernels.SGD(s, sgd, x) }, func(master, m, _, grad []float32) { sgd.Update(master, m, grad) })
		checkStep(t, n, func(s device.Stream, x device.State) {
			x.Moments = [2]device.Memory{}
			kernels.SGD(s, plain, x)
		}, func(master, _, _, grad []float32) { plain.Update(master, nil, grad) })
	}
}

func checkStep(t *testing.T, n int, step func(device.Stream, device.State), update func(master, m, v, grad []float32)) {
	t.Helper()
	got, want := stepState(n, dtype.Float32), stepState(n, dtype.Float32)
	s := cpu.NewStream("compute", true)
	step(s, got)
	synchronize(t, s)
	f := func(m device.Memory) []float32 { return dtype.Slice[float32](m.Host()) }
	update(f(want.Master), f(want.Moments[0]), f(want.Moments[1]), f(want.Grad))
	dtype.Convert(want.Copy.Host(), dtype.BFloat16, want.Master.Host(), dtype.Float32, int64(n))
	for i, pair := range [][2]device.Memory{{got.Master, want.Master}, {got.Moments[0], want.Moments[0]}, {got.Moments[1], want.Moments[1]}, {got.Copy, want.Copy}} {
		if !bytes.Equal(pair[0].Host(), pair[1].Host()) {
			t.Errorf("%d elements: range %d of the state differs", n, i)
		}
	}
}

func TestStepsInF64(t *testing.T) {
	step, err := optim.AdamW{LR: 0.1}.Prepare(1, 1)
	sgd, err2 := optim.SGD{LR: 0.1}.Prepare(1, 1)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	got, want := stepState(1500, dtype.Float64), stepState(1500, dtype.Float64)
	got.Copy = device.Memory{}
	s := cpu.NewStream("compute", true)
	kernels.AdamW(s, step, got)
	kernels.SGD(s, sgd, got)
	synchronize(t, s)
	f := func(m device.Memory) []float64 { return dtype.Slice[float64](m.Host()) }
	step.Update64(f(want.Master), f(want.Moments[0]), f(want.Moments[1]), f(want.Grad))
	sgd.Update64(f(want.Master), nil, f(want.Grad))
	if !slices.Equal(f(got.Master), f(want.Master)) {
		t.Error("the masters differ")
	}
}

func TestBadArgumentsAreErrorsOfTheStream(t *testing.T) {
	m, f32, bf16 := device.HostMemory(make([]byte, 64)), dtype.Float32, dtype.BFloat16
	foreign := device.DeviceMemory(64, 64)
	good := random.Distribution{Kind: random.Ones}
	for name, test := range map[string]struct {
		add  func(*cpu.Stream)
		want string
	}{
		"copy of other length":   {func(s *cpu.Stream) { s.Copy(m, m.Slice(0, 63)) }, "copy: the destination has 64 bytes, the source 63"},
		"copy of device memory":  {func(s *cpu.Stream) { s.Copy(m, foreign) }, "another device"},
		"copy to device memory":  {func(s *cpu.Stream) { s.Copy(foreign, m) }, "another device"},
		"zero of device memory":  {func(s *cpu.Stream) { kernels.Zero(s, foreign) }, "another device"},
		"cast of too many":       {func(s *cpu.Stream) { kernels.Cast(s, m, f32, m, bf16, 17) }, "17 elements of f32 asked for, the destination has 64 bytes"},
		"cast of less than none": {func(s *cpu.Stream) { kernels.Cast(s, m, f32, m, bf16, -1) }, "-1 elements"},
		"cast of integers":       {func(s *cpu.Stream) { kernels.Cast(s, m, f32, m, dtype.Int8, 1) }, "no conversion from i8 to f32"},
		"cast to nothing":        {func(s *cpu.Stream) { kernels.Cast(s, m, dtype.Invalid, m, f32, 1) }, "dtype invalid"},
		"unaligned":              {func(s *cpu.Stream) { kernels.Cast(s, m.Slice(2, 8), f32, m, bf16, 1) }, "not aligned"},
		"accumulate into bf16":   {func(s *cpu.Stream) { kernels.Accumulate(s, m, bf16, m, f32, 1, 1, true) }, "expected f32 or f64"},
		"accumulate integers":    {func(s *cpu.Stream) { kernels.Accumulate(s, m, f32, m, dtype.Int32, 1, 1, true) }, "the source is i32"},
		"fill without":           {func(s *cpu.Stream) { kernels.Fill(s, m, f32, nil, random.Stream{}, 0, 1) }, "no distribution"},
		"fill of unknown kind":   {func(s *cpu.Stream) { kernels.Fill(s, m, f32, &random.Distribution{Kind: "odd"}, random.Stream{}, 0, 1) }, "odd"},
		"fill before the first":  {func(s *cpu.Stream) { kernels.Fill(s, m, f32, &good, random.Stream{}, -1, 1) }, "-1"},
		"fill too many":          {func(s *cpu.Stream) { kernels.Fill(s, m, f32, &good, random.Stream{}, 0, 17) }, "17 elements"},
		"norm without room":      {func(s *cpu.Stream) { kernels.Norm(s, device.Memory{}, m, f32, 1) }, "the room for partial norms has 0 bytes"},
		"total without a place":  {func(s *cpu.Stream) { kernels.NormTotal(s, device.Memory{}, m) }, "the total has 0 bytes"},
		"norm of bf16":           {func(s *cpu.Stream) { kernels.Norm(s, m, m, bf16, 1) }, "expected f32 or f64"},
		"scale of bf16":          {func(s *cpu.Stream) { kernels.Scale(s, m, bf16, 1, 2) }, "expected f32 or f64"},
		"scale of too many":      {func(s *cpu.Stream) { kernels.Scale(s, m, f32, 17, 2) }, "17 elements"},
		"adamw without moments": {func(s *cpu.Stream) {
			kernels.AdamW(s, optim.AdamWStep{}, device.State{N: 1, Type: f32, Master: m, Grad: m})
		}, "the moment has 0 bytes"},
		"adamw in bf16": {func(s *cpu.Stream) {
			kernels.AdamW(s, optim.AdamWStep{}, device.State{N: 1, Type: bf16, Master: m, Grad: m})
		}, "the master is bf16"},
		"sgd with a short copy": {func(s *cpu.Stream) {
			kernels.SGD(s, optim.SGDStep{}, device.State{N: 9, Type: f32, Master: m, Grad: m, Copy: m.Slice(0, 16), CopyType: bf16})
		}, "the copy has 16 bytes"},
		"sgd with an integer copy": {func(s *cpu.Stream) {
			kernels.SGD(s, optim.SGDStep{}, device.State{N: 1, Type: f32, Master: m, Grad: m, Copy: m, CopyType: dtype.Int8})
		}, "the copy is i8"},
	} {
		both(t, func(t *testing.T, s *cpu.Stream) {
			test.add(s)
			if err := s.Synchronize(context.Background(), s.Record()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %v, expected an error with %q", name, err, test.want)
			}
		})
	}
}

func BenchmarkKernels(b *testing.B) {
	const n = 1 << 20
	s := cpu.NewStream("compute", true)
	state := stepState(n, dtype.Float32)
	step, _ := optim.AdamW{LR: 0.1}.Prepare(1, 1)
	half := bytesOf(dtype.BFloat16, normals(n))
	for name, run := range map[string]func(){
		"accumulate/f32 by 2":  func() { kernels.Accumulate(s, state.Master, dtype.Float32, state.Grad, dtype.Float32, n, 2, false) },
		"accumulate/f32 by 3":  func() { kernels.Accumulate(s, state.Master, dtype.Float32, state.Grad, dtype.Float32, n, 3, false) },
		"accumulate/bf16 by 3": func() { kernels.Accumulate(s, state.Master, dtype.Float32, half, dtype.BFloat16, n, 3, false) },
		"cast":                 func() { kernels.Cast(s, half, dtype.BFloat16, state.Grad, dtype.Float32, n) },
		"norm":                 func() { kernels.Norm(s, half, state.Grad, dtype.Float32, n) },
		"adamw":                func() { kernels.AdamW(s, step, state) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(4 * n)
			for b.Loop() {
				run()
			}
		})
	}
}
