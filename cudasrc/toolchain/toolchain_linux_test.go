package toolchain

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc"
	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/spec"
)

var update = flag.Bool("update", false, "write testdata/kernels.txt anew")

const (
	table       = "testdata/kernels.txt"
	compileWait = 2 * time.Minute
	// Limits: the processor time that a package's kernels take to compile, and the
	// bytes of gpt2's fatbin.
	compileLimit  = 15 * time.Second
	gpt2FatbinMax = 1 << 20
)

// specs are compiled; samples have every element type and optimizer. Others have
// kernels that are among theirs.
var specs = []string{
	"samples/alldtypes", "samples/oddshapes", "samples/tiny",
	"models/gpt2", "models/llama-3-8b",
}

// compiler skips a test where the compilers are not installed, except in CI.
func compiler(t *testing.T) *Compiler {
	t.Helper()
	c, err := Find("../../build/cuda")
	switch {
	case err == nil:
		return c
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
	return nil
}

// with lets a spec train, for models that leave the optimizer out.
func with(t *testing.T, yaml, key string) string {
	t.Helper()
	name, _, _ := strings.Cut(key, ":")
	if strings.Contains(yaml, "\n"+name+":") {
		return yaml
	}
	changed := strings.Replace(yaml, "\nblocks:", "\n"+key+"\nblocks:", 1)
	if changed == yaml {
		t.Fatal("the spec has no blocks")
	}
	return changed
}

func planOf(t *testing.T, name string) *plan.Plan {
	t.Helper()
	path := filepath.Join("../../spec", name+".yaml")
	yaml, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, faults := spec.Parse(path, []byte(with(t, string(yaml), "optimizer: {kind: adamw}")))
	if m == nil {
		t.Fatalf("%s: %v", name, faults)
	}
	p, faults := plan.Build(m)
	if p == nil {
		t.Fatalf("%s: %v", name, faults)
	}
	return p
}

// write puts a package's CUDA files and the headers into a folder of their own.
func write(t *testing.T, p *plan.Plan, edit func(name, content string) string) string {
	t.Helper()
	folder := t.TempDir()
	if err := cudasrc.Write(folder); err != nil {
		t.Fatal(err)
	}
	files, err := cuemit.Package(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(folder, f.Name), []byte(edit(f.Name, string(f.Content))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func asIs(_, content string) string { return content }

// compile returns the path of a plan's fatbin.
func compile(t *testing.T, c *Compiler, p *plan.Plan) string {
	t.Helper()
	folder := write(t, p, asIs)
	ctx, cancel := context.WithTimeout(t.Context(), compileWait)
	defer cancel()
	fatbin := filepath.Join(folder, "kernels.fatbin")
	if err := c.Fatbin(ctx, filepath.Join(folder, cuemit.KernelsFile), fatbin, folder); err != nil {
		t.Fatal(err)
	}
	return fatbin
}

func TestEveryPackageCompilesForAllTargets(t *testing.T) {
	c := compiler(t)
	var b strings.Builder
	b.WriteString("# Registers of a thread, for sm_80, sm_90 and sm_100; then loads and stores of 16\n# bytes in the PTX, of which a change means that some became narrower. `go test ./cudasrc/toolchain -update` writes it anew.\n")
	for _, name := range specs {
		p := planOf(t, name)
		before := childrenTime(t)
		fatbin := compile(t, c, p)
		took := childrenTime(t) - before
		if took > compileLimit {
			t.Errorf("%s takes %v of a processor to compile, at most %v is allowed", name, took, compileLimit)
		}
		checkTargets(t, c, fatbin)
		rows := registers(t, c, p, fatbin, checkPTX(t, c, fatbin))
		fmt.Fprintf(&b, "\n%s: %d kernels\n%s", name, len(rows), strings.Join(rows, ""))
		info, err := os.Stat(fatbin)
		if err != nil {
			t.Fatal(err)
		}
		if name == "models/gpt2" && info.Size() > gpt2FatbinMax {
			t.Errorf("the fatbin of gpt2 has %d bytes, at most %d are allowed", info.Size(), gpt2FatbinMax)
		}
		t.Logf("%s: %d kernels, %d bytes, %v", name, len(rows), info.Size(), took.Round(time.Millisecond))
	}
	compareTable(t, b.String())
}

// childrenTime is the processor time of all processes that tests have waited for:
// unlike the time on the wall, it does not depend on what else the machine does.
func childrenTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func compareTable(t *testing.T, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(table, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; run `go test ./cudasrc/toolchain -update` and look at the change. Now:\n%s", table, got)
	}
}

func checkTargets(t *testing.T, c *Compiler, fatbin string) {
	t.Helper()
	got, err := c.Targets(t.Context(), fatbin)
	if want := append(slices.Clone(Architectures), Virtual); err != nil || !slices.Equal(sorted(got), sorted(want)) {
		t.Errorf("the fatbin has targets %v, %v, want %v", got, err, want)
	}
}

func sorted(list []string) []string { return slices.Sorted(slices.Values(list)) }

// The PTX of an entry, up to the next.
var entryStart = regexp.MustCompile(`\.visible \.entry (\w+)\(`)

// checkPTX looks for what would change bits, for memory of a thread's own, and
// for the wide accesses. It returns how many of those each entry has: loads and
// stores of 16 bytes.
func checkPTX(t *testing.T, c *Compiler, fatbin string) map[string][2]int {
	t.Helper()
	ptx, err := c.PTX(t.Context(), fatbin)
	if err != nil {
		t.Fatal(err)
	}
	wide := map[string][2]int{}
	starts := entryStart.FindAllStringSubmatchIndex(ptx, -1)
	for i, at := range starts {
		end := len(ptx)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		name := ptx[at[2]:at[3]]
		wide[name] = checkEntry(t, name, ptx[at[0]:end])
	}
	return wide
}

func checkEntry(t *testing.T, name, body string) [2]int {
	t.Helper()
	for _, bad := range []string{"fma.rn", ".local", "st.local", "approx", ".ftz"} {
		if strings.Contains(body, bad) {
			t.Errorf("%s has %s in its PTX", name, bad)
		}
	}
	wide := regexp.MustCompile(`(ld|st)\.global(\.nc)?\.(v4\.[a-z]32|v2\.[a-z]64)`)
	accesses := wide.FindAllStringSubmatch(body, -1)
	loads, stores := 0, 0
	for _, a := range accesses {
		if a[1] == "ld" {
			loads++
		} else {
			stores++
		}
	}
	reads := !strings.HasPrefix(name, "shardgen_fill") && name != "shardgen_zero"
	if stores == 0 || reads && loads == 0 {
		t.Errorf("%s has %d loads and %d stores of 16 bytes in its PTX", name, loads, stores)
	}
	return [2]int{loads, stores}
}

// registers returns a row for each kernel, with its wide accesses, and checks that machine code and plan
// have the same ones, without a stack.
func registers(t *testing.T, c *Compiler, p *plan.Plan, fatbin string, wide map[string][2]int) []string {
	t.Helper()
	kernels := cuemit.Kernels(p)
	rows := make([]string, len(kernels))
	for i := range rows {
		rows[i] = fmt.Sprintf("%-40s", kernels[i].Name)
	}
	for _, arch := range Architectures {
		usage, err := c.Usage(t.Context(), fatbin, arch)
		if err != nil {
			t.Fatal(err)
		}
		if len(usage) != len(kernels) {
			t.Errorf("%s has %d entries, the plan %d kernels", arch, len(usage), len(kernels))
		}
		for i := range kernels {
			u, ok := usage[kernels[i].Name]
			if !ok || u.StackBytes != 0 {
				t.Errorf("%s: %s is there: %t, with %d bytes of stack", arch, kernels[i].Name, ok, u.StackBytes)
			}
			rows[i] += fmt.Sprintf(" %3d", u.Registers)
		}
	}
	for i := range rows {
		rows[i] += fmt.Sprintf("  %d %d\n", wide[kernels[i].Name][0], wide[kernels[i].Name][1])
	}
	return rows
}

func TestTheSameSourceGivesTheSameBytesInAnyFolder(t *testing.T) {
	c := compiler(t)
	p := planOf(t, "samples/oddshapes")
	var first []byte
	for range 2 {
		b, err := os.ReadFile(compile(t, c, p))
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		} else if !bytes.Equal(first, b) {
			t.Error("a second build in another folder has other bytes")
		}
	}
}

func TestALargerModelHasNoMoreKernels(t *testing.T) {
	if small, large := len(cuemit.Kernels(planOf(t, "models/llama-3-8b"))), len(cuemit.Kernels(planOf(t, "models/llama-3.1-405b"))); small != large {
		t.Errorf("llama-3-8b has %d kernels, llama-3.1-405b %d", small, large)
	}
}

func TestAChangedConstantStopsNVCCWithTheRule(t *testing.T) {
	c := compiler(t)
	p := planOf(t, "samples/tiny")
	for _, m := range []struct{ file, old, new, want string }{
		{cuemit.LayoutFile, "alignBytes = 64;", "alignBytes = 32;", "shard.align_bytes: a unit of 2-byte elements of embed/bf16/frozen is align_bytes long"},
		{cuemit.LayoutFile, "h_start_Mlp_Bias = 992;", "h_start_Mlp_Bias = 960;", "blocks.params: h.{i}.mlp.bias starts where h.{i}.mlp.weight ends"},
		{cuemit.LayoutFile, "maxLive = 2;", "maxLive = 1;", "gather.max_live: the blocks gathered ahead"},
		{cuemit.KernelsFile, "kAlignBytes = alignBytes", "kAlignBytes = 8", "shard.align_bytes: a multiple of 16, because kernels use 16-byte accesses"},
		{cuemit.LayoutFile, "h_position = 1;", "h_position = 2;", "blocks: block h.{i} stands behind those before it"},
		{cuemit.KernelsFile, "kStore = true", "kStore = false", "gradients.reduce, dtype: kStore of shardgen_accumulate_f32_f32_store is true"},
		{cuemit.KernelsFile, "kElementBytes = 4", "kElementBytes = 3", "dtype: an element has 1, 2, 4 or 8 bytes"},
		{cuemit.KernelsFile, "kVersion == 1", "kVersion == 2", "generator and CUDA headers are out of step in kVersion: run go tool shardgen generate tiny.yaml"},
	} {
		folder := write(t, p, func(name, content string) string {
			if name != m.file {
				return content
			}
			changed := strings.Replace(content, m.old, m.new, 1)
			if changed == content {
				t.Fatalf("%s has no %q", name, m.old)
			}
			return changed
		})
		err := c.Fatbin(t.Context(), filepath.Join(folder, cuemit.KernelsFile), filepath.Join(folder, "out"), folder)
		if err == nil || !strings.Contains(err.Error(), m.want) {
			t.Errorf("%s instead of %s: error %v, want %q", m.new, m.old, err, m.want)
		}
	}
}

func TestMissingCompilersNameTheFix(t *testing.T) {
	_, err := Find(t.TempDir())
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "make cuda-toolchain") {
		t.Errorf("error %v", err)
	}
}

// The committed packages' own fatbins, of which the specs above are a part.
func TestEveryCommittedFatbinHoldsToTheRules(t *testing.T) {
	c := compiler(t)
	paths, err := filepath.Glob("../../generated/*/" + fatbin.FileName)
	if err != nil || len(paths) < 8 {
		t.Fatalf("%d fatbins, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) { checkCommitted(t, c, path) })
	}
}

func checkCommitted(t *testing.T, c *Compiler, path string) {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	image, _, err := fatbin.Open(string(content))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kernels.fatbin")
	if err := os.WriteFile(file, []byte(image), 0o644); err != nil {
		t.Fatal(err)
	}
	checkTargets(t, c, file)
	entries := slices.Sorted(maps.Keys(checkPTX(t, c, file)))
	for _, arch := range Architectures {
		usage, err := c.Usage(t.Context(), file, arch)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(usage)); !slices.Equal(got, entries) || len(got) == 0 {
			t.Errorf("%s has the entries %v, the PTX %v", arch, got, entries)
		}
		for name, u := range usage {
			if u.StackBytes != 0 {
				t.Errorf("%s: %s has %d bytes of stack", arch, name, u.StackBytes)
			}
		}
	}
}
