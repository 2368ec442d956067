package conformance

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/fatbuild"
	"github.com/shardgen/shardgen/gen/goemit"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/spec"
)

// modulePath is this project's; the driver's module lies below it, or it could
// not import an internal package.
const (
	modulePath = "github.com/shardgen/shardgen"
	driverPath = modulePath + "/conformancedriver"
)

// largestElements is the size up to which a committed package runs as it is;
// beyond, its spec is shrunk.
const largestElements = 1 << 20

// specs are those of the committed packages and of models that are only tested.
var specs = []string{"spec/models/*.yaml", "spec/samples/*.yaml", "bench/*.yaml", "internal/conformance/testdata/*.yaml"}

// TestEveryPackageDoesWhatItsSpecSays compiles, vets and runs all packages under
// generated/ and every model of the specs, the large ones shrunk, in one module
// that uses this one as a trainer's module does.
func TestEveryPackageDoesWhatItsSpecSays(t *testing.T) {
	d := newDriver(t)
	for _, pattern := range specs {
		paths, err := filepath.Glob(filepath.Join(d.root, filepath.FromSlash(pattern)))
		if err != nil || len(paths) == 0 {
			t.Fatalf("no specs at %s: %v", pattern, err)
		}
		for _, path := range paths {
			d.add(path)
		}
	}
	d.everyCommittedPackage()
	d.write()
	vetted := make(chan error, 1)
	go func() { vetted <- d.run("go", "vet", "./...", modulePath+"/generated/...") }()
	program := filepath.Join(d.dir, "driver")
	err := d.run("go", "build", "-o", program, ".")
	if err == nil {
		err = d.run(program, d.machine())
	}
	if vet := <-vetted; vet != nil {
		t.Error(vet)
	}
	if err != nil {
		t.Error(err)
	}
}

// driver is a module with a program that checks packages.
type driver struct {
	t         *testing.T
	root, dir string
	imports   []string        // package names below the driver or generated/
	committed map[string]bool // under generated/; true once its spec is found
	source    bytes.Buffer    // the packages, as Go
}

func newDriver(t *testing.T) *driver {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	d := &driver{t: t, root: root, dir: t.TempDir(), committed: map[string]bool{}}
	entries, err := os.ReadDir(filepath.Join(root, "generated"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			d.committed[e.Name()] = false
		}
	}
	return d
}

// add puts a spec's package on the list: the committed one where it is small
// enough, else one that is generated here from the shrunk spec.
func (d *driver) add(path string) {
	d.t.Helper()
	m, err := Load(path, false)
	if err != nil {
		d.t.Fatal(err)
	}
	name := m.Package.V
	_, committed := d.committed[name]
	if committed {
		d.committed[name] = true
		if numel(m) <= largestElements {
			d.list(path, modulePath+"/generated/"+name, name, false, filepath.Join(d.root, "generated", name))
			return
		}
	}
	d.generate(path)
	d.list(path, driverPath+"/"+name, name, true, filepath.Join(d.dir, name))
}

// thorough says which packages run on emulated GPUs under every schedule: those of
// all samples, and of one real model, whose head is tied. The others run there
// under one.
func thorough(path string) bool {
	return filepath.Base(filepath.Dir(path)) == "samples" || filepath.Base(path) == "gpt2.yaml"
}

// machine returns where the driver builds the machine, "" where it can't.
func (d *driver) machine() string {
	if emu.Available() != nil {
		d.t.Run("on emulated GPUs", func(t *testing.T) { emu.Require(t) })
		return ""
	}
	return filepath.Join(d.root, "build", "emu")
}

func numel(m *spec.Model) int64 {
	o, err := NewOracle(m)
	if err != nil {
		return 0
	}
	n := int64(0)
	for _, w := range o.Owners {
		n += w.Numel
	}
	return n
}

func (d *driver) list(specPath, importPath, name string, shrunk bool, folder string) {
	d.imports = append(d.imports, importPath)
	fmt.Fprintf(&d.source, "\t\t{Spec: %q, Shrunk: %t, Open: conformance.Opener(%s.Open), Descriptor: %s.Descriptor, CUDA: %q, Thorough: %t},\n",
		specPath, shrunk, name, name, folder, thorough(specPath))
}

func (d *driver) generate(path string) {
	d.t.Helper()
	m, err := Load(path, true)
	if err != nil {
		d.t.Fatal(err)
	}
	p, faults := plan.Build(m)
	if len(faults) > 0 {
		d.t.Fatalf("%s, shrunk: %v", path, faults)
	}
	source, err := cuemit.Package(p)
	if err != nil {
		d.t.Fatal(err)
	}
	hash, err := fatbuild.SourceHash(source, cuemit.KernelsFile)
	if err != nil {
		d.t.Fatal(err)
	}
	files, err := goemit.PackageWithKernels(p, hash)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range slices.Concat(source, files) {
		d.put(filepath.Join(m.Package.V, f.Name), f.Content)
	}
	// As without nvcc: without an image.
	empty := fatbin.Seal(nil, fatbin.Record{Origin: goemit.Origin(p), Source: hash})
	d.put(filepath.Join(m.Package.V, fatbin.FileName), empty)
}

// everyCommittedPackage fails for a package whose spec is not among specs.
func (d *driver) everyCommittedPackage() {
	for name, found := range d.committed {
		if !found {
			d.t.Errorf("generated/%s comes from none of the specs %s; add its spec there", name, strings.Join(specs, ", "))
		}
	}
}

// write makes the module. Its requirements are those of this module.
func (d *driver) write() {
	d.t.Helper()
	mod, err := os.ReadFile(filepath.Join(d.root, "go.mod"))
	if err != nil {
		d.t.Fatal(err)
	}
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAll(mod, []byte("module "+driverPath))
	d.put("go.mod", fmt.Appendf(mod, "\nrequire %s v0.0.0\n\nreplace %s => %s\n", modulePath, modulePath, d.root))
	sums, err := os.ReadFile(filepath.Join(d.root, "go.sum"))
	if err != nil {
		d.t.Fatal(err)
	}
	d.put("go.sum", sums)
	var main bytes.Buffer
	fmt.Fprintf(&main, "package main\n\nimport (\n\t\"os\"\n\n\t%q\n", modulePath+"/internal/conformance")
	for _, path := range d.imports {
		fmt.Fprintf(&main, "\t%q\n", path)
	}
	fmt.Fprintf(&main, ")\n\nfunc main() {\n\tos.Exit(conformance.Main(os.Args[1], os.Stdout, []conformance.Package{\n%s\t}))\n}\n", d.source.String())
	d.put("main.go", main.Bytes())
}

func (d *driver) put(name string, content []byte) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// run runs a command in the module and returns what it says if it fails.
func (d *driver) run(name string, arguments ...string) error {
	cmd := exec.CommandContext(d.t.Context(), name, arguments...)
	cmd.Dir, cmd.WaitDelay = d.dir, 5*time.Second
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off", "GOPROXY=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return nil
}
