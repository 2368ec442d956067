// Package emulated is a machine with GPUs for tests, where there is none: the
// CUDA path of the runtime over the doubles of NVIDIA's driver and of NCCL that
// package double builds, with kernels that g++ compiled for the CPU.
//
// It gives a [Machine], whose launcher runs ranks as runtime/gpu does, and the
// [device.Code] of generated packages or of all kernels. What was compiled is kept
// in build/emu at the repository's root, which processes share. A process has
// one machine, which its tests use one after another.
//
// It is for tests. It imports runtime/gpu, gen/cuemit, gen/fatbuild and
// cudasrc/emu/double, so that tests inside package shard can't import it.
package emulated

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/cudasrc/emu/double"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/gpu"
)

// Machine has GPUs with NCCL between them.
type Machine struct{ libraries *double.Libraries }

// The environment variables by which the runtime finds the libraries.
const (
	cudaVariable = "SHARDGEN_LIBCUDA"
	ncclVariable = "SHARDGEN_LIBNCCL"
)

// timeout bounds a collective, and a wait inside the driver before the process
// is ended with the state of all streams.
const timeout = 30 * time.Second

// What the machine has.
const (
	GPUs     = 8
	GPUBytes = 8 << 30 // of each, page-locked memory of the host counted
)

// usual is the schedule of a machine that was told none.
const usual = "random:1"

// Schedules are the orders of work under which a dependency that streams lack
// is most likely to show; see [Machine.Schedule].
func Schedules() []string {
	return []string{"random:1", "random:2", "starve:0", "starve:1", "starve:2", "lazy"}
}

var opened struct {
	once    sync.Once
	machine *Machine
	err     error
}

// Open builds the machine, with dir as the place of what was built before, or
// returns the one that this process has. From then on the process's environment
// names the doubles as its driver and its NCCL. Tests call [Require].
func Open(ctx context.Context, dir string) (*Machine, error) {
	opened.once.Do(func() { opened.machine, opened.err = open(ctx, dir) })
	return opened.machine, opened.err
}

func open(ctx context.Context, dir string) (*Machine, error) {
	l, err := double.Build(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("emulated machine: %w", err)
	}
	err = errors.Join(
		os.Setenv(cudaVariable, l.CUDA), os.Setenv(ncclVariable, l.NCCL),
		l.Set("EMU_DEVICES", fmt.Sprint(GPUs)), l.Set("EMU_MEMORY", fmt.Sprint(int64(GPUBytes))),
		l.Set("EMU_DEADLINE", fmt.Sprint(2*timeout.Seconds())),
	)
	if err != nil {
		return nil, fmt.Errorf("emulated machine: %w", err)
	}
	return &Machine{l}, nil
}

// Require returns the machine as at the beginning: no fault, nothing allocated, the
// usual schedule. Where it can't be built because something is missing, the test
// is skipped with the reason; with CI=true in the environment it fails.
func Require(t testing.TB) *Machine {
	t.Helper()
	emu.Require(t)
	dir, err := Folder()
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(context.Background(), dir)
	if err == nil {
		err = m.Use(usual)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// modulePath is this project's.
const modulePath = "github.com/shardgen/shardgen"

// Folder returns build/emu at the root of the repository that the current folder
// is in.
func Folder() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := folder; ; dir = filepath.Dir(dir) {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(mod, []byte("module "+modulePath+"\n")) {
			return filepath.Join(dir, "build", "emu"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("emulated machine: %s is not inside module %s; run the test from a folder of it", folder, modulePath)
		}
	}
}

// Options are what a launcher of runtime/gpu needs to be told; the libraries are
// in the environment.
func (m *Machine) Options() gpu.Options { return gpu.Options{Timeout: timeout} }

// Launcher launches n ranks in this process, at most [GPUs], rank r on GPU r.
func (m *Machine) Launcher(n int) shard.Launcher { return gpu.Local(n, m.Options()) }

// CUDA returns the path of the driver's double, NCCL that of NCCL's.
func (m *Machine) CUDA() string { return m.libraries.CUDA }

// NCCL returns the path of NCCL's double.
func (m *Machine) NCCL() string { return m.libraries.NCCL }

// Use is Schedule for programs. It also ends all that earlier work has left.
func (m *Machine) Use(schedule string) error {
	m.libraries.Reset()
	return m.libraries.Set("EMU_SCHEDULE", schedule)
}

// Schedule makes the machine do work that may be done in this order from now on:
// "random:<seed>", "starve:<0 to 3>" (streams of that index modulo 4 come last),
// "fifo" or "lazy" (what a thread waits for only). The usual one returns when the
// test ends.
func (m *Machine) Schedule(t testing.TB, schedule string) {
	t.Helper()
	m.during(t, "EMU_SCHEDULE", schedule, usual)
}

// Fault injects a fault until the test ends, such as "cuMemAlloc_v2:2:after=3":
// cudasrc/emu/double/src/cuda/faults.cc has them all.
func (m *Machine) Fault(t testing.TB, spec string) {
	t.Helper()
	if err := m.libraries.Fault(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.libraries.Reset)
}

// Memory gives GPUs this many bytes each in place of [GPUBytes], until the test
// ends.
func (m *Machine) Memory(t testing.TB, bytes int64) {
	t.Helper()
	m.during(t, "EMU_MEMORY", fmt.Sprint(bytes), fmt.Sprint(int64(GPUBytes)))
}

// during gives a setting of the doubles a value until the test ends.
func (m *Machine) during(t testing.TB, setting, value, after string) {
	t.Helper()
	if err := m.libraries.Set(setting, value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.libraries.Set(setting, after); err != nil {
			t.Error(err)
		}
	})
}

// Calls returns how often a call of the driver or of NCCL was made since Require;
// names have the suffix of their version.
func (m *Machine) Calls(name string) int64 { return m.libraries.Calls(name) }

// Findings returns what was done wrong since Require, as an error: writes beside
// memory, accesses to freed memory, and what is not freed.
func (m *Machine) Findings() error {
	var all []error
	for _, finding := range m.libraries.Check() {
		all = append(all, errors.New(finding))
	}
	return errors.Join(all...)
}

// Clean makes the test fail for all findings.
func (m *Machine) Clean(t testing.TB) {
	t.Helper()
	if err := m.Findings(); err != nil {
		t.Error(err)
	}
}
