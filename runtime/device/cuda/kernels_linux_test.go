package cuda

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

var _ device.Kernels = (*Kernels)(nil)

// everyKernel is an image for the double that has the kernels of these tests.
var everyKernel = imageWith("zero", "cast_f32_bf16", "cast_bf16_f32", "accumulate_bf16_f32_add", "accumulate_f64_f64_store", "fill_constant_1", "fill_constant_2",
	"fill_constant_4", "fill_constant_8", "fill_normal_f32", "fill_truncated_normal_f64", "fill_uniform_f16", "norm_f32", "norm_f64", "norm_total", "scale_f32", "scale_f64",
	"adamw_f32", "adamw_f32_bf16", "sgd_f32", "sgd_momentum_f32_bf16")

func imageWith(names ...string) string {
	return "shardgen_" + strings.Join(names, "\nshardgen_") + "\n"
}

// packageCode returns a package whose image is for the double.
func packageCode(image string) device.Code {
	const source = "0123456789abcdef"
	return device.Code{
		Package: "tiny", Command: "go tool shardgen generate tiny.yaml", Source: source,
		Fatbin: string(fatbin.Seal([]byte(image), fatbin.Record{Origin: "tiny.yaml", Source: source})),
	}
}

func load(t *testing.T, gpu *Device, image string) *Kernels {
	t.Helper()
	k, err := gpu.Load(packageCode(image))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k.(*Kernels)
}

// at is memory that only launches of the double know.
func at(address device.Addr, bytes int64) device.Memory { return device.DeviceMemory(address, bytes) }

const big = 1 << 40 // bytes, more than any test asks for

var (
	bf16, f16, f32, f64 = dtype.BFloat16, dtype.Float16, dtype.Float32, dtype.Float64
	m1, m2, m3          = at(0x1000, big), at(0x2000, big), at(0x3000, big)
	state               = device.State{N: 1000, Type: dtype.Float32, Master: m1, Moments: [2]device.Memory{m2, m3}, Grad: at(0x4000, big)}
)

func withCopy(s device.State) device.State {
	s.Copy, s.CopyType = at(0x5000, big), dtype.BFloat16
	return s
}

