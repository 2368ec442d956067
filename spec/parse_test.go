package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/dtype"
)

func parseFile(t *testing.T, name string) *Model {
	t.Helper()
	src, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	m, ds := Parse(name, src)
	if err := ds.Err(); err != nil {
		t.Fatalf("%v\n%s", err, ds.Render())
	}
	return m
}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestTheWorkedExampleParses(t *testing.T) {
	m := parseFile(t, "gpt2.yaml")
	equal(t, "model", m.Name, At[string]{"gpt2-small", Pos{2, 8}, true})
	equal(t, "package", m.Package.V, "gpt2small")
	equal(t, "dtype", m.DType.V, dtype.BFloat16)
	equal(t, "worlds", values(m.Topology.Worlds), []int64{1, 8})
	equal(t, "ranks per node", m.Topology.RanksPerNode.V, int64(4))
	equal(t, "device", m.Budget.Device.V, int64(80<<30))
	equal(t, "reserve", m.Budget.Reserve.V, int64(4<<30))
	equal(t, "optimizer", m.Optimizer.Kind.V, OptimizerAdamW)
	equal(t, "moments", m.Optimizer.Moments, At[dtype.DType]{dtype.Float32, Pos{9, 48}, true})
	equal(t, "blocks", len(m.Blocks), 3)
	h := m.Blocks[1]
	equal(t, "repeat", *h.Repeat, Repeat{Pos{17, 13}, "i", 0, 11})
	equal(t, "instances", h.Repeat.Len(), int64(12))
	equal(t, "init", *h.Params[0].Init, Init{Pos: Pos{19, 69}, Kind: InitOnes})
	equal(t, "inherited dtype", h.Params[1].DType, At[dtype.DType]{dtype.BFloat16, Pos{20, 9}, false})
	equal(t, "shape", values(h.Params[1].Shape), []int64{768, 3072})
	equal(t, "std", h.Params[1].Init.Std, 0.02)
	equal(t, "tie", m.Blocks[2].Params[1].TiedTo, At[string]{"wte.weight", Pos{24, 41}, true})
	equal(t, "override", *m.Overrides[0].Decay, At[bool]{false, Pos{26, 30}, true})
	if m.Overrides[0].Trainable != nil || m.Overrides[0].DType != nil || m.Overrides[0].Init != nil {
		t.Error("an override changes what it does not say")
	}
}

func values[T any](all []At[T]) []T {
	read := make([]T, len(all))
	for i, a := range all {
		read[i] = a.V
	}
	return read
}

func TestEveryBuiltKeyIsRead(t *testing.T) {
	m := parseFile(t, "full.yaml")
	equal(t, "package", m.Package, At[string]{"everykey2", Pos{2, 1}, false})
	equal(t, "gather", []any{m.Gather.MaxLive.V, m.Gather.Prefetch.V, m.Gather.Mode.V}, []any{int64(4), int64(3), "all_gather"})
	equal(t, "gradients", []any{m.Gradients.Reduce.V, m.Gradients.Slots.V, m.Gradients.DivideBy.V}, []any{dtype.BFloat16, int64(1), int64(64)})
	equal(t, "optimizer", []any{m.Optimizer.Kind.V, m.Optimizer.Momentum.V, m.Optimizer.Master.V}, []any{OptimizerSGD, true, dtype.Float32})
	equal(t, "budget", []int64{m.Budget.Device.V, m.Budget.Host.V, m.Budget.Reserve.V}, []int64{1 << 30, 512 << 20, 64 << 10})
	embed, layers, head := m.Blocks[0], m.Blocks[1], m.Blocks[2]
	equal(t, "truncated normal", *embed.Params[0].Init, Init{Pos: embed.Params[0].Init.Pos, Kind: InitTruncatedNormal, Mean: 0.5, Std: 1e-3, Cut: 3})
	equal(t, "integer is not trained", embed.Params[2].Trainable.V, false)
	equal(t, "float is trained", embed.Params[1].Trainable.V, true)
	equal(t, "range", []int64{layers.Repeat.First, layers.Repeat.Last}, []int64{3, 60})
	equal(t, "merged dtype", layers.Params[0].DType.V, dtype.Float32)
	equal(t, "own dtype wins", layers.Params[1].DType.V, dtype.BFloat16)
	equal(t, "merged decay", layers.Params[1].Decay.V, false)
	equal(t, "uses", values(head.Uses), []string{"scale", "layers.3.w"})
	equal(t, "override dtype", m.Overrides[0].DType.V, dtype.Float64)
	equal(t, "override init", m.Overrides[0].Init.Kind, InitZeros)
}

