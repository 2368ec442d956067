package spec

import "strings"

// Code names a kind of fault, in kebab case.
type Code string

// The codes of this package's own diagnostics.
const (
	CodeEmptySpec          Code = "empty-spec"
	CodeNotUTF8            Code = "not-utf8"
	CodeTooLarge           Code = "too-large"
	CodeTooDeep            Code = "too-deep"
	CodeYAMLSyntax         Code = "yaml-syntax"
	CodeUnknownAnchor      Code = "unknown-anchor"
	CodeSecondDocument     Code = "second-document"
	CodeAliasBomb          Code = "alias-bomb"
	CodeAliasCycle         Code = "alias-cycle"
	CodeExplicitTag        Code = "explicit-tag"
	CodeMergeKey           Code = "merge-key"
	CodeDuplicateKey       Code = "duplicate-key"
	CodeUnknownKey         Code = "unknown-key"
	CodeMissingKey         Code = "missing-key"
	CodeWrongKind          Code = "wrong-kind"
	CodeNullValue          Code = "null-value"
	CodeEmptyName          Code = "empty-name"
	CodeEmptyList          Code = "empty-list"
	CodeNumberForm         Code = "number-form"
	CodeNumberRange        Code = "number-range"
	CodeOutOfRange         Code = "out-of-range"
	CodeBoolForm           Code = "bool-form"
	CodeUnknownDType       Code = "unknown-dtype"
	CodeUnknownValue       Code = "unknown-value"
	CodeUnknownInit        Code = "unknown-init"
	CodeInitForm           Code = "init-form"
	CodeInitArgument       Code = "init-argument"
	CodeInitDType          Code = "init-dtype"
	CodeAPIVersion         Code = "api-version"
	CodePackageName        Code = "package-name"
	CodeNotAscending       Code = "not-ascending"
	CodeTooFewSlots        Code = "too-few-slots"
	CodeRepeatForm         Code = "repeat-form"
	CodeBadPlaceholder     Code = "bad-placeholder"
	CodeUnknownPlaceholder Code = "unknown-placeholder"
	CodeMissingPlaceholder Code = "missing-placeholder"
	CodeTiedKeys           Code = "tied-keys"
	CodeNotBuilt           Code = "not-built"
	CodeTooManyFaults      Code = "too-many-faults"
	CodeOverflow           Code = "overflow"
)

// The codes of the planner's diagnostics.
const (
	CodeTooManyNames      Code = "too-many-parameters"
	CodeWorldSize         Code = "world-size"
	CodeDuplicateName     Code = "duplicate-name"
	CodeTieMissing        Code = "tie-missing"
	CodeTieCycle          Code = "tie-cycle"
	CodeTieRepeated       Code = "tie-repeated"
	CodeUsesInvalid       Code = "uses-invalid"
	CodeGoNameCollision   Code = "go-name-collision"
	CodeOverrideUnmatched Code = "override-unmatched"
	CodeOverridePartial   Code = "override-partial"
	CodeNotTrainable      Code = "not-trainable"
	CodeBudgetExceeded    Code = "budget-exceeded"
	CodeInternal          Code = "internal"
)

// entry explains a code.
type entry struct {
	code    Code
	text    string // what is wrong and why it is refused
	example string // how it is done right
	planner bool   // reported when the plan is made
}

