package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// notes says what the spec does not: what was left out and what was chosen.
func (d *document) notes() []string {
	var notes []string
	notes = append(notes, d.dtypeNotes()...)
	for _, p := range d.src.params {
		if p.tiedTo != "" {
			notes = append(notes, fmt.Sprintf("tied: %s shares the storage of %s", printable(p.name), printable(p.tiedTo)))
		}
	}
	if frozen, trained := splitFrozen(d.src.params); len(frozen) > 0 {
		notes = append(notes, fmt.Sprintf("frozen: %d of the %d parameters that could have a gradient", len(frozen), len(frozen)+len(trained)))
	}
	return append(notes, bufferNotes(d.src.buffers)...)
}

func (d *document) dtypeNotes() []string {
	var seen []dtype.DType
	counts := map[dtype.DType]int{}
	for _, p := range d.src.params {
		if p.tiedTo != "" {
			continue
		}
		if counts[p.dtype]++; counts[p.dtype] == 1 {
			seen = append(seen, p.dtype)
		}
	}
	if len(seen) == 1 {
		return []string{fmt.Sprintf("dtype: %s everywhere", d.dtype)}
	}
	slices.SortStableFunc(seen, func(a, b dtype.DType) int { return cmp.Compare(counts[b], counts[a]) })
	said := make([]string, len(seen))
	for k, t := range seen {
		said[k] = fmt.Sprintf("%d %s", counts[t], t)
	}
	return []string{fmt.Sprintf("dtype: %s is the default; of %d parameters there are %s",
		d.dtype, d.totals.tensors, strings.Join(said, ", "))}
}

// bufferKind is what buffers that differ in numbers only have in common.
type bufferKind struct{ pattern, dtype, shape string }

// bufferNotes names the buffers, a line for each kind.
func bufferNotes(buffers []buffer) []string {
	var order []bufferKind
	groups := map[bufferKind][]string{}
	for _, b := range buffers {
		kind := bufferKind{withoutIndexes(b.name), b.dtype, shapeText(b.shape)}
		if groups[kind] == nil {
			order = append(order, kind)
		}
		groups[kind] = append(groups[kind], b.name)
	}
	notes := make([]string, len(order))
	for k, kind := range order {
		names := slices.SortedFunc(slices.Values(groups[kind]), compareNames)
		which := "buffer " + printable(names[0])
		if len(names) > 1 {
			which = fmt.Sprintf("%d buffers, %s to %s", len(names), printable(names[0]), printable(names[len(names)-1]))
		}
		notes[k] = fmt.Sprintf("left out: %s, %s %s", which, printable(kind.dtype), kind.shape)
	}
	return notes
}

func withoutIndexes(name string) string {
	parts := strings.Split(name, ".")
	for k, part := range parts {
		if isIndex(part) {
			parts[k] = "#"
		}
	}
	return strings.Join(parts, ".")
}