func TestDefaultsAreFilledIn(t *testing.T) {
	m := accept(t, "model: GPT-2 Small")
	root := Pos{1, 1}
	equal(t, "package", m.Package, At[string]{"gpt2small", root, false})
	equal(t, "dtype", m.DType, At[dtype.DType]{dtype.Float32, root, false})
	equal(t, "ranks per node", m.Topology.RanksPerNode.V, int64(0))
	equal(t, "shard", m.Shard, Shard{root, At[string]{"flat", root, false}, At[int64]{256, root, false}})
	equal(t, "gather", m.Gather, Gather{root, At[int64]{2, root, false}, At[int64]{1, root, false}, At[string]{"all_gather", root, false}})
	equal(t, "gradients", m.Gradients, Gradients{root, At[dtype.DType]{dtype.Float32, root, false}, At[int64]{2, root, false}, At[int64]{0, root, false}})
	equal(t, "optimizer", m.Optimizer, Optimizer{Pos: root, Kind: At[OptimizerKind]{OptimizerNone, root, false}})
	equal(t, "budget", []int64{m.Budget.Device.V, m.Budget.Host.V, m.Budget.Reserve.V}, []int64{0, 0, 0})
	equal(t, "adamw", accept(t, "optimizer: {kind: adamw}").Optimizer.Moments.V, dtype.Float32)
	sgd := accept(t, "optimizer: {kind: sgd}").Optimizer
	equal(t, "sgd", []any{sgd.Master.V, sgd.Momentum.V}, []any{dtype.Float32, false})
	equal(t, "none", accept(t, "optimizer: none").Optimizer.Kind.Set, true)
}

func TestAScalarDiffersFromAMissingShape(t *testing.T) {
	p := accept(t, param("shape: []")).Blocks[0].Params[0]
	if p.Shape == nil || len(p.Shape) != 0 {
		t.Errorf("shape [] became %v", p.Shape)
	}
	equal(t, "empty tensor", values(accept(t, param("shape: [0, 8]")).Blocks[0].Params[0].Shape), []int64{0, 8})
}

func TestTheLargestNumbersAreExact(t *testing.T) {
	equal(t, "divide_by", accept(t, "gradients: {divide_by: 9007199254740993}").Gradients.DivideBy.V, int64(9007199254740993))
	equal(t, "bytes", accept(t, "budget: {device: 9223372036854775807}").Budget.Device.V, int64(1<<63-1))
	equal(t, "TiB", accept(t, "budget: {device: 8388607TiB}").Budget.Device.V, int64(8388607<<40))
	equal(t, "dimension", values(accept(t, param("shape: [9223372036854775807], dtype: u8")).Blocks[0].Params[0].Shape), []int64{1<<63 - 1})
	equal(t, "exponent of a float", accept(t, param("shape: [4], init: {constant: 1e-5}")).Blocks[0].Params[0].Init.Value, 1e-5)
}

func TestNamesAreKeptAsWritten(t *testing.T) {
	names := []string{"no", "on", "y", "null", "~", "1.10", "0x1", "2024-01-01", "true", "0777", "1e3",
		"model.layers.0.self-attn.q_proj.weight", "0.weight", "6to4.bias", "a b", "a/b"}
	for _, name := range names {
		m := accept(t, block("{name: "+name+", shape: [4]}"))
		equal(t, "name", m.Blocks[0].Params[0].Name.V, name)
	}
	quoted := map[string]string{`"a\"b"`: `a"b`, `"a\nb"`: "a\nb", `"λ.weight"`: "λ.weight", `'~'`: "~"}
	for written, name := range quoted {
		m := accept(t, block("{name: "+written+", shape: [4]}"))
		equal(t, "name", m.Blocks[0].Params[0].Name.V, name)
	}
}

func TestExplicitKeysWinOverMergedOnesWhereverTheyStand(t *testing.T) {
	accept(t, "x-case:\n  base: &d {dtype: bf16, persist: true}\n  p1: {<<: *d, dtype: fp32}\n  p2: {dtype: fp32, <<: *d}")
	m := accept(t, "x-d: &d {dtype: bf16, decay: false}\n"+block(
		"{<<: *d, name: p1, shape: [1], dtype: f32}, {dtype: f32, <<: *d, name: p2, shape: [1]}, {name: p3, <<: *d, shape: [1]}"))
	for i, want := range []dtype.DType{dtype.Float32, dtype.Float32, dtype.BFloat16} {
		p := m.Blocks[0].Params[i]
		equal(t, p.Name.V, []any{p.DType.V, p.Decay.V}, []any{want, false})
	}
	chain := accept(t, "x-a: &a {decay: false, dtype: f16}\nx-b: &b {<<: *a, dtype: f64}\n"+block("{<<: *b, name: w, shape: [1]}")).Blocks[0].Params[0]
	equal(t, "chain of merges", []any{chain.DType.V, chain.Decay.V}, []any{dtype.Float64, false})
}

