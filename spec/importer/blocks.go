package importer

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// minLayerParams is how many parameters a lone layer needs to be a block of its
// own. Members of a Sequential (a weight, a bias) stay below.
const minLayerParams = 4

// piece is a stretch of parameters that becomes a block: a layer, a repeat of
// layers, or (stem unset) what lies between them.
type piece struct {
	isLayer     bool
	stem        string // what stands before the index: "h" of "h.3.ln_1.weight"
	first, last int64  // indexes, both included
	instances   [][]param
}

func (p piece) len() int        { return len(p.instances) }
func (p piece) params() []param { return p.instances[0] }

// prefix is what the names of instance k begin with.
func (p piece) prefix(k int) string {
	return joinName(p.stem, strconv.FormatInt(p.first+int64(k), 10)) + "."
}

func joinName(stem, last string) string {
	if stem == "" {
		return last
	}
	return stem + "." + last
}

// isIndex reports whether a name part is a number as a repeat writes it: no
// leading zero, small enough to count.
func isIndex(part string) bool {
	n, err := strconv.ParseUint(part, 10, 31)
	return err == nil && strconv.FormatUint(n, 10) == part
}

// layerOf finds the layer that a name belongs to: the first number at part
// depth or later that has something behind it.
func layerOf(name string, depth int) (stem string, index int64, ok bool) {
	parts := strings.Split(name, ".")
	for k := depth; k < len(parts)-1; k++ {
		if isIndex(parts[k]) {
			index, _ = strconv.ParseInt(parts[k], 10, 64)
			return strings.Join(parts[:k], "."), index, true
		}
	}
	return "", 0, false
}

// findPieces cuts the parameters into pieces without changing their order.
// Numbers before part depth of a name are taken as letters.
func findPieces(params []param, depth int) []piece {
	pieces := fold(layers(params, depth))
	accepted := acceptedStems(pieces)
	var out []piece
	for _, p := range pieces {
		switch {
		case p.isLayer && accepted[p.stem]:
			out = append(out, takeApart(p)...)
		case len(out) > 0 && !out[len(out)-1].isLayer:
			open := &out[len(out)-1]
			open.instances[0] = append(open.instances[0], slices.Concat(p.instances...)...)
		default:
			out = append(out, piece{instances: [][]param{slices.Concat(p.instances...)}})
		}
	}
	return out
}

// layers cuts where the layer changes; every piece has one instance.
func layers(params []param, depth int) []piece {
	var out []piece
	for _, p := range params {
		stem, index, ok := layerOf(p.name, depth)
		if n := len(out) - 1; n >= 0 && out[n].isLayer == ok && out[n].stem == stem && out[n].first == index {
			out[n].instances[0] = append(out[n].instances[0], p)
			continue
		}
		out = append(out, piece{isLayer: ok, stem: stem, first: index, last: index, instances: [][]param{{p}}})
	}
	return out
}

// fold joins neighbouring layers that have the same parameters.
func fold(layers []piece) []piece {
	var out []piece
	for _, l := range layers {
		if n := len(out) - 1; n >= 0 && out[n].isLayer && l.isLayer && out[n].stem == l.stem &&
			out[n].last+1 == l.first && alike(out[n], l) {
			out[n].last = l.last
			out[n].instances = append(out[n].instances, l.instances[0])
			continue
		}
		out = append(out, l)
	}
	return out
}

// alike reports whether two layers can be instances of one block. Whether a
// parameter is frozen does not matter: an override can say it for an instance.
func alike(a, b piece) bool {
	pa, pb := a.prefix(0), b.prefix(0)
	return slices.EqualFunc(a.params(), b.params(), func(p, q param) bool {
		return p.sameStorage(q) && p.name[len(pa):] == q.name[len(pb):] &&
			relative(p.tiedTo, pa) == relative(q.tiedTo, pb)
	})
}

// relative writes an owner in the same layer as it looks from any instance.
func relative(owner, prefix string) string {
	if rest, ok := strings.CutPrefix(owner, prefix); ok {
		return "{}" + rest
	}
	return owner
}

// acceptedStems tells layers from other things with numbers: a stem counts if a
// layer repeats or is large, and none of its indexes turns up in two places.
func acceptedStems(pieces []piece) map[string]bool {
	accepted := map[string]bool{}
	seen := map[string]map[int64]bool{}
	torn := map[string]bool{}
	for _, p := range pieces {
		if !p.isLayer {
			continue
		}
		if p.len() > 1 || len(p.params()) >= minLayerParams {
			accepted[p.stem] = true
		}
		if seen[p.stem] == nil {
			seen[p.stem] = map[int64]bool{}
		}
		for i := p.first; i <= p.last; i++ {
			torn[p.stem] = torn[p.stem] || seen[p.stem][i]
			seen[p.stem][i] = true
		}
	}
	for stem := range torn {
		accepted[stem] = accepted[stem] && !torn[stem]
	}
	return accepted
}

// takeApart replaces a lone layer that is mostly a repeat itself, such as a
// stage of a vision model, by its own pieces.
func takeApart(p piece) []piece {
	if p.len() > 1 {
		return []piece{p}
	}
	depth := strings.Count(p.prefix(0), ".")
	inner := findPieces(p.params(), depth)
	repeated := 0
	for _, q := range inner {
		if q.len() > 1 {
			repeated += q.len() * len(q.params())
		}
	}
	if 2*repeated > len(p.params()) {
		return inner
	}
	return []piece{p}
}

// splitBetween cuts what lies between two stems where the names turn from the
// prefix of the one to the prefix of the other.
func splitBetween(pieces []piece) []piece {
	var out []piece
	for k, p := range pieces {
		if p.isLayer || k == 0 || k == len(pieces)-1 {
			out = append(out, p)
			continue
		}
		out = append(out, splitAffine(p.params(), pieces[k-1].stem, pieces[k+1].stem)...)
	}
	return out
}

func splitAffine(params []param, before, after string) []piece {
	var out []piece
	side := 1 // 1 belongs to before, -1 to after; a name akin to neither stays where it is
	for k, p := range params {
		next := cmp.Compare(commonParts(p.name, before), commonParts(p.name, after))
		if next == 0 {
			next = side
		}
		if k == 0 || next != side {
			out = append(out, piece{instances: [][]param{nil}})
		}
		open := &out[len(out)-1]
		open.instances[0] = append(open.instances[0], p)
		side = next
	}
	return out
}

// commonParts counts the dotted parts that two names begin with alike.
func commonParts(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	n := 0
	for n < min(len(as), len(bs)) && as[n] == bs[n] {
		n++
	}
	return n
}
