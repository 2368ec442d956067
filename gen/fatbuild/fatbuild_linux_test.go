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

// Every header counts: its content, its name, and that it is there.
func TestTheHashCountsEveryHeader(t *testing.T) {
	folder := t.TempDir()
	if err := cudasrc.Write(folder); err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*", "*"))
	if err != nil || len(paths) < 10 {
		t.Fatalf("%d headers, %v", len(paths), err)
	}
	hash := func() string {
		got, err := hashWith(os.DirFS(folder), sources(), "zz_kernels.cu")
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := hash()
	if published := hashOf(t, sources()); published != first {
		t.Errorf("SourceHash is %s, of the headers that are compiled %s", published, first)
	}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Clone(content)
		changed[len(changed)/2] ^= 1
		for what, change := range map[string]func() error{
			"changed": func() error { return os.WriteFile(path, changed, 0o644) },
			"renamed": func() error { return os.Rename(path, path+"x") },
			"removed": func() error { return os.Remove(path) },
		} {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if hash() == first {
				t.Errorf("%s %s: the hash is the same", filepath.Base(path), what)
			}
			_ = os.Remove(path + "x")
			if err := os.WriteFile(path, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
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
