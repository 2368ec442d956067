package spec

import (
	"fmt"
	"math"

	"github.com/shardgen/shardgen/runtime/dtype"
	"gopkg.in/yaml.v3"
)

const initWords = "`ones`, `zeros`, or a map such as `{normal: {std: 0.02}}`"

// initKind is a distribution: a word, or a map with one key that names it.
var initKind = kind[*Init]{
	words: initWords,
	schema: func() schema {
		return anyOf(schema{"enum": []InitKind{InitOnes, InitZeros}}, initTable.schema())
	},
	read: func(w *walker, v value) (*Init, bool) {
		init := &Init{Pos: v.pos()}
		switch {
		case v.node.Kind == yaml.MappingNode:
			return init, initTable.read(w, v, init) && init.Kind != ""
		case v.node.Kind == yaml.ScalarNode && !isNull(v.node):
			return init, readInitWord(w, v, init)
		default:
			w.wrongKind(v, initWords)
			return nil, false
		}
	},
}

// initForms are the distributions that take arguments, each as a spec would
// write it.
var initForms = []struct {
	name, form string
	argument   string // the form with one number for the only argument
}{
	{"constant", "{constant: 1.5}", "{constant: %s}"},
	{string(InitNormal), "{normal: {std: 0.02}}", "{normal: {std: %s}}"},
	{string(InitTruncatedNormal), "{truncated_normal: {std: 0.02}}", "{truncated_normal: {std: %s}}"},
	{string(InitUniform), "{uniform: {low: -1, high: 1}}", "{uniform: {low: -%[1]s, high: %[1]s}}"},
}

// readInitWord reads a distribution without arguments. The name of one that
// takes some is answered with how to write them.
func readInitWord(w *walker, v value, init *Init) bool {
	if v.node.Value == string(InitOnes) || v.node.Value == string(InitZeros) {
		init.Kind = InitKind(v.node.Value)
		return true
	}
	d := w.fault(v.node, CodeUnknownInit, "%s takes %s, not %s", v.subject(), initWords, kindWords(v.node))
	d.fix("write %s", initWords)
	names := []string{string(InitOnes), string(InitZeros)}
	for _, f := range initForms {
		names = append(names, f.name)
	}
	switch near := Nearest(v.node.Value, names); near {
	case "":
	case string(InitOnes), string(InitZeros):
		d.fix("did you mean `%s`?", near)
	default:
		d.fix("write `%s`", initForm(near, ""))
	}
	return false
}

// initForm shows how a distribution is written, with a number where the spec
// has given it one.
func initForm(name, number string) string {
	for _, f := range initForms {
		switch {
		case f.name != name:
		case number != "":
			return fmt.Sprintf(f.argument, number)
		default:
			return f.form
		}
	}
	return name
}

var initTable = &table[Init]{
	name: "an `init`", doc: "A distribution with arguments: exactly one key.",
	pos: func(i *Init) *Pos { return &i.Pos }, check: checkInit,
	fields: []field[Init]{
		number("constant", func(i *Init) *float64 { return &i.Value }).
			says("Every element has this value."),
		distribution(InitNormal, normalTable).says("Normal distribution."),
		distribution(InitTruncatedNormal, truncatedTable).says("Normal distribution, redrawn outside `mean` ± `cut` * `std`."),
		distribution(InitUniform, uniformTable).says("Uniform on `low` (included) to `high` (not included)."),
	},
}

var normalTable = &table[Init]{
	name: "`normal`", doc: "A normal distribution.", check: checkSpread,
	fields: []field[Init]{meanField(), stdField()},
}

var truncatedTable = &table[Init]{
	name: "`truncated_normal`", doc: "A normal distribution with both tails cut off.", check: checkSpread,
	fields: []field[Init]{meanField(), stdField(),
		number("cut", func(i *Init) *float64 { return &i.Cut }).or("2").
			says("Values stay within `mean` ± `cut` * `std`; above 0."),
	},
}

var uniformTable = &table[Init]{
	name: "`uniform`", doc: "A uniform distribution.", check: checkUniform,
	fields: []field[Init]{
		number("low", func(i *Init) *float64 { return &i.Low }).must().says("Least value."),
		number("high", func(i *Init) *float64 { return &i.High }).must().says("Bound above all values; more than `low`."),
	},
}

func meanField() field[Init] {
	return number("mean", func(i *Init) *float64 { return &i.Mean }).or("0").says("Mean of the distribution.")
}

func stdField() field[Init] {
	return number("std", func(i *Init) *float64 { return &i.Std }).must().
		known("stddev", "sigma").says("Standard deviation, 0 or more.")
}

// number is an argument of a distribution.
func number(key string, at func(*Init) *float64) field[Init] {
	return field[Init]{key: key, kind: float.words, schema: float.schema,
		load: func(w *walker, v value, i *Init) {
			if x, ok := float.read(w, v); ok {
				*at(i) = x
			}
		},
		preset: func(i *Init, _ Pos, text string) {
			*at(i), _ = float.read(&walker{}, value{node: &yaml.Node{Kind: yaml.ScalarNode, Value: orZero(text)}})
		},
	}
}

