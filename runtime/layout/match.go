package layout

import "strings"

// Match reports whether a name matches a pattern, in which each `*` stands for
// any characters, dots included, and every other character for itself.
func Match(pattern, name string) bool {
	head, rest, starred := strings.Cut(pattern, "*")
	if !starred {
		return pattern == name
	}
	name, found := strings.CutPrefix(name, head)
	for found {
		head, rest, starred = strings.Cut(rest, "*")
		if !starred {
			return strings.HasSuffix(name, head)
		}
		_, name, found = strings.Cut(name, head)
	}
	return false
}
