package layout

import (
	"strconv"
	"strings"
)

// expand replaces {variable} by the index and reads {{ and }} as literal
// braces. It goes from left to right, so that "{{i}}" becomes "{i}".
func expand(template, variable string, index int64) string {
	at := strings.IndexAny(template, "{}")
	if at < 0 {
		return template
	}
	var out strings.Builder
	out.Grow(len(template) + 8)
	for ; at >= 0; at = strings.IndexAny(template, "{}") {
		out.WriteString(template[:at])
		text, size := brace(template[at:], variable, index)
		out.WriteString(text)
		template = template[at+size:]
	}
	out.WriteString(template)
	return out.String()
}

// brace returns what the start of s, a brace, stands for and how long it is.
func brace(s, variable string, index int64) (text string, size int) {
	if strings.HasPrefix(s, "{{") || strings.HasPrefix(s, "}}") {
		return s[:1], 2
	}
	end := len(variable) + 1
	if s[0] == '{' && variable != "" && len(s) > end && s[1:end] == variable && s[end] == '}' {
		return strconv.FormatInt(index, 10), end + 1
	}
	return s[:1], 1
}
