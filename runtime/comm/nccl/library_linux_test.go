package nccl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/runtime/internal/dynlib"
	"github.com/shardgen/shardgen/runtime/internal/dynlib/dynlibtest"
)

const (
	ncclInclude = "../../../build/cuda/nvidia/nccl/include"
	ncclLibrary = "../../../build/cuda/nvidia/nccl/lib/libnccl.so.2"
	cudaInclude = "../../../build/cuda/nvidia/cu13/include"
)

// need skips a test where files or a program are missing, except in CI.
func need(t *testing.T, program string, files ...string) {
	t.Helper()
	_, err := exec.LookPath(program)
	for _, file := range files {
		_, missing := os.Stat(file)
		err = errors.Join(err, missing)
	}
	if err != nil {
		emu.Need(t, fmt.Errorf("%w; run `make cuda-toolchain`", err))
	}
}

// constants are those of nccl.h that the package has by other names.
var constants = map[string]int{
	"ncclSuccess":            success,
	"ncclInProgress":         inProgress,
	"ncclSum":                sum,
	"ncclInt8":               typeInt8,
	"ncclUint8":              typeUint8,
	"ncclInt32":              typeInt32,
	"ncclUint32":             typeUint32,
	"ncclInt64":              typeInt64,
	"ncclUint64":             typeUint64,
	"ncclFloat16":            typeFloat16,
	"ncclFloat32":            typeFloat32,
	"ncclFloat64":            typeFloat64,
	"ncclBfloat16":           typeBFloat16,
	"NCCL_UNIQUE_ID_BYTES":   IDBytes,
	"sizeof(ncclUniqueId)":   IDBytes,
	"sizeof(ncclResult_t)":   4,
	"sizeof(ncclDataType_t)": 4,
}

func TestPrototypesAndConstantsAreThoseOfTheHeader(t *testing.T) {
	need(t, "g++", ncclInclude+"/nccl.h", cudaInclude+"/cuda_runtime.h")
	if out, err := dynlibtest.Compile(t, dynlibtest.Header("nccl.h", prototypes[:], constants), ncclInclude, cudaInclude); err != nil {
		t.Errorf("%v\n%.4000s", err, out)
	}
	wrong := prototypes
	wrong[ncclAllGather] = dynlib.Prototype(strings.Replace(string(wrong[ncclAllGather]), "size_t count", "int count", 1))
	if out, err := dynlibtest.Compile(t, dynlibtest.Header("nccl.h", wrong[:], nil), ncclInclude, cudaInclude); err == nil || !strings.Contains(out, "ncclAllGather") {
		t.Errorf("a wrong prototype compiles: %v\n%s", err, out)
	}
}

// The collectives take their arguments from a frame, by the prototype's number.
func TestCallsHaveTheArgumentsOfThePrototypes(t *testing.T) {
	dynlibtest.Calls(t, prototypes[:])
}

func TestWithoutNCCLTheErrorNamesTheFix(t *testing.T) {
	t.Setenv(libraryVariable, filepath.Join(t.TempDir(), "libnccl.so.2"))
	_, err := NewID()
	wantWords(t, err, "nccl: id of a communicator", "NCCL can't be opened", "libnccl2", libraryVariable)
	wantWords(t, Available(), "NCCL can't be opened")
	_, err = Version()
	wantWords(t, err, "NCCL can't be opened")
}

// old is a library of another version, or one that lacks a function.
func old(t *testing.T, version int, without function) string {
	t.Helper()
	need(t, "gcc")
	b := strings.Builder{}
	for f, p := range prototypes {
		switch {
		case function(f) == without:
		case function(f) == ncclGetVersion:
			fmt.Fprintf(&b, "int ncclGetVersion(int *version) { *version = %d; return 0; }\n", version)
		default:
			fmt.Fprintf(&b, "void *%s(void) { return 0; }\n", p.Symbol())
		}
	}
	source, path := filepath.Join(t.TempDir(), "old.c"), filepath.Join(t.TempDir(), "libnccl.so.2")
	if err := os.WriteFile(source, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", path, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func TestAnOldNCCLIsRefused(t *testing.T) {
	t.Setenv(libraryVariable, old(t, 21703, function(len(prototypes))))
	wantWords(t, Available(), "is version 2.17.3, expected 2.18.0 or newer", libraryVariable)
	t.Setenv(libraryVariable, old(t, 22707, ncclCommSplit))
	wantWords(t, Available(), "has no ncclCommSplit", "NCCL 2.18.0 or newer has it")
	t.Setenv(libraryVariable, old(t, 22707, function(len(prototypes))))
	if err := Available(); err != nil {
		t.Errorf("a new one: %v", err)
	}
	if v, err := Version(); v != "2.27.7" || err != nil {
		t.Errorf("version %q, %v", v, err)
	}
}

// The real library opens without a GPU, makes ids, and puts its errors into
// words.
func TestTheRealNCCLMakesIDs(t *testing.T) {
	need(t, "g++", ncclLibrary)
	t.Setenv(libraryVariable, ncclLibrary)
	one, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	two, err := NewID()
	if err != nil || one == two || bytes.Equal(one[:], make([]byte, IDBytes)) {
		t.Errorf("ids %x and %x, %v", one[:16], two[:16], err)
	}
	l, err := load()
	if err != nil {
		t.Fatal(err)
	}
	wantWords(t, l.check(ncclAllReduce, 4), "ncclAllReduce: invalid argument", "(4)")
	// No GPU here, or ranks that make no sense: a status, not a crash.
	handle := new(uintptr)
	if code := l.initRank(handle, 0, byValue{one}, 5); code == success {
		t.Error("a communicator of no ranks")
	}
}

func TestVersionsReadAsPeopleWriteThem(t *testing.T) {
	for v, want := range map[int]string{21800: "2.18.0", 22707: "2.27.7", 20005: "2.0.5"} {
		if got := versionText(v); got != want {
			t.Errorf("%d: %s", v, got)
		}
	}
}
