package plan

import (
	"os"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/spec"
)

// hashesOf plans the example after an edit of its text.
func hashesOf(t *testing.T, edits ...string) [3]string {
	t.Helper()
	text, err := os.ReadFile("testdata/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.NewReplacer(edits...).Replace(string(text))
	if len(edits) > 0 && edited == string(text) {
		t.Fatalf("the example has no %q", edits[0])
	}
	p := mustBuild(t, parse(t, "example.yaml", []byte(edited)), 4)
	return [3]string{p.Hashes.Model, p.Worlds[0].Layout, p.Worlds[0].Plan}
}

// TestHashesArePinned: a change of these breaks the files and jobs of every
// user, so it needs a new version of the contract.
func TestHashesArePinned(t *testing.T) {
	want := [3]string{"021de474115539cef240c940ea2e131c", "2c3f00ecf84d42482341bd260c904e12", "e21982e8d1ee3cb494c10407e95da33d"}
	if got := hashesOf(t); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestHashesFollowWhatTheyCover edits the example; the digits say which of
// model, layout and plan must change.
func TestHashesFollowWhatTheyCover(t *testing.T) {
	before := hashesOf(t)
	for name, c := range map[string]struct {
		changes string
		edits   []string
	}{
		"comment":       {"000", []string{"# Small enough", "# Another comment\n# Small enough"}},
		"model's name":  {"000", []string{"model: example", "model: other"}},
		"budget":        {"000", []string{"optimizer: {kind: adamw}", "optimizer: {kind: adamw}\nbudget: {device: 80GiB}"}},
		"order of keys": {"000", []string{"{name: wte.weight, shape: [10, 3],", "{shape: [10, 3], name: wte.weight,"}},
		"default said":  {"000", []string{"shape: [7, 3]}", "shape: [7, 3], trainable: true}"}},
		"dtype by rule": {"000", []string{"name: scale, shape: [], dtype: f32", "name: scale, shape: []", "overrides:", "overrides:\n  - {match: scale, dtype: f32}"}},
		"other worlds":  {"000", []string{"world: [1, 4]", "world: [4, 8]"}},
		"divisor said":  {"000", []string{"optimizer: {", "gradients: {divide_by: 4}\noptimizer: {"}},
		"shape":         {"111", []string{"shape: [7, 3]", "shape: [3, 7]"}},
		"dtype":         {"111", []string{"shape: [7], init", "shape: [7], dtype: f16, init"}},
		"name":          {"111", []string{"lm_head.bias", "lm_head.offset", `"*.bias"`, `"*bias"`}},
		"tie":           {"111", []string{"tied_to: wte.weight", "shape: [10, 3]"}},
		"swapped names": {"011", []string{"mlp.weight\", shape: [7, 3]", "mlp.bias\", shape: [7]", "mlp.bias\", shape: [7]", "mlp.weight\", shape: [7, 3]"}},
		"alignment":     {"011", []string{"align_bytes: 16", "align_bytes: 32"}},
		"trainable":     {"011", []string{"\"h.{i}.ln.weight\", shape: [5],", "\"h.{i}.ln.weight\", shape: [5], trainable: false,"}},
		"block's name":  {"011", []string{"name: embed", "name: embedding"}},
		"decay":         {"001", []string{`"*.bias", decay: false`, `"*.bias", decay: true`}},
		"init":          {"001", []string{"std: 0.02", "std: 0.03"}},
		"slots":         {"001", []string{"optimizer: {", "gather: {max_live: 3}\noptimizer: {"}},
		"prefetch":      {"001", []string{"optimizer: {", "gather: {prefetch: 0}\noptimizer: {"}},
		"buffers":       {"001", []string{"optimizer: {", "gradients: {slots: 3}\noptimizer: {"}},
		"reduction":     {"001", []string{"optimizer: {", "gradients: {reduce: bf16}\noptimizer: {"}},
		"divisor":       {"001", []string{"optimizer: {", "gradients: {divide_by: 3}\noptimizer: {"}},
		"optimizer":     {"001", []string{"kind: adamw", "kind: sgd"}},
		"uses":          {"011", []string{"lm_head.bias, shape: [10]}", "lm_head.bias, shape: [10]}\n    uses: [scale]"}},
	} {
		after := hashesOf(t, c.edits...)
		var changes strings.Builder
		for i := range before {
			if before[i] == after[i] {
				changes.WriteByte('0')
			} else {
				changes.WriteByte('1')
			}
		}
		if changes.String() != c.changes {
			t.Errorf("%s: model, layout and plan change as %s, want %s", name, changes.String(), c.changes)
		}
	}
}

// TestSwappedEqualParametersAreNoticed: two parameters alike in all but name,
// in the other order. Files by name still fit, shards and ranks do not.
func TestSwappedEqualParametersAreNoticed(t *testing.T) {
	plan := func(first, second string) *Plan {
		return mustBuild(t, newModel([]int64{2}, blockOf("a", paramOf(first, 1, 6), paramOf(second, 1, 6))))
	}
	x, y := plan("u", "v"), plan("v", "u")
	if x.Hashes != y.Hashes || x.Worlds[0].Layout == y.Worlds[0].Layout || x.Worlds[0].Plan == y.Worlds[0].Plan {
		t.Errorf("hashes %v %v and %v %v", x.Hashes, x.Worlds[0].Plan, y.Hashes, y.Worlds[0].Plan)
	}
}

func TestWorldSizesHaveDifferentLayouts(t *testing.T) {
	p := mustBuild(t, newModel([]int64{2, 3}, spec.Block{Name: said("a")}))
	if p.Worlds[0].Layout == p.Worlds[1].Layout || p.Worlds[0].Plan == p.Worlds[1].Plan {
		t.Error("an empty model has one layout at all world sizes")
	}
}
