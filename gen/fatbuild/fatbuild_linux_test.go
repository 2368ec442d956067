package fatbuild

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc"
	"github.com/shardgen/shardgen/cudasrc/toolchain"
	"github.com/shardgen/shardgen/gen/output"
)

const kernels = `#include "zz_layout.cuh"
#include <shardgen/version.cuh>
static_assert(shardgen::kVersion > 0 && kLength == 8, "a header is not the one that is meant");
extern "C" __global__ void shardgen_test(float* x) { x[threadIdx.x] = kLength; }
`

func sources(changes ...string) []output.File {
	change := strings.NewReplacer(changes...)
	return []output.File{
		{Name: "zz_kernels.cu", Content: []byte(change.Replace(kernels))},
		{Name: "zz_layout.cuh", Content: []byte(change.Replace("constexpr long long kLength = 8;\n"))},
	}
}

func hashOf(t *testing.T, files []output.File) string {
	t.Helper()
	hash, err := SourceHash(files, "zz_kernels.cu")
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

func TestTheHashIsThatOfTheKernels(t *testing.T) {
	first := hashOf(t, sources())
	reversed := sources()
	reversed[0], reversed[1] = reversed[1], reversed[0]
	if got := hashOf(t, reversed); got != first || len(got) != 64 {
		t.Errorf("%s, in another order %s", first, got)
	}
	if got := hashOf(t, sources("8;", "9;")); got != first {
		t.Error("the hash depends on offsets that no kernel has")
	}
	if _, err := SourceHash(sources()[1:], "zz_kernels.cu"); err == nil {
		t.Error("a package without kernels has a hash of them")
	}
	seen := map[string]bool{first: true}
	for _, files := range [][]output.File{
		sources("kernels", "x", "x[", " x["),
		{{Name: "zz_kernels.cu", Content: append(bytes.Clone(sources()[0].Content), "\"zz_layout.cuh\" 33\nconstexpr long long kLength = 8;\n"...)}},
	} {
		hash := hashOf(t, files)
		if seen[hash] {
			t.Errorf("two sources have the hash %s", hash)
		}
		seen[hash] = true
	}
}

func TestTheHashCountsEveryHeader(t *testing.T) {
	list, err := headers()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := cudasrc.Write(folder); err != nil {
		t.Fatal(err)
	}
	written, err := filepath.Glob(filepath.Join(folder, "*", "*"))
	if err != nil || len(written) != len(list) || len(list) < 10 {
		t.Errorf("%d headers are hashed, %d written, %v", len(list), len(written), err)
	}
}

// nvcc returns the pinned compiler, which tests without it are skipped for,
// except in CI.
func nvcc(t *testing.T) *toolchain.Compiler {
	t.Helper()
	c, err := toolchain.Find("../../build/cuda")
	switch {
	case err == nil:
		return c
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	}
	t.Skip(err)
	return nil
}

func TestTheImageDoesNotDependOnTheFolder(t *testing.T) {
	c := nvcc(t)
	var images [2][]byte
	for i := range images {
		t.Setenv("TMPDIR", t.TempDir())
		var err error
		if images[i], err = Compile(t.Context(), c, sources(), "zz_kernels.cu"); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	if !bytes.Equal(images[0], images[1]) || !bytes.HasPrefix(images[0], []byte("\x50\xed\x55\xba")) {
		t.Errorf("images of %d and %d bytes", len(images[0]), len(images[1]))
	}
}

func TestACompilerThatWritesNothingIsAnError(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":                               "no such file",
		`for last; do :; done; : > "$last"`:    "an image of 0 bytes",
		"echo 'line 3: no such thing'; exit 2": "line 3: no such thing",
	} {
		path := filepath.Join(t.TempDir(), "nvcc")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(t.Context(), toolchain.At(path), sources(), "zz_kernels.cu"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", script, err, want)
		}
	}
}
