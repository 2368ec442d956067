package cuemit

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc"
	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/abi"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// small is a bf16 model with a normal init.
const small = `apiVersion: shardgen/v1alpha1
model: small
package: small
dtype: bf16
topology: {world: [1, 8]}
optimizer: {kind: adamw}
blocks:
  - name: "h.{i}"
    repeat: {i: 2}
    params:
      - {name: "h.{i}.w", shape: [3, 5], init: {normal: {std: 1}}}
`

func kernelNames(p *plan.Plan) string {
	var names []string
	for _, k := range Kernels(p) {
		names = append(names, strings.TrimPrefix(k.Name, "shardgen_"))
	}
	return strings.Join(names, " ")
}

func TestKernelsAreWhatThePlanNeeds(t *testing.T) {
	const state = "norm_f32 norm_total scale_f32 "
	for _, c := range []struct{ name, old, new, want string }{
		{"bf16 and adamw", "", "",
			"accumulate_f32_f32_add accumulate_f32_f32_store adamw_f32_bf16 cast_bf16_f32 cast_f32_bf16 fill_normal_f32 " + state + "zero"},
		{"f32", "dtype: bf16", "dtype: f32",
			"accumulate_f32_f32_add accumulate_f32_f32_store adamw_f32 fill_normal_f32 " + state + "zero"},
		{"f64", "dtype: bf16", "dtype: f64",
			"accumulate_f64_f64_add accumulate_f64_f64_store adamw_f64 fill_normal_f64 norm_f64 norm_total scale_f64 zero"},
		{"reduced in bf16", "optimizer:", "gradients: {reduce: bf16}\noptimizer:",
			"accumulate_bf16_f32_add accumulate_bf16_f32_store adamw_f32_bf16 cast_f32_bf16 fill_normal_f32 " + state + "zero"},
		{"sgd", "kind: adamw", "kind: sgd",
			"accumulate_f32_f32_add accumulate_f32_f32_store cast_bf16_f32 cast_f32_bf16 fill_normal_f32 " + state + "sgd_f32_bf16 zero"},
		{"sgd with momentum", "kind: adamw", "kind: sgd, momentum: f32",
			"accumulate_f32_f32_add accumulate_f32_f32_store cast_bf16_f32 cast_f32_bf16 fill_normal_f32 " + state + "sgd_f32_bf16 sgd_momentum_f32_bf16 zero"},
		{"no optimizer", "optimizer: {kind: adamw}\n", "",
			"accumulate_f32_f32_add accumulate_f32_f32_store cast_bf16_f32 fill_normal_bf16 " + state + "zero"},
		{"frozen", "shape: [3, 5],", "shape: [3, 5], trainable: false,", "fill_normal_bf16 zero"},
		{"integers", "shape: [3, 5], init: {normal: {std: 1}}", "dtype: i16, shape: [3, 5], init: {constant: 7}", "fill_constant_2 zero"},
		{"no init", ", init: {normal: {std: 1}}", "",
			"accumulate_f32_f32_add accumulate_f32_f32_store adamw_f32_bf16 cast_bf16_f32 cast_f32_bf16 " + state + "zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			yaml := strings.Replace(small, c.old, c.new, 1)
			if got := kernelNames(planOf(t, "small.yaml", yaml)); got != c.want {
				t.Errorf("kernels\n%s, want\n%s", got, c.want)
			}
		})
	}
}

func TestKernelsDoNotGrowWithBlocksKindsOrWorlds(t *testing.T) {
	larger := strings.Replace(strings.Replace(small, "{i: 2}", "{i: 900}", 1), "[1, 8]", "[1, 2, 3, 8, 1024]", 1)
	for n := range 50 {
		larger += fmt.Sprintf("  - name: b%d\n    params:\n      - {name: p%d, shape: [%d, 2], init: {normal: {std: 2}}}\n", n, n, n)
	}
	if a, b := kernelNames(planOf(t, "small.yaml", small)), kernelNames(planOf(t, "large.yaml", larger)); a != b {
		t.Errorf("a small model has kernels %s, a large one %s", a, b)
	}
}

// The same options on the smallest and the largest model of a family.
func TestALargerModelOfAFamilyHasNoMoreKernels(t *testing.T) {
	names := func(model string) []string {
		var list []string
		for _, k := range Kernels(planFile(t, model)) {
			list = append(list, k.Name)
		}
		return list
	}
	small, large := names("models/llama-3-8b.yaml"), names("models/llama-3.1-405b.yaml")
	if len(large) > len(small) || len(large) == 0 {
		t.Errorf("llama-3.1-405b has %d kernels, llama-3-8b %d", len(large), len(small))
	}
}

