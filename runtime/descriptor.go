package shard

import (
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Descriptor is what a generated package says of its model.
type Descriptor struct {
	Model     string // the spec's `model`
	Package   string // the generated package's name
	ModelHash string // hexadecimal
	Worlds    []World
	Layout    layout.Model
	Code      device.Code // kernels for GPUs
}

// World is what the planner computed for one world size of Layout.Worlds.
type World struct {
	LayoutHash string
	PlanHash   string // ranks compare it at Open
	RestBytes  int64  // of one rank between passes
	PeakBytes  int64  // all that Open allocates on one rank
}

// world returns the index of a world size in the plan, or an error that lists
// those that are there.
func (d *Descriptor) world(size int) (int, error) {
	if len(d.Worlds) != len(d.Layout.Worlds) {
		return 0, fmt.Errorf("its descriptor has %d worlds, its layout %d; generate the package again", len(d.Worlds), len(d.Layout.Worlds))
	}
	if w := d.Layout.WorldIndex(int64(size)); w >= 0 {
		return w, nil
	}
	known := make([]string, len(d.Layout.Worlds))
	for i, n := range d.Layout.Worlds {
		known[i] = fmt.Sprint(n)
	}
	return 0, fmt.Errorf("the communicator has %d ranks, but the package is generated for %s; add %d to topology.world and generate again",
		size, strings.Join(known, ", "), size)
}
