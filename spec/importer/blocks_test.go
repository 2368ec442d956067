package importer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shardgen/shardgen/spec/importer"
)

// entry is a row of a table under test.
type entry struct {
	name   string
	shape  []int64
	dtype  string
	frozen bool
	tiedTo string
}

// entries makes f32 vectors of two elements of the names.
func entries(names ...string) []entry {
	list := make([]entry, len(names))
	for i, name := range names {
		list[i] = entry{name: name, shape: []int64{2}, dtype: "f32"}
	}
	return list
}

// layers makes names of prefix 0 to n-1 with each of the suffixes.
func layers(prefix string, first, last int, suffixes ...string) []string {
	var names []string
	for i := first; i <= last; i++ {
		for _, s := range suffixes {
			names = append(names, fmt.Sprintf("%s%d.%s", prefix, i, s))
		}
	}
	return names
}

func tableJSON(t testingT, list []entry) []byte {
	t.Helper()
	params, tied := [][]any{}, [][]string{}
	for _, e := range list {
		params = append(params, []any{e.name, e.shape, e.dtype, !e.frozen})
		if e.tiedTo != "" {
			tied = append(tied, []string{e.name, e.tiedTo})
		}
	}
	text, err := json.Marshal(map[string]any{"model": "m", "params": params, "tied": tied})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return text
}

func importEntries(t testingT, list []entry) importer.Result {
	t.Helper()
	file := importer.NewFile("m.json", tableJSON(t, list))
	r, err := importer.Import([]importer.File{file}, importer.Options{World: []int64{1}})
	if err != nil {
		t.Fatalf("%v", err)
	}
	compareFlat(t, expandYAML(t, r.YAML), flatten(list))
	return r
}

// flatten is what the spec of the entries must expand to.
func flatten(list []entry) []flatParam {
	var flat []flatParam
	for _, e := range list {
		if e.tiedTo != "" {
			flat = append(flat, flatParam{Name: e.name, TiedTo: e.tiedTo})
			continue
		}
		flat = append(flat, flatParam{Name: e.name, Shape: append([]int64{}, e.shape...), DType: e.dtype, Frozen: e.frozen})
	}
	return flat
}

func TestBlocksAreFoundInNames(t *testing.T) {
	tests := []struct {
		name  string
		names []string
		want  []string
	}{
		{"no numbers", []string{"net.a", "net.b"}, []string{"net"}},
		{"no dots", []string{"a", "b"}, []string{"weights"}},
		{"layers only", layers("h.", 0, 2, "w"), []string{"h.{i} 0..2"}},
		{"layers at the top", layers("", 0, 2, "w", "b"), []string{"layers.{i} 0..2"}},
		{"one layer", append([]string{"wte"}, layers("h.", 0, 0, "a", "b", "c", "d")...), []string{"embed", "h.0"}},
		{"layers from 5 on", layers("h.", 5, 7, "w"), []string{"h.{i} 5..7"}},
		{"leading zeros are no index", []string{"h.00.w", "h.01.w"}, []string{"h"}},
		{"a list of vectors is no layer", []string{"s.0", "s.1", "s.2"}, []string{"s"}},
		{"parts of a Sequential are no layers", []string{"c.0.w", "c.0.b", "c.2.w"}, []string{"c"}},
		{"two ranges", append(layers("h.", 0, 1, "a"), layers("h.", 2, 5, "a", "b")...), []string{"h_0_1.{i} 0..1", "h.{i} 2..5"}},
		{"gap", append(layers("h.", 0, 1, "a"), layers("h.", 3, 5, "a")...), []string{"h_0_1.{i} 0..1", "h.{i} 3..5"}},
		{"lone first layer", append(layers("h.", 0, 0, "a", "x"), layers("h.", 1, 3, "a")...), []string{"h.0", "h.{i} 1..3"}},
		{"torn layers stay one block", []string{"h.0.a", "h.1.a", "h.0.b", "h.1.b"}, []string{"h"}},
		{"numbers inside stay", append(layers("h.0.e.", 0, 1, "a"), layers("h.1.e.", 0, 1, "a")...), []string{"h.{i} 0..1"}},
		{"stages are taken apart",
			slices.Concat(layers("s.0.b.", 0, 1, "w"), []string{"s.0.down"}, layers("s.1.b.", 0, 3, "w", "x")),
			[]string{"s.0.b.{i} 0..1", "s.0.head", "s.1.b.{i} 0..3"}},
		{"encoder and decoder share a prefix",
			slices.Concat(layers("m.enc.l.", 0, 1, "w"), []string{"m.enc.norm.w", "m.dec.emb.w"}, layers("m.dec.l.", 0, 1, "w"), []string{"head.w"}),
			[]string{"m.enc.l.{i} 0..1", "m.enc.norm", "m.dec.emb", "m.dec.l.{i} 0..1", "head"}},
		{"nothing in common",
			slices.Concat(layers("a.", 0, 1, "w"), []string{"x.w", "y.w"}, layers("b.", 0, 1, "w")),
			[]string{"a.{i} 0..1", "middle", "b.{i} 0..1"}},
		{"akin to neither stays with what it follows",
			slices.Concat(layers("a.l.", 0, 1, "w"), []string{"x.w", "a.norm.w", "b.emb.w", "y.w"}, layers("b.l.", 0, 1, "w")),
			[]string{"a.l.{i} 0..1", "middle", "middle_2", "b.l.{i} 0..1"}},
		{"a role's name is taken", slices.Concat([]string{"x", "y"}, layers("embed.", 0, 0, "a", "b", "c", "d"), layers("h.", 0, 1, "w"), []string{"embed_2.w"}),
			[]string{"embed", "embed.0", "h.{i} 0..1", "embed_2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := importEntries(t, entries(tt.names...))
			if got := blockNames(t, r.YAML); !slices.Equal(got, tt.want) {
				t.Errorf("blocks are %q, want %q", got, tt.want)
			}
		})
	}
}

