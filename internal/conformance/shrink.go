package conformance

import (
	"slices"

	"github.com/shardgen/shardgen/spec"
)

// smallDims stand for a model's dimensions, in order of size.
var smallDims = []int64{3, 5, 7, 11, 13, 17, 19, 23, 29, 31}

// Shrink replaces the dimensions of a model above 3 by small odd ones, equal ones
// by equal ones and none by a larger one than a larger one gets, and its world
// sizes by 1, 2, 3, 4 and 8. Blocks, names, types and ties stay.
func Shrink(m *spec.Model) {
	var dims []int64
	eachDim(m, func(d *int64) { dims = append(dims, *d) })
	slices.Sort(dims)
	dims = slices.Compact(dims)
	eachDim(m, func(d *int64) {
		if *d > smallDims[0] {
			n, _ := slices.BinarySearch(dims, *d)
			*d = smallDims[min(n, len(smallDims)-1)]
		}
	})
	m.Topology.Worlds = nil
	for _, w := range []int64{1, 2, 3, 4, 8} {
		m.Topology.Worlds = append(m.Topology.Worlds, spec.At[int64]{V: w, Set: true})
	}
}

func eachDim(m *spec.Model, visit func(d *int64)) {
	for b := range m.Blocks {
		for p := range m.Blocks[b].Params {
			shape := m.Blocks[b].Params[p].Shape
			for i := range shape {
				visit(&shape[i].V)
			}
		}
	}
}
