package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// refusal is a faulty spec. The mark ¦ stands before the place of the fault and
// is no part of the text. Required top-level keys that are not there are added
// behind it.
type refusal struct {
	src  string
	code Code
	say  string // part of the message or the fix
}

func (r refusal) text() (src string, want Pos) {
	before, after, marked := strings.Cut(r.src, "¦")
	if !marked {
		panic("no mark in " + r.src)
	}
	line := strings.Count(before, "\n") + 1
	start := strings.LastIndexByte(before, '\n') + 1
	return complete(before + after), Pos{line, len([]rune(before[start:])) + 1}
}

// complete adds the required top-level keys that a spec lacks.
func complete(src string) string {
	var b strings.Builder
	b.WriteString(src)
	if src != "" && !strings.HasSuffix(src, "\n") {
		b.WriteByte('\n')
	}
	for _, line := range []string{
		"apiVersion: shardgen/v1alpha1", "model: tiny", "topology: {world: 2}",
		"blocks: [{name: filler, params: [{name: filler, shape: [4]}]}]",
	} {
		if key := line[:strings.IndexByte(line, ':')+1]; !strings.Contains("\n"+src, "\n"+key) {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

func block(inside string) string { return "blocks:\n- {name: a, params: [" + inside + "]}" }

// param is a spec with one parameter that has the given keys besides its name.
func param(keys string) string { return block("{name: w, " + keys + "}") }

// refuse checks that each spec has exactly the one fault, at its place.
func refuse(t *testing.T, cases []refusal) {
	t.Helper()
	for _, c := range cases {
		src, want := c.text()
		m, ds := Parse("model.yaml", []byte(src))
		if m != nil || len(ds) != 1 {
			t.Errorf("%s\nwant one diagnostic [%s], got %d:\n%s", src, c.code, len(ds), ds.Render())
			continue
		}
		d := ds[0]
		if d.Code != c.code || d.Pos != want || d.File != "model.yaml" || d.Severity != SeverityError {
			t.Errorf("%s\nwant [%s] at %v, got:\n%s", src, c.code, want, d.Render())
		}
		if !strings.Contains(d.Message+d.Hint, c.say) {
			t.Errorf("%s\nwant %q in message or fix, got:\n%s", src, c.say, d.Render())
		}
		if d.Message == "" || d.Hint == "" {
			t.Errorf("message or fix is missing:\n%s", d.Render())
		}
	}
}

// accept returns the model of a spec, completed.
func accept(t *testing.T, src string) *Model {
	t.Helper()
	m, ds := Parse("model.yaml", []byte(complete(src)))
	if len(ds) > 0 {
		t.Fatalf("%s\nrefused:\n%s", src, ds.Render())
	}
	return m
}

var misspeltKeys = []refusal{
	{"¦wrold_size: 4", CodeUnknownKey, "`world` is a key of `topology`"},
	{"¦dtpye: bf16", CodeUnknownKey, "did you mean `dtype`?"},
	{"¦DType: bf16", CodeUnknownKey, "did you mean `dtype`?"},
	{"¦zzzzzzzzz: 1", CodeUnknownKey, "the keys here are `apiVersion`"},
	{"topology: {¦World_Size: 4}", CodeUnknownKey, "did you mean `world`?"},
	{"topology: {¦wrold: 4}", CodeUnknownKey, "did you mean `world`?"},
	{"gather: {¦groupsize: 64}", CodeUnknownKey, "`gather`"},
	{"shard: {¦alignBytes: 64}", CodeUnknownKey, "did you mean `align_bytes`?"},
	{"optimizer: {kind: sgd, ¦moments: f32}", CodeUnknownKey, "`moments` is a key of `optimizer` of kind adamw"},
	{"optimizer: {kind: none, ¦master: f32}", CodeUnknownKey, "kind adamw"},
	{param("shape: [4], ¦trainble: false"), CodeUnknownKey, "did you mean `trainable`?"},
	{param("shape: [4], init: {normal: {std: 1, ¦men: 0}}"), CodeUnknownKey, "did you mean `mean`?"},
	{param("shape: [4], init: {¦gaussian: {std: 1}}"), CodeUnknownKey, "`normal`"},
	{"overrides: [{match: w, ¦dekay: true}]", CodeUnknownKey, "did you mean `decay`?"},
	{"blocks:\n- {name: a, ¦parms: [{name: w, shape: [1]}]}", CodeUnknownKey, "did you mean `params`?"},
	{param("shape: [4], ¦~: 1"), CodeUnknownKey, "`~`"},
}

func TestMisspeltKeysAreRefused(t *testing.T) { refuse(t, misspeltKeys) }

var duplicateKeys = []refusal{
	{"dtype: bf16\n¦dtype: f32", CodeDuplicateKey, "first in line 1"},
	{param("dtype: bf16, shape: [4], ¦dtype: f32"), CodeDuplicateKey, "`dtype`"},
	{"x-a: {dtype: f32, ¦dtype: f32}", CodeDuplicateKey, "`dtype`"},
	{"topology: {world: 1, ¦\"world\": 2}", CodeDuplicateKey, "`world`"},
}

func TestDuplicateKeysAreRefused(t *testing.T) { refuse(t, duplicateKeys) }

var badMerges = []refusal{
	{"x-a: &a {decay: false}\nx-b: &b {dtype: f32}\n" + block("{<<: *a, ¦<<: *b, name: w, shape: [4]}"), CodeMergeKey, "second merge key"},
	{"x-a: &a {decay: false}\n" + block("{<<: ¦[*a], name: w, shape: [4]}"), CodeMergeKey, "a list"},
	{"x-a: &a 5\n" + block("{<<: ¦*a, name: w, shape: [4]}"), CodeMergeKey, "`5`"},
	{"x-a: &a {¦persist: true}\n" + block("{<<: *a, name: w, shape: [4]}"), CodeUnknownKey, "persist"},
}

func TestBadMergesAreRefused(t *testing.T) { refuse(t, badMerges) }

var wrongKinds = []refusal{
	{"topology: ¦8", CodeWrongKind, "a map"},
	{"blocks: ¦{name: a}", CodeWrongKind, "a list of maps"},
	{"blocks: [¦a]", CodeWrongKind, "a map, not `a`"},
	{"model: ¦[a]", CodeWrongKind, "a name, not a list"},
	{"dtype: ¦{a: b}", CodeWrongKind, "not a map"},
	{"gather: {max_live: ¦\"2\"}", CodeWrongKind, "remove the quotes"},
	{"gather: {max_live: ¦many}", CodeWrongKind, "not `many`"},
	{"gather: {max_live: ¦true}", CodeWrongKind, "not `true`"},
	{"budget: {device: ¦lots}", CodeWrongKind, "80GiB"},
	{"optimizer: ¦adamw", CodeWrongKind, "{kind: adamw}"},
	{"optimizer: ¦[none]", CodeWrongKind, "{kind: adamw}"},
	{param("shape: ¦768"), CodeWrongKind, "[768, 3072]"},
	{param("shape: [¦[768]]"), CodeWrongKind, "not a list"},
	{param("shape: [4], trainable: ¦[true]"), CodeWrongKind, "`true` or `false`"},
	{param("shape: [4], init: {constant: ¦one}"), CodeWrongKind, "a number"},
	{param("shape: [4], init: ¦[ones]"), CodeWrongKind, "`ones`"},
	{"blocks:\n- {name: \"a{i}\", repeat: ¦12, params: [{name: \"{i}\", shape: [4]}]}", CodeWrongKind, "{i: 12}"},
	{"blocks:\n- {name: \"a{i}\", repeat: {i: ¦[1]}, params: [{name: \"{i}\", shape: [4]}]}", CodeWrongKind, "not a list"},
	{"? ¦[a, b]\n: 5", CodeWrongKind, "a key must be plain text"},
}

func TestWrongKindsAreRefused(t *testing.T) { refuse(t, wrongKinds) }

var nullValues = []refusal{
	{"topology: {world: ¦~}", CodeNullValue, "has no value"},
	{"dtype: ¦null", CodeNullValue, "has no value"},
	{"optimizer: ¦~", CodeNullValue, "has no value"},
	{"budget: ¦~", CodeNullValue, "has no value"},
	{"overrides: ¦~", CodeNullValue, "has no value"},
	{param("shape: [4], init: ¦~"), CodeNullValue, "has no value"},
	{param("shape: [4], decay: ¦null"), CodeNullValue, "has no value"},
	{"blocks:\n- name: a\n  params:\n  - shape:¦\n    name: w", CodeNullValue, "`shape` has no value"},
}

func TestKeysWithoutAValueAreRefused(t *testing.T) { refuse(t, nullValues) }

var missingKeys = []refusal{
	{"topology: ¦{ranks_per_node: 4}", CodeMissingKey, "lacks the key `world`"},
	{"optimizer: ¦{master: f32}", CodeMissingKey, "add `kind: adamw`"},
	{block("¦{shape: [4]}"), CodeMissingKey, "`name`"},
	{block("¦{name: w}"), CodeMissingKey, "`tied_to:`"},
	{"blocks:\n- ¦{name: a}", CodeMissingKey, "`uses:`"},
	{"blocks:\n- ¦params: [{name: w, shape: [1]}]", CodeMissingKey, "`name`"},
	{"overrides: [¦{decay: true}]", CodeMissingKey, "`match`"},
	{"overrides: [¦{match: w}]", CodeMissingKey, "only has `match`"},
	{param("shape: [4], init: {normal: ¦{mean: 0}}"), CodeMissingKey, "`std`"},
	{param("shape: [4], init: {uniform: ¦{low: 0}}"), CodeMissingKey, "`high`"},
}

// missingTops are the fixes of specs that lack a required key at the top.
var missingTops = map[string]string{
	"apiVersion": "add `apiVersion:` with `shardgen/v1alpha1`",
	"model":      "add `model:` with a name",
	"topology":   "add `topology: {world: [1, 2]}`",
	"blocks":     "add `blocks: [{name: a, params: [{name: w, shape: [8]}]}]`",
}

func TestMissingKeysAreRefused(t *testing.T) {
	refuse(t, missingKeys)
	for _, key := range []string{"apiVersion", "model", "topology", "blocks"} {
		src := strings.Replace("\n"+complete(""), "\n"+key+":", "\nx-"+key+":", 1)[1:]
		_, ds := Parse("m.yaml", []byte(src))
		if !strings.Contains(ds.Render(), missingTops[key]) {
			t.Errorf("the fix does not say %q:\n%s", missingTops[key], ds.Render())
		}
		if len(ds) != 1 || ds[0].Code != CodeMissingKey || ds[0].Pos != (Pos{1, 1}) || !strings.Contains(ds[0].Message, "`"+key+"`") {
			t.Errorf("without %s:\n%s", key, ds.Render())
		}
	}
}

var emptyTexts = []refusal{
	{"model: ¦\"\"", CodeEmptyName, "is empty"},
	{"model:¦\ndtype: f32", CodeEmptyName, "is empty"},
	{block("{name: ¦\"\", shape: [4]}"), CodeEmptyName, "is empty"},
	{param("tied_to: ¦''"), CodeEmptyName, "is empty"},
	{"overrides: [{match: ¦\"\", decay: true}]", CodeEmptyName, "is empty"},
	{"blocks: ¦[]", CodeEmptyList, "is empty"},
	{"blocks:\n- {name: a, params: ¦[]}", CodeEmptyList, "has no parameters"},
	{"blocks:\n- {name: a, uses: ¦[]}", CodeEmptyList, "is empty"},
	{"topology: {world: ¦[]}", CodeEmptyList, "is empty"},
}

func TestEmptyNamesAndListsAreRefused(t *testing.T) { refuse(t, emptyTexts) }

var numberFormRefusals = []refusal{
	{"gather: {max_live: ¦0777}", CodeNumberForm, "octal"},
	{"gather: {max_live: ¦0o17}", CodeNumberForm, "octal"},
	{"gather: {max_live: ¦0x10}", CodeNumberForm, "decimal"},
	{"gather: {max_live: ¦1e3}", CodeNumberForm, "exponent"},
	{"gather: {max_live: ¦2.0}", CodeNumberForm, "not whole"},
	{"gather: {max_live: ¦+2}", CodeNumberForm, "sign"},
	{"gather: {max_live: ¦1_000}", CodeNumberForm, "underscores"},
	{"gather: {max_live: ¦.inf}", CodeNumberForm, "not finite"},
	{"budget: {device: ¦80GB}", CodeNumberForm, "KiB, MiB, GiB or TiB"},
	{"budget: {device: ¦80 GiB}", CodeNumberForm, "without a blank"},
	{"budget: {device: ¦1.5GiB}", CodeNumberForm, "KiB"},
	{"budget: {device: ¦1e8}", CodeNumberForm, "exponent"},
	{"budget: {device: ¦010}", CodeNumberForm, "octal"},
	{param("shape: [¦0777]"), CodeNumberForm, "octal"},
	{param("shape: [4], init: {constant: ¦.nan}"), CodeNumberForm, "finite"},
	{param("shape: [4], init: {constant: ¦010}"), CodeNumberForm, "octal"},
	{"shard: {resident_max_elements: ¦00}", CodeNumberForm, "octal"},
}

func TestNumbersThatYAMLReadersDisagreeOnAreRefused(t *testing.T) { refuse(t, numberFormRefusals) }

var hugeNumbers = []refusal{
	{param("shape: [¦9223372036854775808]"), CodeNumberRange, "beyond 64 bits"},
	{param("shape: [¦18446744073709551616]"), CodeNumberRange, "beyond 64 bits"},
	{"gradients: {divide_by: ¦9223372036854775808}", CodeNumberRange, "9223372036854775807"},
	{"budget: {device: ¦8388608TiB}", CodeNumberRange, "beyond 64 bits"},
	{param("shape: [4], init: {constant: ¦9007199254740993}"), CodeNumberRange, "exactly"},
	{param("shape: [4], init: {constant: ¦1e999}"), CodeNumberRange, "exactly"},
	{"blocks:\n- {name: \"a{i}\", repeat: {i: ¦0..9223372036854775808}, params: [{name: \"{i}\", shape: [4]}]}", CodeNumberRange, "beyond"},
	{block("{name: ¦w, shape: [4294967296, 2147483648]}"), CodeOverflow, "2^63"},
	{block("{name: ¦w, shape: [2147483648, 2147483648], dtype: f64}"), CodeOverflow, "2^63"},
	{block("{name: ¦w, shape: [0, 4294967296, 4294967296]}"), CodeOverflow, "2^63"},
}

func TestNumbersBeyond64BitsAreRefusedNeverRounded(t *testing.T) { refuse(t, hugeNumbers) }

var ranges = []refusal{
	{"topology: {world: ¦0}", CodeOutOfRange, "from 1 to 65536"},
	{"topology: {world: [1, ¦65537]}", CodeOutOfRange, "from 1 to 65536"},
	{"topology: {world: 2, ranks_per_node: ¦0}", CodeOutOfRange, "from 1"},
	{"topology: {world: [1, 8, ¦4]}", CodeNotAscending, "ascending"},
	{"topology: {world: [1, ¦1]}", CodeNotAscending, "once"},
	{"shard: {align_bytes: ¦24}", CodeOutOfRange, "power of two"},
	{"shard: {align_bytes: ¦8}", CodeOutOfRange, "from 16"},
	{"shard: {align_bytes: ¦131072}", CodeOutOfRange, "65536"},
	{"gather: {max_live: ¦0, prefetch: 0}", CodeOutOfRange, "from 1"},
	{"gather: {prefetch: ¦-1}", CodeOutOfRange, "from 0"},
	{"gather: {max_live: ¦3, prefetch: 3}", CodeTooFewSlots, "max_live: 4"},
	{"gather: {prefetch: ¦2}", CodeTooFewSlots, "1 + prefetch"},
	{"gather: {max_live: ¦1}", CodeTooFewSlots, "max_live: 2"},
	{"gradients: {slots: ¦0}", CodeOutOfRange, "from 1"},
	{"gradients: {divide_by: ¦0}", CodeOutOfRange, "at least 1"},
	{"budget: {device: 4GiB, reserve: ¦4GiB}", CodeOutOfRange, "leaves nothing"},
	{"model: ¦" + strings.Repeat("a", maxNameBytes+1), CodeOutOfRange, "4096"},
	{"budget: {host: ¦-1}", CodeOutOfRange, "at least 0"},
	{param("shape: [4, ¦-1]"), CodeOutOfRange, "at least 0"},
	{"blocks:\n- {name: \"a{i}\", repeat: {i: ¦0}, params: [{name: \"{i}\", shape: [4]}]}", CodeOutOfRange, "from 1"},
	{"blocks:\n- {name: \"a{i}\", repeat: {i: ¦60..3}, params: [{name: \"{i}\", shape: [4]}]}", CodeOutOfRange, "upwards"},
	{"blocks:\n- {name: \"a{i}\", repeat: {i: ¦0..2000000}, params: [{name: \"{i}\", shape: [4]}]}", CodeOutOfRange, "at most"},
}

func TestValuesOutOfRangeAreRefused(t *testing.T) { refuse(t, ranges) }

func boolForms() (all []refusal) {
	for _, word := range []string{"yes", "no", "on", "off", "y", "True", "TRUE", "1", `"true"`} {
		all = append(all, refusal{param("shape: [4], decay: ¦" + word), CodeBoolForm, "`true` or `false`"})
	}
	return all
}

func TestTruthValuesOtherThanTrueAndFalseAreRefused(t *testing.T) { refuse(t, boolForms()) }

var unknownWords = []refusal{
	{"apiVersion: ¦shardgen/v1", CodeAPIVersion, "shardgen/v1alpha1"},
	{"dtype: ¦off", CodeUnknownDType, "`f64`, `f32`, `bf16`, `f16`"},
	{"dtype: ¦bfloat16", CodeUnknownDType, "write `bf16`"},
	{"dtype: ¦fp32", CodeUnknownDType, "`f32`"},
	{"dtype: ¦BF16", CodeUnknownDType, "did you mean `bf16`?"},
	{param("shape: [4], dtype: ¦quaternion"), CodeUnknownDType, "or `bool`"},
	{"shard: {layout: ¦flt}", CodeUnknownValue, "did you mean `flat`?"},
	{"gather: {mode: ¦broadcast}", CodeUnknownValue, "all_gather"},
	{"gradients: {reduce: ¦f64}", CodeUnknownValue, "`f32`, `bf16` or `f16`"},
	{"optimizer: {kind: ¦adam}", CodeUnknownValue, "did you mean `adamw`?"},
	{"optimizer: {kind: adamw, moments: ¦i8}", CodeUnknownValue, "takes `f32`"},
	{"optimizer: {kind: sgd, momentum: ¦i8}", CodeUnknownValue, "`none` or `f32`"},
	{param("shape: [4], init: ¦one"), CodeUnknownInit, "did you mean `ones`?"},
	{param("shape: [4], init: ¦xavier"), CodeUnknownInit, "write `ones`, `zeros`, or a map such as `{normal: {std: 0.02}}`"},
	{param("shape: [4], init: ¦normal"), CodeUnknownInit, "takes `ones`, `zeros`, or a map such as `{normal: {std: 0.02}}`, not `normal`"},
	{param("shape: [4], init: ¦uniform"), CodeUnknownInit, "write `{uniform: {low: -1, high: 1}}`"},
	{param("shape: [4], init: ¦truncated-normal"), CodeUnknownInit, "write `{truncated_normal: {std: 0.02}}`"},
	{param("shape: [4], init: ¦constant"), CodeUnknownInit, "write `{constant: 1.5}`"},
	{param("shape: [4], init: {normal: ¦0.02}"), CodeWrongKind, "write `{normal: {std: 0.02}}`"},
	{param("shape: [4], init: {normal: ¦0.5}"), CodeWrongKind, "write `{normal: {std: 0.5}}`"},
	{param("shape: [4], init: {uniform: ¦0.1}"), CodeWrongKind, "write `{uniform: {low: -0.1, high: 0.1}}`"},
	{param("shape: [4], init: {normal: ¦-1}"), CodeWrongKind, "write `{normal: {std: 0.02}}`"},
	{param("shape: [4], init: {truncated_normal: ¦[0, 1]}"), CodeWrongKind, "write `{truncated_normal: {std: 0.02}}`"},
}

func TestUnknownWordsAreRefused(t *testing.T) { refuse(t, unknownWords) }

var notBuilt = []refusal{
	{"¦quantize: {weights: {bits: 8}}", CodeNotBuilt, "`quantize`"},
	{"¦offload: {params: nvme}", CodeNotBuilt, "`offload`"},
	{"¦schedule: [a]", CodeNotBuilt, "`schedule`"},
	{"topology: {world: 8, ¦expert: 2}", CodeNotBuilt, "`expert` of `topology`"},
	{"shard: {¦secondary: node}", CodeNotBuilt, "`secondary` of `shard`"},
	{"shard: {layout: ¦even}", CodeNotBuilt, "`layout: even`"},
	{"shard: {layout: ¦ragged}", CodeNotBuilt, "`layout: ragged`"},
	{"shard: {resident_max_elements: ¦1000}", CodeNotBuilt, "`resident_max_elements` other than 0"},
	{"shard: {resident_total_elements: ¦1}", CodeNotBuilt, "`resident_total_elements` other than 0"},
	{"gather: {mode: ¦all_reduce}", CodeNotBuilt, "`mode: all_reduce`"},
	{"gather: {mode: ¦sequential}", CodeNotBuilt, "`mode: sequential`"},
	{"optimizer: {kind: adamw, moments: ¦bf16}", CodeNotBuilt, "`moments: bf16`"},
	{"optimizer: {kind: adamw, master: ¦f64}", CodeNotBuilt, "`master: f64`"},
	{"optimizer: {kind: sgd, momentum: ¦bf16}", CodeNotBuilt, "`momentum: bf16`"},
	{"overrides: [{match: w, ¦resident: true}]", CodeNotBuilt, "`resident`"},
	{"overrides: [{match: w, ¦quantize: {bits: 4}}]", CodeNotBuilt, "`quantize`"},
	{"overrides: [{match: w, ¦offload: host}]", CodeNotBuilt, "`offload`"},
}

func TestWhatIsNotBuiltIsRefusedByName(t *testing.T) {
	refuse(t, notBuilt)
	_, ds := Parse("m.yaml", []byte(complete(block("{repeat: {e: 64}, shard_over: expert, params: [{name: \"e.{e}\", shape: [4]}]}"))))
	for i, key := range []string{"repeat", "shard_over", "params"} {
		if len(ds) != 3 || ds[i].Code != CodeNotBuilt || !strings.Contains(ds[i].Message, "`"+key+"` of a parameter") {
			t.Errorf("expert group:\n%s", ds.Render())
		}
	}
}

var badInits = []refusal{
	{param("shape: [4], init: ¦{constant: 1, normal: {std: 1}}"), CodeInitForm, "one distribution"},
	{param("shape: [4], init: ¦{}"), CodeInitForm, "names 0"},
	{param("shape: [4], init: {normal: {std: ¦-1}}"), CodeInitArgument, "0 or more"},
	{param("shape: [4], init: {truncated_normal: {std: 1, cut: ¦0}}"), CodeInitArgument, "above 0"},
	{param("shape: [4], init: {uniform: {low: 1, high: ¦1}}"), CodeInitArgument, "more than `low`"},
	{param("shape: [4], dtype: i32, init: ¦{normal: {std: 1}}"), CodeInitDType, "normal distribution"},
	{param("shape: [4], dtype: i8, init: ¦{constant: 128}"), CodeInitDType, "cannot hold 128"},
	{param("shape: [4], dtype: u8, init: ¦{constant: -1}"), CodeInitDType, "cannot hold -1"},
	{param("shape: [4], dtype: i64, init: ¦{constant: 0.5}"), CodeInitDType, "cannot hold 0.5"},
	{param("shape: [4], dtype: i64, init: ¦{constant: 9223372036854775807.0}"), CodeInitDType, "cannot hold"},
	{param("shape: [4], dtype: bool, init: ¦{constant: 2}"), CodeInitDType, "cannot hold 2"},
	{param("shape: [4], dtype: f16, init: ¦{constant: 65505}"), CodeInitDType, "65504"},
	{"dtype: i32\n" + param("shape: [4], init: ¦{uniform: {low: 0, high: 1}}"), CodeInitDType, "dtype i32"},
	{"overrides: [{match: \"*\", dtype: i8, init: ¦{normal: {std: 1}}}]", CodeInitDType, "override `*`"},
}

func TestInitsThatCannotBeMeantAreRefused(t *testing.T) { refuse(t, badInits) }

var badNames = []refusal{
	{"model: ¦7b", CodePackageName, "`package: model7b`"},
	{"model: ¦3D", CodePackageName, "`package: model3d`"},
	{"model: ¦Модель", CodePackageName, "no letters or digits"},
	{"model: ¦type", CodePackageName, "`package: typemodel`"},
	{"model: ¦int", CodePackageName, "predeclared"},
	{"package: ¦main", CodePackageName, "imported"},
	{"package: ¦internal", CodePackageName, "folder"},
	{"package: ¦my-model", CodePackageName, "`package: mymodel`"},
	{"package: ¦a_test", CodePackageName, "_test"},
	{"package: ¦Модель", CodePackageName, "`package: model`"},
	{"blocks:\n- {name: \"h.{i}\", repeat: ¦{i: 2, j: 3}, params: [{name: \"h.{i}\", shape: [4]}]}", CodeRepeatForm, "2 variables"},
	{"blocks:\n- {name: \"h.{i}\", repeat: ¦{}, params: [{name: \"h.{i}\", shape: [4]}]}", CodeRepeatForm, "0 variables"},
	{"blocks:\n- {name: \"h.{i}\", repeat: {¦i-j: 3}, params: [{name: \"h.{i}\", shape: [4]}]}", CodeRepeatForm, "no variable"},
	{"blocks:\n- {name: \"h.{i}\", repeat: {i: ¦03..5}, params: [{name: \"h.{i}\", shape: [4]}]}", CodeRepeatForm, "3..60"},
	{"blocks:\n- {name: ¦h, repeat: {i: 2}, params: [{name: \"h.{i}\", shape: [4]}]}", CodeMissingPlaceholder, "`{i}`"},
	{"blocks:\n- {name: \"h.{i}\", repeat: {i: 2}, params: [{name: ¦h, shape: [4]}]}", CodeMissingPlaceholder, "`{i}`"},
	{"blocks:\n- {name: \"h.{i}\", repeat: {i: 2}, params: [{name: ¦\"h.{{i}}\", shape: [4]}]}", CodeMissingPlaceholder, "`{i}`"},
	{"blocks:\n- {name: ¦\"h.{i}.{i}\", repeat: {i: 2}, params: [{name: \"h.{i}\", shape: [4]}]}", CodeBadPlaceholder, "once"},
	{"blocks:\n- {name: \"h.{i}\", repeat: {i: 2}, params: [{name: ¦\"h.{i}.{j}\", shape: [4]}]}", CodeUnknownPlaceholder, "`{j}`"},
	{block("{name: ¦\"h.{i}\", shape: [4]}"), CodeUnknownPlaceholder, "repeat: {i: 12}"},
	{param("tied_to: ¦\"h.{i}\""), CodeUnknownPlaceholder, "`{i}`"},
	{"blocks: [{name: a, uses: [¦\"h.{i}\"]}]", CodeUnknownPlaceholder, "`{i}`"},
	{block("{name: ¦\"h.{\", shape: [4]}"), CodeBadPlaceholder, "a lone `{`"},
	{block("{name: ¦\"h.}\", shape: [4]}"), CodeBadPlaceholder, "a lone `}`"},
	{block("{name: ¦\"h.{}\", shape: [4]}"), CodeBadPlaceholder, "without a variable"},
	{block("{name: ¦\"h.{i+1}\", shape: [4]}"), CodeBadPlaceholder, "{i+1}"},
}

func TestNamesThatCannotWorkAreRefused(t *testing.T) { refuse(t, badNames) }

func tiedKeys() (all []refusal) {
	for _, keys := range []string{"¦shape: [4]", "¦dtype: f32", "¦init: ones", "¦trainable: true", "¦decay: true"} {
		all = append(all, refusal{param("tied_to: v, " + keys), CodeTiedKeys, "no `" + keys[len("¦"):strings.IndexByte(keys, ':')] + "`"})
	}
	return all
}

func TestTiedParametersWithKeysOfTheirOwnAreRefused(t *testing.T) { refuse(t, tiedKeys()) }

// Documents that are no single well-formed YAML map. They are not completed.
var documents = []struct {
	src  string
	code Code
	pos  Pos
}{
	{"", CodeEmptySpec, Pos{1, 1}},
	{"# nothing\n", CodeEmptySpec, Pos{1, 1}},
	{complete("") + "---\nmodel: b\n", CodeSecondDocument, Pos{6, 1}},
	{complete("") + "---\n", CodeSecondDocument, Pos{6, 1}},
	{"model: [a\n", CodeYAMLSyntax, Pos{1, 1}},
	{"model: a\n  b: c\n", CodeYAMLSyntax, Pos{2, 3}},
	{"model: \"a\n", CodeYAMLSyntax, Pos{1, 1}},
	{"[a, b]", CodeWrongKind, Pos{1, 1}},
	{"~", CodeNullValue, Pos{1, 1}},
	{"model: a\xff\n", CodeNotUTF8, Pos{1, 9}},
	{"model: a\ndtype: *t\n", CodeUnknownAnchor, Pos{2, 8}},
	{complete("x-a: &a [1, *a]"), CodeAliasCycle, Pos{1, 13}},
	{complete("x-a: &a {<<: *a}"), CodeAliasCycle, Pos{1, 14}},
	{complete("dtype: !!str f32"), CodeExplicitTag, Pos{1, 8}},
	{complete("x-a: !foo {a: b}"), CodeExplicitTag, Pos{1, 6}},
	{complete("x-a: " + strings.Repeat("[", 70) + strings.Repeat("]", 70)), CodeTooDeep, Pos{1, 11}},
	{strings.Repeat("# a long comment\n", maxSourceBytes/16), CodeTooLarge, Pos{1, 1}},
	{"x: [" + strings.Repeat("a,", maxExpandedNodes+1) + "]", CodeTooLarge, Pos{1, 1}},
	{"model: a\n\tdtype: f32\n", CodeYAMLSyntax, Pos{2, 1}},
	{"\ufeff" + complete("dtype: off"), CodeUnknownDType, Pos{1, 8}},
	{strings.ReplaceAll(complete("model: a\ndtype: off"), "\n", "\r\n"), CodeUnknownDType, Pos{2, 8}},
}

func TestFilesThatAreNoSpecAreRefused(t *testing.T) {
	for _, c := range documents {
		m, ds := Parse("m.yaml", []byte(c.src))
		if m != nil || len(ds) == 0 {
			t.Errorf("%.200s: accepted", c.src)
			continue
		}
		if !slices.ContainsFunc(ds, func(d Diagnostic) bool { return d.Code == c.code && d.Pos == c.pos }) {
			t.Errorf("%.200s\nwant [%s] at %v, got:\n%s", c.src, c.code, c.pos, ds.Render())
		}
	}
}

// TestPlaceholdersOutsideQuotesAreNamed: where braces make a line something
// else than YAML, the fault is at the word and says how to quote it.
func TestPlaceholdersOutsideQuotesAreNamed(t *testing.T) {
	for _, c := range []struct {
		line string
		col  int
		say  string
	}{
		{"- {name: mixer.{i}.fc1.weight, shape: [8]}", 10, `quote it: name: "mixer.{i}.fc1.weight"`},
		{"- {name: {i}.w, shape: [8]}", 10, `quote it: name: "{i}.w"`},
		{"- {shape: [8], name: h.{i}}", 22, `quote it: name: "h.{i}"`},
		{`- {name: "h.{i}", tied_to: h.{i}.w} # x.{i}`, 28, `quote it: tied_to: "h.{i}.w"`},
		{`- {name: "λ.{i}", uses: [h.{i}.w]}`, 26, `quote it: "h.{i}.w"`},
		{`- {name: "h.{i}", shape: [8}`, 1, "look at the indentation"},
		{`- {name: 'h.{i}', shape: [8} # h.{i}`, 1, "look at the indentation"},
		{"- {name: w, repeat: {i: 3}, shape: [8}", 1, "look at the indentation"},
	} {
		_, ds := Parse("m.yaml", []byte(complete("")+"x-a:\n"+c.line+"\n"))
		if len(ds) != 1 || ds[0].Code != CodeYAMLSyntax || ds[0].Pos != (Pos{6, c.col}) || !strings.Contains(ds[0].Hint, c.say) {
			t.Errorf("%s\nwant %q at 6:%d, got:\n%s", c.line, c.say, c.col, ds.Render())
		}
	}
}

func manyFaults(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "zzzzzz%d: 1\n", i)
	}
	return complete(b.String())
}

func TestOnlyTheFirstOfVeryManyFaultsAreShown(t *testing.T) {
	_, ds := Parse("m.yaml", []byte(manyFaults(3*maxDiagnostics)))
	if len(ds) != maxDiagnostics+1 || ds[maxDiagnostics].Code != CodeTooManyFaults {
		t.Errorf("got %d diagnostics, the last is %v", len(ds), ds[len(ds)-1])
	}
}

// produced lists the codes that the refusals above lead to.
func produced() map[Code]bool {
	found := map[Code]bool{}
	collect := func(src string) {
		_, ds := Parse("m.yaml", []byte(src))
		for _, d := range ds {
			found[d.Code] = true
		}
	}
	for _, r := range slices.Concat(misspeltKeys, duplicateKeys, badMerges, wrongKinds, nullValues, missingKeys, emptyTexts,
		numberFormRefusals, hugeNumbers, ranges, boolForms(), unknownWords, notBuilt, badInits, badNames, tiedKeys()) {
		src, _ := r.text()
		collect(src)
	}
	for _, d := range documents {
		collect(d.src)
	}
	collect(manyFaults(3 * maxDiagnostics))
	collect(aliasBomb(7, 10))
	return found
}
