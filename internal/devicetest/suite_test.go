package devicetest

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
)

// wrong is a CPU with a cast that is followed by spoil.
type wrong struct {
	device.Device
	spoil func(dst, src device.Memory, n int64)
}

type wrongKernels struct {
	device.Kernels
	spoil func(dst, src device.Memory, n int64)
}

func (d wrong) Load(c device.Code) (device.Kernels, error) {
	k, err := d.Device.Load(c)
	return wrongKernels{k, d.spoil}, err
}

func (k wrongKernels) Cast(s device.Stream, dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) {
	k.Kernels.Cast(s, dst, dstType, src, srcType, n)
	_ = s.Synchronize(context.Background(), s.Record())
	k.spoil(dst, src, n)
}

// beside returns the byte at an offset from the beginning of a range, which may
// be outside.
func beside(m device.Memory, offset int64) *byte {
	return (*byte)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(m.Host())), offset))
}

func runOne(t *testing.T, d device.Device, name string) Result {
	t.Helper()
	target := Target{Device: d, AlignBytes: 64, Has: func(n string) bool { return n == name }}
	results, err := Run(t.Context(), target, Options{Sizes: []int64{0, 33}})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 2 || results[0].Kernel != copyName || results[0].Error != "" || results[1].Kernel != name {
		t.Fatalf("results %+v, expected those of the copy and of %s", results, name)
	}
	return results[1]
}

func TestWhateverACastDoesWrongIsFound(t *testing.T) {
	name := kernel.Cast(dtype.Float32, dtype.BFloat16)
	if r := runOne(t, cpu.New(), name); r.Error != "" || r.Cases != 4 || r.Elements != 2*33 {
		t.Errorf("the CPU compared with itself: %+v", r)
	}
	for what, c := range map[string]struct {
		spoil func(dst, src device.Memory, n int64)
		want  string
	}{
		"one bit":            {func(dst, _ device.Memory, n int64) { dst.Host()[2*n-1] ^= 1 }, "the target differs in 1 of 33 elements: element 32"},
		"the garbage before": {func(dst, _ device.Memory, _ int64) { *beside(dst, -1) ^= 1 }, "the garbage before the target was changed"},
		"the garbage behind": {func(_, src device.Memory, n int64) { *beside(src, 4*n) ^= 1 }, "the garbage behind all ranges was changed"},
		"the source":         {func(_, src device.Memory, _ int64) { src.Host()[0] ^= 1 }, "the source was changed: byte 0"},
	} {
		t.Run(what, func(t *testing.T) {
			spoil := func(dst, src device.Memory, n int64) {
				if n > 0 {
					c.spoil(dst, src, n)
				}
			}
			if r := runOne(t, wrong{cpu.New(), spoil}, name); !strings.Contains(r.Error, c.want) {
				t.Errorf("%q does not say %q", r.Error, c.want)
			}
		})
	}
}

// What a device refuses is its result, and the next kernel is tested all the same.
type refuses struct{ device.Device }

type refusingKernels struct{ device.Kernels }

func (d refuses) Load(c device.Code) (device.Kernels, error) {
	k, err := d.Device.Load(c)
	return refusingKernels{k}, err
}

func (k refusingKernels) Zero(s device.Stream, dst device.Memory) {
	s.Copy(dst, device.Memory{}) // of other length
	k.Kernels.Zero(s, dst)
}

func TestAKernelThatFailsDoesNotEndTheOthers(t *testing.T) {
	target := Target{Device: refuses{cpu.New()}, AlignBytes: 16, Has: func(n string) bool { return n == kernel.Zero() || n == kernel.Scale(dtype.Float32) }}
	results, err := Run(t.Context(), target, Options{Sizes: []int64{5}})
	if err != nil || len(results) != 3 {
		t.Fatalf("%+v, %v", results, err)
	}
	if !strings.Contains(results[1].Error, "destination has 5 bytes") || results[2].Error != "" {
		t.Errorf("%+v", results)
	}
}

func TestTargetsThatLackSomethingAreRefused(t *testing.T) {
	for _, target := range []Target{{}, {Device: cpu.New(), AlignBytes: 16}, {Device: cpu.New(), Has: func(string) bool { return true }}} {
		if _, err := Run(t.Context(), target, Options{}); err == nil {
			t.Errorf("%+v was accepted", target)
		}
	}
}