func TestAllFaultsAreReportedAtOnceInOrder(t *testing.T) {
	src := complete("dtype: off\ngather: {max_live: 1e3, prefetch: x}\n" + block("{name: w}, {name: v, shape: [-1], decay: yes}"))
	_, ds := Parse("m.yaml", []byte(src))
	var got []string
	for _, d := range ds {
		got = append(got, fmt.Sprintf("%d:%d %s", d.Pos.Line, d.Pos.Col, d.Code))
	}
	equal(t, "faults", got, []string{"1:8 unknown-dtype", "2:20 number-form", "2:35 wrong-kind",
		"4:22 missing-key", "4:51 out-of-range", "4:63 bool-form"})
}

func TestAFaultHasNoFaultsAsAConsequence(t *testing.T) {
	refuse(t, []refusal{
		{"gather: {max_live: ¦1e3, prefetch: 5}", CodeNumberForm, ""},
		{"dtype: ¦bf\n" + param("shape: [4], init: {constant: 1e300}"), CodeUnknownDType, ""},
		{"dtype: i8\n" + param("shape: [4], dtype: ¦float, init: {normal: {std: 1}}"), CodeUnknownDType, "`f32`"},
		{"blocks:\n- {name: \"h.{i}\", repeat: {i: ¦x}, params: [{name: \"h.{i}\", shape: [4]}]}", CodeWrongKind, ""},
		{param("¦shpae: [4]"), CodeUnknownKey, "`shape`"},
		{"optimizer: {kind: ¦lion, beta: 1}", CodeUnknownValue, ""},
	})
}

func TestAFaultInAnAnchorIsReportedOnce(t *testing.T) {
	_, ds := Parse("m.yaml", []byte(complete("x-a: &a [-1]\n"+block("{name: v, shape: *a}, {name: w, shape: *a}"))))
	if len(ds) != 1 || ds[0].Pos != (Pos{1, 10}) {
		t.Errorf("got:\n%s", ds.Render())
	}
}

// aliasBomb refers to ten (or width) of the level below on each level.
func aliasBomb(levels, width int) string {
	var b strings.Builder
	b.WriteString("x-0: &a0 [x]\n")
	for i := 1; i <= levels; i++ {
		fmt.Fprintf(&b, "x-%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), width), ", "))
	}
	return complete(b.String())
}

func TestHostileFilesFailFast(t *testing.T) {
	long := strings.Repeat("a", 1<<20)
	cases := map[string]struct {
		src  string
		code Code
	}{
		"seven levels of ten":   {aliasBomb(7, 10), CodeAliasBomb},
		"nine levels of nine":   {aliasBomb(9, 9), CodeAliasBomb},
		"a deep chain":          {aliasBomb(100, 1), CodeTooDeep},
		"self-reference":        {complete("x-a: &a [*a]"), CodeAliasCycle},
		"100,000 brackets":      {strings.Repeat("[", 100_000), CodeTooDeep},
		"100,000 closed":        {strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000), CodeTooDeep},
		"100,000 braces":        {strings.Repeat("{a: ", 100_000), CodeTooDeep},
		"100,000 dashes":        {strings.Repeat("- ", 100_000), CodeYAMLSyntax},
		"aliases of a long key": {complete("x-a: &a " + long + "\nblocks: [" + strings.Repeat("*a, ", 20_000) + "]"), CodeAliasBomb},
		"a long stray name":     {complete(block("{name: \"" + strings.Repeat("}a", 1<<18) + "\", shape: [1]}")), CodeOutOfRange},
		"10,000 stray keys":     {manyFaults(10_000), CodeUnknownKey},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, ds := Parse("m.yaml", []byte(c.src))
			ds.Render()
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if len(ds) == 0 || ds[0].Code != c.code {
				t.Errorf("want [%s], got %.500s", c.code, ds.Render())
			}
			if allocated := after.TotalAlloc - before.TotalAlloc; took > time.Second || allocated > 64<<20 {
				t.Errorf("took %v and allocated %d bytes", took, allocated)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	for _, d := range documents {
		if len(d.src) < 1<<12 {
			f.Add([]byte(d.src))
		}
	}
	f.Add([]byte(aliasBomb(7, 10)))
	f.Fuzz(func(t *testing.T, src []byte) {
		start := time.Now()
		m, ds := Parse("fuzz.yaml", src)
		if (m == nil) != (len(ds) > 0) {
			t.Fatalf("model %v with %d diagnostics", m, len(ds))
		}
		ds.Render()
		for _, d := range ds {
			if _, known := Explain(string(d.Code)); !known || d.Pos.Line < 1 || d.Pos.Col < 1 {
				t.Errorf("bad diagnostic %+v", d)
			}
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
