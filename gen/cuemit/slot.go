package cuemit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/relation"
	"github.com/shardgen/shardgen/runtime/layout"
)

// slotRun is gather slots next to each other that have the same size, at every
// world size. There are few, however many slots there are: a kind's blocks fill
// neighbouring slots.
type slotRun struct {
	slot                int64          // the first
	first, bytes, start constname.Name // its index, the bytes of each slot, where it starts
}

// findSlots finds the runs of slots.
func (e *placer) findSlots() {
	for i := range e.layout.MaxLive {
		another := func(p *layout.Placement) bool { return i == 0 || p.SlotBytes[i] != p.SlotBytes[i-1] }
		if slices.ContainsFunc(e.worlds, another) {
			name := fmt.Sprintf("slotRun%d", len(e.slots))
			e.slots = append(e.slots, slotRun{i, constname.OfWorld(name + "First"), constname.OfWorld(name + "Bytes"), constname.OfWorld(name + "Start")})
		}
	}
}

// startOf is where a slot of the run starts.
func (r *slotRun) startOf(slot relation.Expr) relation.Expr {
	return relation.Add(relation.Of(r.start), relation.Mul(relation.Sub(slot, relation.Of(r.first)), relation.Of(r.bytes)))
}

// slotGroup writes the gather slots.
func (e *placer) slotGroup() *group {
	const field = "gather.max_live"
	e.findSlots()
	g := newGroup("The gather slots, runs of equal ones. A slot is as large as the largest block that it is for.")
	start := relation.Num(0)
	for i, r := range e.slots {
		g.Constants = append(g.Constants,
			relation.Constant{Name: r.first, Values: []int64{r.slot}, What: "the run's first slot", Field: field},
			relation.Constant{Name: r.bytes, Values: e.each(func(p *layout.Placement) int64 { return p.SlotBytes[r.slot] }), What: "bytes of each of its slots", Field: field})
		const order = "runs of slots follow one another, from slot 0 on"
		if i == 0 {
			g.Equal(relation.Of(r.first), relation.Num(0), field, order)
		} else {
			before := &e.slots[i-1]
			g.AtLeast(relation.Of(r.first), relation.Add(relation.Of(before.first), relation.Num(1)), field, order)
			start = before.startOf(relation.Of(r.first))
		}
		g.Define(r.start, e.each(func(p *layout.Placement) int64 { return p.SlotStarts[r.slot] }), "bytes into the arena of slots", start, field,
			"a run of slots starts where the one before it ends")
	}
	slot := relation.Of(constname.OfModel("slot"))
	g.Functions = append(g.Functions, e.slotFunction("slotBytes", func(r *slotRun) relation.Expr { return relation.Of(r.bytes) }),
		e.slotFunction("slotStart", func(r *slotRun) relation.Expr { return r.startOf(slot) }))
	return g
}

// slotFunction chooses by the run of a slot.
func (e *placer) slotFunction(name string, of func(*slotRun) relation.Expr) string {
	var body strings.Builder
	last := len(e.slots) - 1
	for i := range last {
		fmt.Fprintf(&body, "slot < %s ? %s : ", e.slots[i+1].first, of(&e.slots[i]).Text(syntax))
	}
	value, parameter := of(&e.slots[last]).Text(syntax), "long long slot"
	if !strings.Contains(body.String()+value, "slot ") {
		parameter = "long long"
	}
	return fmt.Sprintf("SHARDGEN_FUNCTION static long long %s(%s) { return %s; }", name, parameter, body.String()+value)
}

// slotsEnd is where the slot of a shared bucket starts; at their number, where the
// arena ends.
func (e *placer) slotsEnd(s int) relation.Expr {
	if s == 0 {
		return e.slots[len(e.slots)-1].startOf(relation.Of(relation.MaxLive))
	}
	before := &e.names.Shared[s-1]
	return relation.Add(relation.Of(before.Offset(constname.SlotPart)), relation.Of(before.Gathered()))
}

// blockSlot writes where a bucket's gathered copy lies in the slots of a kind's
// blocks.
func (e *placer) blockSlot(g *group, k, b int) {
	const field = "gather.max_live"
	names, name, runs := e.names.Own[k], output.Printable(e.layout.Kinds[k].Buckets[b].Name), e.slotsOf(k)
	n := &names[b]
	offset, end := n.Offset(constname.BlockPart), relation.Num(0)
	if b > 0 {
		end = relation.Add(relation.Of(names[b-1].Offset(constname.BlockPart)), relation.Of(names[b-1].Gathered()))
	}
	slotOf := func(p *layout.Placement, b int) int64 { return e.block(p, k).Buckets[b].Slot }
	g.Define(offset, e.each(func(p *layout.Placement) int64 { return slotOf(p, b) - slotOf(p, 0) }), "bytes into the block's slot, of its gathered copy", end, field,
		fmt.Sprintf("the gathered copy of %s starts where that of the bucket before it ends", name))
	for _, r := range runs {
		g.AtLeast(relation.Of(r.bytes), relation.Add(relation.Of(offset), relation.Of(n.Gathered())), field,
			fmt.Sprintf("the slot of block %s holds %s", output.Printable(e.layout.Kinds[k].Name), name))
	}
	position, inArena := relation.Of(e.names.Kinds[k].Position()), n.Offset(constname.SlotPart)
	if e.repeated(k) {
		slot := relation.Call("slotStart", relation.Mod(relation.Add(position, instance), relation.Of(relation.MaxLive)))
		g.function(inArena, "long long i", relation.Add(slot, relation.Of(offset)))
		return
	}
	slot := runs[0].startOf(relation.Mod(position, relation.Of(relation.MaxLive)))
	g.Define(inArena, e.each(func(p *layout.Placement) int64 { return slotOf(p, b) }), "bytes into the arena of slots, of its gathered copy",
		relation.Add(slot, relation.Of(offset)), field, fmt.Sprintf("the gathered copy of %s lies in the slot of its block", name))
}

// slotsOf returns the runs of slots that a kind's blocks use, that of the first
// block first.
func (e *placer) slotsOf(k int) []*slotRun {
	var list []*slotRun
	for i := range min(e.layout.Kinds[k].Count, e.layout.MaxLive) {
		slot := (int64(e.first[k]) + i) % e.layout.MaxLive
		last := len(e.slots) - 1
		for e.slots[last].slot > slot {
			last--
		}
		if r := &e.slots[last]; !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	return list
}
