package spec

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// walker carries what one Parse has found so far.
type walker struct {
	found      Diagnostics
	dropped    Diagnostic // takes the fix of a diagnostic that was not kept
	vocabulary []word
}

// value is a node together with the key that it stands under. Aliases are
// followed, so node is never one.
type value struct {
	key  string
	node *yaml.Node
}

func (v value) pos() Pos { return place(v.node) }

// subject names the value in a message.
func (v value) subject() string {
	if v.key == "" {
		return "the spec"
	}
	return "`" + v.key + "`"
}

// report keeps a diagnostic, unless there are far more than will be shown. The
// result is good until the next report, for fix.
func (w *walker) report(d Diagnostic) *Diagnostic {
	if w.full() {
		return &w.dropped
	}
	w.found = append(w.found, d)
	return &w.found[len(w.found)-1]
}

func (w *walker) full() bool { return len(w.found) >= maxFound }

// fault reports at a node.
func (w *walker) fault(n *yaml.Node, code Code, format string, args ...any) *Diagnostic {
	return w.at(place(n), code, format, args...)
}

func (w *walker) at(pos Pos, code Code, format string, args ...any) *Diagnostic {
	return w.report(Errorf(pos, code, format, args...))
}

func (d *Diagnostic) fix(format string, args ...any) { *d = d.WithHint(format, args...) }

// kindWords says what a node is, in a message.
func kindWords(n *yaml.Node) string {
	n = follow(n)
	switch {
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case isNull(n):
		return "nothing"
	case !plain(n):
		return "the quoted text " + shown(n.Value)
	default:
		return shown(n.Value)
	}
}

// shown quotes a text for a message and cuts it when it is long.
func shown(text string) string {
	const most = 60
	count := 0
	for at := range text {
		if count++; count > most {
			text = text[:at] + "..."
			break
		}
	}
	return "`" + text + "`"
}

func plain(n *yaml.Node) bool { return n.Style&^yaml.FlowStyle == 0 }

func isNull(n *yaml.Node) bool {
	return n.Kind == yaml.ScalarNode && plain(n) && n.ShortTag() == "!!null"
}

// wrongKind reports a value that is not of the kind its key takes.
func (w *walker) wrongKind(v value, want string) *Diagnostic {
	if isNull(v.node) {
		d := w.fault(v.node, CodeNullValue, "%s has no value, it takes %s", v.subject(), want)
		d.fix("give it a value, or remove the key")
		return d
	}
	d := w.fault(v.node, CodeWrongKind, "%s takes %s, not %s", v.subject(), want, kindWords(v.node))
	d.fix("write %s", want)
	return d
}

// pair is an entry of a map, with the place of its key.
type pair struct {
	name string
	at   Pos
	value
}

// pairs lists the entries of a map: those written in it, then those of the map
// that it merges, unless it has the key itself. A key that is there twice was
// reported before; the first counts here.
func (w *walker) pairs(n *yaml.Node) []pair {
	seen := map[string]bool{}
	var all, merged []pair
	add := func(p pair) {
		if !seen[p.name] {
			seen[p.name] = true
			all = append(all, p)
		}
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, node := n.Content[i], follow(n.Content[i+1])
		switch {
		case key.Kind != yaml.ScalarNode:
		case !isMerge(key):
			add(pair{key.Value, place(key), value{key.Value, node}})
		case merged == nil && node.Kind == yaml.MappingNode:
			merged = w.pairs(node)
		}
	}
	for _, p := range merged {
		add(p)
	}
	return all
}

// items lists the values of a list.
func (w *walker) items(v value, want string) ([]value, bool) {
	if v.node.Kind != yaml.SequenceNode {
		w.wrongKind(v, want)
		return nil, false
	}
	items := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		items[i] = value{v.key, follow(n)}
	}
	return items, true
}