func TestLaunchesHaveTheKernelTheGridAndTheArguments(t *testing.T) {
	half := math.Float64bits(0.5)
	constant := random.Distribution{Kind: random.Constant, Value: 0.5}
	for _, test := range []struct {
		launch func(k *Kernels, s *Stream)
		want   string // kernel<blocks, threads, shared>[arguments]
	}{
		{func(k *Kernels, s *Stream) { k.Zero(s, at(0x1000, 100)) }, "zero<1,256,0>[4096 100]"},
		{func(k *Kernels, s *Stream) { k.Zero(s, at(0x1000, 16*256+1)) }, "zero<2,256,0>[4096 4097]"},
		{func(k *Kernels, s *Stream) { k.Zero(s, at(0x1000, 1<<40)) }, "zero<24,256,0>[4096 1099511627776]"}, // 3 multiprocessors
		{func(k *Kernels, s *Stream) { k.Cast(s, m1, bf16, m2, f32, 2049) }, "cast_f32_bf16<2,256,0>[4096 8192 2049]"},
		{func(k *Kernels, s *Stream) { k.Cast(s, m1, f32, m2, bf16, 2048) }, "cast_bf16_f32<1,256,0>[4096 8192 2048]"},
		{func(k *Kernels, s *Stream) { k.Accumulate(s, m1, f32, m2, bf16, 3, 0.5, false) }, fmt.Sprintf("accumulate_bf16_f32_add<1,256,0>[4096 8192 3 %d]", half)},
		{func(k *Kernels, s *Stream) { k.Accumulate(s, m1, f64, m2, f64, 513, 0.5, true) }, fmt.Sprintf("accumulate_f64_f64_store<2,256,0>[4096 8192 513 %d]", half)},
		{func(k *Kernels, s *Stream) { k.Fill(s, m1, bf16, &constant, random.Stream{}, 9, 5) }, "fill_constant_2<1,256,0>[4096 16128 5]"},
		{func(k *Kernels, s *Stream) {
			k.Fill(s, m1, dtype.Int64, &random.Distribution{Kind: random.Ones}, random.Stream{}, 9, 5)
		}, "fill_constant_8<1,256,0>[4096 1 5]"},
		{func(k *Kernels, s *Stream) {
			k.Fill(s, m1, f32, &random.Distribution{Kind: random.Normal, Mean: 0.5, Std: 1}, random.Stream{}, 9, 5)
		}, fmt.Sprintf("fill_normal_f32<1,256,0>[4096 %d 9 5]", half)},
		{func(k *Kernels, s *Stream) {
			k.Fill(s, m1, f64, &random.Distribution{Kind: random.TruncatedNormal, Mean: 0.5, Std: 1, Cut: 2}, random.Stream{}, 9, 513)
		}, fmt.Sprintf("fill_truncated_normal_f64<2,256,0>[4096 %d 9 513]", half)},
		{func(k *Kernels, s *Stream) {
			k.Fill(s, m1, f16, &random.Distribution{Kind: random.Uniform, High: 1}, random.Stream{}, 0, 5)
		}, "fill_uniform_f16<1,256,0>[4096 0 0 5]"},
		{func(k *Kernels, s *Stream) { k.Norm(s, m2, m3, f32, 8192) }, "norm_f32<1,256,0>[8192 12288 8192]"},
		{func(k *Kernels, s *Stream) { k.Norm(s, m2, m3, f64, 8193) }, "norm_f64<2,256,0>[8192 12288 8193]"},
		{func(k *Kernels, s *Stream) { k.NormTotal(s, m1, m2.Slice(0, 48)) }, "norm_total<1,1024,0>[4096 8192 3]"},
		{func(k *Kernels, s *Stream) { k.Scale(s, m1, f32, 1025, 0.5) }, fmt.Sprintf("scale_f32<2,256,0>[4096 1025 %d]", half)},
		{func(k *Kernels, s *Stream) { k.AdamW(s, optim.AdamWStep{GradScale: 0.5}, state) }, fmt.Sprintf("adamw_f32<1,256,0>[%d 4096 8192 12288 16384 1000]", half)},
		{func(k *Kernels, s *Stream) { k.AdamW(s, optim.AdamWStep{GradScale: 0.5}, withCopy(state)) }, fmt.Sprintf("adamw_f32_bf16<1,256,0>[%d 4096 8192 12288 16384 20480 1000]", half)},
		{func(k *Kernels, s *Stream) { k.SGD(s, optim.SGDStep{GradScale: 0.5}, state) }, fmt.Sprintf("sgd_f32<1,256,0>[%d 4096 16384 1000]", half)},
		{func(k *Kernels, s *Stream) { k.SGD(s, optim.SGDStep{GradScale: 0.5, Momentum: 0.9}, withCopy(state)) }, fmt.Sprintf("sgd_momentum_f32_bf16<1,256,0>[%d 4096 8192 16384 20480 1000]", half)},
	} {
		t.Run(test.want, func(t *testing.T) {
			d, gpu := openDevice(t)
			k, s := load(t, gpu, everyKernel), openStream(t, gpu, "compute")
			test.launch(k, s)
			if got := d.launched().String(); s.Err() != nil || got != "shardgen_"+test.want {
				t.Errorf("launched %s, %v", got, s.Err())
			}
		})
	}
}

func TestAStepIsPassedWhole(t *testing.T) {
	d, gpu := openDevice(t)
	k, s := load(t, gpu, everyKernel), openStream(t, gpu, "compute")
	step := optim.AdamWStep{GradScale: 1, Keep: 2, Gain1: 3, Keep1: 4, Beta2: 5, Gain2: 6, StepSize: 7, Root2: 8, Eps: 9}
	k.AdamW(s, step, state)
	first := d.launched().first
	if got := *(*optim.AdamWStep)(unsafe.Pointer(&first)); got != step {
		t.Errorf("the driver read %+v", got)
	}
}

func TestEqualTypesAreCopied(t *testing.T) {
	d, gpu := openDevice(t)
	k, s := load(t, gpu, everyKernel), openStream(t, gpu, "compute")
	m, got, launches := alloc(t, gpu, 64), make([]byte, 64), d.calls(cuLaunchKernel)
	if err := gpu.Write(context.Background(), m, slices.Repeat([]byte{7, 0}, 32)); err != nil {
		t.Fatal(err)
	}
	k.Cast(s, m.Slice(32, 32), dtype.Int16, m, dtype.Int16, 1)
	if err := gpu.Read(context.Background(), got, m); err != nil || s.Err() != nil || d.calls(cuLaunchKernel) != launches {
		t.Error(err, s.Err())
	}
}

