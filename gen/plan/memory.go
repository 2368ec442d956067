package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// smaller is the fix of everything that overflows.
const smaller = "make dimensions, repeats or the world smaller"

// place computes a rank's memory for every world size and holds it against the
// budget.
func (b *builder) place() {
	for i, ranks := range b.worlds {
		placement, err := b.plan.Layout.Place(i)
		if err != nil {
			b.fault(spec.Errorf(b.spec.Topology.Pos, spec.CodeOverflow, "%v", err).WithHint("%s", smaller))
			continue
		}
		b.plan.Worlds = append(b.plan.Worlds, World{Ranks: ranks, Placement: placement})
		b.checkBudget(placement)
	}
}

// checkBudget compares what the spec leaves to Open with what it allocates.
func (b *builder) checkBudget(p *layout.Placement) {
	budget := &b.spec.Budget
	listed := slices.ContainsFunc(b.spec.Topology.Worlds, func(w spec.At[int64]) bool { return w.V == p.World })
	have, need := budget.Device.V-budget.Reserve.V, p.PeakBytes()
	if budget.Device.V == 0 || !listed || need <= have {
		return
	}
	b.fault(spec.Errorf(budget.Device.Pos, spec.CodeBudgetExceeded,
		"world %d needs %s a rank, the budget leaves %s (device %s less reserve %s); the biggest parts are %s",
		p.World, exactBytes(need), exactBytes(have), exactBytes(budget.Device.V), exactBytes(budget.Reserve.V), biggestParts(p, 3)).
		WithHint("raise budget.device, take more ranks, or lower gather.max_live or gradients.slots"))
}

// biggestParts names the largest arenas, "masters 3.0 GiB, slots 1.2 GiB".
func biggestParts(p *layout.Placement, count int) string {
	arenas := slices.Clone(p.Arenas)
	slices.SortStableFunc(arenas, func(x, y layout.Arena) int { return cmp.Compare(y.Bytes, x.Bytes) })
	var parts []string
	for _, a := range arenas[:min(count, len(arenas))] {
		parts = append(parts, fmt.Sprintf("%s %s", arenaName(a), humanBytes(a.Bytes)))
	}
	return strings.Join(parts, ", ")
}

// measureTraffic computes what one rank receives in a step of one forward and
// one backward pass. Of n ranks' equal shards it receives n-1: a gather brings
// those of the others, a reduction their parts of its own.
func (b *builder) measureTraffic() {
	for i := range b.plan.Worlds {
		w := &b.plan.Worlds[i]
		t := &traffic{model: b.plan.Layout, w: i, others: w.Ranks - 1}
		t.measure()
		w.GatherBytesPerStep, w.ReduceBytesPerStep = t.gather.value, t.reduce.value
		if t.gather.overflowed || t.reduce.overflowed {
			b.fault(spec.Errorf(b.spec.Topology.Pos, spec.CodeOverflow,
				"traffic of a step at world size %d: more than 2^63-1 bytes", w.Ranks).WithHint("%s", smaller))
		}
	}
}

// passesPerStep counts the traversals of a step that gather: forward and
// backward, without recomputation.
const passesPerStep = 2

type traffic struct {
	model          *layout.Model
	w              int
	others         int64
	gather, reduce sum
}

func (t *traffic) measure() {
	for i := range t.model.Kinds {
		kind := &t.model.Kinds[i]
		for j := range kind.Buckets {
			t.gathers(&kind.Buckets[j], kind.Count)
			t.reduces(&kind.Buckets[j], kind.Count)
		}
		for _, s := range kind.Uses {
			t.reduces(&t.model.Shared[s], kind.Count)
		}
	}
	for i := range t.model.Shared {
		t.gathers(&t.model.Shared[i], 1)
	}
}

func (t *traffic) gathers(k *layout.Bucket, times int64) {
	t.gather.add(k.ShardElements[t.w], k.DType.Bytes(), t.others, times, passesPerStep)
}

func (t *traffic) reduces(k *layout.Bucket, times int64) {
	if k.Trainable {
		t.reduce.add(k.ShardElements[t.w], t.model.WireType(k).Bytes(), t.others, times)
	}
}
