package goemit

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/spec"
)

// planOf plans a spec in YAML.
func planOf(t *testing.T, path, yaml string) *plan.Plan {
	t.Helper()
	m, faults := spec.Parse(path, []byte(yaml))
	if m == nil {
		t.Fatalf("spec: %v", faults)
	}
	p, faults := plan.Build(m)
	if p == nil {
		t.Fatalf("plan: %v", faults)
	}
	return p
}

// gpt2 is GPT-2 of some width and depth.
func gpt2(name string, width, layers int) string {
	return fmt.Sprintf(`apiVersion: shardgen/v1alpha1
model: %s
dtype: bf16
topology: {world: [1, 8]}
optimizer: {kind: adamw}
blocks:
  - name: embed
    params:
      - {name: wte.weight, shape: [50257, %[2]d], init: {normal: {std: 0.02}}}
      - {name: wpe.weight, shape: [1024, %[2]d], init: {normal: {std: 0.02}}}
  - name: "h.{i}"
    repeat: {i: %[3]d}
    params:
      - {name: "h.{i}.ln_1.weight", shape: [%[2]d], dtype: f32, init: ones}
      - {name: "h.{i}.ln_1.bias", shape: [%[2]d], dtype: f32, init: zeros}
      - {name: "h.{i}.attn.c_attn.weight", shape: [%[2]d, %[4]d], init: {normal: {std: 0.02}}}
      - {name: "h.{i}.mlp.c_fc.weight", shape: [%[2]d, %[5]d], init: {normal: {std: 0.02}}}
  - name: head
    params:
      - {name: ln_f.weight, shape: [%[2]d], init: ones}
      - {name: lm_head.weight, tied_to: wte.weight}
`, name, width, layers, 3*width, 4*width)
}

func TestALargerModelIsNotALargerPackage(t *testing.T) {
	size := func(yaml string) (bytes int) {
		files := emit(t, planOf(t, "model.yaml", yaml))
		mustTypeCheck(t, files)
		for _, f := range files {
			bytes += len(f.Content)
		}
		return bytes
	}
	if base, xl := size(gpt2("gpt2", 768, 12)), size(gpt2("gpt2-xl", 1600, 48)); float64(xl) > 1.05*float64(base) {
		t.Errorf("gpt2 takes %d bytes, gpt2-xl %d", base, xl)
	}
}

func TestPackageCommentCountsWhatIsStored(t *testing.T) {
	source := text(t, emit(t, planOf(t, "dir/model.yaml", gpt2("gpt2-small", 768, 12))), modelFile)
	for _, want := range []string{
		"// Package gpt2small is the sharded model gpt2-small: 51 parameters with ",
		"in 14 blocks", "//\tgo tool shardgen generate model.yaml\npackage gpt2small\n",
	} {
		if !strings.Contains(source, want) {
			t.Errorf("the package comment lacks %q:\n%.900s", want, source)
		}
	}
}

func TestSameSpecSameBytes(t *testing.T) {
	previous := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(previous)
	yaml := gpt2("gpt2", 8, 3)
	for n := range 30 {
		yaml += fmt.Sprintf("      - {name: p%d, shape: [%d], init: ones}\n", n, n)
	}
	reordered := strings.ReplaceAll(yaml, "shape: [7], init: ones", "init: ones, shape: [7]")
	if reordered == yaml {
		t.Fatal("nothing was reordered")
	}
	want := emit(t, planOf(t, "model.yaml", yaml))
	for run := range 50 {
		runtime.GOMAXPROCS(1 + run%2)
		p := planOf(t, fmt.Sprintf("/folder/%d/model.yaml", run%2), []string{yaml, reordered}[run/25])
		for i, f := range emit(t, p) {
			if f.Name != want[i].Name || string(f.Content) != string(want[i].Content) {
				t.Fatalf("run %d: %s differs", run, f.Name)
			}
		}
	}
}

// hostile are names that no Go identifier can be, or that mean something to Go,
// to the generator, or to the files it writes.
var hostile = []string{
	"model.layers.0.self-attn.q_proj.weight", "0.weight", "6to4.bias", "λ", "a b", "a/b", `a"b`, "a\\b", "a\nb", "a`b", "a*/b", "//", "/*",
	"a.b-c", "a.b_c", "a_b.c", "ABC", "abc", "Abc", "a..b", "a.", ".a", "_", "__", "_test", "x_linux_amd64",
	"type", "range", "len", "nil", "init", "main", "fmt", "func", "string", "int64", "error", "any", "shard", "layout", "dtype", "random", "context",
	"release", "reduce", "discard", "block", "grads", "pass", "Release", "view", "descriptor", "numel", "start", "unit", "world8", "go:build ignore", "line x:1",
}

func TestHostileParameterNames(t *testing.T) {
	var yaml strings.Builder
	yaml.WriteString("apiVersion: shardgen/v1alpha1\nmodel: hostile\ntopology: {world: [1, 8]}\noptimizer: {kind: sgd}\nblocks:\n  - name: all\n    params:\n")
	for _, name := range hostile {
		fmt.Fprintf(&yaml, "      - {name: %q, shape: [3], init: ones}\n", name)
	}
	p := planOf(t, "hostile.yaml", yaml.String())
	generated := mustTypeCheck(t, emit(t, p))
	if got := strings.Fields(fieldNames(generated, "All")); len(got) != 1+len(hostile) {
		t.Errorf("%d fields for %d parameters: %v", len(got)-1, len(hostile), got)
	}
}

func TestHostileBlockNames(t *testing.T) {
	blocks := append([]string{"end", "model", "options", "open", "forward_pass", "backward_pass", "h_len", "h_first", "h_grads", "forward", "close", "step"}, hostile...)
	var yaml strings.Builder
	yaml.WriteString("apiVersion: shardgen/v1alpha1\nmodel: hostile\ntopology: {world: [1, 8]}\noptimizer: {kind: adamw}\nblocks:\n")
	for i, name := range blocks {
		fmt.Fprintf(&yaml, "  - name: %q\n    params:\n      - {name: \"w%d\", shape: [3], init: ones}\n", name, i)
	}
	yaml.WriteString("  - name: \"h.{i}\"\n    repeat: {i: 2}\n    params:\n      - {name: \"h.{i}.w\", shape: [3], init: ones}\n")
	generated := mustTypeCheck(t, emit(t, planOf(t, "hostile.yaml", yaml.String())))
	if generated.Scope().Lookup("H") == nil || generated.Scope().Lookup("HLen_") == nil {
		t.Errorf("kinds H and HLen_ expected, got %v", generated.Scope().Names())
	}
}

// Literal text of a spec must not become code or break out of a comment.
func TestASpecsFileNameStaysInItsComment(t *testing.T) {
	for _, path := range []string{"my model.yaml", "a\nb.yaml", "*/.yaml", "x`y.yaml", "λ.yaml"} {
		p := planOf(t, path, gpt2("gpt2", 8, 2))
		files := emit(t, p)
		mustTypeCheck(t, files)
		if first, _, _ := strings.Cut(text(t, files, modelFile), "\n"); !strings.HasSuffix(first, ". DO NOT EDIT.") {
			t.Errorf("%q: the header is %q", path, first)
		}
	}
}
