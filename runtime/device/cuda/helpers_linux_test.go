package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/internal/dynlib"
)

// forever is a point that no test comes to.
const forever = 1 << 30

// buildLibrary compiles a driver written in C, once in a test run.
func buildLibrary(tb testing.TB, source string, more ...string) string {
	tb.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		if os.Getenv("CI") == "true" {
			tb.Fatal(err)
		}
		tb.Skip(err)
	}
	built.Lock()
	defer built.Unlock()
	if path := built.paths[source]; path != "" {
		return path
	}
	path := filepath.Join(built.folder(tb), fmt.Sprintf("driver%d.so", len(built.paths)))
	arguments := append([]string{"-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror", "-o", path, source}, more...)
	if out, err := exec.Command("gcc", arguments...).CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	built.paths[source] = path
	return path
}

// built are the libraries of this run. A library stays open as long as the
// process, so they are in one folder, which TestMain removes.
var built = libraries{paths: map[string]string{}}

type libraries struct {
	sync.Mutex
	directory string
	paths     map[string]string
}

func (l *libraries) folder(tb testing.TB) string {
	if l.directory == "" {
		var err error
		if l.directory, err = os.MkdirTemp("", "cuda"); err != nil {
			tb.Fatal(err)
		}
	}
	return l.directory
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.directory != "" {
		_ = os.RemoveAll(built.directory)
	}
	os.Exit(code)
}

// cTypes are the types of the prototypes, as in cuda.h.
const cTypes = `#include <stddef.h>
typedef int CUresult;
typedef int CUdevice;
typedef int CUdevice_attribute;
typedef int CUjit_option;
typedef int CUfunction_attribute;
typedef int CUstreamCaptureMode;
typedef unsigned long long CUdeviceptr;
typedef struct { char bytes[16]; } CUuuid;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
`

// double is the driver of testdata/driver.c.
type double struct{ handle *dynlib.Handle }

// openDouble returns the driver with everything as at the beginning, and its
// path.
func openDouble(t *testing.T) (*double, string) {
	t.Helper()
	var header strings.Builder
	header.WriteString(cTypes)
	for _, p := range prototypes {
		fmt.Fprintf(&header, "%s;\n", p)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "prototypes.h"), []byte(header.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	path := buildLibrary(t, "testdata/driver.c", "-I", folder)
	h, err := dynlib.Open(library(path))
	if err != nil {
		t.Fatal(err)
	}
	d := &double{h}
	t.Cleanup(d.reset)
	d.reset()
	return d, path
}

func (d *double) reset() {
	for _, p := range prototypes {
		d.fail(p.Symbol(), success)
	}
	d.call("double_reach", forever)
	d.call("double_capability", 90)
	d.call("double_version", 13000)
	d.call("double_skew", 0)
	d.call("double_capture", 0)
}

//go:uintptrescapes
func (d *double) call(name string, arguments ...uintptr) uintptr {
	f, err := d.handle.Symbol(name)
	if err != nil {
		panic(err)
	}
	return dynlib.Call(f, arguments...)
}

// fail makes a function return a status from now on.
func (d *double) fail(symbol string, status int) {
	name := append([]byte(symbol), 0)
	d.call("double_fail", uintptr(unsafe.Pointer(&name[0])), uintptr(status))
}

// calls returns how often a function was called.
func (d *double) calls(f function) int {
	name := append([]byte(f.String()), 0)
	return int(d.call("double_calls", uintptr(unsafe.Pointer(&name[0]))))
}

// hold keeps the points that are recorded from now on ahead.
func (d *double) hold() { d.call("double_reach", d.call("double_points")) }

// reach lets n points of those that are held pass; hold came just before them.
func (d *double) reach(held uintptr, n int) { d.call("double_reach", held+uintptr(n)) }

// launch is what the driver saw of a launch.
type launch struct {
	name                       [128]byte
	grid, block, shared, count uint32
	words                      [16]uint64
	first                      [96]byte
}

func (d *double) launched() launch {
	address := d.call("double_launched")
	return **(**launch)(unsafe.Pointer(&address))
}

func (l launch) String() string {
	name := dynlib.Text(uintptr(unsafe.Pointer(&l.name[0])))
	return fmt.Sprintf("%s<%d,%d,%d>%v", name, l.grid, l.block, l.shared, l.words[:l.count])
}

// openDevice returns a GPU of the double.
func openDevice(t *testing.T) (*double, *Device) {
	t.Helper()
	d, path := openDouble(t)
	gpu, err := Open(0, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.reset()
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	})
	return d, gpu
}

func openStream(t *testing.T, gpu *Device, name string) *Stream {
	t.Helper()
	s, err := gpu.OpenStream(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// alloc returns memory that the test frees.
func alloc(t *testing.T, gpu *Device, bytes int64) device.Memory {
	t.Helper()
	m, err := gpu.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// wantError reports an error that lacks one of the parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, expected %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in %q", part, err)
		}
	}
}
