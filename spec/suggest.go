package spec

import "strings"

// word is a key of the language with the map that it belongs to.
type word struct {
	key   string
	table string
	also  []string
}

// unknownKey reports a key that a map does not have, with the nearest one, or
// with the map that does have it.
func (w *walker) unknownKey(table string, here []word, p pair) {
	if w.full() {
		return
	}
	d := w.at(p.at, CodeUnknownKey, "%s has no key %s", table, shown(p.name))
	near, edits := nearestWord(p.name, here)
	far, farEdits := nearestWord(p.name, w.vocabulary)
	switch {
	case near != nil && (far == nil || edits <= farEdits):
		d.fix("did you mean `%s`?", near.key)
	case far != nil:
		d.fix("`%s` is a key of %s", far.key, far.table)
	default:
		d.fix("the keys here are %s", keyList(here))
	}
}

func keyList(words []word) string {
	keys := make([]string, len(words))
	for i, w := range words {
		keys[i] = "`" + w.key + "`"
	}
	return strings.Join(keys, ", ")
}

// nearestWord compares with the keys and with what other systems call them, and
// returns the nearest one and how many edits it is away, or nil.
func nearestWord(name string, words []word) (best *word, least int) {
	least = limit(name) + 1
	name = fold(name)
	for i := range words {
		for _, candidate := range append([]string{words[i].key}, words[i].also...) {
			if d := distance(name, fold(candidate), least); d < least {
				best, least = &words[i], d
			}
		}
	}
	return best, least
}

// Nearest returns the word that a misspelt one most likely means, or "" where
// none is near.
func Nearest(name string, words []string) string {
	all := make([]word, len(words))
	for i, w := range words {
		all[i].key = w
	}
	if best, _ := nearestWord(name, all); best != nil {
		return best.key
	}
	return ""
}

// limit is how many edits a misspelling of a name may have.
func limit(name string) int {
	if len(name) > 64 {
		return 0 // no word is that long, and comparing would be slow
	}
	return max(1, len(name)/3)
}

// fold drops what people vary: case, dashes and underscores.
func fold(name string) string { return wordSeparators.Replace(strings.ToLower(name)) }

var wordSeparators = strings.NewReplacer("_", "", "-", "", " ", "")

// distance counts the insertions, deletions, substitutions and swaps of
// neighbours that turn one text into the other (optimal string alignment). It
// may stop early at any number that is at least enough.
func distance(a, b string, enough int) int {
	x, y := []rune(a), []rune(b)
	if apart := max(len(x)-len(y), len(y)-len(x)); apart >= enough {
		return apart
	}
	before, row, next := make([]int, len(y)+1), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range x {
		next[0] = i + 1
		for j := range y {
			swapped := i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j]
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j]+different(x[i], y[j]))
			if swapped {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(y)]
}

func different(a, b rune) int {
	if a == b {
		return 0
	}
	return 1
}
