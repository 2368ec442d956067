package cudasrc

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// eachHeader visits the headers by file name.
func eachHeader(t *testing.T, visit func(name, text string)) {
	t.Helper()
	names, err := fs.Glob(Headers, "shardgen/*.cuh")
	if err != nil || len(names) < 10 {
		t.Fatalf("headers %v, %v", names, err)
	}
	for _, name := range names {
		b, err := Headers.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		visit(name, string(b))
	}
}

func TestWriteMakesAnIncludePath(t *testing.T) {
	folder := t.TempDir()
	if err := Write(folder); err != nil {
		t.Fatal(err)
	}
	eachHeader(t, func(name, text string) {
		if b, err := os.ReadFile(filepath.Join(folder, name)); err != nil || string(b) != text {
			t.Errorf("%s was not written: %v", name, err)
		}
	})
	if err := Write(folder); err == nil || !strings.Contains(err.Error(), "write them to a folder that has none") {
		t.Errorf("a second time: error %v, want the fix", err)
	}
}

func TestHeadersSayTheirPurposeFirst(t *testing.T) {
	eachHeader(t, func(name, text string) {
		if !strings.HasPrefix(text, "// ") || !strings.Contains(text, "\n#pragma once\n") {
			t.Errorf("%s begins with %.40q", name, text)
		}
	})
}

// Variables with storage, anonymous namespaces and kernels in headers would make
// a fatbin's bytes depend on where it is built. What the threads of a block share
// inside a function has none.
func TestHeadersHoldInlineFunctionsAndTemplatesOnly(t *testing.T) {
	refused := map[string]*regexp.Regexp{
		"a static that is no constant": regexp.MustCompile(`\bstatic\b\s+(?:[^_c]|c[^o])`),
		"an anonymous namespace":       regexp.MustCompile(`namespace\s*\{`),
		"a kernel":                     regexp.MustCompile(`__global__`),
		"a device variable":            regexp.MustCompile(`__constant__|(?m:^)__shared__`),
		"a function that is not inline": regexp.MustCompile(
			`(?m)^__device__ (?:[^i]|i[^n]|in[^l])`),
	}
	eachHeader(t, func(name, text string) {
		for what, form := range refused {
			if at := form.FindString(text); at != "" {
				t.Errorf("%s has %s: %q", name, what, at)
			}
		}
	})
}
