package spec

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// piece is a part of a name template: literal text, or a placeholder.
type piece struct {
	text        string // literal text, or the placeholder's variable
	placeholder bool
}

var variableForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Expand returns the name that a template stands for in instance i of a block
// whose repeat has the given variable. `{{` and `}}` become single braces; what
// is no placeholder of that variable stays as written.
func Expand(template, variable string, i int64) string {
	pieces, _ := split(template)
	var b strings.Builder
	for _, p := range pieces {
		switch {
		case !p.placeholder:
			b.WriteString(p.text)
		case p.text == variable && variable != "":
			b.WriteString(strconv.FormatInt(i, 10))
		default:
			b.WriteString("{" + p.text + "}")
		}
	}
	return b.String()
}

// Literal returns the name that a template without placeholders stands for:
// `{{` and `}}` become single braces.
func Literal(template string) string { return Expand(template, "", 0) }

// Escape returns the template that stands for exactly the given name.
func Escape(name string) string {
	return strings.NewReplacer("{", "{{", "}", "}}").Replace(name)
}

// Placeholders lists the variables of a template in order, repetitions too.
func Placeholders(template string) []string {
	pieces, _ := split(template)
	var names []string
	for _, p := range pieces {
		if p.placeholder {
			names = append(names, p.text)
		}
	}
	return names
}

// split cuts a template into pieces and reports the first faulty brace, which
// becomes literal text.
func split(template string) (pieces []piece, err error) {
	rest := template
	for rest != "" {
		at := strings.IndexAny(rest, "{}")
		if at < 0 {
			return append(pieces, piece{text: rest}), err
		}
		if at > 0 {
			pieces = append(pieces, piece{text: rest[:at]})
		}
		p, size, fault := brace(rest[at:])
		pieces, rest = append(pieces, p), rest[at+size:]
		if err == nil {
			err = fault
		}
	}
	return pieces, err
}

// brace reads the piece at the start of s, which begins with a brace, and
// returns how many bytes it takes.
func brace(s string) (piece, int, error) {
	if strings.HasPrefix(s, "{{") || strings.HasPrefix(s, "}}") {
		return piece{text: s[:1]}, 2, nil
	}
	size := strings.IndexAny(s[1:], "{}")
	if s[0] == '}' || size < 0 || s[1+size] == '{' {
		return piece{text: s[:1]}, 1, fmt.Errorf("a lone `%c`", s[0])
	}
	name := s[1 : 1+size]
	if !variableForm.MatchString(name) {
		return piece{text: s[:1]}, 1, fmt.Errorf("the braces {%s} without a variable's name", name)
	}
	return piece{text: name, placeholder: true}, size + 2, nil
}
