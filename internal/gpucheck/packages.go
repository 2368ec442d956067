package gpucheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/generated/alldtypes"
	"github.com/shardgen/shardgen/generated/goldenmlp"
	"github.com/shardgen/shardgen/generated/goldenodd"
	"github.com/shardgen/shardgen/generated/gpt2"
	"github.com/shardgen/shardgen/generated/llama321b"
	"github.com/shardgen/shardgen/generated/llama38bhost"
	"github.com/shardgen/shardgen/generated/llama38blayer"
	"github.com/shardgen/shardgen/generated/oddshapes"
	"github.com/shardgen/shardgen/generated/tied"
	"github.com/shardgen/shardgen/generated/tiny"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/layout"
)

// packages returns the committed generated packages. The first that has a kernel
// is the one whose kernel is measured.
func packages() []*shard.Descriptor {
	return []*shard.Descriptor{
		alldtypes.Descriptor(), tiny.Descriptor(), tied.Descriptor(), oddshapes.Descriptor(), goldenodd.Descriptor(), goldenmlp.Descriptor(),
		gpt2.Descriptor(), llama321b.Descriptor(), llama38blayer.Descriptor(), llama38bhost.Descriptor(),
	}
}

// choose returns the packages with the given names, in their own order; all of
// them for no names.
func choose(all []*shard.Descriptor, names []string) ([]*shard.Descriptor, error) {
	if len(names) == 0 {
		return all, nil
	}
	var known []string
	for _, d := range all {
		known = append(known, d.Package)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no package %q; there are %s", name, strings.Join(known, ", "))
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(d *shard.Descriptor) bool { return !slices.Contains(names, d.Package) }), nil
}

// smallElements bounds the buckets of models that are run as a whole.
const smallElements = 1 << 16

// runnable reports whether a model is small and has initial values.
func runnable(m *layout.Model) bool {
	for b := range m.Buckets() {
		if b.End > smallElements {
			return false
		}
		for _, p := range b.Params {
			if p.Init == nil {
				return false
			}
		}
	}
	return true
}
