package spec

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Severity says how grave a diagnostic is. All faults of the language are
// errors so far.
type Severity string

// SeverityError is a fault that stops generation.
const SeverityError Severity = "error"

// Diagnostic is one fault: where it is, what is wrong, and how to mend it.
type Diagnostic struct {
	File     string
	Pos      Pos
	Severity Severity
	Message  string
	Code     Code
	Hint     string // the fix; may be empty

	line string // the source line of Pos, set by Locate
}

// Errorf makes a diagnostic for a place in a spec. Locate adds file and source.
func Errorf(pos Pos, code Code, format string, args ...any) Diagnostic {
	return Diagnostic{Pos: pos, Severity: SeverityError, Code: code, Message: fmt.Sprintf(format, args...)}
}

// WithHint returns the diagnostic with its fix.
func (d Diagnostic) WithHint(format string, args ...any) Diagnostic {
	d.Hint = fmt.Sprintf(format, args...)
	return d
}

// Error returns `file:line:col: error: message [code]`.
func (d Diagnostic) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s: %s [%s]", d.File, d.Pos.Line, d.Pos.Col, d.Severity, oneLine(d.Message), d.Code)
}

// MarshalJSON gives the fields in lower case, the position as line and col.
func (d Diagnostic) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		File     string   `json:"file"`
		Line     int      `json:"line"`
		Col      int      `json:"col"`
		Severity Severity `json:"severity"`
		Message  string   `json:"message"`
		Code     Code     `json:"code"`
		Hint     string   `json:"hint,omitempty"`
	}{d.File, d.Pos.Line, d.Pos.Col, d.Severity, d.Message, d.Code, d.Hint})
}

// Render returns the message, then the source line with a caret below the
// fault, then the fix. Long lines are cut around the caret.
func (d Diagnostic) Render() string {
	var b strings.Builder
	b.WriteString(d.Error() + "\n")
	if text, caret := excerpt(d.line, d.Pos.Col); text != "" {
		number := fmt.Sprintf("%5d", d.Pos.Line)
		fmt.Fprintf(&b, "%s | %s\n%s | %s^\n", number, text, strings.Repeat(" ", len(number)), caret)
	}
	if d.Hint != "" {
		fmt.Fprintf(&b, "      = fix: %s\n", oneLine(d.Hint))
	}
	return b.String()
}

// Diagnostics are the faults of one or more files.
type Diagnostics []Diagnostic

// Locate sets file and source line of every diagnostic that has no file yet,
// sorts all by place and drops repetitions.
func (ds Diagnostics) Locate(path string, src []byte) Diagnostics {
	lines := sourceLines(src)
	for i := range ds {
		d := &ds[i]
		if d.File != "" {
			continue
		}
		d.File = path
		if d.Pos.Line >= 1 && d.Pos.Line <= len(lines) {
			d.line = lines[d.Pos.Line-1]
		}
	}
	ds.Sort()
	return slices.Compact(ds)
}

// Sort orders by file, line, column, code and message.
func (ds Diagnostics) Sort() {
	slices.SortStableFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Pos.Line, b.Pos.Line),
			cmp.Compare(a.Pos.Col, b.Pos.Col),
			cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Message, b.Message),
			cmp.Compare(a.Hint, b.Hint),
		)
	})
}

// Err returns the diagnostics as an error, nil where there are none.
func (ds Diagnostics) Err() error {
	if len(ds) == 0 {
		return nil
	}
	return ds
}

// Error returns one line a diagnostic.
func (ds Diagnostics) Error() string {
	lines := make([]string, len(ds))
	for i, d := range ds {
		lines[i] = d.Error()
	}
	return strings.Join(lines, "\n")
}

// Render returns all diagnostics for a terminal, each with its source line.
func (ds Diagnostics) Render() string {
	var b strings.Builder
	for _, d := range ds {
		b.WriteString(d.Render())
	}
	return b.String()
}

// JSON returns the diagnostics as an indented JSON array.
func (ds Diagnostics) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(append(Diagnostics{}, ds...), "", "  ")
	return append(text, '\n'), err
}

// excerptRunes is how much of a long source line a rendering shows.
const excerptRunes = 100

// excerpt returns the part of a line around a column, and the blanks that put
// a caret below that column. Tabs stay tabs in both, so that they line up.
func excerpt(line string, col int) (text, blanks string) {
	line = strings.TrimRight(line, " \t")
	first := max(0, col-1-excerptRunes/2)
	rest := skipRunes(line, first)
	runes := []rune(rest[:len(rest)-len(skipRunes(rest, excerptRunes))])
	blanks = padding(runes[:min(max(col-1-first, 0), len(runes))])
	text = printable(runes)
	if len(runes) == excerptRunes && skipRunes(rest, excerptRunes) != "" {
		text += " ..."
	}
	if first > 0 {
		return "... " + text, "    " + blanks
	}
	return text, blanks
}

// skipRunes returns what follows the first n runes.
func skipRunes(s string, n int) string {
	for at := range s {
		if n == 0 {
			return s[at:]
		}
		n--
	}
	return ""
}

// padding turns all but tabs into blanks, and drops marks that combine with
// the rune before them.
func padding(runes []rune) string {
	var b strings.Builder
	for _, r := range runes {
		switch {
		case r == '\t':
			b.WriteRune(r)
		case !unicode.Is(unicode.Mn, r):
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// printable replaces control characters, which could steer a terminal.
func printable(runes []rune) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, string(runes))
}

// oneLine quotes line breaks and control characters in a message.
func oneLine(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case !unicode.IsPrint(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// sourceLines splits at every line break of YAML 1.1, so that the lines agree
// with the positions of the YAML parser.
func sourceLines(src []byte) []string {
	text := strings.TrimPrefix(string(src), byteOrderMark)
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n").Replace(text)
	return strings.Split(text, "\n")
}