func TestNothingIsLaunchedForNoElements(t *testing.T) {
	d, gpu := openDevice(t)
	k, s := load(t, gpu, everyKernel), openStream(t, gpu, "compute")
	launches, none := d.calls(cuLaunchKernel), device.Memory{}
	k.Zero(s, none)
	k.Cast(s, none, bf16, none, f32, 0)
	k.Cast(s, none, f32, none, f32, 0)
	k.Accumulate(s, none, f32, none, bf16, 0, 1, true)
	k.Fill(s, none, f32, &random.Distribution{Kind: random.Ones}, random.Stream{}, 0, 0)
	k.Norm(s, none, none, f32, 0)
	k.NormTotal(s, m1, none)
	k.Scale(s, none, f32, 0, 1)
	k.AdamW(s, optim.AdamWStep{}, device.State{Type: f32})
	k.SGD(s, optim.SGDStep{Momentum: 1}, device.State{Type: f32})
	if d.calls(cuLaunchKernel) != launches || s.Err() != nil {
		t.Errorf("%d launches, %v", d.calls(cuLaunchKernel)-launches, s.Err())
	}
}

func TestBadArgumentsAreErrorsOfTheStream(t *testing.T) {
	m, host := at(0x1000, 64), device.HostMemory(make([]byte, 64))
	ones := &random.Distribution{Kind: random.Ones}
	for name, test := range map[string]struct {
		add  func(*Kernels, *Stream)
		want string
	}{
		"copy of host memory":    {func(_ *Kernels, s *Stream) { s.Copy(m, host) }, "copy: the source's 64 bytes at"},
		"copy to host memory":    {func(_ *Kernels, s *Stream) { s.Copy(host, m) }, "the host's and not page-locked by this device"},
		"zero of host memory":    {func(k *Kernels, s *Stream) { k.Zero(s, host) }, "zero: the destination's 64 bytes"},
		"zero off an access":     {func(k *Kernels, s *Stream) { k.Zero(s, m.Slice(8, 8)) }, "zero: the destination at 0x1008 is not aligned to the 16 bytes"},
		"cast of too many":       {func(k *Kernels, s *Stream) { k.Cast(s, m, f32, m, bf16, 17) }, "cast: 17 elements of f32 asked for, the destination has 64 bytes"},
		"cast of less than none": {func(k *Kernels, s *Stream) { k.Cast(s, m, f32, m, bf16, -1) }, "-1 elements"},
		"cast of integers":       {func(k *Kernels, s *Stream) { k.Cast(s, m, f32, m, dtype.Int8, 1) }, "no conversion from i8 to f32"},
		"cast to nothing":        {func(k *Kernels, s *Stream) { k.Cast(s, m, dtype.Invalid, m, f32, 1) }, "dtype invalid"},
		"cast from beyond":       {func(k *Kernels, s *Stream) { k.Cast(s, m, f32, m, 200, 1) }, "the source has dtype"},
		"accumulate into bf16":   {func(k *Kernels, s *Stream) { k.Accumulate(s, m, bf16, m, f32, 1, 1, true) }, "the destination is bf16, expected f32 or f64"},
		"accumulate integers":    {func(k *Kernels, s *Stream) { k.Accumulate(s, m, f32, m, dtype.Int32, 1, 1, true) }, "the source is i32"},
		"fill without":           {func(k *Kernels, s *Stream) { k.Fill(s, m, f32, nil, random.Stream{}, 0, 1) }, "no distribution"},
		"fill of unknown kind": {func(k *Kernels, s *Stream) {
			k.Fill(s, m, f32, &random.Distribution{Kind: "odd"}, random.Stream{}, 0, 1)
		}, "odd"},
		"fill before the first": {func(k *Kernels, s *Stream) { k.Fill(s, m, f32, ones, random.Stream{}, -1, 1) }, "the first element is -1"},
		"fill too many":         {func(k *Kernels, s *Stream) { k.Fill(s, m, f32, ones, random.Stream{}, 0, 17) }, "17 elements"},
		"norm without room":     {func(k *Kernels, s *Stream) { k.Norm(s, m.Slice(0, 16), m1, f32, 8193) }, "the room for partial norms has 16 bytes"},
		"norm of bf16":          {func(k *Kernels, s *Stream) { k.Norm(s, m, m, bf16, 1) }, "the gradient is bf16, expected f32 or f64"},
		"total without a place": {func(k *Kernels, s *Stream) { k.NormTotal(s, device.Memory{}, m) }, "the total has 0 bytes"},
		"scale of bf16":         {func(k *Kernels, s *Stream) { k.Scale(s, m, bf16, 1, 1) }, "scale: the gradient is bf16"},
		"adamw without moments": {func(k *Kernels, s *Stream) {
			k.AdamW(s, optim.AdamWStep{}, device.State{N: 1, Type: f32, Master: m, Grad: m})
		}, "the moment has 0 bytes"},
		"adamw in bf16": {func(k *Kernels, s *Stream) {
			k.AdamW(s, optim.AdamWStep{}, device.State{N: 1, Type: bf16, Master: m, Grad: m})
		}, "the master is bf16"},
		"sgd with a short copy": {func(k *Kernels, s *Stream) {
			k.SGD(s, optim.SGDStep{}, device.State{N: 9, Type: f32, Master: m, Grad: m, Copy: m.Slice(0, 16), CopyType: bf16})
		}, "the copy has 16 bytes"},
		"sgd with an integer copy": {func(k *Kernels, s *Stream) {
			k.SGD(s, optim.SGDStep{}, device.State{N: 1, Type: f32, Master: m, Grad: m, Copy: m, CopyType: dtype.Int8})
		}, "the copy is i8"},
		"sgd with its own copy": {func(k *Kernels, s *Stream) {
			k.SGD(s, optim.SGDStep{}, device.State{N: 1, Type: f32, Master: m, Grad: m, Copy: m, CopyType: f32})
		}, "other than the master's f32"},
		"sgd without momentum": {func(k *Kernels, s *Stream) {
			k.SGD(s, optim.SGDStep{Momentum: 1}, device.State{N: 1, Type: f32, Master: m, Grad: m})
		}, "the moment has 0 bytes"},
		"a kernel left out": {func(k *Kernels, s *Stream) { k.Cast(s, m, f16, m, f32, 1) }, "cast: package tiny has no kernel shardgen_cast_f32_f16: it was generated without; run `go tool shardgen generate tiny.yaml --cuda require`"},
	} {
		t.Run(name, func(t *testing.T) {
			d, gpu := openDevice(t)
			k, s := load(t, gpu, everyKernel), openStream(t, gpu, "compute")
			launches := d.calls(cuLaunchKernel)
			test.add(k, s)
			wantError(t, s.Synchronize(context.Background(), s.Record()), "cuda:0: stream compute: ", test.want)
			if d.calls(cuLaunchKernel) != launches {
				t.Error("it was launched all the same")
			}
		})
	}
}

