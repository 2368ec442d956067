package spec

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func located(src string, ds ...Diagnostic) Diagnostics {
	return Diagnostics(ds).Locate("m.yaml", []byte(src))
}

func TestRenderingShowsTheLineWithACaretAndTheFix(t *testing.T) {
	ds := located("a: 1\n\tλ: {b: no}\n", Errorf(Pos{2, 9}, CodeBoolForm, "not %s", "so").WithHint("write %s", "true"))
	want := "m.yaml:2:9: error: not so [bool-form]\n" +
		"    2 | \tλ: {b: no}\n" +
		"      | \t       ^\n" +
		"      = fix: write true\n"
	equal(t, "rendering", ds.Render(), want)
}

func TestLongLinesAreCutAroundTheCaret(t *testing.T) {
	line := strings.Repeat("é", 300) + "X" + strings.Repeat("é", 300)
	lines := strings.Split(located(line, Errorf(Pos{1, 301}, CodeBoolForm, "m")).Render(), "\n")
	at := strings.Index(lines[2], "^")
	if got := []rune(lines[1])[at]; got != 'X' {
		t.Errorf("the caret points at %q in\n%s\n%s", got, lines[1], lines[2])
	}
	if n := len([]rune(lines[1])); n > excerptRunes+20 || !strings.Contains(lines[1], "... é") || !strings.HasSuffix(lines[1], "é ...") {
		t.Errorf("%d runes: %s", n, lines[1])
	}
}

func TestControlCharactersDoNotReachTheTerminal(t *testing.T) {
	text := located("a\x1b[31m: 1", Errorf(Pos{1, 1}, CodeUnknownKey, "key \x1b[31m\n").WithHint("\x07")).Render()
	if strings.ContainsAny(text, "\x1b\x07") || strings.Count(text, "\n") != 4 {
		t.Errorf("%q", text)
	}
}

func TestPlacesOutsideTheTextRenderWithoutALine(t *testing.T) {
	for _, pos := range []Pos{{}, {7, 1}, {1, 99}} {
		if text := located("a: 1", Errorf(pos, CodeUnknownKey, "m")).Render(); !strings.HasPrefix(text, "m.yaml:") {
			t.Errorf("%v: %q", pos, text)
		}
	}
}

func TestDiagnosticsAreSortedAndRepetitionsDropped(t *testing.T) {
	a, b := Errorf(Pos{2, 1}, CodeWrongKind, "a"), Errorf(Pos{1, 5}, CodeWrongKind, "b")
	c := Errorf(Pos{1, 4}, CodeWrongKind, "c")
	ds := located("x\ny", a, b, a, c)
	equal(t, "order", ds.Error(), "m.yaml:1:4: error: c [wrong-kind]\nm.yaml:1:5: error: b [wrong-kind]\nm.yaml:2:1: error: a [wrong-kind]")
}

func TestErrIsNilWithoutDiagnostics(t *testing.T) {
	if err := (Diagnostics{}).Err(); err != nil {
		t.Errorf("got %v", err)
	}
	var ds Diagnostics
	if err := located("", Errorf(Pos{1, 1}, CodeWrongKind, "a")).Err(); !errors.As(err, &ds) || len(ds) != 1 {
		t.Errorf("got %v", err)
	}
}

func TestJSONCarriesEveryPartOfADiagnostic(t *testing.T) {
	text, err := located("x", Errorf(Pos{1, 2}, CodeWrongKind, "a").WithHint("b")).JSON()
	var got []map[string]any
	if err != nil || json.Unmarshal(text, &got) != nil || len(got) != 1 {
		t.Fatalf("%s %v", text, err)
	}
	equal(t, "json", got[0], map[string]any{"file": "m.yaml", "line": 1.0, "col": 2.0, "severity": "error",
		"message": "a", "code": "wrong-kind", "hint": "b"})
	empty, _ := Diagnostics(nil).JSON()
	equal(t, "none", string(empty), "[]\n")
}
