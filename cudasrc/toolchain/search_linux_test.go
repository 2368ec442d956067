package toolchain

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// program writes an executable shell script.
func program(t *testing.T, path, script string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestNVCCIsSearchedInOrder(t *testing.T) {
	folder := t.TempDir()
	named := program(t, filepath.Join(folder, "my-nvcc"), "")
	home := program(t, filepath.Join(folder, "home", "bin", "nvcc"), "")
	inPath := program(t, filepath.Join(folder, "path", "nvcc"), "")
	fallback := program(t, filepath.Join(folder, "fallback", "nvcc"), "")
	none := filepath.Join(folder, "none")
	for name, c := range map[string]struct{ variable, home, path, fallback, want string }{
		"the variable first":    {named, filepath.Join(folder, "home"), filepath.Dir(inPath), fallback, named},
		"then CUDA_HOME":        {"", filepath.Join(folder, "home"), filepath.Dir(inPath), fallback, home},
		"then the PATH":         {"", none, filepath.Dir(inPath), fallback, inPath},
		"then the usual folder": {"", "", none, fallback, fallback},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(NVCCVariable, c.variable)
			t.Setenv("CUDA_HOME", c.home)
			t.Setenv("PATH", c.path)
			found, err := Search(c.fallback)
			if err != nil || found.NVCC() != c.want {
				t.Errorf("found %+v, error %v, want %s", found, err, c.want)
			}
		})
	}
}

func TestNoNVCCNamesTheFix(t *testing.T) {
	t.Setenv(NVCCVariable, "")
	t.Setenv("CUDA_HOME", "")
	t.Setenv("PATH", t.TempDir())
	none := filepath.Join(t.TempDir(), "nvcc")
	if _, err := Search(none); !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "set SHARDGEN_NVCC") {
		t.Errorf("error %v", err)
	}
	t.Setenv(NVCCVariable, none)
	if _, err := Search(DefaultNVCC); err == nil || errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), none) {
		t.Errorf("the variable names no program: error %v", err)
	}
}

func TestOldReleasesAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ script, want string }{
		"the oldest":    {"echo 'Cuda compilation tools, release 12.8, V12.8.61'", ""},
		"newer":         {"echo 'Cuda compilation tools, release 13.0, V13.0.88'", ""},
		"too old":       {"echo 'Cuda compilation tools, release 12.6, V12.6.85'", "is of CUDA 12.6, which can't compile for sm_100"},
		"far too old":   {"echo 'Cuda compilation tools, release 9.1, V9.1.85'", "install CUDA 12.8 or newer"},
		"another tool":  {"echo nothing of the kind", "names no release"},
		"it fails":      {"echo broken >&2; exit 3", "broken"},
		"a huge number": {"echo release 99999999999999999999.1", "value out of range"},
	} {
		t.Run(name, func(t *testing.T) {
			nvcc := program(t, filepath.Join(t.TempDir(), "nvcc"), c.script)
			err := At(nvcc).CheckRelease(t.Context())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestTheInstalledReleaseIsAccepted(t *testing.T) {
	if err := compiler(t).CheckRelease(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestACompilerThatHangsIsGivenUp(t *testing.T) {
	t.Parallel()
	nvcc := program(t, filepath.Join(t.TempDir(), "nvcc"), "sleep 10")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if err := At(nvcc).Fatbin(ctx, "a.cu", "a.fatbin"); err == nil || time.Since(begin) > 8*time.Second {
		t.Errorf("error %v after %v", err, time.Since(begin))
	}
}
