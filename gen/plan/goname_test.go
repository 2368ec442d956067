package plan

import (
	"go/token"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestFieldName(t *testing.T) {
	for _, c := range []struct{ block, param, want string }{
		{"embed", "wte.weight", "Wte"},
		{"h.{i}", "h.{i}.ln_1.weight", "Ln_1"},
		{"h.{i}", "h.{i}.ln_1.bias", "Ln_1_Bias"},
		{"h.{i}", "h.{i}.attn.c_attn.weight", "Attn_CAttn"},
		{"model.layers.{i}", "model.layers.{i}.self_attn.q_proj.weight", "SelfAttn_QProj"},
		{"a", "weight", "Weight"},
		{"a", "a.weight", "Weight"},
		{"a", "a", "A"},
		{"a", ".weight", "X___Zn_Weight"},
		{"a", "", "X___Zn"},
		{"a", "b.", "B__Zn"},
		{"a", "b..c", "B__Zn_C"},
		{"layer.{i}", "decoder.{i}.w", "Decoder_W"},
		{"h.{i}", "{i}.w", "W"},
		{"h.{i}", "w{i}.v", "W_V"},
		{"h", "a{{i}}.v", "X___aZ7biZ7d_V"},
		{"h", "h.{{i}}", "X___Z7biZ7d"},
		// names that differ only in separators and case
		{"m", "a.b-c", "A__bZ2dc"},
		{"m", "a.b_c", "A_BC"},
		{"m", "a_b.c", "AB_C"},
		{"m", "ABC", "X___ABC"},
		{"m", "abc", "Abc"},
		// names that Go does not have
		{"m", "model.layers.0.self-attn.q_proj.weight", "Model_Layers__0__selfZ2dattn_QProj"},
		{"m", "0.weight", "X___0"},
		{"m", "6to4.bias", "X___6to4_Bias"},
		{"m", "λ", "X___ZceZbb"},
		{"m", "a b", "X___aZ20b"},
		{"m", "a/b", "X___aZ2fb"},
		{"m", "a'b\"", "X___aZ27bZ22"},
		{"m", "a\nb", "X___aZ0ab"},
		{"m", "Z", "X___ZZ"},
		{"m", "_a", "X___Zua"},
		{"m", "a__b", "X___aZuZub"},
		// what the generated types need
		{"m", "release", "Release_"},
		{"m", "reduce", "Reduce_"},
		{"m", "discard.weight", "Discard_"},
		{"m", "block", "Block"},
		{"m", "grads", "Grads"},
	} {
		if got := FieldName(c.block, c.param); got != c.want {
			t.Errorf("FieldName(%q, %q) = %s, want %s", c.block, c.param, got, c.want)
		}
	}
}

func TestKindName(t *testing.T) {
	for _, c := range []struct{ block, want string }{
		{"h.{i}", "H"},
		{"embed", "Embed"},
		{"model.layers.{i}", "Model_Layers"},
		{"encoder.block.{i}.x", "Encoder_Block_X"},
		{"{i}.x", "X"},
		{"{i}", "X___Zn"},
		{"layer{i}", "Layer"},
		{"model.weight", "Model_Weight"},
		{"model", "Model_"},
		{"end", "End_"},
		{"open", "Open_"},
		{"descriptor", "Descriptor_"},
		{"options", "Options_"},
		{"forward_pass", "ForwardPass_"},
		{"backward_pass", "BackwardPass_"},
		{"h_len", "HLen_"},
		{"h.first", "H_First_"},
		{"h_grads", "HGrads_"},
		{"lens", "Lens"},
	} {
		if got := KindName(c.block); got != c.want {
			t.Errorf("KindName(%q) = %s, want %s", c.block, got, c.want)
		}
	}
}

func TestKeywordsAndBuiltinsBecomeExportedIdentifiers(t *testing.T) {
	names := []string{"len", "nil", "init", "main", "fmt", "true", "float", "class", "shard", "dtype", "__global__"}
	for k := token.BREAK; k <= token.VAR; k++ {
		names = append(names, k.String())
	}
	for _, name := range names {
		checkIdentifier(t, name, FieldName("m", name))
		checkIdentifier(t, name, KindName(name))
	}
}

// TestReservedNamesAreEscaped lists the API's names a second time, so that one
// that gets lost from the rule is noticed.
func TestReservedNamesAreEscaped(t *testing.T) {
	for _, name := range []string{"Release", "Reduce", "Discard"} {
		if got := FieldName("m", strings.ToLower(name)); got != name+"_" {
			t.Errorf("field %s becomes %s", name, got)
		}
	}
	for name, from := range map[string]string{
		"Model": "model", "Options": "options", "Open": "open", "End": "end", "Descriptor": "descriptor",
		"ForwardPass": "forward_pass", "BackwardPass": "backward_pass",
		"ALen": "a_len", "AFirst": "a_first", "AGrads": "a_grads",
	} {
		if got := KindName(from); got != name+"_" {
			t.Errorf("kind %s becomes %s", name, got)
		}
	}
	if len(ReservedFields) != 3 || len(ReservedKinds) != 7 || len(KindSuffixes) != 3 {
		t.Error("the API has names that this test does not know")
	}
}

// tricky draws names from characters that a sloppy rule would lose, and from
// whole words that the rule treats on their own.
func tricky() *rapid.Generator[string] {
	piece := rapid.OneOf(
		rapid.StringOfN(rapid.SampledFrom([]rune("ab1Z_.-XnuA0e é")), 0, 6, -1),
		rapid.SampledFrom([]string{"release", "weight", "len", "model", "X___", "Zn", "Zu", "_", ".", "end", "first"}),
	)
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(piece, 1, 3).Draw(t, "pieces"), "")
	})
}

func TestNamesAreInjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := tricky().Draw(t, "a"), tricky().Draw(t, "b")
		checkIdentifier(t, a, KindName(a))
		checkIdentifier(t, a, FieldName("block", a))
		if a != b && KindName(a) == KindName(b) {
			t.Fatalf("blocks %q and %q are both %s", a, b, KindName(a))
		}
		// Only a final .weight is dropped from these.
		if bare(a) != bare(b) && FieldName("block", a) == FieldName("block", b) {
			t.Fatalf("parameters %q and %q are both %s", a, b, FieldName("block", a))
		}
		if slices.Contains(ReservedFields, FieldName("block", a)) || slices.Contains(ReservedKinds, KindName(a)) {
			t.Fatalf("%q takes a name of the API", a)
		}
	})
}

// TestNamesCanBeReadBack is the proof of injectivity: a decoder that knows only
// the identifier finds the name.
func TestNamesCanBeReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := tricky().Draw(t, "name")
		if got := decode(identifier(name)); got != name {
			t.Fatalf("%q becomes %s, which reads as %q", name, identifier(name), got)
		}
	})
}

// decode inverts identifier.
func decode(id string) string {
	var out strings.Builder
	rest, first := strings.CutPrefix(id, "X___")
	if first {
		rest = decodeVerbatim(&out, rest)
	}
	for rest != "" {
		if after, found := strings.CutPrefix(rest, "__"); found {
			out.WriteByte('.')
			rest = decodeVerbatim(&out, after)
			continue
		}
		if rest[0] == '_' {
			out.WriteByte('.')
			rest = rest[1:]
		}
		rest = decodeCamel(&out, rest)
	}
	return out.String()
}

func decodeVerbatim(out *strings.Builder, s string) string {
	for s != "" && s[0] != '_' {
		switch {
		case s[0] != 'Z':
			out.WriteByte(s[0])
			s = s[1:]
		case s[1] == 'n':
			s = s[2:]
		case s[1] == 'u':
			out.WriteByte('_')
			s = s[2:]
		case s[1] == 'Z':
			out.WriteByte('Z')
			s = s[2:]
		default:
			out.WriteByte(byte(strings.IndexByte("0123456789abcdef", s[1])<<4 | strings.IndexByte("0123456789abcdef", s[2])))
			s = s[3:]
		}
	}
	return s
}

func decodeCamel(out *strings.Builder, s string) string {
	out.WriteString(strings.ToLower(s[:1]))
	for s = s[1:]; s != ""; s = s[1:] {
		switch {
		case 'A' <= s[0] && s[0] <= 'Z':
			out.WriteString("_" + strings.ToLower(s[:1]))
		case s[0] == '_' && digit(s[1]):
			out.WriteByte('_')
		case s[0] == '_':
			return s
		default:
			out.WriteByte(s[0])
		}
	}
	return ""
}

func bare(name string) string {
	if short, found := strings.CutSuffix(name, ".weight"); found && short != "" {
		return short
	}
	return name
}

func checkIdentifier(t interface{ Errorf(string, ...any) }, name, id string) {
	if !token.IsIdentifier(id) || !token.IsExported(id) {
		t.Errorf("%q becomes %q, which is no exported identifier", name, id)
	}
}
