package cli

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestBinaryIsStatic(t *testing.T) {
	file, err := elf.Open(buildShardgen(t))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	if err != nil || len(libraries) > 0 {
		t.Errorf("imported libraries %v, error %v: expected none", libraries, err)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary asks for a dynamic loader")
		}
	}
}

// The largest public dense model, at the world size of a large cluster: planned
// and generated within a second and 512 MiB on a quiet machine. Busy ones get
// three seconds.
func TestLargeModelIsPlannedAndGeneratedQuickly(t *testing.T) {
	binary := buildShardgen(t)
	useFakeNVCC(t)
	spec := filepath.Join("testdata", "llama-3.1-405b.yaml")
	folder := t.TempDir()
	for _, args := range [][]string{
		{"plan", spec, "--world", "1024", "--rank", "1023", "--format", "json"},
		{"generate", spec, "--out", folder},
	} {
		command := exec.Command(binary, args...)
		command.Stderr = os.Stderr
		begin := time.Now()
		out, err := command.Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		took := time.Since(begin)
		usage := command.ProcessState.SysUsage().(*syscall.Rusage)
		t.Logf("%s: %v, %d MiB", args[0], took, usage.Maxrss>>10)
		if took > 3*time.Second || usage.Maxrss > 512<<10 {
			t.Errorf("%s took %v and %d KiB, expected at most 3 s and 512 MiB", args[0], took, usage.Maxrss)
		}
		if args[0] == "plan" && !bytes.Contains(out, []byte(`"numel": 405853388800`)) {
			t.Error("the plan does not count 405,853,388,800 elements")
		}
	}
	if files, err := filepath.Glob(filepath.Join(folder, "*.go")); err != nil || len(files) == 0 {
		t.Errorf("generate left %d Go files, error %v", len(files), err)
	}
}