func TestStreamsOfOtherDevicesAreNotUsed(t *testing.T) {
	_, gpu := openDevice(t)
	_, path := openDouble(t)
	second, err := Open(1, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	k, err := gpu.Load(packageCode(everyKernel))
	if err != nil {
		t.Fatal(err)
	}
	other := openStream(t, second, "other")
	k.Zero(other, m1)
	wantError(t, other.Err(), "cuda:1: stream other: cuda:0: zero: the stream is another device's")
	k.Zero(cpu.NewStream("host", true), m1)
	k.Zero(nil, m1)
	wantError(t, k.Close(), "zero: the stream is another device's (a *cpu.Stream)")
}

func TestLoadSaysWhatAPackageLacks(t *testing.T) {
	good := packageCode(everyKernel)
	for name, test := range map[string]struct {
		change func(*device.Code)
		want   []string
	}{
		"no CUDA":      {func(c *device.Code) { c.Source, c.Fatbin = "", "" }, []string{"generated without CUDA", "`go tool shardgen generate tiny.yaml --cuda require` in the spec's folder"}},
		"stale":        {func(c *device.Code) { c.Source = "fedcba9876543210" }, []string{"zz_kernels.fatbin is stale", "0123456789ab", "fedcba987654", "--cuda require"}},
		"not compiled": {func(c *device.Code) { c.Fatbin = packageCode("").Fatbin }, []string{"they are not compiled", "nvcc", "--cuda require"}},
		"cut off":      {func(c *device.Code) { c.Fatbin = c.Fatbin[:9] }, []string{"zz_kernels.fatbin: it has no record at its end", "--cuda require"}},
	} {
		_, gpu := openDevice(t)
		code := good
		test.change(&code)
		_, err := gpu.Load(code)
		t.Run(name, func(t *testing.T) { wantError(t, err, append(test.want, "cuda:0: kernels of package tiny: ")...) })
	}
}

func TestLoadSaysWhatTheDriverSays(t *testing.T) {
	d, gpu := openDevice(t)
	d.fail("cuModuleLoadDataEx", 218)
	_, err := gpu.Load(packageCode(everyKernel))
	wantError(t, err, "kernels of package tiny", "cuModuleLoadDataEx: CUDA_ERROR_OF_TEST (218)", "ptxas: line 7 is odd")
	for _, code := range []int{errInvalidImage, errNoBinary, errPTXVersion} {
		d.fail("cuModuleLoadDataEx", code)
		_, err = gpu.Load(packageCode(everyKernel))
		wantError(t, err, fmt.Sprintf("(%d)", code), "the GPU is sm_90, the driver supports CUDA 13.0", "made by a newer nvcc", "update the driver", "CUDA 13,",
			"remove zz_kernels.fatbin", "tiny.yaml --cuda require")
		_, err = gpu.LoadModule([]byte("attention\n"))
		wantError(t, err, "made by a newer nvcc")
	}
	d.reset()
	unloads := d.calls(cuModuleUnload)
	d.fail("cuModuleGetFunction", 700)
	_, err = gpu.Load(packageCode(everyKernel))
	wantError(t, err, "kernel shardgen_zero: cuModuleGetFunction: CUDA_ERROR_OF_TEST (700)")
	if d.calls(cuModuleUnload) != unloads+1 {
		t.Error("the module stays loaded")
	}
}

func TestATrainersKernelRunsOnAStream(t *testing.T) {
	d, gpu := openDevice(t)
	m, err := gpu.LoadModule([]byte("attention\n"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function("attention")
	if err != nil {
		t.Fatal(err)
	}
	s := openStream(t, gpu, "compute")
	scale := struct{ a, b float64 }{0.5, 2}
	if err := s.Launch(f, [3]uint32{2, 1, 1}, [3]uint32{64, 1, 1}, 512, Pointer(0x1000), Int64(-1), Int32(-1), Uint64(7), Float32(0.5), Float64(0.5), Struct(&scale)); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("attention<2,64,512>%v", []uint64{0x1000, math.MaxUint64, math.MaxUint32, 7, uint64(math.Float32bits(0.5)), math.Float64bits(0.5), math.Float64bits(0.5)})
	if got := d.launched().String(); got != want {
		t.Errorf("launched %s, expected %s", got, want)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// The double's limit is a driver's: 48 KiB unless the kernel was told, then what it
// was told last.
func TestAKernelMayUseMoreSharedMemoryThanEveryLaunchHas(t *testing.T) {
	d, gpu := openDevice(t)
	m, err := gpu.LoadModule([]byte("attention\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	f, err := m.Function("attention")
	if err != nil {
		t.Fatal(err)
	}
	s, one := openStream(t, gpu, "compute"), [3]uint32{1, 1, 1}
	told := d.calls(cuFuncSetAttribute)
	for i, bytes := range []uint32{48 << 10, 100 << 10, 49 << 10, 100 << 10, 227 << 10, 101 << 10} {
		if err := s.Launch(f, one, one, bytes, Int64(0)); err != nil || d.launched().shared != bytes {
			t.Fatalf("launch %d: %d bytes, %v", i, d.launched().shared, err)
		}
	}
	if n := d.calls(cuFuncSetAttribute) - told; n != 2 {
		t.Errorf("told %d times, expected 2", n)
	}
	err = s.Launch(f, one, one, 228<<10, Int64(0))
	wantError(t, err, "stream compute: launch: kernel attention: 233472 bytes of dynamic shared memory", "at most 232448", "cuFuncSetAttribute: ")
}

func TestBadLaunchesAreErrorsOfTheStream(t *testing.T) {
	d, gpu := openDevice(t)
	m, err := gpu.LoadModule([]byte("attention\n"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	_, err = m.Function("absent")
	wantError(t, err, "cuda:0: the module has no kernel absent", "extern \"C\"")
	_, err = gpu.LoadModule(nil)
	wantError(t, err, "the module is empty")
	f, err := m.Function("attention")
	if err != nil {
		t.Fatal(err)
	}
	one := [3]uint32{1, 1, 1}
	for name, test := range map[string]struct {
		launch func(*Stream) error
		want   string
	}{
		"no kernel": {func(s *Stream) error { return s.Launch(Function{}, one, one, 0) }, "Module.Function"},
		"no blocks": {func(s *Stream) error { return s.Launch(f, [3]uint32{0, 1, 1}, one, 0) }, "kernel attention: grid [0 1 1] of blocks [1 1 1]"},
		"too many":  {func(s *Stream) error { return s.Launch(f, one, one, 0, make([]Argument, 65)...) }, "65 arguments, expected at most 64"},
		"refused": {func(s *Stream) error {
			d.fail("cuLaunchKernel", 1)
			return s.Launch(f, one, one, 0)
		}, "attention: cuLaunchKernel: CUDA_ERROR_OF_TEST (1)"},
	} {
		s := openStream(t, gpu, "compute")
		err := test.launch(s)
		t.Run(name, func(t *testing.T) {
			wantError(t, err, test.want)
			if s.Err() != err || s.Launch(f, one, one, 0) != err {
				t.Error("the stream goes on")
			}
		})
	}
}
