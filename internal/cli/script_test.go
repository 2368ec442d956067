package cli

import (
	"encoding/binary"
	stdflag "flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/shardgen/shardgen/cudasrc/toolchain"
)

var update = stdflag.Bool("update", false, "rewrite the expected output in testdata/script")

func TestMain(m *testing.M) {
	testscript.Main(cleaner{m}, map[string]func(){
		"shardgen": func() {
			if os.Getenv(toolchain.NVCCVariable) == "" {
				findNVCC = func() (*toolchain.Compiler, error) { return nil, toolchain.ErrMissing }
			}
			os.Exit(Run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// buildFolder holds what tests build, until all of them have run.
var buildFolder string

type cleaner struct{ m *testing.M }

func (c cleaner) Run() int {
	var err error
	if buildFolder, err = os.MkdirTemp("", "shardgen-test-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(buildFolder)
	return c.m.Run()
}

func TestScripts(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("REPOSITORY", root)
			env.Setenv("PINNED_NVCC", filepath.Join(root, pinnedNVCC))
			for _, name := range []string{"GOCACHE", "GOMODCACHE"} {
				env.Setenv(name, goEnv(t, name))
			}
			return nil
		},
		Condition: func(condition string) (bool, error) {
			if condition != "nvcc" {
				return false, fmt.Errorf("unknown condition %q", condition)
			}
			_, err := os.Stat(filepath.Join(root, pinnedNVCC))
			if err != nil && os.Getenv("CI") == "true" {
				return false, fmt.Errorf("%w: run `make cuda-toolchain`", err)
			}
			return err == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status":      status,
			"safetensors": safetensors,
			"big":         big,
		},
	})
}

// pinnedNVCC is where `make cuda-toolchain` puts nvcc. Scripts that need it begin
// with [!nvcc] skip; in CI it has to be there.
const pinnedNVCC = "build/cuda/nvidia/cu13/bin/nvcc"

// fakeNVCC says that it is a release that will do, and compiles anything to the
// same image.
const fakeNVCC = `#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; fi
for last; do :; done
printf '\120\355\125\272\1\0\20\0\10\0\0\0\0\0\0\0an image' > "$last"
`

// useFakeNVCC makes it the nvcc of what a test starts.
func useFakeNVCC(t *testing.T) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvcc")
	if err := os.WriteFile(path, []byte(fakeNVCC), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv(toolchain.NVCCVariable, path)
}

// status N COMMAND... runs a command that has to exit with N.
func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if got != args[0] {
		ts.Fatalf("exit status %s, expected %s", got, args[0])
	}
}

// safetensors FILE HEADER turns a text file into a bare header of the format.
func safetensors(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: safetensors FILE HEADER")
	}
	header := strings.TrimSpace(ts.ReadFile(args[1]))
	content := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), append(content, header...), 0o644))
}

// big FILE makes a file larger than any spec, without content on the disk.
func big(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: big FILE")
	}
	path := ts.MkAbs(args[0])
	ts.Check(os.WriteFile(path, nil, 0o644))
	ts.Check(os.Truncate(path, maxSpecBytes+1))
}
