package emulated

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

// onOne runs f on the one rank of a machine.
func onOne(t *testing.T, m *Machine, f func(ctx context.Context, d device.Device, s device.Stream) error) error {
	t.Helper()
	return shard.Run(t.Context(), m.Launcher(1), func(ctx context.Context, r *shard.Rank) error {
		return f(ctx, r.Device(), r.Stream())
	})
}

// castTen converts ten f32 numbers on the device by the code's own kernel.
func castTen(code device.Code) func(context.Context, device.Device, device.Stream) error {
	return func(ctx context.Context, d device.Device, s device.Stream) error {
		k, err := d.Load(code)
		if err != nil {
			return err
		}
		mem, err := d.Alloc(1024)
		if err != nil {
			return err
		}
		k.Cast(s, mem.Slice(512, 20), dtype.BFloat16, mem.Slice(0, 40), dtype.Float32, 10)
		if err := s.Synchronize(ctx, s.Record()); err != nil {
			return err
		}
		if err := d.Free(mem); err != nil {
			return err
		}
		return k.Close()
	}
}

func TestAllKernelsAreThere(t *testing.T) {
	m := Require(t)
	for _, align := range []int64{16, 64} {
		if err := onOne(t, m, castTen(m.AllKernels(t, align))); err != nil {
			t.Errorf("align %d: %v", align, err)
		}
	}
	if m.Calls("cuLaunchKernel") != 2 {
		t.Errorf("%d launches", m.Calls("cuLaunchKernel"))
	}
	m.Clean(t)
}

// Optimizers, reductions and inits are in no single plan together.
func TestAllKernelsAreThoseOfAllPlans(t *testing.T) {
	source, err := allSource(16)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"zero", "cast_bf16_f16", "cast_f16_bf16", "cast_f32_f16", "accumulate_f16_f32_add", "accumulate_f64_f64_store", "fill_constant_1", "fill_constant_8",
		"fill_truncated_normal_f8e5m2", "fill_uniform_f64", "norm_f64", "norm_total", "scale_f32", "adamw_f32_bf16", "adamw_f64", "sgd_f32", "sgd_momentum_f32_f16",
	} {
		if strings.Count(source, " shardgen_"+name+"(") != 1 {
			t.Errorf("not once: %s", name)
		}
	}
}

const smallSource = `extern "C" __global__ void shardgen_cast_f32_bf16(void* to, const void* from, long long n) {
  for (long long i = 0; i < n; i++) static_cast<unsigned short*>(to)[i] = static_cast<const unsigned short*>(from)[2 * i + 1];
}
`

// smallPackage writes the CUDA source of a package.
func smallPackage(t *testing.T, source string) string {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"zz_kernels.cu": "#include \"zz_layout.cuh\"\n" + source, "zz_layout.cuh": "// nothing\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestAPackageWithoutAnImageGetsAStandIn(t *testing.T) {
	m := Require(t)
	folder := smallPackage(t, smallSource)
	code := m.AddPackage(t, folder, device.Code{Package: "small"})
	if err := onOne(t, m, castTen(code)); err != nil {
		t.Error(err)
	}
	uncompiled := code
	uncompiled.Fatbin = string(fatbin.Seal(nil, fatbin.Record{Origin: "small.yaml", Source: code.Source}))
	if again := m.AddPackage(t, folder, uncompiled); again != code {
		t.Errorf("%v is not %v", again, code)
	}
	other := m.AddPackage(t, smallPackage(t, smallSource+"// other\n"), device.Code{})
	if other.Source == code.Source || other.Fatbin == code.Fatbin {
		t.Error("two sources share an image")
	}
	m.Clean(t)
}

func TestAPackageKeepsItsOwnImage(t *testing.T) {
	m := Require(t)
	folder := smallPackage(t, smallSource)
	code := m.AddPackage(t, folder, device.Code{})
	image := "\x50\xed\x55\xba\x01\x00\x10\x00\x05\x00\x00\x00\x00\x00\x00\x00nvcc!"
	code.Fatbin = string(fatbin.Seal([]byte(image), fatbin.Record{Origin: "small.yaml", Source: code.Source}))
	if made := m.AddPackage(t, folder, code); made != code {
		t.Errorf("%v is not %v", made, code)
	}
	if err := onOne(t, m, castTen(code)); err != nil {
		t.Error(err)
	}
}

func TestAPackageOfOtherSourceIsRefused(t *testing.T) {
	m := Require(t)
	folder := smallPackage(t, smallSource)
	code := m.AddPackage(t, folder, device.Code{})
	for words, change := range map[string]func(*device.Code){
		"generate it again":    func(c *device.Code) { c.Source = strings.Repeat("0", 64) },
		"no record at its end": func(c *device.Code) { c.Fatbin = "x" },
	} {
		changed := code
		change(&changed)
		if _, err := m.Add(t.Context(), folder, changed); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v does not say %q", err, words)
		}
	}
	if _, err := m.Add(t.Context(), t.TempDir(), device.Code{}); err == nil || !strings.Contains(err.Error(), "zz_kernels.cu") {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestWhatIsNotFreedIsFound(t *testing.T) {
	m := Require(t)
	m.Memory(t, 64<<20)
	err := onOne(t, m, func(_ context.Context, d device.Device, _ device.Stream) error {
		if _, err := d.Alloc(1 << 30); err == nil {
			t.Error("1 GiB of 64 MiB was allocated")
		}
		_, err := d.NewStream("left", false)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	// Closing a device frees what it knows; what it does not free is a finding.
	m.Clean(t)
	m.Fault(t, "cuMemFree_v2:1:times=9")
	err = onOne(t, m, func(_ context.Context, d device.Device, _ device.Stream) error {
		_, err := d.Alloc(64)
		return err
	})
	if err == nil && m.Findings() == nil {
		t.Error("memory was neither freed nor found")
	}
}

func TestSchedulesAreKnown(t *testing.T) {
	m := Require(t)
	for _, s := range Schedules() {
		if err := m.Use(s); err != nil {
			t.Error(err)
		}
	}
	if err := m.Use("never"); err == nil {
		t.Error("the schedule \"never\" is taken")
	}
}
