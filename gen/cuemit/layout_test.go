package cuemit

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/goemit"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
)

var (
	cudaConstant = regexp.MustCompile(`(?m)^ *(?:static )?constexpr long long (\w+) = (?:at<N>\(([\d, ]+)\)|(\d+));`)
	goConstant   = regexp.MustCompile(`(?m)^\t(\w+) +(?:int64 +)?= (\d+)(?: +//.*)?$`)
)

// cudaConstants returns the values of constants by their Go names.
func cudaConstants(p *plan.Plan, header string) map[string]string {
	fixed, members, _ := strings.Cut(header, "struct World {")
	found := map[string]string{}
	for _, m := range cudaConstant.FindAllStringSubmatch(fixed, -1) {
		found[m[1]] = m[3]
	}
	for _, m := range cudaConstant.FindAllStringSubmatch(members, -1) {
		values := strings.Split(m[2], ", ")
		for w, ranks := range p.Layout.Worlds {
			name := constname.OfWorld(m[1]).Go(ranks)
			if found[name] = m[3]; m[2] != "" {
				found[name] = values[w]
			}
		}
	}
	return found
}

// The Go package leaves offsets to the runtime, which works them out once.
func TestConstantsOfTheGoPackageAreAmongTheHeaders(t *testing.T) {
	for _, name := range files {
		p := planFile(t, name)
		emitted, err := goemit.Package(p)
		if err != nil {
			t.Fatal(err)
		}
		want := goConstant.FindAllStringSubmatch(text(t, emitted, "zz_layout.go"), -1)
		got := cudaConstants(p, text(t, emit(t, p), LayoutFile))
		if len(want) < 10 || len(got) <= len(want) {
			t.Errorf("%s: %d constants, the Go package has %d", name, len(got), len(want))
		}
		for _, constant := range want {
			if got[constant[1]] != constant[2] {
				t.Errorf("%s: %s is %q, in the Go package %s", name, constant[1], got[constant[1]], constant[2])
			}
		}
	}
}

func TestHeadersAreThoseOfTheGoPackage(t *testing.T) {
	for _, path := range []string{"model.yaml", "dir/my model.yaml", "a\nb.yaml", "λ.yaml", "x\\"} {
		p := planOf(t, path, small)
		set := output.Set{Origin: goemit.Origin(p), Files: emit(t, p)}
		for _, f := range set.Files {
			if first, _, _ := strings.Cut(string(f.Content), "\n"); first != output.Header(set.Origin) {
				t.Errorf("%q: %s begins with %q, want %q", path, f.Name, first, output.Header(set.Origin))
			}
		}
	}
}

// gxx returns g++'s arguments for checking C++17, and skips a test where there is
// no g++, except in CI.
func gxx(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		emu.Need(t, fmt.Errorf("the header is checked by g++: %w", err))
	}
	return exec.CommandContext(t.Context(), "g++", append([]string{"-x", "c++", "-std=c++17", "-fsyntax-only", "-fmax-errors=0"}, arguments...)...)
}

