package goemit

import (
	"errors"
	"go/types"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/output"
)

var constantForm = regexp.MustCompile(`(?m)^\t(\w+)( +int64 | +)= (\d+)`)

// free are the constants that stand for choices: only their bounds are rules.
var free = map[string]bool{"maxLive": true, "prefetch": true, "gradientSlots": true}

func isFree(name string) bool { return free[name] || strings.HasPrefix(name, "peakBytes") }

func TestAChangedConstantDoesNotCompileAndTheLineSaysWhy(t *testing.T) {
	files := []output.File{{Name: layoutFile, Content: []byte(text(t, emit(t, odd().plan(t)), layoutFile))}}
	source := text(t, files, layoutFile)
	found := constantForm.FindAllStringSubmatch(source, -1)
	if len(found) < 100 {
		t.Fatalf("only %d constants found", len(found))
	}
	for _, c := range found {
		value, err := strconv.ParseInt(c[3], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		caught := 0
		for _, other := range []int64{value + 1, value - 1, 0} {
			if other == value {
				continue
			}
			line := "\t" + c[1] + c[2] + "= "
			changed := mutate(t, files, layoutFile, line+c[3], line+strconv.FormatInt(other, 10))
			if caughtByRule(t, changed) {
				caught++
			} else if !isFree(c[1]) {
				t.Errorf("%s = %d instead of %d compiles", c[1], other, value)
			}
		}
		if caught == 0 {
			t.Errorf("no change of %s is caught", c[1])
		}
	}
}

// caughtByRule reports whether the compiler refuses the files, at a line whose
// comment states a rule and the fix.
func caughtByRule(t *testing.T, files []output.File) bool {
	t.Helper()
	_, err := typeCheck(t, files, "amd64")
	if err == nil {
		return false
	}
	var fault types.Error
	if !errors.As(err, &fault) {
		t.Fatal(err)
	}
	lines := strings.Split(text(t, files, layoutFile), "\n")
	at := fault.Fset.Position(fault.Pos).Line
	if above := lines[at-2]; !strings.HasPrefix(above, "\t// ") || !strings.HasSuffix(above, "; if not, generate again") {
		t.Errorf("error %v at the line %q, and above it stands %q", err, lines[at-1], above)
	}
	return true
}

func TestTheCompilerNamesTheLineOfABrokenRule(t *testing.T) {
	files := emit(t, odd().plan(t))
	cases := map[string]struct{ old, new, line string }{
		"numel": {"h_numel_Mlp      int64 = 3333", "h_numel_Mlp      int64 = 3332", "_ = -uint64(h_numel_Mlp - 33*101)"},
		"shard": {"h_bf16_shard_world8           int64 = 512", "h_bf16_shard_world8           int64 = 640", "_ = -uint64(h_bf16_shard_world8 - "},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			changed := mutate(t, files, layoutFile, c.old, c.new)
			out, err := goTool(t, module(t, map[string][]output.File{"odd": changed}), "build", "./odd")
			if err == nil {
				t.Fatal("it compiles")
			}
			at := regexp.MustCompile(`zz_layout\.go:(\d+):`).FindStringSubmatch(out)
			if at == nil {
				t.Fatalf("no line of %s named:\n%s", layoutFile, out)
			}
			n, _ := strconv.Atoi(at[1])
			if got := strings.Split(text(t, changed, layoutFile), "\n")[n-1]; !strings.Contains(got, c.line) {
				t.Errorf("the compiler points at %q, want %q:\n%s", got, c.line, out)
			}
		})
	}
}

func TestARuntimeOutOfStepIsACompileErrorThatNamesTheCommand(t *testing.T) {
	files := mutate(t, emit(t, odd().plan(t)), layoutFile, "abi.RunShardgenGenerate_Version", "abi.RunShardgenGenerate_Version9")
	_, err := typeCheck(t, files, "amd64")
	if err == nil || !strings.Contains(err.Error(), "RunShardgenGenerate_Version9") {
		t.Fatalf("error %v, want one that names the missing constant", err)
	}
	comment, _, _ := strings.Cut(text(t, files, layoutFile), "const _ =")
	if !strings.Contains(comment, "`go tool shardgen generate odd.yaml`") {
		t.Errorf("the comment does not name the command:\n%s", comment)
	}
}