func TestLayersOfAnotherShapeDTypeOrTieAreNotFolded(t *testing.T) {
	tests := map[string]func(*entry){
		"shape": func(e *entry) { e.shape = []int64{3} },
		"dtype": func(e *entry) { e.dtype = "bf16" },
		"tie":   func(e *entry) { e.tiedTo = "h.1.w" },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			list := entries(layers("h.", 0, 3, "w")...)
			change(&list[0])
			if got, want := blockNames(t, importEntries(t, list).YAML), []string{"h.0", "h.{i} 1..3"}; !slices.Equal(got, want) {
				t.Errorf("blocks are %q, want %q", got, want)
			}
		})
	}
}

func TestTiesInsideALayerFollowIt(t *testing.T) {
	list := entries(layers("h.", 0, 2, "a", "b")...)
	for i := range list {
		if strings.HasSuffix(list[i].name, "b") {
			list[i].tiedTo = strings.TrimSuffix(list[i].name, "b") + "a"
		}
	}
	if got, want := blockNames(t, importEntries(t, list).YAML), []string{"h.{i} 0..2"}; !slices.Equal(got, want) {
		t.Errorf("blocks are %q, want %q", got, want)
	}
}

func TestTiesMayFormAChain(t *testing.T) {
	list := entries("a", "b", "c", "d", "e")
	for i := 1; i < len(list); i++ {
		list[i].tiedTo = list[i-1].name
	}
	importEntries(t, list)
}

func TestFrozenIsSaidTheShortestWay(t *testing.T) {
	base := func() []entry {
		return entries(append([]string{"wte"}, layers("h.", 0, 3, "a", "b", "c", "d", "lora_A", "lora_B")...)...)
	}
	tests := []struct {
		name      string
		frozen    func(name string) bool
		overrides []string
		keys      int // trainable: false at parameters
	}{
		{"one", func(n string) bool { return n == "wte" }, nil, 1},
		{"one of each layer", func(n string) bool { return strings.HasSuffix(n, ".b") }, nil, 1},
		{"all", func(string) bool { return true }, []string{"*=false"}, 0},
		{"all but adapters", func(n string) bool { return !strings.Contains(n, "lora") }, []string{"*=false", "*lora_*=true"}, 0},
		{"all layers", func(n string) bool { return n != "wte" }, []string{"h.*=false"}, 0},
		{"two layers", func(n string) bool { return n[:3] == "h.0" || n[:3] == "h.1" }, []string{"h.0.*=false", "h.1.*=false"}, 0},
		{"some of one layer", func(n string) bool { return n == "h.2.c" || n == "h.2.d" }, []string{"h.2.c=false", "h.2.d=false"}, 0},
		{"one parameter of one layer", func(n string) bool { return n == "h.2.c" }, []string{"h.2.c=false"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list := base()
			for i := range list {
				list[i].frozen = tt.frozen(list[i].name)
			}
			yaml := importEntries(t, list).YAML
			var overrides []string
			for _, o := range decodeSpec(t, yaml).Overrides {
				overrides = append(overrides, fmt.Sprintf("%s=%t", o.Match, o.Trainable))
			}
			keys := strings.Count(string(yaml), "], trainable: false}")
			if !slices.Equal(overrides, tt.overrides) || keys != tt.keys {
				t.Errorf("overrides %q and %d keys, want %q and %d:\n%s", overrides, keys, tt.overrides, tt.keys, yaml)
			}
		})
	}
}

