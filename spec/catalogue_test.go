package spec

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// declaredCodes reads the constants of type Code from the source.
func declaredCodes(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "catalogue.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Code" {
			code, _ := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			codes = append(codes, code)
		}
		return true
	})
	return codes
}

func TestEveryCodeIsExplained(t *testing.T) {
	declared := declaredCodes(t)
	listed := slices.Clone(Codes())
	slices.Sort(declared)
	slices.Sort(listed)
	equal(t, "codes", listed, declared)
	equal(t, "distinct codes", len(slices.Compact(listed)), len(declared))
	form := regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	for _, code := range declared {
		text, ok := Explain(code)
		if !ok || !form.MatchString(code) || len(text) < 80 || !strings.Contains(text, "The right form:") {
			t.Errorf("%s: %q", code, text)
		}
	}
	if _, ok := Explain("no-such-code"); ok {
		t.Error("an unknown code is explained")
	}
}

func TestEveryCodeOfTheParserIsProduced(t *testing.T) {
	found := produced()
	for _, e := range catalogue {
		if !e.planner && !found[e.code] {
			t.Errorf("no refused spec leads to %s", e.code)
		}
		if e.planner && found[e.code] {
			t.Errorf("%s is reported by the parser", e.code)
		}
	}
}
