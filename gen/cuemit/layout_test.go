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
	"github.com/shardgen/shardgen/gen/goemit"
	"github.com/shardgen/shardgen/gen/output"
)

var (
	cudaConstant = regexp.MustCompile(`(?m)^constexpr long long (\w+) = (\d+);`)
	goConstant   = regexp.MustCompile(`(?m)^\t(\w+) +(?:int64 +)?= (\d+)(?: +//.*)?$`)
)

func constants(form *regexp.Regexp, text string) map[string]string {
	found := map[string]string{}
	for _, m := range form.FindAllStringSubmatch(text, -1) {
		found[m[1]] = m[2]
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
		want := constants(goConstant, text(t, emitted, "zz_layout.go"))
		got := constants(cudaConstant, text(t, emit(t, p), LayoutFile))
		if len(want) < 10 || len(got) <= len(want) {
			t.Errorf("%s: %d constants, the Go package has %d", name, len(got), len(want))
		}
		for constant, value := range want {
			if got[constant] != value {
				t.Errorf("%s: %s is %q, in the Go package %s", name, constant, got[constant], value)
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
	visitors = regexp.MustCompile(`(?s)template <class Visit>\n.*?\n}`)
)

// TestAChangedConstantStopsTheCompilerWithTheRule puts every mutation into one
// unit, each in a namespace of its own.
func TestAChangedConstantStopsTheCompilerWithTheRule(t *testing.T) {
	header := text(t, emit(t, planOf(t, "slotted.yaml", strings.Replace(slotted, "[1, 3]", "3", 1))), LayoutFile)
	found := cudaConstant.FindAllStringSubmatch(header, -1)
	if len(found) < 120 {
		t.Fatalf("only %d constants found", len(found))
	}
	_, rules, _ := strings.Cut(visitors.ReplaceAllString(comments.ReplaceAllString(header, "\n"), ""), "#pragma once")
	var unit strings.Builder
	unit.WriteString("#define SHARDGEN_FUNCTION constexpr\n")
	var mutants []string
	for _, c := range found {
		value, err := strconv.ParseInt(c[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range []int64{value + 1, value - 1} {
			name := c[1] + "=" + strconv.FormatInt(other, 10)
			unit.WriteString("namespace mutant" + strconv.Itoa(len(mutants)) + " {\n#line 1 \"" + name + "\"\n")
			unit.WriteString(strings.Replace(rules, c[0], "constexpr long long "+c[1]+" = "+strconv.FormatInt(other, 10)+";", 1))
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

func TestEveryConstantSaysUnitAndSource(t *testing.T) {
	header := text(t, emit(t, planFile(t, "samples/tiny.yaml")), LayoutFile)
	for _, want := range []string{
		"alignBytes = 64;  // bytes; every payload and every start in a bucket is a multiple of it; shard.align_bytes\n",
		"h_numel_Mlp = 976;  // elements; 16*61; shape of h.{i}.mlp.weight in blocks.params\n",
		"h_start_Mlp_Bias = 992;  // elements; roundup(h_start_Mlp + h_numel_Mlp, unit)\n",
		"h_bf16_shard_world4 = 288;  // elements of each rank; roundup(ceil(end/4), unit); topology.world\n",
		"h_position = 1;  // position of the first block h.{i}; embed_position + 1; blocks\n",
		"h_bf16_shardFirst_world2 = 192;  // bytes into shards of bf16; embed_bf16frozen_shardOffset_world2 + embed_bf16frozen_shard_world2 * 2; shard\n",
		"h_shardsBf16Stride_world2 = 1088;  // bytes of shards of bf16; what an instance has of them; blocks.repeat\n",
		"gradientBufferBytesWorld2 = 3328;  // bytes of a gradient buffer; the gradients of the block that has most; gradients.slots\n",
	} {
		if !strings.Contains(header, want) {
			t.Errorf("the header lacks %q", want)
		}
	}
}