func TestOnlyNaNsOfArithmeticMayDiffer(t *testing.T) {
	a, b := []float32{1, math.Float32frombits(0x7fc00000)}, []float32{1, math.Float32frombits(0xffc00001)}
	if err := Differ("x", dtype.Float32, dtype.Bytes(a), dtype.Bytes(b), true); err != nil {
		t.Error(err)
	}
	err := Differ("x", dtype.Float32, dtype.Bytes(a), dtype.Bytes(b), false)
	if err == nil || !strings.Contains(err.Error(), "x differs in 1 of 2 elements: element 1 is 0x7fc00000 (NaN), the CPU has 0xffc00001 (NaN)") {
		t.Error(err)
	}
	b[0] = float32(math.Copysign(1, -1))
	if err := Differ("x", dtype.Float32, dtype.Bytes(a), dtype.Bytes(b), true); err == nil {
		t.Error("a sign was overlooked")
	}
	if err := Differ("x", dtype.Float32, dtype.Bytes(a[:1]), dtype.Bytes(b), true); err == nil {
		t.Error("a length was overlooked")
	}
}

func TestRangesStartAtOddMultiplesOfTheAlignmentWithGarbageAround(t *testing.T) {
	for _, align := range []int64{16, 256, 65536} {
		l := newLayout([]operand{{t: dtype.Float32}, {t: dtype.Uint8}, {t: dtype.Float64}}, 33, align)
		end := int64(0)
		for i, p := range l.places {
			if p.start%align != 0 || p.start/align%2 == 0 || p.start-end < redBytes {
				t.Errorf("align %d: range %d starts at %d, the one before ends at %d", align, i, p.start, end)
			}
			end = p.start + p.bytes
		}
		if l.bytes != end+redBytes {
			t.Errorf("align %d: %d bytes, the last range ends at %d", align, l.bytes, end)
		}
	}
}

func TestSpecialContentHasWhatIsSpecial(t *testing.T) {
	halves := dtype.Slice[uint16](every(rand.New(rand.NewPCG(1, 2)), dtype.BFloat16, codes))
	for i, code := range halves {
		if int(code) != i {
			t.Fatalf("code %d is %#x", i, code)
		}
	}
	count := map[string]int{}
	for _, x := range dtype.Slice[float32](every(rand.New(rand.NewPCG(1, 2)), dtype.Float32, 4097)) {
		bits := math.Float32bits(x)
		switch {
		case x != x:
			count["NaN"]++
		case math.IsInf(float64(x), 1):
			count["+Inf"]++
		case math.IsInf(float64(x), -1):
			count["-Inf"]++
		case bits == 1<<31:
			count["-0"]++
		case x != 0 && bits&0x7f800000 == 0:
			count["subnormal"]++
		}
	}
	for _, what := range []string{"NaN", "+Inf", "-Inf", "-0", "subnormal"} {
		if count[what] == 0 {
			t.Errorf("no %s among 4097 elements", what)
		}
	}
}

func TestNeededKernelsHaveTests(t *testing.T) {
	tests := Tested()
	for _, wire := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16} {
		for _, o := range []layout.Optimizer{
			{}, {Kind: layout.SGD}, {Kind: layout.SGD, Masters: true}, {Kind: layout.MomentumSGD}, {Kind: layout.MomentumSGD, Masters: true},
			{Kind: layout.AdamW}, {Kind: layout.AdamW, Masters: true},
		} {
			for _, name := range kernel.Needed(everyBucket(wire, o)) {
				if !slices.Contains(tests, name) {
					t.Errorf("%s has no test", name)
				}
			}
		}
	}
}

// everyBucket is a model with buckets of all types, trained and frozen, with all
// initial values that the type can have.
func everyBucket(wire dtype.DType, o layout.Optimizer) *layout.Model {
	m := &layout.Model{Reduce: wire, Optimizer: o, Kinds: []layout.Kind{{}}}
	for _, d := range dtype.All() {
		b := layout.Bucket{DType: d}
		for _, init := range []random.Kind{random.Zeros, random.Ones, random.Constant, random.Normal, random.TruncatedNormal, random.Uniform} {
			if d.IsFloat() || !init.Random() {
				b.Params = append(b.Params, layout.Param{Numel: 1, Init: &random.Distribution{Kind: init}})
			}
		}
		m.Kinds[0].Buckets = append(m.Kinds[0].Buckets, b)
		if b.Trainable = d.Trainable(); b.Trainable {
			m.Kinds[0].Buckets = append(m.Kinds[0].Buckets, b)
		}
	}
	return m
}