// include checks that C++17 takes headers, all in one unit.
func include(t *testing.T, headers map[string]string) {
	t.Helper()
	folder := t.TempDir()
	var unit strings.Builder
	unit.WriteString("#include <cmath>\n#include <cstdio>\n#include <cstdlib>\n")
	for name, header := range headers {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(header), 0o644); err != nil {
			t.Fatal(err)
		}
		unit.WriteString("#include \"" + name + "\"\n#include \"" + name + "\"\n")
	}
	main := filepath.Join(folder, "main.cc")
	if err := os.WriteFile(main, []byte(unit.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := gxx(t, "-Wall", "-Wextra", "-pedantic", "-Werror", main).CombinedOutput(); err != nil {
		t.Errorf("%v\n%.3000s", err, out)
	}
}

func TestTheHeaderIsIncludedByItself(t *testing.T) {
	headers := map[string]string{}
	for i, name := range files {
		headers[strconv.Itoa(i)+".cuh"] = text(t, emit(t, planFile(t, name)), LayoutFile)
	}
	include(t, headers)
}

// hostile are names that mean something to C++, or that could break out of a
// comment or a string.
var hostile = []string{
	"class", "a b", `a"b`, "a\\", "a\nb", "λ", "\u202e", "//", "/*", "*/", "??/", "%s%d", "{{.}}", "__x", "EOF", "NULL",
	"linux", "6to4.bias", "static_assert(0)", "x\u2028y", "a'b", "#define x", "$(x)", "R\"(", "model.layers.0.self-attn.q_proj.weight",
}

func TestHostileNamesStayInTheirComments(t *testing.T) {
	headers := map[string]string{}
	var yaml strings.Builder
	yaml.WriteString("apiVersion: shardgen/v1alpha1\nmodel: \"h\\\"o\\\\stile\"\npackage: hostile\ntopology: {world: [1, 8]}\noptimizer: {kind: sgd}\nblocks:\n  - name: all\n    params:\n")
	for _, name := range hostile {
		yaml.WriteString("      - {name: " + strconv.Quote(strings.NewReplacer("{", "{{", "}", "}}").Replace(name)) + ", shape: [3]}\n")
	}
	headers["names.cuh"] = text(t, emit(t, planOf(t, "a\"b\\.yaml", yaml.String())), LayoutFile)
	for _, name := range append([]string{"gamma", "std", "printf", "models"}, taken...) {
		p := planOf(t, "model.yaml", small)
		p.Spec.Package.V = name
		headers[name+".cuh"] = text(t, emit(t, p), LayoutFile)
	}
	include(t, headers)
}

// free are the constants that stand for choices: only their bounds are rules.
var free = regexp.MustCompile(`^prefetch$`)

// What has no rules is left out, to give the compiler less to read.
var (
	comments = regexp.MustCompile(` *// .*\n`)
	visitors = regexp.MustCompile(`(?s)  template <class Visit>\n.*?\n  }`)
)

// TestAChangedConstantStopsTheCompilerWithTheRule puts every mutation into one
// unit, each in a namespace of its own.
func TestAChangedConstantStopsTheCompilerWithTheRule(t *testing.T) {
	header := text(t, emit(t, planOf(t, "slotted.yaml", slotted)), LayoutFile)
	found := cudaConstant.FindAllStringSubmatch(header, -1)
	if len(found) < 120 {
		t.Fatalf("only %d constants found", len(found))
	}
	_, rules, _ := strings.Cut(visitors.ReplaceAllString(comments.ReplaceAllString(header, "\n"), ""), "#pragma once")
	var unit strings.Builder
	unit.WriteString("#define SHARDGEN_FUNCTION constexpr\n")
	var mutants []string
	for _, c := range found {
		for _, by := range []int64{1, -1} {
			changed, other := changeLast(t, c[0], by)
			name := c[1] + "=" + other
			unit.WriteString("namespace mutant" + strconv.Itoa(len(mutants)) + " {\n#line 1 \"" + name + "\"\n")
			unit.WriteString(strings.Replace(rules, c[0], changed, 1))
			unit.WriteString("}\n")
			mutants = append(mutants, name)
		}
	}
	file := filepath.Join(t.TempDir(), "mutants.cc")
	if err := os.WriteFile(file, []byte(unit.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := gxx(t, file).CombinedOutput()
	if err == nil {
		t.Fatal("all mutants compile")
	}
	checkMutants(t, mutants, string(out))
}

var lastNumber = regexp.MustCompile(`\d+(\)?;)$`)

// changeLast changes the value of a definition, of those that depend on the world
// size the last.
func changeLast(t *testing.T, definition string, by int64) (changed, value string) {
	t.Helper()
	at := lastNumber.FindStringSubmatchIndex(definition)
	n, err := strconv.ParseInt(definition[at[0]:at[2]], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	value = strconv.FormatInt(n+by, 10)
	return definition[:at[0]] + value + definition[at[2]:], value
}

// An error is in the file that is named after the mutant, and its message is a
// rule with its fix.
var (
	mutantError = regexp.MustCompile(`(?m)^(\w+=-?\d+):\d+:\d+: error: (.*)$`)
	ruleText    = regexp.MustCompile(`^static assertion failed: [a-z_. {}0-9]+: .*; if not, run go tool shardgen generate slotted\.yaml$`)
)

func checkMutants(t *testing.T, mutants []string, out string) {
	t.Helper()
	stopped := map[string]bool{}
	for _, m := range mutantError.FindAllStringSubmatch(out, -1) {
		switch {
		case ruleText.MatchString(m[2]):
			stopped[m[1]] = true
		case !strings.Contains(m[2], "non-constant condition") && !strings.Contains(m[2], "division by zero"):
			t.Errorf("%s stops with %q", m[1], m[2])
		}
	}
	caught := map[string]bool{}
	for _, name := range mutants {
		constant, value, _ := strings.Cut(name, "=")
		caught[constant] = caught[constant] || stopped[name]
		if !stopped[name] && !free.MatchString(constant) {
			t.Errorf("%s = %s compiles, or stops without a rule", constant, value)
		}
	}
	for constant, is := range caught {
		if !is {
			t.Errorf("no change of %s is caught", constant)
		}
	}
}

func TestAWorldSizeThatIsNotListedStopsTheCompilerWithTheRule(t *testing.T) {
	folder := t.TempDir()
	header := text(t, emit(t, planOf(t, "slotted.yaml", slotted)), LayoutFile)
	for name, content := range map[string]string{LayoutFile: header, "main.cc": "#include \"" + LayoutFile + "\"\nconstexpr long long bytes = shardgen::models::slotted::World<2>::restBytes;\n"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, err := gxx(t, filepath.Join(folder, "main.cc")).CombinedOutput()
	if want := "topology.world: a world size is one of 1, 3, and the one that is named"; err == nil || !strings.Contains(string(out), want) {
		t.Errorf("error %v, want %q:\n%.2000s", err, want, out)
	}
}

func TestEveryConstantSaysUnitAndSource(t *testing.T) {
	header := text(t, emit(t, planFile(t, "samples/tiny.yaml")), LayoutFile)
	for _, want := range []string{
		"alignBytes = 64;  // bytes; every payload and every start in a bucket is a multiple of it; shard.align_bytes\n",
		"h_numel_Mlp = 976;  // elements of h.{i}.mlp.weight; 16 * 61; blocks.params.shape\n",
		"h_start_Mlp_Bias = 992;  // elements; roundUp(h_start_Mlp + h_numel_Mlp, h_bf16_unit); blocks.params\n",
		"h_bf16_shard = at<N>(1056, 544, 352, 288, 160);  // elements; ceilDiv(h_bf16_end / h_bf16_unit, world) * h_bf16_unit; topology.world\n",
		"h_position = 1;  // position of the first block h.{i}; embed_position + 1; blocks\n",
		"h_bf16_shardFirst = at<N>(384, 192, 128, 128, 64);  // bytes into shards of bf16; embed_bf16frozen_shardOffset + embed_bf16frozen_shard * 2; shard\n",
		"h_shardsBf16Stride = at<N>(2112, 1088, 704, 576, 320);  // bytes of shards of bf16, of one instance; h_bf16_shard * 2; blocks.repeat\n",
		"gradientBufferBytes = at<N>(3200, 3328, 3456, 3584, 4096);  // bytes of a gradient buffer; largest(embed_gradientBytes, h_gradientBytes, head_gradientBytes); gradients.slots\n",
	} {
		if !strings.Contains(header, want) {
			t.Errorf("the header lacks %q", want)
		}
	}
}