func TestFrozenIsNotSaidOfWhatHasNoGradient(t *testing.T) {
	list := entries("w", "table")
	list[1].dtype, list[1].frozen = "i64", true
	file := importer.NewFile("m.json", tableJSON(t, list))
	r := importFiles(t, importer.Options{}, file)
	if strings.Contains(string(r.YAML), "trainable") {
		t.Errorf("an integer parameter has no gradient anyway:\n%s", r.YAML)
	}
}

func TestNamesAreQuotedWhereYAMLWouldMisreadThem(t *testing.T) {
	names := []string{"no", "on", "y", "null", "~", "1.10", "0x1", "2024-01-01", "6to4.bias", "a b", "a/b", `a"b`, "a\nb",
		"a,b", "a: b", "#a", "- a", "λ.weight", "{i}", "{{", "a}", "[x]", "*", "&a", "!t", "%", "@", "`", "'", `\`, "x.", ".x", "1e3", "True", "\u0085", "\U0001F600"}
	r := importEntries(t, entries(names...))
	if !strings.Contains(string(r.YAML), `{name: "{{i}}",`) {
		t.Errorf("braces are not doubled:\n%s", r.YAML)
	}
}

func TestPackageNameIsGo(t *testing.T) {
	for model, want := range map[string]string{
		"gpt2-xl": "gpt2xl", "llama-3.2-1b": "llama321b", "7B": "model7b", "func": "modelfunc", "λ": "model", "Qwen/Qwen2.5": "qwenqwen25",
	} {
		file := importer.NewFile("m.json", tableJSON(t, entries("w")))
		r := importFiles(t, importer.Options{Model: model}, file)
		if s := decodeSpec(t, r.YAML); s.Package != want || s.Model != model || r.Model != model {
			t.Errorf("model %q: package %q of model %q, want %q", model, s.Package, s.Model, want)
		}
	}
}

// names are drawn from few parts, so that layers, gaps, nested numbers and
// common prefixes turn up often.
func drawEntries(t *rapid.T) []entry {
	part := rapid.SampledFrom([]string{"h", "w", "b", "0", "1", "2", "3", "10", "01", "e", "{i}", "x y"})
	name := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 1, 4).Draw(t, "parts"), ".")
	})
	names := rapid.SliceOfNDistinct(name, 1, 40, rapid.ID[string]).Draw(t, "names")
	if rapid.Bool().Draw(t, "sorted") {
		slices.Sort(names)
	}
	list := entries(names...)
	for i := range list {
		list[i].dtype = rapid.SampledFrom([]string{"f32", "f32", "f32", "bf16"}).Draw(t, "dtype")
		// Braces in a name that only some layers freeze are refused.
		list[i].frozen = !strings.Contains(list[i].name, "{") && rapid.IntRange(0, 3).Draw(t, "frozen") == 0
		if i > 0 && rapid.IntRange(0, 5).Draw(t, "tied") == 0 {
			owner := list[rapid.IntRange(0, i-1).Draw(t, "owner")]
			list[i].tiedTo, list[i].dtype = owner.name, owner.dtype
		}
	}
	return list
}

func TestAnyTableReadsBackInOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := importEntries(t, drawEntries(t))
		seen := map[string]bool{}
		for _, b := range decodeSpec(t, r.YAML).Blocks {
			if seen[b.Name] {
				t.Fatalf("two blocks are called %q:\n%s", b.Name, r.YAML)
			}
			seen[b.Name] = true
		}
	})
}
