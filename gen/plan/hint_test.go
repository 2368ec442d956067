package plan

import (
	"strings"
	"testing"

	"github.com/shardgen/shardgen/spec"
)

func TestHintsNameWhatWasMeant(t *testing.T) {
	const head = "apiVersion: shardgen/v1alpha1\nmodel: m\ntopology: {world: 1}\nblocks:\n  - name: embed\n    params: [{name: tok.weight, shape: [2]}]\n"
	layer := "  - name: \"h.{i}\"\n    repeat: {i: 2}\n    params: [{name: \"h.{i}.w\", shape: [2]}]\n"
	for _, c := range []struct{ name, rest, want string }{
		{"a misspelt owner", "  - name: tail\n    params: [{name: x, tied_to: tokk.weight}]\n", `did you mean "tok.weight"?`},
		{"the block's name before it", "  - name: tail\n    params: [{name: x, tied_to: embed.tok.weight}]\n", `A block's name is no part`},
		{"a misspelt use", "  - name: tail\n    uses: [tok.weigth]\n    params: [{name: x, shape: [1]}]\n", `did you mean "tok.weight"?`},
		{"its own parameter", "  - name: \"g.{i}\"\n    repeat: {i: 2}\n    uses: [\"g.{i}.w\"]\n    params: [{name: \"g.{i}.w\", shape: [2]}]\n", "which is its own"},
		{"a placeholder in a pattern", layer + "overrides:\n  - {match: \"h.{i}.w\", decay: false}\n", `write "h.*.w"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, faults := spec.Parse("m.yaml", []byte(head+c.rest))
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			if _, faults = Build(m); len(faults) != 1 || !strings.Contains(faults.Render(), c.want) {
				t.Errorf("no %q in %s", c.want, faults.Render())
			}
		})
	}
}