func orZero(text string) string {
	if text == "" {
		return "0"
	}
	return text
}

// distribution is a key of an init that takes a map of arguments.
func distribution(k InitKind, t *table[Init]) field[Init] {
	return field[Init]{key: string(k), kind: "a map", schema: t.schema,
		load: func(w *walker, v value, i *Init) {
			if v.node.Kind != yaml.MappingNode {
				w.withoutArguments(v, k)
			} else if t.read(w, v, i) {
				i.Kind = k
			}
		},
	}
}

// withoutArguments reports a distribution that has no map of them. A number in
// its place is most likely the width.
func (w *walker) withoutArguments(v value, k InitKind) {
	number := ""
	if v.node.Kind == yaml.ScalarNode && floatForm.MatchString(v.node.Value) && v.node.Value[0] != '-' {
		number = v.node.Value
	}
	w.wrongKind(v, "a map").fix("write `%s`", initForm(string(k), number))
}

func checkInit(w *walker, g given, i *Init) {
	switch {
	case len(g.pairs) != 1 && g.complete:
		w.fault(g.node, CodeInitForm, "an init names one distribution, this one names %d", len(g.pairs)).
			fix("write one of `ones`, `zeros`, `{constant: 1.5}`, `{normal: {std: 0.02}}`, `{truncated_normal: {std: 0.02}}`, `{uniform: {low: -1, high: 1}}`")
	case g.has("constant"):
		i.Kind = InitConstant
	}
}

func checkSpread(w *walker, g given, i *Init) {
	if g.has("std") && i.Std < 0 {
		w.argument(g, "std", "0 or more")
	}
	if g.has("cut") && i.Cut <= 0 {
		w.argument(g, "cut", "above 0")
	}
}

// checkUniform runs before it is known whether both bounds could be read; one
// that could not is reported already.
func checkUniform(w *walker, g given, i *Init) {
	if g.number("low") && g.number("high") && i.Low >= i.High {
		w.argument(g, "high", fmt.Sprintf("more than `low`, which is %v", i.Low))
	}
}

// number reports whether a key is given as a number of the language.
func (g given) number(key string) bool {
	p, ok := g.pairs[key]
	return ok && p.node.Kind == yaml.ScalarNode && floatForm.MatchString(p.node.Value)
}

func (w *walker) argument(g given, key, want string) {
	p := g.pairs[key]
	w.fault(p.node, CodeInitArgument, "`%s` is %s, it must be %s", key, shown(p.node.Value), want).
		fix("write a number that is %s", want)
}

// Problem says why elements of a type cannot take values of a distribution; it
// is empty where they can. Integers and bool take ones, zeros, and a constant
// that fits exactly; floats take whatever is in their range.
func (i *Init) Problem(d dtype.DType) string {
	switch {
	case i.Kind == InitOnes || i.Kind == InitZeros:
		return ""
	case d.IsFloat():
		return i.floatProblem(d)
	case i.Kind != InitConstant:
		return fmt.Sprintf("which a %s distribution cannot fill", i.Kind)
	case !fitsInteger(i.Value, d):
		return fmt.Sprintf("which cannot hold %v", i.Value)
	}
	return ""
}

func (i *Init) floatProblem(d dtype.DType) string {
	for _, x := range []float64{i.Value, i.Mean, i.Std, i.Low, i.High} {
		if math.Abs(x) > largestFloat[d] {
			return fmt.Sprintf("whose largest value %v is below %v", largestFloat[d], math.Abs(x))
		}
	}
	return ""
}

// largestFloat holds the largest finite value of each float type.
var largestFloat = map[dtype.DType]float64{
	dtype.Float64: math.MaxFloat64, dtype.Float32: math.MaxFloat32,
	dtype.BFloat16: 0x1.fep127, dtype.Float16: 65504,
	dtype.Float8E4M3: 448, dtype.Float8E5M2: 57344,
}

// integerRanges holds the least value of each integer type, and the first one
// above its range: a float64 holds both exactly.
var integerRanges = map[dtype.DType]struct{ low, end float64 }{
	dtype.Bool: {0, 2},
	dtype.Int8: {-1 << 7, 1 << 7}, dtype.Int16: {-1 << 15, 1 << 15}, dtype.Int32: {-1 << 31, 1 << 31}, dtype.Int64: {-1 << 63, 1 << 63},
	dtype.Uint8: {0, 1 << 8}, dtype.Uint16: {0, 1 << 16}, dtype.Uint32: {0, 1 << 32}, dtype.Uint64: {0, 1 << 64},
}

func fitsInteger(x float64, d dtype.DType) bool {
	r := integerRanges[d]
	return x == math.Trunc(x) && x >= r.low && x < r.end
}
