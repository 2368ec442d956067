package layout

// Match reports whether a name matches a pattern, in which each `*` stands for
// any characters, dots included, and every other character for itself.
func Match(pattern, name string) bool {
	p, n := 0, 0
	star, mark := -1, 0 // the last `*`, and how much of name it stands for so far
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && pattern[p] == name[n]:
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
