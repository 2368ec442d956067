package shard

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

// backend is a kind of ranks that the tests run on.
type backend struct {
	name string
	// short is a deadline of a collective that a test can wait for, and that ranks
	// keep on a busy machine.
	short time.Duration
	// begin makes it as at the beginning. Where it can't be had, the test is
	// skipped with the reason, and fails with CI=true in the environment.
	begin func(t testing.TB)
	// launcher launches n ranks whose memory is full of garbage.
	launcher func(n int, timeout time.Duration) Launcher
	// check reports what was done wrong since begin.
	check func(t testing.TB)
}

var backends = []*backend{
	{
		name: "cpu", short: 300 * time.Millisecond, begin: func(testing.TB) {}, check: func(testing.TB) {},
		launcher: func(n int, timeout time.Duration) Launcher {
			return LocalRanks{Ranks: n, Timeout: timeout, Device: func(int) (device.Device, error) { return cpu.Poisoned(), nil }}
		},
	},
	{
		name: "cuda", short: 600 * time.Millisecond, begin: func(t testing.TB) { machine = OpenMachine(t) },
		check:    checkMachine,
		launcher: func(n int, timeout time.Duration) Launcher { return machine.Ranks(n, timeout) },
	},
}

// checkMachine reports what was done wrong and what isn't freed, after a moment: a
// rank does not wait for what it left behind in NCCL.
func checkMachine(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(2 * time.Second); machine.Findings() != nil && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := machine.Findings(); err != nil {
		t.Error(err)
	}
}

// Machine is what the tests need of package emulated: GPUs with NCCL between
// them. That package imports this one, so the tests outside of this package hand it
// in.
type Machine interface {
	// Ranks launches n ranks, rank r on GPU r.
	Ranks(n int, timeout time.Duration) Launcher
	// Schedule, Fault and Memory last until the test ends.
	Schedule(t testing.TB, schedule string)
	Fault(t testing.TB, spec string)
	Memory(t testing.TB, bytes int64)
	// Calls counts calls of the driver or of NCCL.
	Calls(name string) int64
	// Findings returns what was done wrong and what is not freed.
	Findings() error
	// Image compiles CUDA source that isn't a package's, to be loaded as a module.
	Image(t testing.TB, source string) []byte
}

var (
	// OpenMachine returns the machine as at the beginning, or skips the test.
	OpenMachine = func(t testing.TB) Machine {
		const reason = "the emulated machine runs on linux/amd64"
		if os.Getenv("CI") == "true" {
			t.Fatal(reason)
		}
		t.Skip(reason)
		return nil
	}
	// AllKernels returns code with all kernels for the machine, none where it can't
	// be had.
	AllKernels = func(testing.TB, int64) device.Code { return device.Code{} }
	// Schedules are orders of the machine's work that show what streams don't wait
	// for.
	Schedules []string
	// machine is that of the test that runs.
	machine Machine
)

func allKernels(t testing.TB, alignBytes int64) device.Code { return AllKernels(t, alignBytes) }

// onBackends runs a test on every backend.
func onBackends(t *testing.T, f func(t *testing.T, b *backend)) {
	t.Helper()
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) { b.test(t, f) })
	}
}

// onCUDA runs a test that makes sense on GPUs only.
func onCUDA(t *testing.T, f func(t *testing.T, b *backend)) {
	t.Helper()
	t.Run(backends[1].name, func(t *testing.T) { backends[1].test(t, f) })
}

func (b *backend) test(t *testing.T, f func(t *testing.T, b *backend)) {
	b.begin(t)
	f(t, b)
	b.check(t)
}

// run opens the model on n ranks.
func (b *backend) run(n int, d *Descriptor, f func(ctx context.Context, m *Model) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return Run(ctx, b.launcher(n, 10*time.Second), withModel(d, f))
}

// runShort is run with filled shards and a deadline of a collective that a test
// can wait for.
func (b *backend) runShort(n int, d *Descriptor, f func(ctx context.Context, m *Model) error) error {
	return Run(context.Background(), b.launcher(n, b.short), withModel(d, func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		return f(ctx, m)
	}))
}

// withModel is what a rank does: it opens the model, uses and closes it.
func withModel(d *Descriptor, f func(ctx context.Context, m *Model) error) func(context.Context, *Rank) error {
	return func(ctx context.Context, rank *Rank) error {
		m, err := Open(ctx, rank, d, Options{})
		if err != nil {
			return err
		}
		defer m.Close()
		return f(ctx, m)
	}
}

// must is run without an error.
func (b *backend) must(t *testing.T, n int, d *Descriptor, f func(ctx context.Context, m *Model) error) {
	t.Helper()
	if err := b.run(n, d, f); err != nil {
		t.Fatalf("%d ranks: %v", n, err)
	}
}

// mustRun runs n ranks on every backend.
func mustRun(t *testing.T, n int, d *Descriptor, f func(ctx context.Context, m *Model) error) {
	t.Helper()
	for _, b := range backends {
		t.Run(fmt.Sprintf("%s/ranks=%d", b.name, n), func(t *testing.T) {
			b.test(t, func(t *testing.T, b *backend) { b.must(t, n, d, f) })
		})
	}
}

// filled is mustRun for a model whose shards have values.
func filled(t *testing.T, n int, d *Descriptor, f func(ctx context.Context, m *Model) error) {
	t.Helper()
	mustRun(t, n, d, func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		return f(ctx, m)
	})
}
