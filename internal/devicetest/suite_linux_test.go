package devicetest

import (
	"testing"

	"github.com/shardgen/shardgen/internal/emulated"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/kernel"
)

const testAlign = 16

// gpu is an emulated GPU with all kernels.
func gpu(t *testing.T) Target {
	t.Helper()
	m := emulated.Require(t)
	code := m.AllKernels(t, testAlign)
	d, err := cuda.Open(0, cuda.Options{Library: m.CUDA()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		m.Clean(t)
	})
	return Target{Device: d, Code: code, AlignBytes: testAlign, Has: has(t, d, code)}
}

// has returns whether code has a kernel, as the driver says it.
func has(t *testing.T, d *cuda.Device, code device.Code) func(string) bool {
	t.Helper()
	image, _, err := fatbin.Open(code.Fatbin)
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.LoadModule([]byte(image))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	in, err := In(m)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func TestAnEmulatedGPUHasTheBitsOfTheCPU(t *testing.T) {
	target := gpu(t)
	seen := 0
	results, err := Run(t.Context(), target, Options{Progress: func(Result) { seen++ }})
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, r := range results {
		tested[r.Kernel] = true
		if r.Error != "" {
			t.Errorf("%s: %s", r.Kernel, r.Error)
		}
	}
	if seen != len(results) {
		t.Errorf("%d results were announced, %d returned", seen, len(results))
	}
	for _, name := range emulated.KernelNames() {
		if name != kernel.NormTotal() && !tested[name] {
			t.Errorf("%s is not tested", name)
		}
	}
}
