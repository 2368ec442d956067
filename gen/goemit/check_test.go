package goemit

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/fatbin"
)

// emit returns the files of a plan.
func emit(t *testing.T, p *plan.Plan) []output.File {
	t.Helper()
	files, err := Package(p)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// emitKernels returns the files of a plan with CUDA source, and its kernels.
func emitKernels(t *testing.T, p *plan.Plan, image string) []output.File {
	t.Helper()
	files, err := PackageWithKernels(p, cudaSource)
	if err != nil {
		t.Fatal(err)
	}
	return append(files, output.File{Name: fatbin.FileName, Content: fatbin.Seal([]byte(image), fatbin.Record{Origin: Origin(p), Source: cudaSource})})
}

// cudaSource stands for the hash of CUDA source.
const cudaSource = "5e1f"

func text(t *testing.T, files []output.File, name string) string {
	t.Helper()
	for _, f := range files {
		if f.Name == name {
			return string(f.Content)
		}
	}
	t.Fatalf("no file %s", name)
	return ""
}

// exports are the files in which the go tool keeps the types of the packages
// that generated code imports, by import path.
var exports = sync.OnceValues(func() (map[string]string, error) {
	out, err := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}",
		abiPath, contextPath, devicePath, "embed", dtypePath, layoutPath, mathPath, optimPath, randomPath, shardPath).Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string]string{}
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[path] = file
	}
	return files, nil
})

// imports reads them once.
var imports = sync.OnceValues(func() (types.Importer, error) {
	files, err := exports()
	if err != nil {
		return nil, err
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("generated code imports %s", path)
		}
		return os.Open(files[path])
	}), nil
})

// typeCheck checks files as the compiler for an architecture would and returns
// the package and the first fault.
func typeCheck(t *testing.T, files []output.File, arch string) (*types.Package, error) {
	t.Helper()
	known, err := imports()
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var parsed []*ast.File
	for _, f := range files {
		file, err := parser.ParseFile(set, f.Name, f.Content, 0)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, file)
	}
	config := types.Config{Importer: known, Sizes: types.SizesFor("gc", arch)}
	return config.Check("generated", set, parsed, nil)
}

func mustTypeCheck(t *testing.T, files []output.File) *types.Package {
	t.Helper()
	p, err := typeCheck(t, files, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// module makes a module of packages, as a trainer's own, which takes shardgen
// from this tree, and returns its folder.
func module(t *testing.T, byPackage map[string][]output.File) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	put(t, filepath.Join(dir, "go.sum"), sums)
	put(t, filepath.Join(dir, "go.mod"), fmt.Appendf(nil,
		"module trainer\n\ngo 1.26.0\n\nrequire github.com/shardgen/shardgen v0.0.0\n\nreplace github.com/shardgen/shardgen => %s\n", root))
	for name, files := range byPackage {
		for _, f := range files {
			put(t, filepath.Join(dir, name, f.Name), f.Content)
		}
	}
	return dir
}

func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

// goTool runs the go command in a module and returns what it says.
func goTool(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := command(t, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "GOPROXY=off")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// command is killed after two minutes.
func command(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return exec.CommandContext(ctx, name, args...)
}

// mutate replaces one text in one of the files.
func mutate(t *testing.T, files []output.File, name, old, new string) []output.File {
	t.Helper()
	var changed []output.File
	for _, f := range files {
		if f.Name == name {
			if !strings.Contains(string(f.Content), old) {
				t.Fatalf("%s does not hold %q", name, old)
			}
			f.Content = []byte(strings.Replace(string(f.Content), old, new, 1))
		}
		changed = append(changed, f)
	}
	return changed
}
