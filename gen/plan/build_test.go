package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

const specHead = "apiVersion: shardgen/v1alpha1\nmodel: m\ntopology: {world: [2, 4]}\n"

// TestFaultsArePlacedAndNamed gives each fault of the planner a spec whose line
// and column are checked.
func TestFaultsArePlacedAndNamed(t *testing.T) {
	for _, c := range []struct {
		name, body string
		line, col  int
		code       spec.Code
		words      string // in message or hint
	}{
		{"dangling tie", "blocks:\n  - {name: a, params: [{name: x, tied_to: y}]}", 5, 43, spec.CodeTieMissing, `"y", which no block declares`},
		{"tie to itself", "blocks:\n  - {name: a, params: [{name: x, tied_to: x}]}", 5, 43, spec.CodeTieCycle, "x -> x"},
		{"cycle of three", "blocks:\n  - {name: a, params: [{name: x, tied_to: y}, {name: y, tied_to: z}]}\n  - {name: b, params: [{name: z, tied_to: x}]}", 5, 43, spec.CodeTieCycle, "x -> y -> z -> x"},
		{"owner in a repeat", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: \"h.{i}.w\", shape: [4]}]}\n  - {name: b, params: [{name: x, tied_to: h.1.w}]}", 6, 43, spec.CodeTieRepeated, "repeated block"},
		{"template of another repeat", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: \"h.{i}.w\", shape: [4]}]}\n  - {name: \"b.{i}\", repeat: {i: 3}, params: [{name: \"b.{i}.x\", tied_to: \"h.{i}.w\"}]}", 6, 73, spec.CodeTieRepeated, "repeated block"},
		{"another instance of its own block", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: \"h.{i}.w\", shape: [4]}, {name: \"h.{i}.x\", tied_to: h.0.w}]}", 5, 104, spec.CodeTieRepeated, "repeated block"},
		{"use of nothing", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}], uses: [y]}", 5, 55, spec.CodeUsesInvalid, "which no block declares"},
		{"use of its own", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}], uses: [x]}", 5, 55, spec.CodeUsesInvalid, "its own"},
		{"use of an alias", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}, {name: y, tied_to: x}]}\n  - {name: b, uses: [y]}", 6, 22, spec.CodeUsesInvalid, "owns the storage"},
		{"use of a repeat", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: \"h.{i}.w\", shape: [4]}]}\n  - {name: b, uses: [h.1.w]}", 6, 22, spec.CodeUsesInvalid, "repeated"},
		{"duplicate parameter", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}]}\n  - {name: b, params: [{name: x, shape: [4]}]}", 6, 31, spec.CodeDuplicateName, "in line 5"},
		{"duplicate instance", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: \"h.{i}.w\", shape: [4]}]}\n  - {name: b, params: [{name: h.2.w, shape: [4]}]}", 6, 31, spec.CodeDuplicateName, `"h.2.w"`},
		{"duplicate block", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}]}\n  - {name: a, params: [{name: y, shape: [4]}]}", 6, 12, spec.CodeDuplicateName, "in line 5"},
		{"one alias of all instances", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}]}\n  - {name: \"h.{i}\", repeat: {i: 3}, params: [{name: y, tied_to: x}]}", 6, 53, spec.CodeDuplicateName, "{i}"},
		{"bucket of a shared parameter", "blocks:\n  - {name: shared, params: [{name: f32, shape: [4]}, {name: x, shape: [4]}]}\n  - {name: b, uses: [f32]}", 5, 12, spec.CodeDuplicateName, `"shared/f32"`},
		{"unmatched rule", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}]}\noverrides:\n  - {match: \"y*\", decay: false}", 7, 13, spec.CodeOverrideUnmatched, "y*"},
		{"rule for an alias", "blocks:\n  - {name: a, params: [{name: x, shape: [4]}, {name: y, tied_to: x}]}\noverrides:\n  - {match: y, decay: false}", 7, 13, spec.CodeOverrideUnmatched, `tied to "x"`},
		{"rule for part of a repeat", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 12}, params: [{name: \"h.{i}.w\", shape: [4]}]}\noverrides:\n  - {match: \"h.1*\", decay: false}", 7, 13, spec.CodeOverridePartial, "3 of the 12"},
		{"rule for one of two", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 2}, params: [{name: \"h.{i}.w\", shape: [4]}]}\noverrides:\n  - {match: \"h.1.w\", decay: false}", 7, 13, spec.CodeOverridePartial, "1 of the 2"},
		{"training of integers", "blocks:\n  - {name: a, params: [{name: x, shape: [4], dtype: i32, trainable: true}]}", 5, 69, spec.CodeNotTrainable, "i32"},
		{"training of storage types", "blocks:\n  - {name: a, params: [{name: x, shape: [4], dtype: f8e4m3}]}\noverrides:\n  - {match: x, trainable: true}", 7, 27, spec.CodeNotTrainable, "f8e4m3"},
		{"init after a change of dtype", "blocks:\n  - {name: a, params: [{name: x, shape: [4], init: {normal: {std: 1}}}]}\noverrides:\n  - {match: x, dtype: i32}", 5, 52, spec.CodeInitDType, "i32"},
		{"colliding fields", "blocks:\n  - {name: a, params: [{name: a.x, shape: [4]}, {name: x.weight, shape: [4]}]}", 5, 56, spec.CodeGoNameCollision, `"a.x" and "x.weight" both become the Go name X`},
		{"colliding kinds", "blocks:\n  - {name: h, params: [{name: x, shape: [4]}]}\n  - {name: \"h.{i}\", repeat: {i: 2}, params: [{name: \"h.{i}.w\", shape: [4]}]}", 6, 12, spec.CodeGoNameCollision, "Go name H"},
		{"bytes beyond 63 bits", "blocks:\n  - {name: a, params: [{name: x, shape: [2305843009213693951]}, {name: y, shape: [2305843009213693951]}]}", 3, 11, spec.CodeOverflow, "world size 2"},
		{"elements beyond 63 bits", "blocks:\n  - {name: a, params: [{name: x, dtype: i8, shape: [9223372036854775807]}, {name: y, dtype: i8, shape: [4]}]}", 5, 12, spec.CodeOverflow, `bucket "a/i8"`},
		{"too many instances", "blocks:\n  - {name: \"h.{i}\", repeat: {i: 140000}, params: [{name: \"h.{i}.w\", shape: [4]}, {name: \"h.{i}.v\", shape: [4]}]}", 5, 5, spec.CodeTooManyNames, "262144"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, faults := Build(parse(t, "m.yaml", []byte(specHead+c.body)))
			if p != nil || len(faults) == 0 {
				t.Fatal("the spec is planned")
			}
			d := faults[0]
			if d.Code != c.code || d.Pos != (spec.Pos{Line: c.line, Col: c.col}) || d.File != "m.yaml" {
				t.Errorf("got %v, want %d:%d [%s]", d, c.line, c.col, c.code)
			}
			if !strings.Contains(d.Message+d.Hint, c.words) {
				t.Errorf("%q and fix %q do not say %q", d.Message, d.Hint, c.words)
			}
			if d.Hint == "" {
				t.Errorf("%q has no fix", d.Message)
			}
		})
	}
}

