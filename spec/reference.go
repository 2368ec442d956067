package spec

import (
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// Reference returns the reference page of the language in markdown, made from
// the parser's own tables.
func Reference() []byte {
	p := &page{}
	p.write("# The spec language\n\nA spec is one YAML document, at most %d bytes long. Every key is checked: what has no meaning is refused, never ignored. "+
		"All faults are reported at once, and `shardgen explain CODE` tells more about one.\n\n", maxSourceBytes)
	p.rules()
	section(p, rootTable)
	section(p, topologyTable)
	section(p, shardTable)
	section(p, gatherTable)
	section(p, gradientsTable)
	for _, o := range optimizerTables {
		section(p, o.table)
	}
	section(p, budgetTable)
	section(p, blockTable)
	section(p, paramTable)
	section(p, initTable)
	section(p, normalTable)
	section(p, truncatedTable)
	section(p, uniformTable)
	section(p, overrideTable)
	p.codes()
	return []byte(p.text.String())
}

type page struct{ text strings.Builder }

func (p *page) write(format string, args ...any) { fmt.Fprintf(&p.text, format, args...) }

func (p *page) rules() {
	p.write("## How values are written\n\n")
	p.write("- Integers are decimal digits without a leading zero, point, exponent or underscore, and fit in 64 bits.\n")
	p.write("- Truth values are `true` and `false`.\n")
	p.write("- Sizes are a number of bytes, or an integer directly followed by `KiB`, `MiB`, `GiB` or `TiB`.\n")
	p.write("- Names are kept as written, whatever YAML takes them for: `no`, `1.10` and `null` are names. `{{` and `}}` are literal braces.\n")
	p.write("- Element types are %s.\n", typeList())
	p.write("- Anchors and one merge key a map are allowed; keys written in a map win over merged ones. Top-level keys that start with `x-` hold anchors and are ignored.\n\n")
}

func typeList() string {
	var names []string
	for _, d := range dtype.All() {
		names = append(names, d.String())
	}
	return orList(names)
}

// section writes the keys of one map.
func section[M any](p *page, t *table[M]) {
	p.write("## Keys of %s\n\n%s\n\n| Key | Value | Default | Meaning |\n| --- | --- | --- | --- |\n", t.name, t.doc)
	for _, f := range t.fields {
		p.write("| `%s` | %s | %s | %s |\n", f.key, f.kind, f.defaultWords(), f.doc+f.unbuiltWords())
	}
	p.write("\n")
}

func (f field[M]) defaultWords() string {
	switch {
	case f.required:
		return "required"
	case f.inherits != "":
		return f.inherits
	case f.fallback != "":
		return "`" + f.fallback + "`"
	}
	return "none"
}

func (f field[M]) unbuiltWords() string {
	if len(f.unbuilt) == 0 {
		return ""
	}
	return " Not built yet: " + orList(f.unbuilt) + "."
}

func (p *page) codes() {
	p.write("## Diagnostics\n\n| Code | Meaning |\n| --- | --- |\n")
	for _, e := range catalogue {
		p.write("| `%s` | %s |\n", e.code, e.text)
	}
}
