package cuemit

import (
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/layout"
)

// slotRun is gather slots next to each other that have the same size. There are
// few, however many slots there are: a kind's blocks fill neighbouring slots.
type slotRun struct{ first, bytes, start int64 }

// findSlots finds the runs of slots and makes sure that every block lies in its
// slot.
func (e *worldEmitter) findSlots() error {
	for i, bytes := range e.place.SlotBytes {
		if n := len(e.slots); n == 0 || e.slots[n-1].bytes != bytes {
			e.slots = append(e.slots, slotRun{int64(i), bytes, e.place.SlotStarts[i]})
		}
	}
	for i := range e.place.Blocks {
		block := &e.place.Blocks[i]
		if block.Slot != int64(i)%e.layout.MaxLive {
			return fmt.Errorf("the block at position %d is in slot %d, expected %d", i, block.Slot, int64(i)%e.layout.MaxLive)
		}
		if start := e.place.SlotStarts[block.Slot]; len(block.Buckets) > 0 && block.Buckets[0].Slot != start {
			return fmt.Errorf("the block at position %d begins at byte %d of the slots, its slot at %d", i, block.Buckets[0].Slot, start)
		}
	}
	return nil
}

// runName names what is the same for the slots of a run.
func (e *worldEmitter) runName(i int, what string) string {
	return e.name(fmt.Sprintf("slotRun%d%s", i, what))
}

// slotGroup writes the gather slots.
func (e *worldEmitter) slotGroup() group {
	g := group{Title: []string{
		fmt.Sprintf("World %d: the gather slots, runs of equal ones. A slot is as large as the", e.ranks),
		"largest block that it is for.",
	}}
	for i, r := range e.slots {
		first, start := "0", "0"
		if i > 0 {
			first = e.runName(i-1, "First") + " + 1"
			start = fmt.Sprintf("%s + (%s - %s) * %s", e.runName(i-1, "Start"), e.runName(i, "First"), e.runName(i-1, "First"), e.runName(i-1, "Bytes"))
		}
		g.Constants = append(g.Constants,
			constant{e.runName(i, "First"), r.first, "the run's first slot; gather.max_live"},
			constant{e.runName(i, "Bytes"), r.bytes, "bytes of each of its slots; gather.max_live"},
			constant{e.runName(i, "Start"), r.start, "bytes into the arena of slots; " + startNote(start) + "; gather.max_live"})
		compare := ">="
		if i == 0 {
			compare = "=="
		}
		g.Rules = append(g.Rules,
			e.rule(fmt.Sprintf("%s %s %s", e.runName(i, "First"), compare, first), "gather.max_live", "runs of slots follow one another, from slot 0 on"),
			e.rule(e.runName(i, "Start")+" == "+start, "gather.max_live", "a run of slots starts where the one before it ends"))
	}
	g.Functions = append(g.Functions, e.slotFunction("slotBytes", func(i int) string { return e.runName(i, "Bytes") }),
		e.slotFunction("slotStart", func(i int) string {
			return fmt.Sprintf("%s + (slot - %s) * %s", e.runName(i, "Start"), e.runName(i, "First"), e.runName(i, "Bytes"))
		}))
	return g
}

// slotFunction chooses by the run of a slot.
func (e *worldEmitter) slotFunction(name string, of func(run int) string) string {
	var body strings.Builder
	last := len(e.slots) - 1
	for i := range last {
		fmt.Fprintf(&body, "slot < %s ? %s : ", e.runName(i+1, "First"), of(i))
	}
	parameter := "long long slot"
	if last == 0 && name == "slotBytes" {
		parameter = "long long"
	}
	return fmt.Sprintf("SHARDGEN_FUNCTION long long %s(%s) { return %s; }", e.name(name), parameter, body.String()+of(last))
}

// blockSlots writes where a bucket's gathered copy lies in the slots of a kind's
// blocks.
func (e *worldEmitter) blockSlots(g *group, k, b int, blocks []layout.BlockPlace) error {
	kind, names := &e.layout.Kinds[k], e.names.Own[k]
	bucket, n := &kind.Buckets[b], &names[b]
	inBlock := blocks[0].Buckets[b].Slot - blocks[0].Buckets[0].Slot
	for i := range blocks {
		if got := blocks[i].Buckets[b].Slot - blocks[i].Buckets[0].Slot; got != inBlock {
			return fmt.Errorf("bucket %s of instance %d is at byte %d of its block, that of instance 0 at %d", output.Printable(bucket.Name), i, got, inBlock)
		}
	}
	e.gathered(g, bucket, n, &blocks[0].Buckets[b])
	offset, end := n.Offset(constname.BlockPart, e.ranks), "0"
	if b > 0 {
		end = names[b-1].Offset(constname.BlockPart, e.ranks) + " + " + names[b-1].Gathered(e.ranks)
	}
	g.Constants = append(g.Constants, constant{offset, inBlock, "bytes into the block's slot, of its gathered copy; " + startNote(end) + "; gather.max_live"})
	g.Rules = append(g.Rules, e.rule(offset+" == "+end, "gather.max_live",
		fmt.Sprintf("the gathered copy of %s starts where that of the bucket before it ends", output.Printable(bucket.Name))))
	position := e.names.Kinds[k].Position()
	g.Rules = append(g.Rules, e.rule(fmt.Sprintf("%s(%s %% maxLive) >= %s + %s", e.name("slotBytes"), position, offset, n.Gathered(e.ranks)), "gather.max_live",
		fmt.Sprintf("the slot of block %s holds %s", output.Printable(kind.Name), output.Printable(bucket.Name))))
	e.slotOffset(g, n, kind.Var != "", position, offset)
	return nil
}

// slotOffset writes where the gathered copy lies in the arena of slots.
func (e *worldEmitter) slotOffset(g *group, n *constname.Bucket, repeated bool, position, offset string) {
	name := n.Offset(constname.SlotPart, e.ranks)
	if repeated {
		g.function(name, "long long i", fmt.Sprintf("%s((%s + i) %% maxLive) + %s", e.name("slotStart"), position, offset))
		return
	}
	g.Functions = append(g.Functions, fmt.Sprintf("constexpr long long %s = %s(%s %% maxLive) + %s;", name, e.name("slotStart"), position, offset))
}