// catalogue explains every code that a spec can lead to.
var catalogue = []entry{
	{CodeEmptySpec, "The file holds no document: it is empty, or has only comments.",
		"apiVersion: shardgen/v1alpha1\nmodel: tiny\ntopology: {world: 1}\nblocks:\n  - {name: a, params: [{name: w, shape: [4]}]}", false},
	{CodeNotUTF8, "The file is not UTF-8 text. Names are kept byte for byte, so another encoding is refused rather than guessed.",
		"save the file as UTF-8", false},
	{CodeTooLarge, "The file is larger than a spec ever needs to be. Layers that are alike are written once, with a repeat; experts and layers do not have to be listed one by one.",
		"- {name: \"h.{i}\", repeat: {i: 48}, params: [{name: \"h.{i}.w\", shape: [8]}]}", false},
	{CodeTooDeep, "Maps and lists lie too deep inside each other. The language needs a handful of levels; deeper nesting is a mistake or an attempt to exhaust memory.",
		"remove the surplus brackets", false},
	{CodeYAMLSyntax, "The text is not YAML, so nothing in it could be checked. The YAML parser knows the line only roughly: the cause may stand on a line beside it.",
		"params:\n  - {name: w, shape: [4]}   # every bracket closed, lists indented alike", false},
	{CodeUnknownAnchor, "An alias `*name` refers to an anchor `&name` that does not stand before it.",
		"x-norm: &norm {shape: [768], init: ones}", false},
	{CodeSecondDocument, "A file holds one spec. What follows `---` would be ignored by most YAML readers, so it is refused.",
		"move the second document to a file of its own", false},
	{CodeAliasBomb, "Aliases that refer to values with aliases grow without bound once followed. Specs stay far below the limit.",
		"write the values out, or use a repeat", false},
	{CodeAliasCycle, "An alias lies inside the very value that it stands for, which has no finite meaning.",
		"x-norm: &norm {shape: [768]}   # no *norm inside", false},
	{CodeExplicitTag, "YAML tags such as `!!str` change how a value is read. The language decides by the key alone, so they are refused.",
		"name: \"1.10\"   # instead of: name: !!str 1.10", false},
	{CodeMergeKey, "A map has more than one merge key, or merges something that is no map. One merge key a map is allowed; keys written in the map win over merged ones wherever they stand.",
		"- {<<: *norm, name: ln.weight}", false},
	{CodeDuplicateKey, "The same key stands twice in one map. YAML readers disagree on which one counts.",
		"- {name: w, shape: [4]}   # each key once", false},
	{CodeUnknownKey, "The map has no such key. A misspelt key would silently keep its default, so every key is checked, at every depth. At the top level, keys that start with `x-` are free: they hold anchors.",
		"topology: {world: 4}   # instead of: wrold: 4", false},
	{CodeMissingKey, "A required key is not given. Required are apiVersion, model, topology.world and blocks; of a block its name and parameters; of a parameter its name, and its shape or `tied_to`.",
		"- {name: w, shape: [4]}", false},
	{CodeWrongKind, "The value is of another kind than its key takes: a list where a map belongs, text where a number belongs, a quoted number.",
		"shape: [768]   # instead of: shape: 768", false},
	{CodeNullValue, "The key is there but has no value: nothing, `~` or `null`. Such a key would silently keep its default. A scalar's shape is written `[]`.",
		"shape: []   # a scalar; instead of: shape:", false},
	{CodeEmptyName, "A name is the empty text. A checkpoint could not hold it, and nothing could refer to it.",
		"name: wte.weight", false},
	{CodeEmptyList, "A list that needs an entry has none.",
		"blocks:\n  - {name: a, params: [{name: w, shape: [4]}]}", false},
	{CodeNumberForm, "A number is written in a form that YAML readers disagree on (a leading zero is octal to some, `1e3` may be text, an integer or a fraction), or with a fraction where a whole number belongs.",
		"max_live: 15   # instead of: 017, 0o17, 0xF, 1.5e1 or 15.0", false},
	{CodeNumberRange, "A number is beyond 64 bits, or cannot be held exactly. It is refused rather than rounded.",
		"divide_by: 9223372036854775807   # the largest", false},
	{CodeOutOfRange, "The value has the right kind but is outside its range.",
		"shard: {align_bytes: 256}   # a power of two from 16 to 65536", false},
	{CodeBoolForm, "Truth values are `true` and `false` alone. `yes`, `on`, `True` and the like are truth values to some YAML readers and text to others.",
		"trainable: false   # instead of: no", false},
	{CodeUnknownDType, "The element type is unknown. The types are f64, f32, bf16, f16, f8e4m3, f8e5m2, i8, i16, i32, i64, u8, u16, u32, u64 and bool.",
		"dtype: bf16   # instead of: bfloat16", false},
	{CodeUnknownValue, "The key takes one of a few words, and this is none of them.",
		"optimizer: {kind: adamw}", false},
	{CodeUnknownInit, "There is no such initial distribution.",
		"init: {normal: {std: 0.02}}", false},
	{CodeInitForm, "An init in the form of a map names exactly one distribution.",
		"init: {uniform: {low: -0.1, high: 0.1}}", false},
	{CodeInitArgument, "An argument of a distribution is out of bounds: `std` is 0 or more, `cut` above 0, `low` below `high`.",
		"init: {truncated_normal: {std: 0.02, cut: 2}}", false},
	{CodeInitDType, "The distribution yields values that the parameter's dtype cannot hold. Integers and bool take ones, zeros, or a constant that fits exactly; floats take values in their finite range.",
		"- {name: steps, shape: [1], dtype: i64, init: {constant: 7}}", false},
	{CodeAPIVersion, "The spec is written for another version of the language, or says none that is known.",
		"apiVersion: shardgen/v1alpha1", false},
	{CodePackageName, "The name of the generated package is no Go package name that can be imported. Without `package:` it is the model's name in lower-case letters and digits, which may start with a digit or be a keyword.",
		"package: model6b", false},
	{CodeNotAscending, "World sizes are listed in ascending order, each once.",
		"topology: {world: [1, 2, 8]}", false},
	{CodeTooFewSlots, "The block in use and each block gathered ahead need a slot of their own, so `gather.max_live` is at least 1 + `gather.prefetch`.",
		"gather: {max_live: 3, prefetch: 2}", false},
	{CodeRepeatForm, "A repeat is a map with one variable, and a number of instances or a range with both ends.",
		"repeat: {i: 12}   # or {i: 3..60}", false},
	{CodeBadPlaceholder, "A name has a brace that is neither part of a placeholder such as `{i}` nor doubled, or a block's name holds its placeholder more than once.",
		"name: \"a.{{x}}\"   # the literal name a.{x}", false},
	{CodeUnknownPlaceholder, "A name holds a placeholder that is not the variable of its block's repeat.",
		"- {name: \"h.{i}\", repeat: {i: 12}, params: [{name: \"h.{i}.w\", shape: [8]}]}", false},
	{CodeMissingPlaceholder, "In a repeated block the names of the block and of the parameters that it owns hold the repeat's variable, else all instances would have one name.",
		"name: \"h.{i}.weight\"   # with repeat: {i: 12}", false},
	{CodeTiedKeys, "A tied parameter is another name for the storage of its owner. Shape, dtype, init, trainable and decay are the owner's and cannot be given again.",
		"- {name: lm_head.weight, tied_to: wte.weight}", false},
	{CodeNotBuilt, "The key or value belongs to the language, but this release cannot carry it out. It is refused, since ignoring it would give a model other than the one described.",
		"remove the key, or give it its neutral value", false},
	{CodeTooManyFaults, "The spec has so many faults that only the first ones are shown.",
		"mend those that are shown and run again", false},
	{CodeTooManyNames, "Expanded, the spec has more parameters or rules than a plan can hold.",
		"use fewer instances or overrides", true},
	{CodeWorldSize, "The world size that was asked for is no size that the model can be sharded over.",
		"topology: {world: [1, 8]}", true},
	{CodeDuplicateName, "Two parameters, blocks or buckets have the same name once repeats are expanded.",
		"give each a name of its own", true},
	{CodeTieMissing, "`tied_to` names a parameter that no block declares.",
		"- {name: lm_head.weight, tied_to: wte.weight}   # wte.weight stands in a block", true},
	{CodeTieCycle, "Parameters are tied to each other in a circle, so none owns the storage.",
		"let one of them have a shape instead of `tied_to`", true},
	{CodeTieRepeated, "A parameter is tied to one that lives in a repeated block and is not of the same instance. That is not built yet.",
		"move the owner to a block without repeat", true},
	{CodeUsesInvalid, "`uses` names a parameter that no block declares, one of the block itself, or one that it cannot use.",
		"uses: [wte.weight]   # declared in another block", true},
	{CodeGoNameCollision, "Two names of the spec become the same Go name.",
		"rename one of the two", true},
	{CodeOverrideUnmatched, "The rule's pattern matches no parameter that owns its storage, so the rule would do nothing. Tied names are not matched: match their owner.",
		"overrides: [{match: \"*.ln_*\", decay: false}]", true},
	{CodeOverridePartial, "The rule matches only some instances of a repeated block. Variants of a block kind are not built yet.",
		"split the repeat into ranges, such as {i: 0..2} and {i: 3..11}", true},
	{CodeNotTrainable, "The parameter is to be trained, but its dtype has no gradient: only f64, f32, bf16 and f16 do.",
		"trainable: false", true},
	{CodeBudgetExceeded, "A rank needs more memory than `budget.device` minus `budget.reserve` allows.",
		"shard over more ranks, lower `gather.max_live`, or raise the budget", true},
	{CodeOverflow, "A number of elements or bytes is beyond 64 bits.",
		"make the dimensions smaller", false},
	{CodeInternal, "The plan failed a check of its own. This is a fault of shardgen, not of the spec.",
		"report it with the spec", true},
}

// Codes lists every code in the order of the reference.
func Codes() []string {
	codes := make([]string, len(catalogue))
	for i, e := range catalogue {
		codes[i] = string(e.code)
	}
	return codes
}

// Explain returns what a code means and an example of the right form, and
// whether there is such a code.
func Explain(code string) (string, bool) {
	for _, e := range catalogue {
		if string(e.code) == code {
			return code + "\n\n" + e.text + "\n\nThe right form:\n\n" + indent(e.example) + "\n", true
		}
	}
	return "", false
}

func indent(text string) string { return "    " + strings.ReplaceAll(text, "\n", "\n    ") }
