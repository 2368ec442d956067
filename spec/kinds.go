package spec

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/runtime/dtype"
	"gopkg.in/yaml.v3"
)

// kind is one way to write a value: its words, its schema and its reader. The
// reader reports the fault itself and returns false.
type kind[T any] struct {
	words  string
	later  []string // words of the language that are not built yet
	schema func() schema
	read   func(w *walker, v value) (T, bool)
}

// one is a key whose value is kept with its place.
func one[M, T any](key string, k kind[T], at func(*M) *At[T]) field[M] {
	return field[M]{key: key, kind: k.words, unbuilt: k.later, schema: k.schema,
		load: func(w *walker, v value, m *M) {
			if x, ok := k.read(w, v); ok {
				*at(m) = At[T]{V: x, Pos: v.pos(), Set: true}
			}
		},
		preset: func(m *M, pos Pos, text string) {
			at(m).Pos = pos
			if text != "" {
				at(m).V, _ = k.read(&walker{}, value{node: &yaml.Node{Kind: yaml.ScalarNode, Value: text}})
			}
		},
	}
}

// maybe is a key that is nil where the spec is silent.
func maybe[M, T any](key string, k kind[T], at func(*M) **At[T]) field[M] {
	return field[M]{key: key, kind: k.words, unbuilt: k.later, schema: k.schema,
		load: func(w *walker, v value, m *M) {
			if x, ok := k.read(w, v); ok {
				*at(m) = &At[T]{V: x, Pos: v.pos(), Set: true}
			}
		},
	}
}

// whole is a key whose kind makes the finished value, place included.
func whole[M, T any](key string, k kind[T], at func(*M) *T) field[M] {
	return field[M]{key: key, kind: k.words, unbuilt: k.later, schema: k.schema,
		load: func(w *walker, v value, m *M) {
			if x, ok := k.read(w, v); ok {
				*at(m) = x
			}
		},
	}
}

// within is a key whose value is a map of its own.
func within[M, S any](key string, t *table[S], at func(*M) *S) field[M] {
	return field[M]{key: key, kind: "a map", inherits: "the defaults of its keys", schema: t.schema,
		load:   func(w *walker, v value, m *M) { t.read(w, v, at(m)) },
		preset: func(m *M, pos Pos, _ string) { t.presets(at(m), pos) },
	}
}

// many is a key whose value is a list of maps.
func many[M, S any](key string, t *table[S], least int, at func(*M) *[]S) field[M] {
	return field[M]{key: key, kind: "a list of maps",
		schema: func() schema { return listSchema(t.schema(), least) },
		load: func(w *walker, v value, m *M) {
			items, ok := w.items(v, "a list of maps")
			if ok && len(items) < least {
				w.fault(v.node, CodeEmptyList, "%s is empty", v.subject()).fix("add an entry, or remove the key")
			}
			for _, item := range items {
				var s S
				if t.read(w, value{"an entry of " + v.key, item.node}, &s) {
					*at(m) = append(*at(m), s)
				}
			}
		},
	}
}

// later is a key that is not built yet.
func later[M any](key string) field[M] {
	return field[M]{key: key, kind: "not built yet", later: true}
}

// laterUnless is a key that is not built yet, accepted at its neutral value.
func laterUnless[M any](key, neutral string) field[M] {
	return field[M]{key: key, kind: "`" + neutral + "`; other values are not built yet", fallback: neutral,
		schema: func() schema { return schema{"const": defaultValue(neutral)} },
		load: func(w *walker, v value, _ *M) {
			if n, ok := integer(0, math.MaxInt64).read(w, v); ok && strconv.FormatInt(n, 10) != neutral {
				w.notBuilt(v.pos(), "`"+v.key+"` other than "+neutral)
			}
		},
	}
}

// list is a list of values of one kind, each kept with its place.
func list[T any](item kind[T], words string, least int) kind[[]At[T]] {
	return kind[[]At[T]]{
		words:  words,
		schema: func() schema { return listSchema(item.schema(), least) },
		read: func(w *walker, v value) ([]At[T], bool) {
			items, ok := w.items(v, words)
			if !ok {
				return nil, false
			}
			if len(items) < least {
				w.fault(v.node, CodeEmptyList, "%s is empty", v.subject()).fix("write %s", words)
				return nil, false
			}
			read := make([]At[T], 0, len(items))
			for _, i := range items {
				if x, good := item.read(w, i); good {
					read = append(read, At[T]{V: x, Pos: i.pos(), Set: true})
				}
			}
			return read, len(read) == len(items)
		},
	}
}

