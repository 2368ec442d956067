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
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/spec"
)

var update = flag.Bool("update", false, "write testdata/kernels.txt anew")

const (
	table       = "testdata/kernels.txt"
	compileWait = 2 * time.Minute
	// Limits: the processor time that a real model's kernels take to compile, and the
	// bytes of their fatbin.
	compileLimit   = 15 * time.Second
	fatbinMaxBytes = 1 << 20
)

// Specs that are compiled: real models, and those that together ask for every
// kernel.
const (
	gpt2    = "../../spec/models/gpt2.yaml"
	llama   = "../../spec/models/llama-3-8b.yaml"
	largest = "../../spec/models/llama-3.1-405b.yaml"
	tiny    = "../../spec/samples/tiny.yaml"
)

var everyKernel = []string{"testdata/momentum.yaml", "testdata/adamw.yaml", "testdata/none.yaml"}

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

// trained lets a spec train, for models that leave the optimizer out.
func trained(yaml string) string {
	if strings.Contains(yaml, "\noptimizer:") {
		return yaml
	}
	return strings.Replace(yaml, "\nblocks:", "\noptimizer: {kind: adamw}\nblocks:", 1)
}

func asIs(content string) string { return content }

func planOf(t *testing.T, path string, edit func(yaml string) string) *plan.Plan {
	t.Helper()
	yaml, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, faults := spec.Parse(path, []byte(edit(string(yaml))))
	if m == nil {
		t.Fatalf("%s: %v", path, faults)
	}
	p, faults := plan.Build(m)
	if p == nil {
		t.Fatalf("%s: %v", path, faults)
	}
	return p
}

func names(p *plan.Plan) []string { return kernel.Needed(p.Layout) }

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

// compile returns the path of a plan's fatbin.
func compile(t *testing.T, c *Compiler, p *plan.Plan) string {
	t.Helper()
	folder := write(t, p, func(_, content string) string { return content })
	ctx, cancel := context.WithTimeout(t.Context(), compileWait)
	defer cancel()
	fatbin := filepath.Join(folder, "kernels.fatbin")
	if err := c.Fatbin(ctx, filepath.Join(folder, cuemit.KernelsFile), fatbin, folder); err != nil {
		t.Fatal(err)
	}
	return fatbin
}

// Not parallel: the time of all processes is the compiler's alone.
func TestARealModelCompilesInTimeAndToTheSameBytesInAnyFolder(t *testing.T) {
	c := compiler(t)
	for _, path := range []string{gpt2, llama} {
		p := planOf(t, path, trained)
		before := childrenTime(t)
		fatbin := compile(t, c, p)
		took := childrenTime(t) - before
		if took > compileLimit {
			t.Errorf("%s takes %v of a processor to compile, at most %v is allowed", path, took, compileLimit)
		}
		rows(t, c, fatbin, names(p))
		first := read(t, fatbin)
		if len(first) > fatbinMaxBytes {
			t.Errorf("the fatbin of %s has %d bytes, at most %d are allowed", path, len(first), fatbinMaxBytes)
		}
		if path == gpt2 && !bytes.Equal(first, read(t, compile(t, c, p))) {
			t.Error("a second build in another folder has other bytes")
		}
		t.Logf("%s: %d kernels, %d bytes, %v", path, len(names(p)), len(first), took.Round(time.Millisecond))
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
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

func TestEveryKernelCompilesForAllTargets(t *testing.T) {
	c := compiler(t)
	made := make([]map[string]string, len(everyKernel))
	t.Run("spec", func(t *testing.T) {
		for i, path := range everyKernel {
			t.Run(filepath.Base(path), func(t *testing.T) {
				t.Parallel()
				p := planOf(t, path, asIs)
				made[i] = rows(t, c, compile(t, c, p), names(p))
			})
		}
	})
	all := map[string]string{}
	for _, m := range made {
		for name, row := range m {
			if other, ok := all[name]; ok && other != row {
				t.Errorf("two specs give the rows\n%s%s", other, row)
			}
			all[name] = row
		}
	}
	compareTable(t, all)
}

const tableHead = "# Registers of a thread, for sm_80, sm_90 and sm_100; then loads and stores of 16\n" +
	"# bytes in the PTX, of which a change means that some became narrower. `go test\n" +
	"# ./cudasrc/toolchain -update` writes it anew.\n"

func compareTable(t *testing.T, all map[string]string) {
	t.Helper()
	got := tableHead
	for _, name := range slices.Sorted(maps.Keys(all)) {
		got += all[name]
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(table, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := string(read(t, table)); got != want {
		t.Errorf("%s differs; run `go test ./cudasrc/toolchain -update` and look at the change. Now:\n%s", table, got)
	}
}

// rows checks a fatbin and returns the table's row of each kernel: that it has all
// targets, and each of them the named kernels, without a stack.
func rows(t *testing.T, c *Compiler, fatbin string, kernels []string) map[string]string {
	t.Helper()
	checkTargets(t, c, fatbin)
	wide := checkPTX(t, c, fatbin)
	sameNames(t, "the PTX", wide, kernels)
	made := map[string]string{}
	for _, name := range kernels {
		made[name] = fmt.Sprintf("%-40s", name)
	}
	for _, arch := range Architectures {
		usage, err := c.Usage(t.Context(), fatbin, arch)
		if err != nil {
			t.Fatal(err)
		}
		sameNames(t, arch, usage, kernels)
		for name, u := range usage {
			if u.StackBytes != 0 {
				t.Errorf("%s: %s has %d bytes of stack", arch, name, u.StackBytes)
			}
			made[name] += fmt.Sprintf(" %3d", u.Registers)
		}
	}
	for name, count := range wide {
		made[name] += fmt.Sprintf("  %d %d\n", count[0], count[1])
	}
	return made
}

func sameNames[V any](t *testing.T, what string, entries map[string]V, kernels []string) {
	t.Helper()
	if got := slices.Sorted(maps.Keys(entries)); !slices.Equal(got, kernels) || len(got) == 0 {
		t.Fatalf("%s has the entries %v, the plan needs %v", what, got, kernels)
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

func TestALargerModelHasNoMoreKernels(t *testing.T) {
	if small, large := len(names(planOf(t, llama, trained))), len(names(planOf(t, largest, trained))); small != large {
		t.Errorf("llama-3-8b has %d kernels, llama-3.1-405b %d", small, large)
	}
}

func TestAChangedConstantStopsNVCCWithTheRule(t *testing.T) {
	c := compiler(t)
	p := planOf(t, tiny, asIs)
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
		t.Run(m.new, func(t *testing.T) {
			t.Parallel()
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
			ctx, cancel := context.WithTimeout(t.Context(), compileWait)
			defer cancel()
			err := c.Fatbin(ctx, filepath.Join(folder, cuemit.KernelsFile), filepath.Join(folder, "out"), folder)
			if err == nil || !strings.Contains(err.Error(), m.want) {
				t.Errorf("%s instead of %s: error %v, want %q", m.new, m.old, err, m.want)
			}
		})
	}
}

func TestMissingCompilersNameTheFix(t *testing.T) {
	_, err := Find(t.TempDir())
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "make cuda-toolchain") {
		t.Errorf("error %v", err)
	}
}
