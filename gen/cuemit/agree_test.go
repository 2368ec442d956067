package cuemit

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc"
	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/gen/plan"
)

// needEmulator skips a test where there is no C++ compiler, except in CI.
func needEmulator(t *testing.T) context.Context {
	t.Helper()
	emu.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// various is a spec whose kernels have every kind of configuration.
const various = `apiVersion: shardgen/v1alpha1
model: various
topology: {world: 2}
gradients: {reduce: bf16}
optimizer: {kind: sgd, momentum: f32}
blocks:
  - name: all
    params:
      - {name: a, shape: [3], init: {normal: {std: 1}}}
      - {name: b, dtype: f16, shape: [3], init: {uniform: {low: 0, high: 1}}}
      - {name: c, dtype: f64, shape: [3], init: {truncated_normal: {std: 1, cut: 2}}}
      - {name: d, dtype: u8, shape: [3], init: ones}
`

// mutateFields returns what a mutant of each constant of each configuration is
// called, and a unit of their rules, each mutant in a namespace of its own.
func mutateFields(t *testing.T, p *plan.Plan, source string) (names []string, unit string) {
	t.Helper()
	_, rest, _ := strings.Cut(source, "namespace "+namespace(p.Spec.Package.V)+" {")
	body, _, found := strings.Cut(rest, "}  // namespace")
	if !found {
		t.Fatal("the .cu has no namespace")
	}
	var out strings.Builder
	out.WriteString("using namespace " + namespace(p.Spec.Package.V) + ";\n")
	for _, k := range Kernels(p) {
		for _, f := range k.Fields {
			struct_ := regexp.MustCompile(`struct ` + k.Config + ` \{\n(?s:.*?)\};`).FindString(body)
			changed := strings.Replace(struct_, f.Declaration+";", strings.Replace(f.Declaration, f.value, another(f), 1)+";", 1)
			if struct_ == "" || changed == struct_ {
				t.Fatalf("%s has no %s", k.Name, f.Declaration)
			}
			name := k.Config + "=" + f.name
			out.WriteString("namespace mutant_" + k.Config + "_" + f.name + " {\n#line 1 \"" + name + "\"\n" + strings.Replace(body, struct_, changed, 1) + "}\n")
			names = append(names, name)
		}
	}
	return names, out.String()
}

// another returns a value of the same type.
func another(f Field) string {
	switch f.value {
	case "true":
		return "false"
	case "false":
		return "true"
	case "shardgen::F32":
		return "shardgen::F64"
	case "alignBytes":
		return "alignBytes * 2"
	case "shardgen::Distribution::kNormal":
		return "shardgen::Distribution::kUniform"
	}
	switch {
	case f.isType:
		return "shardgen::F32"
	case strings.HasPrefix(f.value, "shardgen::Distribution"):
		return "shardgen::Distribution::kNormal"
	}
	return f.value + " * 2"
}

var (
	fieldError = regexp.MustCompile(`(?m)^(\w+=\w+):\d+:\d+: error: (.*)$`)
	fieldRule  = regexp.MustCompile(`^static assertion failed: [a-z_., ]+: (\w+) of (shardgen_\w+) is [\w:]+; if not, run go tool shardgen generate various\.yaml$`)
)

func TestAChangedConfigurationStopsTheCompilerWithTheRule(t *testing.T) {
	t.Parallel()
	ctx := needEmulator(t)
	p := planOf(t, "various.yaml", various)
	emitted := emit(t, p)
	source := text(t, emitted, KernelsFile)
	names, mutants := mutateFields(t, p, source)
	entries := strings.Index(source, "}  // namespace")
	out, err := emu.Check(ctx, t.TempDir(), source[:entries]+"}\n"+mutants, emu.Options{Files: map[string]string{LayoutFile: text(t, emitted, LayoutFile)}})
	if err == nil || len(names) < 40 {
		t.Fatalf("%d mutants compile", len(names))
	}
	if all, own := strings.Count(out, " error: "), len(fieldError.FindAllString(out, -1)); all != own {
		t.Errorf("%d errors, of which mutants have %d:\n%.2000s", all, own, out)
	}
	stopped := map[string]bool{}
	for _, m := range fieldError.FindAllStringSubmatch(out, -1) {
		if rule := fieldRule.FindStringSubmatch(m[2]); rule == nil || !strings.HasSuffix(m[1], "="+rule[1]) {
			t.Errorf("%s stops with %q", m[1], m[2])
		}
		stopped[m[1]] = true
	}
	for _, name := range names {
		if !stopped[name] {
			t.Errorf("a change of %s compiles", name)
		}
	}
}

// A constant of the headers that Go's packages know by another name can't differ.
func TestHeadersOutOfStepStopTheCompiler(t *testing.T) {
	t.Parallel()
	ctx := needEmulator(t)
	emitted := emit(t, planOf(t, "small.yaml", small))
	agreements, _, _ := strings.Cut(text(t, emitted, KernelsFile), "\nnamespace ")
	for constant, header := range map[string]string{
		"kVersion": "version.cuh", "kThreads": "range.cuh", "kBlocks": "range.cuh", "kAccessBytes": "range.cuh", "kChunkElements": "norm.cuh", "kSumNorms": "norm.cuh",
	} {
		name := "shardgen/" + header
		original, err := cudasrc.Headers.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		changed := regexp.MustCompile(`(constexpr int `+constant+` = \d+);`).ReplaceAllString(string(original), "$1 * 2;")
		if changed == string(original) {
			t.Fatalf("%s has no %s", name, constant)
		}
		out, err := emu.Check(ctx, t.TempDir(), agreements, emu.Options{Files: map[string]string{
			LayoutFile: text(t, emitted, LayoutFile), filepath.FromSlash(name): changed,
		}})
		if want := "static assertion failed: generator and CUDA headers are out of step in " + constant + ": run go tool shardgen generate small.yaml"; err == nil || !strings.Contains(out, want) {
			t.Errorf("another %s: error %v, want %q", constant, err, want)
		}
	}
}
