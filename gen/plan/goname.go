package plan

import (
	"slices"
	"strings"
)

// ReservedFields are the methods of generated block and gradient types. A field
// that would take one of these names gets a trailing underscore.
var ReservedFields = []string{"Release", "Reduce", "Discard"}

// ReservedKinds are the identifiers of a generated package and the methods of
// its passes. A block kind that would take one gets a trailing underscore.
var ReservedKinds = []string{"Model", "Options", "Open", "Descriptor", "ForwardPass", "BackwardPass", "End"}

// KindSuffixes are what a generated package appends to a kind's name for names
// of its own: HLen, HFirst, HGrads. A kind that ends in one gets a trailing
// underscore.
var KindSuffixes = []string{"Len", "First", "Grads"}

// FieldName returns the Go field of a parameter in the type of a block kind.
// Both names are templates as the spec has them.
//
// The block's name and the dot behind it are dropped from the front, `.weight`
// from the end if anything is left, and {i} as in KindName. Every part between
// dots then becomes a piece:
//
//   - `[a-z][a-z0-9]*(_[a-z0-9]+)*`: the words are capitalised and joined
//     (self_attn: SelfAttn); a word that begins with a digit keeps its
//     underscore (ln_1: Ln_1). The piece follows `_`.
//   - anything else follows `__` and is written verbatim: ASCII letters and
//     digits stand for themselves except Z, which is ZZ; `_` is Zu; any other
//     byte is Z and two lower-case hexadecimal digits; an empty part is Zn. If
//     such a part comes first, the name begins with X___.
//
// No piece ends in an underscore, so that a name with one appended (see
// ReservedFields) meets no other. Apart from what is dropped the rule is
// injective, and it looks at nothing but the two names.
func FieldName(block, param string) string {
	rest, _ := strings.CutPrefix(param, block+".")
	name := dropPlaceholder(rest)
	if short, found := strings.CutSuffix(name, ".weight"); found && short != "" {
		name = short
	}
	return escapeReserved(identifier(name), ReservedFields, nil)
}

// KindName returns the Go type of a block kind and its method of a pass: the
// rule of FieldName, with the placeholder of the block's name taken out
// together with a dot beside it (model.layers.{i}: Model_Layers).
func KindName(block string) string {
	return escapeReserved(identifier(dropPlaceholder(block)), ReservedKinds, KindSuffixes)
}

func escapeReserved(name string, reserved, suffixes []string) string {
	endsIn := func(suffix string) bool { return strings.HasSuffix(name, suffix) }
	if slices.Contains(reserved, name) || slices.ContainsFunc(suffixes, endsIn) {
		return name + "_"
	}
	return name
}

// dropPlaceholder removes {i} from a template, with the dot that would be left
// over where it is a whole part, and unescapes doubled braces.
func dropPlaceholder(template string) string {
	var out strings.Builder
	for i := 0; i < len(template); {
		rest := template[i:]
		switch {
		case strings.HasPrefix(rest, "{{"), strings.HasPrefix(rest, "}}"):
			out.WriteByte(rest[0])
			i += 2
		case rest[0] == '{' && strings.IndexByte(rest, '}') > 0:
			i += strings.IndexByte(rest, '}') + 1
			i += closeGap(&out, template[i:])
		default:
			out.WriteByte(rest[0])
			i++
		}
	}
	return out.String()
}

// closeGap drops the dot beside a placeholder that was a whole part: the one
// before it, or at the start of the name the one behind, whose length it
// returns.
func closeGap(before *strings.Builder, rest string) int {
	text := before.String()
	if rest != "" && rest[0] != '.' {
		return 0
	}
	if text == "" {
		return min(1, len(rest))
	}
	if short, found := strings.CutSuffix(text, "."); found {
		before.Reset()
		before.WriteString(short)
	}
	return 0
}

// identifier turns a dotted name into an exported Go identifier.
func identifier(name string) string {
	var out strings.Builder
	for i, part := range strings.Split(name, ".") {
		switch {
		case regular(part) && i > 0:
			out.WriteByte('_')
			out.WriteString(camel(part))
		case regular(part):
			out.WriteString(camel(part))
		case i > 0:
			out.WriteString("__" + verbatim(part))
		default:
			out.WriteString("X___" + verbatim(part))
		}
	}
	return out.String()
}

// regular reports whether a part has the form [a-z][a-z0-9]*(_[a-z0-9]+)*.
func regular(part string) bool {
	if part == "" || !lower(part[0]) {
		return false
	}
	for i := range len(part) {
		c := part[i]
		if c == '_' && (i == len(part)-1 || part[i+1] == '_') {
			return false
		}
		if c != '_' && !lower(c) && !digit(c) {
			return false
		}
	}
	return true
}

func camel(part string) string {
	var out strings.Builder
	for _, word := range strings.Split(part, "_") {
		if digit(word[0]) {
			out.WriteString("_" + word)
			continue
		}
		out.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return out.String()
}

func verbatim(part string) string {
	if part == "" {
		return "Zn"
	}
	const hex = "0123456789abcdef"
	var out strings.Builder
	for i := range len(part) {
		switch c := part[i]; {
		case c == 'Z':
			out.WriteString("ZZ")
		case c == '_':
			out.WriteString("Zu")
		case lower(c), digit(c), 'A' <= c && c <= 'Z':
			out.WriteByte(c)
		default:
			out.Write([]byte{'Z', hex[c>>4], hex[c&15]})
		}
	}
	return out.String()
}

func lower(c byte) bool { return 'a' <= c && c <= 'z' }
func digit(c byte) bool { return '0' <= c && c <= '9' }
