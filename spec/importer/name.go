package importer

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/spec"
)

// repeatVar is the variable of every repeat.
const repeatVar = "i"

// block is a piece with its name, its lines as the spec writes them.
type block struct {
	name  string // a template: holds {i} where the block repeats
	piece piece
	lines []line
}

// line is a parameter as a block lists it. Names are templates.
type line struct {
	param
	frozenHere bool // frozen in all instances, and no override says so
}

// nameBlocks turns pieces into blocks with distinct names.
func nameBlocks(pieces []piece, all []param) []block {
	n := namer{pieces: pieces, all: all, used: map[string]bool{}, main: mainRanges(pieces)}
	blocks := make([]block, len(pieces))
	for k, p := range pieces {
		blocks[k] = block{name: n.unique(n.blockName(k)), piece: p, lines: templates(p)}
	}
	return blocks
}

type namer struct {
	pieces []piece
	all    []param
	used   map[string]bool
	main   map[string]int64 // stem -> first index of its longest range
}

// mainRanges picks the range of each stem that is named without its ends.
func mainRanges(pieces []piece) map[string]int64 {
	main, longest := map[string]int64{}, map[string]int{}
	for _, p := range pieces {
		if p.isLayer && p.len() > longest[p.stem] {
			main[p.stem], longest[p.stem] = p.first, p.len()
		}
	}
	return main
}

func (n *namer) unique(name string) string {
	candidate := name
	for k := 2; n.used[candidate]; k++ {
		candidate = fmt.Sprintf("%s_%d", name, k)
	}
	n.used[candidate] = true
	return candidate
}

func (n *namer) blockName(k int) string {
	p := n.pieces[k]
	switch {
	case p.isLayer && p.len() == 1:
		return spec.Escape(layerStem(p.stem)) + fmt.Sprintf(".%d", p.first)
	case p.isLayer && p.first == n.main[p.stem]:
		return spec.Escape(layerStem(p.stem)) + ".{" + repeatVar + "}"
	case p.isLayer:
		return fmt.Sprintf("%s_%d_%d.{%s}", spec.Escape(layerStem(p.stem)), p.first, p.last, repeatVar)
	}
	if prefix := modulePrefix(p.params()); prefix != "" && n.owns(prefix, p) {
		return spec.Escape(prefix)
	}
	return n.role(k)
}

// layerStem gives layers that stand at the top of the model ("0.weight") a name.
func layerStem(stem string) string {
	if stem == "" {
		return "layers"
	}
	return stem
}

// owns reports whether every parameter below prefix is one of the piece's.
func (n *namer) owns(prefix string, p piece) bool {
	below := 0
	for _, q := range n.all {
		if strings.HasPrefix(q.name, prefix+".") {
			below++
		}
	}
	return below == len(p.params())
}

// role names a piece without a prefix of its own by its place.
func (n *namer) role(k int) string {
	before, after := n.layerBefore(k), n.layerAfter(k)
	switch {
	case before == nil && after == nil:
		return "weights"
	case before == nil:
		return "embed"
	case after == nil:
		return "head"
	}
	prefix := modulePrefix(n.pieces[k].params())
	if prefix == "" {
		return "middle"
	}
	if commonParts(prefix, after.stem) > commonParts(prefix, before.stem) {
		return spec.Escape(prefix) + ".embed"
	}
	return spec.Escape(prefix) + ".head"
}

func (n *namer) layerBefore(k int) *piece {
	for k--; k >= 0; k-- {
		if n.pieces[k].isLayer {
			return &n.pieces[k]
		}
	}
	return nil
}

func (n *namer) layerAfter(k int) *piece {
	for k++; k < len(n.pieces); k++ {
		if n.pieces[k].isLayer {
			return &n.pieces[k]
		}
	}
	return nil
}

// modulePrefix is the longest run of dotted parts that all names begin with,
// their last parts left out.
func modulePrefix(params []param) string {
	common := modulePath(params[0].name)
	for _, p := range params[1:] {
		parts := strings.Split(common, ".")
		common = strings.Join(parts[:commonParts(common, modulePath(p.name))], ".")
	}
	return common
}

func modulePath(name string) string {
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		return name[:dot]
	}
	return ""
}

// templates writes the piece's parameters as the spec lists them.
func templates(p piece) []line {
	prefix := ""
	if p.len() > 1 {
		prefix = p.prefix(0)
	}
	lines := make([]line, len(p.params()))
	for k, q := range p.params() {
		q.name, q.tiedTo = p.template(q.name, prefix), p.template(q.tiedTo, prefix)
		lines[k] = line{param: q}
	}
	return lines
}

// template doubles braces and, where name is in the layer that prefix names,
// puts {i} for its index.
func (p piece) template(name, prefix string) string {
	rest, inLayer := strings.CutPrefix(name, prefix)
	if prefix == "" || !inLayer {
		return spec.Escape(name)
	}
	return spec.Escape(joinName(p.stem, "")) + "{" + repeatVar + "}." + spec.Escape(rest)
}

// printable returns a name for a message: as it is, or quoted where it holds
// anything that a reader would not see, and cut where it is long.
func printable(name string) string {
	if quoted := strconv.Quote(name); quoted != `"`+name+`"` || strings.TrimSpace(name) != name || len(name) > maxNameBytes {
		return fmt.Sprintf("%.80q", name)
	}
	return name
}