func TestTheLargestPlanHasTheMostKernels(t *testing.T) {
	var yaml strings.Builder
	yaml.WriteString("apiVersion: shardgen/v1alpha1\nmodel: all\noptimizer: {kind: sgd, momentum: f32}\ntopology: {world: 8}\nblocks:\n  - name: b\n    params:\n")
	for i, d := range dtype.All() {
		for j, init := range []string{"{constant: 1}", "{normal: {std: 1}}", "{truncated_normal: {std: 1, cut: 2}}", "{uniform: {low: 0, high: 1}}"} {
			if d.IsFloat() || j == 0 {
				fmt.Fprintf(&yaml, "      - {name: p%d.%d, dtype: %s, shape: [4], init: %s}\n", i, j, d, init)
				fmt.Fprintf(&yaml, "      - {name: f%d.%d, dtype: %s, shape: [4], trainable: false, init: %s}\n", i, j, d, init)
			}
		}
	}
	if got := len(Kernels(planOf(t, "all.yaml", yaml.String()))); got != MaxKernels {
		t.Errorf("%d kernels, want %d", got, MaxKernels)
	}
}

func TestTheDocumentationHasTheMostKernels(t *testing.T) {
	b, err := os.ReadFile("../../docs/cuda.md")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(string(b)), " ")
	if want := fmt.Sprintf("their number depends on the element types, inits and optimizer of the spec, is at most %d, and does not grow with layers", MaxKernels); !strings.Contains(words, want) {
		t.Errorf("docs/cuda.md lacks %q", want)
	}
}

func TestSameSpecSameBytes(t *testing.T) {
	for _, name := range files {
		first := emit(t, planFile(t, name))
		for range 5 {
			for i, f := range emit(t, planFile(t, name)) {
				if f.Name != first[i].Name || !bytes.Equal(f.Content, first[i].Content) {
					t.Fatalf("%s: %s differs from run to run", name, f.Name)
				}
			}
		}
	}
}

func TestEveryKernelIsAnEntryOnOneLine(t *testing.T) {
	for _, name := range files {
		p := planFile(t, name)
		var want []string
		for _, k := range Kernels(p) {
			want = append(want, k.Name)
		}
		if got := emu.Entries(text(t, emit(t, p), KernelsFile)); !slices.Equal(got, want) {
			t.Errorf("%s: entries %v, want %v", name, got, want)
		}
	}
}

func TestHeadersHaveTheRuntimesVersion(t *testing.T) {
	b, err := cudasrc.Headers.ReadFile("shardgen/version.cuh")
	if want := fmt.Sprintf("constexpr int kVersion = %d;", abi.Version); err != nil || !strings.Contains(string(b), want) {
		t.Errorf("version.cuh lacks %q: %v", want, err)
	}
}

// A package runs on the emulator, under a name that C++ keeps for itself.
func TestEmittedKernelsRun(t *testing.T) {
	ctx := needEmulator(t)
	emitted := emit(t, planOf(t, "small.yaml", strings.Replace(small, "package: small", "package: class", 1)))
	program, err := emu.Build(ctx, t.TempDir(), text(t, emitted, KernelsFile), emu.Options{Files: map[string]string{LayoutFile: text(t, emitted, LayoutFile)}})
	if err != nil {
		t.Fatal(err)
	}
	process, err := program.Start(ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	from, to := []float32{1, -2.5, 3.140625, 1e-3}, make([]dtype.BF16, 4)
	err = process.Launch("shardgen_cast_f32_bf16", emu.Grid{Blocks: 1, Threads: 32}, emu.Buffer(dtype.Bytes(to)), emu.Buffer(dtype.Bytes(from)), emu.Value(int64(4)))
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range from {
		if to[i] != dtype.BF16FromFloat32(x) {
			t.Errorf("%v becomes %#x, want %#x", x, to[i], dtype.BF16FromFloat32(x))
		}
	}
	if err := process.Close(); err != nil {
		t.Error(err)
	}
}

func TestAPlanThatContradictsItselfIsAnError(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(*plan.Plan)
		want    string
	}{
		"a world too many": {func(p *plan.Plan) { p.Worlds = p.Worlds[:1] }, "model small: CUDA: the plan has 1 block kinds and 1 worlds, but its layout 1 and 2"},
		"no owner":         {func(p *plan.Plan) { p.Kinds[0].Fields[0].Own = false }, "model small: CUDA: parameter h.{i}.w: no block of the plan owns it"},
		"no place":         {func(p *plan.Plan) { p.Kinds[0].Fields[0].At.Param = 1 }, "model small: CUDA: parameter h.{i}.w of block h.{i}: the plan has no place for it"},
	} {
		p := planOf(t, "small.yaml", small)
		c.breakIt(p)
		if _, err := Package(p); err == nil || err.Error() != c.want {
			t.Errorf("%s: error %v, want %s", name, err, c.want)
		}
	}
}

// Kernels know floats by their types, all else by its bytes.
func TestEveryFloatTypeHasItsNameInTheHeaders(t *testing.T) {
	header, err := cudasrc.Headers.ReadFile("shardgen/dtype.cuh")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dtype.All() {
		name, found := cuda[d]
		if found != d.IsFloat() {
			t.Errorf("%s is called %q", d, name)
		}
		if defined := regexp.MustCompile(`(?m)^(struct|using) ` + name + ` `); found && !defined.Match(header) {
			t.Errorf("dtype.cuh has no %s for %s", name, d)
		}
	}
}