// text is any scalar, kept as written whatever YAML takes it for.
func text(words string) kind[string] {
	return kind[string]{
		words:  words,
		schema: func() schema { return schema{"type": []string{"string", "number", "boolean", "null"}, "minLength": 1} },
		read: func(w *walker, v value) (string, bool) {
			switch {
			case v.node.Kind != yaml.ScalarNode:
				w.wrongKind(v, words)
			case v.node.Value == "":
				w.fault(v.node, CodeEmptyName, "%s is empty, it takes %s", v.subject(), words).fix("write %s", words)
			case len(v.node.Value) > maxNameBytes:
				w.fault(v.node, CodeOutOfRange, "%s has %d bytes", v.subject(), len(v.node.Value)).fix("use at most %d bytes", maxNameBytes)
			default:
				return v.node.Value, true
			}
			return "", false
		},
	}
}

// option is a word of the language and what it stands for.
type option[T any] struct {
	word  string
	value T
}

// choice is one of a few words. Those in later are known but not built.
func choice[T any](code Code, options []option[T], later []string) kind[T] {
	words := make([]string, len(options))
	for i, o := range options {
		words[i] = o.word
	}
	want := orList(words)
	return kind[T]{
		words:  want,
		later:  later,
		schema: func() schema { return schema{"enum": words} },
		read: func(w *walker, v value) (T, bool) {
			var none T
			if v.node.Kind != yaml.ScalarNode || isNull(v.node) {
				w.wrongKind(v, want)
				return none, false
			}
			for _, o := range options {
				if o.word == v.node.Value {
					return o.value, true
				}
			}
			w.unknownWord(v, code, words, later)
			return none, false
		},
	}
}

func (w *walker) unknownWord(v value, code Code, words, later []string) {
	if slices.Contains(later, v.node.Value) {
		w.notBuilt(v.pos(), fmt.Sprintf("`%s: %s`", v.key, v.node.Value))
		return
	}
	d := w.fault(v.node, code, "%s takes %s, not %s", v.subject(), orList(words), kindWords(v.node))
	if near := Nearest(v.node.Value, words); near != "" {
		d.fix("did you mean `%s`?", near)
	} else if ours := ourNames[fold(v.node.Value)]; slices.Contains(words, ours) {
		d.fix("write `%s`", ours)
	} else {
		d.fix("write %s", orList(words))
	}
}

// ourNames translates what other systems call an element type, folded.
var ourNames = map[string]string{
	"double": "f64", "float64": "f64", "fp64": "f64",
	"float": "f32", "float32": "f32", "fp32": "f32", "single": "f32",
	"bfloat16": "bf16", "half": "f16", "float16": "f16", "fp16": "f16",
	"float8e4m3fn": "f8e4m3", "float8e4m3": "f8e4m3", "fp8e4m3": "f8e4m3",
	"float8e5m2": "f8e5m2", "fp8e5m2": "f8e5m2",
	"int8": "i8", "int16": "i16", "int32": "i32", "int": "i64", "int64": "i64", "long": "i64",
	"uint8": "u8", "byte": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "boolean": "bool",
}

func orList(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "`" + w + "`"
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
}

// elementTypes is the choice among the given dtypes.
func elementTypes(code Code, built []dtype.DType, later []dtype.DType) kind[dtype.DType] {
	options := make([]option[dtype.DType], len(built))
	for i, d := range built {
		options[i] = option[dtype.DType]{d.String(), d}
	}
	names := make([]string, len(later))
	for i, d := range later {
		names[i] = d.String()
	}
	return choice(code, options, names)
}

var boolean = kind[bool]{
	words:  "`true` or `false`",
	schema: func() schema { return schema{"type": "boolean"} },
	read: func(w *walker, v value) (bool, bool) {
		n := v.node
		switch {
		case n.Kind != yaml.ScalarNode || isNull(n):
			w.wrongKind(v, "`true` or `false`")
		case plain(n) && (n.Value == "true" || n.Value == "false"):
			return n.Value == "true", true
		default:
			w.fault(n, CodeBoolForm, "%s takes `true` or `false`, not %s", v.subject(), kindWords(n)).
				fix("write `true` or `false`, in lower case and without quotes")
		}
		return false, false
	},
}

var integerForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// integer is a whole number in decimal digits, in a range.
func integer(low, high int64) kind[int64] {
	words := fmt.Sprintf("an integer from %d to %d", low, high)
	if high == math.MaxInt64 {
		words = fmt.Sprintf("an integer of at least %d", low)
	}
	return kind[int64]{
		words:  words,
		schema: func() schema { return integerSchema(low, high) },
		read: func(w *walker, v value) (int64, bool) {
			if !w.numeric(v, words) {
				return 0, false
			}
			if !integerForm.MatchString(v.node.Value) {
				w.numberForm(v, words)
				return 0, false
			}
			return w.inRange(v, v.node.Value, 1, low, high)
		},
	}
}

