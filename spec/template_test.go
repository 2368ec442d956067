package spec

import (
	"testing"

	"pgregory.net/rapid"
)

func TestTemplatesExpand(t *testing.T) {
	for _, c := range []struct{ template, variable, want string }{
		{"h.{i}.w", "i", "h.7.w"},
		{"{i}{i}", "i", "77"},
		{"{{i}}.{i}", "i", "{i}.7"},
		{"{{{i}}}", "i", "{7}"},
		{"plain", "i", "plain"},
		{"{j}", "i", "{j}"},
		{"{", "i", "{"},
		{"a}b{", "i", "a}b{"},
		{"{i", "i", "{i"},
		{"{{", "i", "{"},
		{"", "i", ""},
		{"{layer_2}", "layer_2", "7"},
	} {
		equal(t, c.template, Expand(c.template, c.variable, 7), c.want)
	}
	equal(t, "literal", Literal("a{{b}}"), "a{b}")
	equal(t, "placeholders", Placeholders("{a}.{{b}}.{c}{a}"), []string{"a", "c", "a"})
}

func TestEscapedNamesStandForThemselves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringOf(rapid.RuneFrom([]rune("{}ai.λ"))).Draw(t, "name")
		if got := Expand(Escape(name), "i", 3); got != name {
			t.Fatalf("%q became %q", name, got)
		}
		if _, err := split(Escape(name)); err != nil {
			t.Fatal(err)
		}
	})
}