func TestAllFaultsOfNamesAreReportedAtOnce(t *testing.T) {
	_, faults := Build(parse(t, "m.yaml", []byte(specHead+`blocks:
  - {name: a, params: [{name: x, tied_to: y}, {name: z, tied_to: z}, {name: a.v, shape: [1]}]}
  - {name: a, params: [{name: v, shape: [1]}], uses: [z, u]}
  - {name: b, params: [{name: b.w, shape: [1], dtype: i8, trainable: true}, {name: w, shape: [1]}]}
overrides:
  - {match: "x", decay: false}
`)))
	want := []spec.Code{
		spec.CodeTieMissing, spec.CodeTieCycle, spec.CodeDuplicateName, spec.CodeUsesInvalid, spec.CodeUsesInvalid,
		spec.CodeNotTrainable, spec.CodeGoNameCollision, spec.CodeOverrideUnmatched,
	}
	var got []spec.Code
	for _, d := range faults {
		got = append(got, d.Code)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWorldsThatWereAskedFor(t *testing.T) {
	m := parse(t, "m.yaml", []byte(specHead+"blocks:\n  - {name: a, params: [{name: x, shape: [4]}]}"))
	if p := mustBuild(t, m, 8, 3, 8); !slices.Equal(p.Layout.Worlds, []int64{3, 8}) {
		t.Errorf("worlds %v", p.Layout.Worlds)
	}
	if p := mustBuild(t, m); !slices.Equal(p.Layout.Worlds, []int64{2, 4}) {
		t.Errorf("worlds %v", p.Layout.Worlds)
	}
	if _, faults := Build(m, 0); len(faults) != 1 || faults[0].Code != spec.CodeWorldSize {
		t.Errorf("a world of 0 ranks: %v", faults)
	}
	if _, faults := Build(m, 1<<62); len(faults) != 1 || faults[0].Code != spec.CodeOverflow {
		t.Errorf("a world of 2^62 ranks: %v", faults)
	}
}

func TestBudgetBindsTheListedWorlds(t *testing.T) {
	body := "budget: {device: 1MiB, reserve: 64KiB}\nblocks:\n  - {name: a, params: [{name: x, shape: [80000]}]}"
	m := parse(t, "m.yaml", []byte(specHead+body))
	_, faults := Build(m)
	if len(faults) != 2 || faults[0].Code != spec.CodeBudgetExceeded || faults[0].Pos != (spec.Pos{Line: 4, Col: 18}) {
		t.Fatalf("got %v, want both worlds refused at the budget", faults)
	}
	for _, words := range []string{"world 2 needs", "leaves 983,040 bytes", "gradient buffers 625.0 KiB"} {
		if !strings.Contains(faults[0].Message, words) {
			t.Errorf("%q does not say %q", faults[0].Message, words)
		}
	}
	mustBuild(t, m, 8)
	peak := mustBuild(t, m, 3).Worlds[0].Placement.PeakBytes()
	m.Topology.Worlds = []spec.At[int64]{at[int64](3)}
	m.Budget.Device.V = peak + m.Budget.Reserve.V
	mustBuild(t, m)
	m.Budget.Device.V--
	if _, faults := Build(m); len(faults) != 1 {
		t.Errorf("a budget of one byte less than the peak: %v", faults)
	}
}

func startsOf(b layout.Bucket) []int64 {
	var starts []int64
	for _, p := range b.Params {
		starts = append(starts, p.Start)
	}
	return starts
}

// TestPaddedStartsAndShardsUseOneStride: sizes and walks of 5, 3 and 10
// elements on 4 ranks follow the same padded spans.
func TestPaddedStartsAndShardsUseOneStride(t *testing.T) {
	m := newModel([]int64{4}, blockOf("a", paramOf("x", dtype.Float32, 5), paramOf("y", dtype.Float32, 3), paramOf("z", dtype.Float32, 10)))
	m.Shard.AlignBytes.V = 16
	b := mustBuild(t, m).Layout.Kinds[0].Buckets[0]
	if !slices.Equal(startsOf(b), []int64{0, 8, 12}) || b.End != 24 || b.ShardElements[0] != 8 {
		t.Errorf("starts %v, end %d, shard %d", startsOf(b), b.End, b.ShardElements[0])
	}
}

// TestShapesComeFromTheSpecOnEveryRank: an uneven split leaves the full shape
// alone, and ranks without an element are planned.
func TestShapesComeFromTheSpecOnEveryRank(t *testing.T) {
	for _, c := range []struct {
		shape []int64
		world int64
		owned []int64 // elements of each rank
	}{
		{[]int64{7, 3}, 4, []int64{8, 8, 5, 0}},
		{[]int64{2, 5}, 4, []int64{4, 4, 2, 0}},
		{[]int64{3}, 8, []int64{3, 0, 0, 0, 0, 0, 0, 0}},
		{[]int64{}, 4, []int64{1, 0, 0, 0}},
	} {
		m := newModel([]int64{c.world}, blockOf("a", paramOf("x", dtype.Float32, c.shape...)))
		m.Shard.AlignBytes.V = 16
		p := mustBuild(t, m)
		if got := p.Kinds[0].Fields[0].Shape; !slices.Equal(got, c.shape) {
			t.Errorf("shape %v became %v", c.shape, got)
		}
		for rank, want := range c.owned {
			var owned int64
			for _, s := range p.segments(0, int64(rank)) {
				owned += s.Len
			}
			if owned != want {
				t.Errorf("rank %d of %d owns %d elements of %v, want %d", rank, c.world, owned, c.shape, want)
			}
		}
	}
}

func TestEmptyParametersKeepTheirPlaceAndCostNothing(t *testing.T) {
	full := newModel([]int64{2}, blockOf("a", paramOf("w", dtype.Float32, 5), paramOf("x", dtype.Float32, 0, 8), paramOf("y", dtype.Float32, 8, 0), paramOf("z", dtype.Float32, 3)))
	less := newModel([]int64{2}, blockOf("a", paramOf("w", dtype.Float32, 5), paramOf("z", dtype.Float32, 3)))
	a, b := mustBuild(t, full).Layout.Kinds[0].Buckets[0], mustBuild(t, less).Layout.Kinds[0].Buckets[0]
	if a.Params[3].Start != b.Params[1].Start || a.End != b.End || !slices.Equal(a.Params[1].Shape, []int64{0, 8}) {
		t.Errorf("with empty parameters %+v, without %+v", a, b)
	}
	none := mustBuild(t, newModel([]int64{2}, blockOf("a", paramOf("x", dtype.Float32, 0, 8))))
	w := none.Worlds[0]
	if w.Placement.PeakBytes() != none.Layout.PartialsStart() || w.GatherBytesPerStep != 0 || len(none.segments(0, 0)) != 0 {
		t.Errorf("a model of nothing takes %d bytes and gathers %d", w.Placement.PeakBytes(), w.GatherBytesPerStep)
	}
}

func TestEachTypeHasItsOwnBucketInAnyOrder(t *testing.T) {
	x, y, z := paramOf("x", dtype.BFloat16, 6), paramOf("y", dtype.Float32, 5), paramOf("z", dtype.BFloat16, 3)
	for _, c := range []struct {
		params []spec.Param
		names  string
	}{
		{[]spec.Param{x, y, z}, "a/bf16 a/f32"},
		{[]spec.Param{y, x, z}, "a/f32 a/bf16"},
	} {
		var names []string
		for _, b := range mustBuild(t, newModel([]int64{2}, blockOf("a", c.params...))).Layout.Kinds[0].Buckets {
			names = append(names, b.Name)
			if b.Unit*b.DType.Bytes() != 256 {
				t.Errorf("bucket %s has units of %d elements", b.Name, b.Unit)
			}
		}
		if got := strings.Join(names, " "); got != c.names {
			t.Errorf("buckets %s, want %s", got, c.names)
		}
	}
}

func TestIntegersAreNeverTrained(t *testing.T) {
	p := mustBuild(t, newModel([]int64{2}, blockOf("a", paramOf("x", dtype.Int64, 5), paramOf("y", dtype.Bool, 9), paramOf("z", dtype.Uint8, 4), paramOf("f", dtype.Float8E4M3, 4))))
	for _, b := range p.Layout.Kinds[0].Buckets {
		if b.Trainable {
			t.Errorf("bucket %s is trainable", b.Name)
		}
	}
	if at := p.Worlds[0].Placement.Blocks[0]; len(at.Grads) != 0 || p.Worlds[0].ReduceBytesPerStep != 0 {
		t.Errorf("gradients %v, %d bytes reduced", at.Grads, p.Worlds[0].ReduceBytesPerStep)
	}
}

func TestChainsOfTiesEndAtTheOwner(t *testing.T) {
	p := mustBuild(t, newModel([]int64{2},
		blockOf("one", paramOf("a", dtype.Float32, 4, 3), tiedParam("b", "a")),
		blockOf("two", tiedParam("c", "b"), paramOf("d", dtype.Float32, 5))))
	owners := map[string]string{"a": "", "b": "a", "c": "a", "d": ""}
	for _, param := range p.Params {
		if param.AliasOf != owners[param.Name] {
			t.Errorf("%s is an alias of %q", param.Name, param.AliasOf)
		}
	}
	if totals := p.totals(0); len(p.Params) != 4 || totals.Numel != 17 || totals.Params != 2 {
		t.Errorf("%d names, totals %+v", len(p.Params), totals)
	}
}

func TestATieInsideABlockIsOnlyAnotherName(t *testing.T) {
	p := mustBuild(t, newModel([]int64{2}, repeated("h.{i}", 2, paramOf("h.{i}.a", dtype.Float32, 4), tiedParam("h.{i}.b", "h.{i}.a"))))
	if len(p.Layout.Shared) != 0 || p.Params[5].AliasOf != "h.2.a" || p.Kinds[0].Fields[1].At != p.Kinds[0].Fields[0].At {
		t.Errorf("shared %v, params %+v", p.Layout.Shared, p.Params)
	}
}

func TestSharedParametersAreBucketsInTheOrderOfTheirFirstUse(t *testing.T) {
	user := repeated("h.{i}", 2, paramOf("h.{i}.w", dtype.Float32, 128))
	user.Uses = []spec.At[string]{said("z"), said("x")}
	p := mustBuild(t, newModel([]int64{2}, user,
		blockOf("own", paramOf("x", dtype.Float32, 128), paramOf("y", dtype.Float32, 128), paramOf("z", dtype.Float32, 256))))
	if s := p.Layout.Shared; len(s) != 2 || s[0].Name != "shared/z" || s[1].Name != "shared/x" {
		t.Fatalf("shared %+v", s)
	}
	if !slices.Equal(p.Layout.Kinds[0].Uses, []int{0, 1}) || !slices.Equal(p.Layout.Kinds[1].Uses, []int{1, 0}) {
		t.Errorf("uses %v and %v", p.Layout.Kinds[0].Uses, p.Layout.Kinds[1].Uses)
	}
	if got := p.Shared[0]; p.Kinds[got.Kind].Fields[got.Field].Name != "z" {
		t.Errorf("the owner of z is %+v", got)
	}
	used := p.Kinds[0].Fields[1]
	if used.GoName != "Z" || used.Own || used.Owner != "z" || !used.At.Shared {
		t.Errorf("the user sees %+v", used)
	}
	// Each rank receives half: once a pass, and one reduction for each of the
	// four blocks that use x and z.
	gathered, reduced := int64(4*(3*128+128+128+256)/2), int64(4*(3*128+128+4*128+4*256)/2)
	if w := p.Worlds[0]; w.GatherBytesPerStep != 2*gathered || w.ReduceBytesPerStep != reduced {
		t.Errorf("%d bytes gathered, want %d; %d reduced, want %d", w.GatherBytesPerStep, 2*gathered, w.ReduceBytesPerStep, reduced)
	}
}

func TestTheLastMatchingRuleWinsForEachKey(t *testing.T) {
	p := mustBuild(t, parse(t, "m.yaml", []byte(specHead+`blocks:
  - {name: a, params: [{name: a.ln.w, shape: [4]}, {name: a.x, shape: [4], decay: false}]}
overrides:
  - {match: "*", trainable: false, decay: false}
  - {match: "a.*w", trainable: true, init: ones}
  - {match: "*.x", decay: true, dtype: bf16}
`)))
	ln, x := p.Kinds[0].Fields[0], p.Kinds[0].Fields[1]
	if b := p.Bucket(0, ln.At); !b.Trainable || b.Params[0].Decay || b.Params[0].Init == nil {
		t.Errorf("a.ln.w lies in %+v", b)
	}
	if b := p.Bucket(0, x.At); b.Trainable || !b.Params[0].Decay || b.DType != dtype.BFloat16 || b.Name != "a/bf16/frozen" {
		t.Errorf("a.x lies in %+v", b)
	}
	want := []Rule{{"init", "a.*w", spec.Pos{Line: 8, Col: 5}}, {"trainable", "a.*w", spec.Pos{Line: 8, Col: 5}}, {"decay", "*", spec.Pos{Line: 7, Col: 5}}}
	if !slices.Equal(ln.Rules, want) {
		t.Errorf("rules %v, want %v", ln.Rules, want)
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.bc", false}, {"*", "", true}, {"*", "a.b", true},
		{"a*", "a", true}, {"*a", "ba", true}, {"*a", "ab", false}, {"a*c*e", "abcde", true},
		{"a*c*e", "ace", true}, {"a*c*e", "aec", false}, {"*.ln_*", "h.0.ln_1.w", true},
		{"a*a", "a", false}, {"**", "x", true}, {"*aab", "aaab", true}, {"a*ab*b", "aabab", true}, {"", "", true}, {"", "a", false},
		{"h.?", "h.1", false}, {"h.[1]", "h.1", false},
	} {
		if got := layout.Match(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %v", c.pattern, c.name, got)
		}
	}
}

// TestOffsetsBeyondTheInt32Range: 2^31 elements on 2 and 3 ranks, and three
// tensors below that whose sum is above.
func TestOffsetsBeyondTheInt32Range(t *testing.T) {
	p := mustBuild(t, newModel([]int64{2, 3}, blockOf("a", paramOf("x", dtype.BFloat16, 65536, 32768))))
	b := p.Layout.Kinds[0].Buckets[0]
	if b.ShardElements[0] != 1073741824 || b.ShardElements[1] != 715827968 {
		t.Errorf("shards %v", b.ShardElements)
	}
	if s := p.segments(1, 2); len(s) != 1 || s[0].ParamOffset != 1431655936 || s[0].Len != 715827712 {
		t.Errorf("rank 2 of 3 owns %+v", s)
	}
	p = mustBuild(t, newModel([]int64{1}, blockOf("a", paramOf("x", dtype.BFloat16, 1<<30), paramOf("y", dtype.BFloat16, 1<<30), paramOf("z", dtype.BFloat16, 1<<30))))
	if b := p.Layout.Kinds[0].Buckets[0]; b.Params[2].Start != 1<<31 || p.Worlds[0].Placement.PeakBytes() < 3<<31 {
		t.Errorf("starts %v, peak %d", startsOf(b), p.Worlds[0].Placement.PeakBytes())
	}
}

func TestLayoutAndSpecExpandNamesAlike(t *testing.T) {
	kind := layout.Kind{Var: "i", First: 3}
	for _, template := range []string{"h.{i}.w", "h.{{i}}.{i}", "{i}{i}", "{{{i}}}", "a}}b{{", "plain"} {
		if a, b := kind.Instance(template, 2), spec.Expand(template, "i", 5); a != b {
			t.Errorf("%q expands to %q in the layout and to %q in the spec", template, a, b)
		}
	}
}

// TestVerifyFindsBrokenLayouts breaks one relation at a time.
func TestVerifyFindsBrokenLayouts(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(*layout.Bucket)
		words  string
	}{
		"start off the unit": {func(b *layout.Bucket) { b.Params[1].Start++ }, "no multiple of the unit"},
		"overlap":            {func(b *layout.Bucket) { b.Params[1].Start = 0 }, "starts inside"},
		"shard off the unit": {func(b *layout.Bucket) { b.ShardElements[0]++ }, "no multiple of the unit"},
		"unit off alignment": {func(b *layout.Bucket) { b.Unit, b.ShardElements[0] = 1, 65 }, "not aligned"},
		"too small a shard":  {func(b *layout.Bucket) { b.ShardElements[0] = 64 }, "do not hold"},
		"too much padding":   {func(b *layout.Bucket) { b.ShardElements[0] = 256 }, "padding"},
		"too small an end":   {func(b *layout.Bucket) { b.End, b.ShardElements[0] = 128, 64 }, "ends at 129"},
	} {
		p := mustBuild(t, newModel([]int64{2}, blockOf("a", paramOf("x", dtype.Float32, 64), paramOf("y", dtype.Float32, 65))))
		c.damage(&p.Layout.Kinds[0].Buckets[0])
		b := &builder{spec: p.Spec, plan: p}
		b.verify()
		if len(b.faults) != 1 || b.faults[0].Code != spec.CodeInternal || !strings.Contains(b.faults[0].Message, c.words) || !strings.Contains(b.faults[0].Message, `"a/f32"`) {
			t.Errorf("%s: %v", name, b.faults)
		}
	}
}

// TestVerifyFindsUntiledParameters hands the last check what the ones before it
// would refuse.
func TestVerifyFindsUntiledParameters(t *testing.T) {
	for name, starts := range map[string][2]int64{"out of order": {64, 0}, "overlapping": {0, 32}} {
		b := &layout.Bucket{Name: "a", DType: dtype.Float32, Unit: 64, End: 128, Params: []layout.Param{
			{Name: "x", Numel: 64, Start: starts[0]}, {Name: "y", Numel: 64, Start: starts[1]},
		}}
		if err := verifyTiling(b, 64); err == nil {
			t.Errorf("%s parameters are tiled", name)
		}
	}
}

func TestDoubledBracesAreBracesInAllNames(t *testing.T) {
	p := mustBuild(t, newModel([]int64{2},
		blockOf("a{{0}}", paramOf("w{{0}}", dtype.Float32, 4), paramOf("v{{0}}", dtype.Float32, 4)),
		repeated("h.{i}", 0, paramOf("h.{i}.x", dtype.Float32, 4), tiedParam("h.{i}.{{y}}", "w{{0}}"))))
	text := string(mustJSON(t, p, 2, new(int64)))
	for _, name := range []string{"a{0}", "w{0}", "v{0}", "h.0.{y}", "shared/w{0}", "a{0}/f32"} {
		if !strings.Contains(text, `"`+name+`"`) {
			t.Errorf("no %s in the plan", name)
		}
	}
	if strings.Contains(text, "{{") {
		t.Error("a template is left in the plan")
	}
}