// field is one key of a map of the language. M is what the map fills in.
type field[M any] struct {
	key      string
	kind     string // how its value is written, for diagnostics and the reference
	fallback string // the default as a spec would write it; empty: none
	inherits string // the default in words, where it is no fixed text
	doc      string
	also     []string // what users of other systems call it
	sample   string   // a first value, where the kind alone would not help a newcomer
	required bool
	later    bool     // not built yet: refused by name
	unbuilt  []string // values that are not built yet
	schema   func() schema
	load     func(w *walker, v value, m *M)
	preset   func(m *M, pos Pos, text string)
}

func (f field[M]) or(fallback string) field[M]   { f.fallback = fallback; return f }
func (f field[M]) orWords(words string) field[M] { f.inherits = words; return f }
func (f field[M]) must() field[M]                { f.required = true; return f }
func (f field[M]) says(doc string) field[M]      { f.doc = doc; return f }
func (f field[M]) known(also ...string) field[M] { f.also = also; return f }

func (f field[M]) like(sample string) field[M] { f.sample = sample; return f }

// addition is what a spec lacks without the key.
func (f field[M]) addition() string {
	if f.sample != "" {
		return "`" + f.key + ": " + f.sample + "`"
	}
	return "`" + f.key + ":` with " + f.kind
}

// table is a map of the language: all its keys, and what holds between them.
type table[M any] struct {
	name    string // heading in the reference
	doc     string
	holders bool // keys that start with `x-` are ignored
	pos     func(*M) *Pos
	fields  []field[M]
	check   func(w *walker, g given, m *M) // after all keys are read; may be nil
}

// given is what a map holds: its place and its entries by key.
type given struct {
	value
	pairs    map[string]pair
	complete bool // every key has a meaning
}

func (g given) has(key string) bool { _, ok := g.pairs[key]; return ok }

func (t *table[M]) find(key string) *field[M] {
	i := slices.IndexFunc(t.fields, func(f field[M]) bool { return f.key == key })
	if i < 0 {
		return nil
	}
	return &t.fields[i]
}

// read fills m from a map and reports false if the value is no map.
func (t *table[M]) read(w *walker, v value, m *M) bool {
	if v.node.Kind != yaml.MappingNode {
		w.wrongKind(v, "a map")
		return false
	}
	t.presets(m, v.pos())
	g := given{value: v, pairs: map[string]pair{}, complete: true}
	for _, p := range w.pairs(v.node) {
		g.pairs[p.name] = p
		g.complete = t.entry(w, p, m) && g.complete
	}
	for _, f := range t.fields {
		if f.required {
			w.require(g, f.key, f.addition())
		}
	}
	if t.check != nil {
		t.check(w, g, m)
	}
	return true
}

// require asks for a key that is not given, unless a key without meaning is:
// that one may be it, misspelt. addition says what to write.
func (w *walker) require(g given, key, addition string) {
	if g.complete && !g.has(key) {
		w.fault(g.node, CodeMissingKey, "%s lacks the key `%s`", g.subject(), key).fix("add %s", addition)
	}
}

// entry reads one key and reports false for one that has no meaning here.
func (t *table[M]) entry(w *walker, p pair, m *M) bool {
	f := t.find(p.name)
	switch {
	case f == nil && t.holders && strings.HasPrefix(p.name, "x-"):
	case f == nil:
		w.unknownKey(t.name, t.words(), p)
		return false
	case f.later:
		w.notBuilt(p.at, "key `"+p.name+"` of "+t.name)
		return false
	default:
		f.load(w, p.value, m)
	}
	return true
}

// presets fills in the defaults, with the place of the enclosing map.
func (t *table[M]) presets(m *M, pos Pos) {
	if t.pos != nil {
		*t.pos(m) = pos
	}
	for _, f := range t.fields {
		if f.preset != nil {
			f.preset(m, pos, f.fallback)
		}
	}
}

func (w *walker) notBuilt(pos Pos, what string) {
	w.at(pos, CodeNotBuilt, "%s is part of the language but not built yet", what).
		fix("remove it: shardgen refuses what it would have to ignore")
}
