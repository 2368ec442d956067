package cuemit

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// eachSpec visits all specs of the repository, as they are and with every kind of
// optimizer.
func eachSpec(t *testing.T, visit func(name string, p *plan.Plan)) {
	t.Helper()
	optimizerLine := regexp.MustCompile(`(?m)^optimizer:.*\n`)
	count := 0
	for _, pattern := range []string{"../../spec/models/*.yaml", "../../spec/samples/*.yaml", "../../bench/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			yaml, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			visit(path, planOf(t, path, string(yaml)))
			count++
			for _, o := range []string{"none", "adamw", "sgd", "sgd, momentum: f32"} {
				without := optimizerLine.ReplaceAllString(string(yaml), "")
				visit(path+" with "+o, planOf(t, path, strings.Replace(without, "\nblocks:", "\noptimizer: {kind: "+o+"}\nblocks:", 1)))
			}
		}
	}
	if count < 15 {
		t.Fatalf("only %d specs found", count)
	}
}

func TestEveryLaunchOfTheRuntimeHasADescribedKernelAndNoOther(t *testing.T) {
	eachSpec(t, func(name string, p *plan.Plan) {
		var got []string
		for _, k := range Kernels(p) {
			got = append(got, k.Name)
			for what, text := range map[string]string{"purpose": k.Purpose, "keys": k.Keys, "parameters": k.Parameters, "call": k.Call, "bounds": k.Bounds, "header": k.header} {
				if text == "" || strings.Contains(text, "%") {
					t.Errorf("%s: kernel %s has the %s %q", name, k.Name, what, text)
				}
			}
		}
		if want := kernel.Needed(p.Layout); !slices.Equal(got, want) {
			t.Errorf("%s: kernels\n%s, want\n%s", name, strings.Join(got, " "), strings.Join(want, " "))
		}
	})
}

// The step of a generated package is that of the optimizer whose state the layout
// has, so that kernels can follow from the layout alone.
func TestTheLayoutTellsTheOptimizer(t *testing.T) {
	eachSpec(t, func(name string, p *plan.Plan) {
		o := p.Layout.Optimizer
		told := map[layout.OptimizerKind]spec.OptimizerKind{
			layout.NoOptimizer: spec.OptimizerNone, layout.SGD: spec.OptimizerSGD, layout.MomentumSGD: spec.OptimizerSGD, layout.AdamW: spec.OptimizerAdamW,
		}
		if kind := told[o.Kind]; kind != p.Spec.Optimizer.Kind.V || (o.Kind == layout.MomentumSGD) != p.Spec.Optimizer.Momentum.V {
			t.Errorf("%s: the layout's %v tells %v, the spec says %v, momentum %v", name, o.Kind, kind, p.Spec.Optimizer.Kind.V, p.Spec.Optimizer.Momentum.V)
		}
	})
}