// inRange converts decimal digits times a unit, never rounding.
func (w *walker) inRange(v value, digits string, unit, low, high int64) (int64, bool) {
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64/unit || n < math.MinInt64/unit {
		w.fault(v.node, CodeNumberRange, "%s is %s, beyond 64 bits", v.subject(), shown(v.node.Value)).
			fix("write a number up to %d", int64(math.MaxInt64))
		return 0, false
	}
	if n *= unit; n < low || n > high {
		want := integer(low, high).words
		w.fault(v.node, CodeOutOfRange, "%s is %s, it takes %s", v.subject(), shown(v.node.Value), want).fix("write %s", want)
		return 0, false
	}
	return n, true
}

// numeric reports whether a value is a plain scalar that may be a number.
func (w *walker) numeric(v value, want string) bool {
	n := v.node
	if n.Kind == yaml.ScalarNode && plain(n) && !isNull(n) {
		return true
	}
	d := w.wrongKind(v, want)
	if n.Kind == yaml.ScalarNode && !plain(n) {
		d.fix("remove the quotes")
	}
	return false
}

// numberForms explains the ways to write a number that the language refuses,
// since YAML readers disagree on them.
var numberForms = []struct {
	form       *regexp.Regexp
	what, want string
}{
	{regexp.MustCompile(`(?i)^[-+]?\.(inf|nan)$`), "not finite", "write a finite number"},
	{regexp.MustCompile(`^[-+]?0+[0-9_]+$|^[-+]?0o`), "octal to some YAML readers", "write it in decimal digits without a leading zero"},
	{regexp.MustCompile(`^[-+]?0[xXbB]`), "not decimal", "write it in decimal digits"},
	{regexp.MustCompile(`^[-+]?[0-9.]+[eE][-+]?[0-9]+$`), "written with an exponent", "write all its digits"},
	{regexp.MustCompile(`^[-+]?[0-9]*\.[0-9]*$`), "not whole", "write it without a point"},
	{regexp.MustCompile(`^[-+]?[0-9][0-9_]*$`), "written with a sign or underscores", "write plain decimal digits"},
	{regexp.MustCompile(`^[-+]?[0-9]+[0-9.]* *[A-Za-z]+$`), "a number with a unit", "write plain decimal digits; sizes in bytes take KiB, MiB, GiB or TiB, without a blank"},
}

// numberForm reports a scalar that is no number in the language's form.
func (w *walker) numberForm(v value, want string) {
	for _, f := range numberForms {
		if f.form.MatchString(v.node.Value) {
			w.fault(v.node, CodeNumberForm, "%s takes %s; %s is %s", v.subject(), want, shown(v.node.Value), f.what).fix("%s", f.want)
			return
		}
	}
	w.wrongKind(v, want)
}

var sizeForm = regexp.MustCompile(`^(-?(?:0|[1-9][0-9]*))(KiB|MiB|GiB|TiB)?$`)

var sizeUnits = map[string]int64{"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

const sizeWords = "a size such as `80GiB`, or a number of bytes"

// size is a number of bytes, in plain digits or with a binary unit.
var size = kind[int64]{
	words:  sizeWords,
	schema: sizeSchema,
	read: func(w *walker, v value) (int64, bool) {
		if !w.numeric(v, sizeWords) {
			return 0, false
		}
		parts := sizeForm.FindStringSubmatch(v.node.Value)
		if parts == nil {
			w.numberForm(v, sizeWords)
			return 0, false
		}
		return w.inRange(v, parts[1], sizeUnits[parts[2]], 0, math.MaxInt64)
	},
}

var floatForm = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

const floatWords = "a number such as `0.02` or `1e-5`"

// float is a finite number. An integer that a float64 cannot hold exactly is
// refused rather than rounded.
var float = kind[float64]{
	words:  floatWords,
	schema: func() schema { return schema{"type": "number"} },
	read: func(w *walker, v value) (float64, bool) {
		if !w.numeric(v, floatWords) {
			return 0, false
		}
		written := v.node.Value
		if !floatForm.MatchString(written) {
			w.numberForm(v, floatWords)
			return 0, false
		}
		x, err := strconv.ParseFloat(written, 64)
		if err != nil || integerForm.MatchString(written) && strconv.FormatFloat(x, 'f', -1, 64) != written && written != "-0" {
			w.fault(v.node, CodeNumberRange, "%s is %s, which a float64 cannot hold exactly", v.subject(), shown(written)).
				fix("write a number that needs no rounding")
			return 0, false
		}
		return x, true
	},
}
