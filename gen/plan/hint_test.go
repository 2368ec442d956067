package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/dtype"
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
		{"an alias itself", "  - name: tail\n    params: [{name: decoder.bias, tied_to: decoder.bais}]\n", "or declare it\n"},
		{"what only looks like a block's name", "  - name: tail\n    params: [{name: x, tied_to: other.tok.weight}]\n", "or declare it\n"},
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

// TestDuplicatesAreTheOnlyFaultOfTheirParameters: what rules, types and Go names
// make of either of the two says nothing new.
func TestDuplicatesAreTheOnlyFaultOfTheirParameters(t *testing.T) {
	const layers = "blocks:\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: \"h.{i}.w\", shape: [4]}"
	for name, body := range map[string]string{
		"rule for the odd one out": layers + "]}\n  - {name: last, params: [{name: h.2.w, shape: [4]}]}\noverrides:\n  - {match: h.2.w, decay: false}",
		"instance by its number":   layers + ", {name: h.0.w, tied_to: \"h.{i}.w\"}]}",
		"rule that fits one type":  "blocks:\n  - {name: a, params: [{name: x, shape: [4]}, {name: x, shape: [4], dtype: i32}]}\noverrides:\n  - {match: x, trainable: true}",
	} {
		_, faults := Build(parse(t, "m.yaml", []byte(specHead+body)))
		if len(faults) != 1 || faults[0].Code != spec.CodeDuplicateName {
			t.Errorf("%s: want the duplicate alone, got\n%s", name, faults.Render())
		}
	}
}

// TestManyMisspeltNamesAreRefusedQuickly: comparing each with all takes minutes.
func TestManyMisspeltNamesAreRefusedQuickly(t *testing.T) {
	const count = 20000
	var params []spec.Param
	for i := range count {
		params = append(params, paramOf(fmt.Sprintf("layers.feed_forward.%d.weight", i), dtype.Float32, 1),
			tiedParam(fmt.Sprintf("tied.%d", i), fmt.Sprintf("layers.fed_forwrad.%d.weight", i)))
	}
	begin := time.Now()
	_, faults := Build(newModel([]int64{1}, blockOf("a", params...)))
	if took := time.Since(begin); len(faults) != count || took > 20*time.Second {
		t.Errorf("%d faults in %v, want %d within 20 s", len(faults), took, count)
	}
}

func TestThePlansColumnsAddUp(t *testing.T) {
	p := mustBuild(t, parseFile(t, "testdata/example.yaml"))
	var names, elements int64
	for i := range p.Kinds {
		each, own := declared(p.Kinds[i].Fields)
		names += int64(each) * p.Layout.Kinds[i].Count
		elements += own * p.Layout.Kinds[i].Count
	}
	if total := p.totals(0).Numel; names != int64(len(p.Params)) || elements != total {
		t.Errorf("%d names and %d elements, want %d and %d", names, elements, len(p.Params), total)
	}
}

func TestTheTableNamesOtherWorldSizes(t *testing.T) {
	for _, c := range []struct {
		listed []int64
		shown  int64
		want   string
	}{
		{[]int64{1, 2, 4}, 1, "test: 1 rank (of worlds 1, 2, 4; --world N shows another), layout"},
		{[]int64{1, 2, 4}, 3, "test: 3 ranks (the spec lists 1, 2, 4), layout"},
		{[]int64{2}, 2, "test: 2 ranks, layout"},
		{[]int64{2}, 1, "test: 1 rank (the spec lists 2), layout"},
	} {
		var out strings.Builder
		if err := mustBuild(t, newModel(c.listed, blockOf("a", paramOf("w", dtype.Float32, 1))), c.shown).Table(&out, c.shown); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), c.want) || !strings.Contains(out.String(), "\n1 parameter (1 name), 1 element,") {
			t.Errorf("want %q, got\n%s", c.want, out.String())
		}
	}
}
