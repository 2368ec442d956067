package shard_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/gpu"
)

// machine is the emulated machine for the tests inside of package shard.
type machine struct{ *emulated.Machine }

func (m machine) Ranks(n int, timeout time.Duration) shard.Launcher {
	o := m.Options()
	o.Timeout = timeout
	return gpu.Local(n, o)
}

func (m machine) Image(t testing.TB, source string) []byte {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "trainer")
	err := os.Mkdir(folder, 0o755)
	for name, content := range map[string]string{cuemit.KernelsFile: source, cuemit.LayoutFile: ""} {
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	image, _, err := fatbin.Open(m.AddPackage(t, folder, device.Code{}).Fatbin)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(image)
}

// compiled has the code of all kernels by their alignment.
var compiled sync.Map

func allKernels(t testing.TB, alignBytes int64) device.Code {
	t.Helper()
	if code, ok := compiled.Load(alignBytes); ok {
		return code.(device.Code)
	}
	if emu.Available() != nil {
		return device.Code{}
	}
	dir, err := emulated.Folder()
	if err != nil {
		t.Fatal(err)
	}
	m, err := emulated.Open(context.Background(), dir)
	if err != nil {
		t.Fatal(err)
	}
	code := m.AllKernels(t, alignBytes)
	compiled.Store(alignBytes, code)
	return code
}

func TestMain(m *testing.M) {
	shard.OpenMachine = func(t testing.TB) shard.Machine { return machine{emulated.Require(t)} }
	shard.AllKernels, shard.Schedules = allKernels, emulated.Schedules()
	os.Exit(m.Run())
}
