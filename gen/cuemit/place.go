package cuemit

import (
	"fmt"
	"slices"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/relation"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// placer writes where everything lies, as members of World<N>. All numbers are
// read from the placements; expressions, the same at every world size, say how
// they hang together.
type placer struct {
	*emitter
	worlds []*layout.Placement
	first  []int                      // index of each kind's first block
	ends   map[arenaKey]relation.Expr // where the next part of an arena starts
	slots  []slotRun
}

// arenaKey names an arena.
type arenaKey struct {
	role  layout.Role
	dtype dtype.DType
}

func (k arenaKey) String() string {
	if k.dtype == dtype.Invalid {
		return k.role.String()
	}
	return fmt.Sprintf("%s of %s", k.role, k.dtype)
}

// part is something that a rank keeps of a bucket between passes.
type part struct {
	name  constname.Part
	what  string // in a sentence
	role  layout.Role
	field string // of the spec
	has   func(*layout.Model, *layout.Bucket) bool
	at    func(*layout.Place) *int64
}

var parts = []part{
	{constname.ShardPart, "shard", layout.Shards, "shard",
		func(*layout.Model, *layout.Bucket) bool { return true }, func(p *layout.Place) *int64 { return &p.Shard }},
	{constname.MasterPart, "master", layout.Masters, "optimizer.master", (*layout.Model).HasMaster, func(p *layout.Place) *int64 { return &p.Master }},
	{constname.Moment1Part, "first moment", layout.Moments, "optimizer", hasMoments(1), func(p *layout.Place) *int64 { return &p.Moments[0] }},
	{constname.Moment2Part, "second moment", layout.Moments, "optimizer", hasMoments(2), func(p *layout.Place) *int64 { return &p.Moments[1] }},
	{constname.GradShardPart, "gradient shard", layout.GradShards, "gradients",
		func(_ *layout.Model, b *layout.Bucket) bool { return b.Trainable }, func(p *layout.Place) *int64 { return &p.Grad }},
}

func hasMoments(n int64) func(*layout.Model, *layout.Bucket) bool {
	return func(m *layout.Model, b *layout.Bucket) bool { return b.Trainable && m.Optimizer.Kind.Moments() >= n }
}

// run is a part of a bucket in all instances of a kind.
type run struct {
	*part
	index  int // of the bucket
	bucket *layout.Bucket
	names  *constname.Bucket
}

// arena returns where the part lies.
func (r *run) arena() arenaKey {
	if r.role == layout.Shards {
		return arenaKey{r.role, r.bucket.DType}
	}
	return arenaKey{r.role, r.bucket.GradType()}
}

// bytes is the length of the part.
func (r *run) bytes() relation.Expr {
	return relation.Mul(relation.Of(r.names.Shard()), relation.Num(r.arena().dtype.Bytes()))
}

// runs returns the parts that a bucket has.
func (e *placer) runs(index int, b *layout.Bucket, n *constname.Bucket) []run {
	var list []run
	for i := range parts {
		if parts[i].has(e.layout, b) {
			list = append(list, run{&parts[i], index, b, n})
		}
	}
	return list
}

// kindRuns returns the parts that the buckets of a kind have.
func (e *placer) kindRuns(k int) []run {
	var list []run
	for b := range e.layout.Kinds[k].Buckets {
		list = append(list, e.runs(b, &e.layout.Kinds[k].Buckets[b], &e.names.Own[k][b])...)
	}
	return list
}

// places returns the groups that say where things lie.
func (e *emitter) places() ([]*group, error) {
	p := &placer{emitter: e, ends: map[arenaKey]relation.Expr{}}
	at := 0
	for k := range e.layout.Kinds {
		p.first = append(p.first, at)
		at += int(e.layout.Kinds[k].Count)
	}
	for w := range e.plan.Worlds {
		place := e.plan.Worlds[w].Placement
		p.worlds = append(p.worlds, place)
		if err := p.regular(place); err != nil {
			return nil, fmt.Errorf("world %d: %w", place.World, err)
		}
	}
	list := []*group{p.slotGroup()}
	for k := range e.layout.Kinds {
		list = append(list, p.kind(k)...)
	}
	for s := range e.layout.Shared {
		list = append(list, p.shared(s))
	}
	return append(list, p.gradients(), p.staging(), p.arenas(), p.visitors()), nil
}

// regular returns an error unless the formulas say where a rank has everything:
// blocks lie in their slots, and the instances of a kind are alike, each of their
// parts a stride behind that of the one before. World sizes differ in numbers only.
func (e *placer) regular(p *layout.Placement) error {
	sameArena := func(a, b layout.Arena) bool { return a.Role == b.Role && a.DType == b.DType }
	if !slices.EqualFunc(p.Arenas, e.worlds[0].Arenas, sameArena) {
		return fmt.Errorf("the arenas are not those of world %d", e.worlds[0].World)
	}
	for i := range p.Blocks {
		block := &p.Blocks[i]
		k := block.Kind
		first, instance := &p.Blocks[e.first[k]], int64(i-e.first[k])
		if slot := int64(i) % e.layout.MaxLive; block.Slot != slot {
			return fmt.Errorf("the block at position %d is in slot %d, expected %d", i, block.Slot, slot)
		}
		for b := range block.Buckets {
			want, runs := first.Buckets[b], e.runs(b, &e.layout.Kinds[k].Buckets[b], &e.names.Own[k][b])
			want.Slot += p.SlotStarts[block.Slot] - first.Buckets[0].Slot
			for _, r := range runs {
				*r.at(&want) += instance * e.distance(p, k, r.arena())
			}
			if got := block.Buckets[b]; got != want {
				return fmt.Errorf("bucket %s of instance %d is at %+v, expected %+v", output.Printable(e.layout.Kinds[k].Buckets[b].Name), instance, got, want)
			}
		}
		sameBucket := func(a, b layout.GradBucket) bool { return a.Shared == b.Shared && a.Bucket == b.Bucket }
		if !slices.Equal(block.Grads, first.Grads) || !slices.EqualFunc(first.Grads, e.block(e.worlds[0], k).Grads, sameBucket) {
			return fmt.Errorf("the gradients of instance %d of %s are %+v, expected %+v", instance, output.Printable(e.layout.Kinds[k].Name), block.Grads, first.Grads)
		}
	}
	return nil
}

// block is the first block of a kind.
func (e *placer) block(p *layout.Placement, k int) *layout.BlockPlace { return &p.Blocks[e.first[k]] }

// distance is the bytes from one instance of a kind to the next in an arena.
func (e *placer) distance(p *layout.Placement, k int, key arenaKey) int64 {
	if e.layout.Kinds[k].Count == 1 {
		return 0
	}
	runs := e.kindRuns(k)
	r := runs[slices.IndexFunc(runs, func(r run) bool { return r.arena() == key })]
	return *r.at(&p.Blocks[e.first[k]+1].Buckets[r.index]) - *r.at(&p.Blocks[e.first[k]].Buckets[r.index])
}

// newGroup is a group of members of World<N>.
func newGroup(title string) *group {
	return &group{Group: relation.Group{PerWorld: true, Title: title}}
}

// each returns a number of each world size.
func (e *placer) each(number func(*layout.Placement) int64) []int64 {
	list := make([]int64, len(e.worlds))
	for w, p := range e.worlds {
		list[w] = number(p)
	}
	return list
}

// kind returns a group for each bucket of a kind, and one for the distances of
// its instances.
func (e *placer) kind(k int) []*group {
	var list []*group
	for b := range e.layout.Kinds[k].Buckets {
		at := func(p *layout.Placement) *layout.Place { return &e.block(p, k).Buckets[b] }
		g := e.bucket(k, b, &e.layout.Kinds[k].Buckets[b], &e.names.Own[k][b], at)
		e.blockSlot(g, k, b)
		list = append(list, g)
	}
	if e.layout.Kinds[k].Count > 1 {
		list = append(list, e.strides(k))
	}
	return list
}

// shared returns the group of a shared bucket.
func (e *placer) shared(s int) *group {
	b, n := &e.layout.Shared[s], &e.names.Shared[s]
	g := e.bucket(constname.Shared, s, b, n, func(p *layout.Placement) *layout.Place { return &p.Shared[s] })
	g.Define(n.Offset(constname.SlotPart), e.each(func(p *layout.Placement) int64 { return p.Shared[s].Slot }), "bytes into the arena of slots, of its gathered copy",
		e.slotsEnd(s), "gather", fmt.Sprintf("the slot of %s is behind those of blocks and of the shared parameters before it", output.Printable(b.Name)))
	return g
}

// bucket writes the parts of a bucket, each behind what its arena has already, and
// the length of the gathered copy.
func (e *placer) bucket(k, index int, b *layout.Bucket, n *constname.Bucket, at func(*layout.Placement) *layout.Place) *group {
	name := output.Printable(b.Name)
	g := newGroup(fmt.Sprintf("Where a rank has bucket %s, in bytes from the start of an arena.", name))
	for _, r := range e.runs(index, b, n) {
		key, start := r.arena(), n.Offset(r.name)
		if e.repeated(k) {
			start = n.First(r.name)
			e.offset(g, k, &r)
		}
		g.Define(start, e.each(func(p *layout.Placement) int64 { return *r.at(at(p)) }), "bytes into "+key.String(), e.end(key), r.field,
			fmt.Sprintf("the %s of %s starts where the part before it in the arena of %s ends", r.what, name, key))
		e.ends[key] = relation.Add(relation.Of(start), r.bytes())
	}
	g.Define(n.Gathered(), e.each(func(p *layout.Placement) int64 { return at(p).GatheredBytes }), "bytes of the gathered bucket",
		relation.Mul(relation.Of(constname.World()), relation.Of(n.Shard()), relation.Num(b.DType.Bytes())), "topology.world",
		fmt.Sprintf("the gathered copy of %s is the shards of all ranks", name))
	return g
}

func (e *placer) repeated(k int) bool { return k != constname.Shared && e.layout.Kinds[k].Var != "" }

// end is where the next part of an arena starts.
func (e *placer) end(key arenaKey) relation.Expr {
	if end, found := e.ends[key]; found {
		return end
	}
	return relation.Num(0)
}

// instance is the parameter of functions of the instance of a repeated kind.
var instance = relation.Of(constname.OfModel("i"))

// offset writes where instance i of a repeated kind has a part.
func (e *placer) offset(g *group, k int, r *run) {
	first := relation.Of(r.names.First(r.name))
	if e.layout.Kinds[k].Count == 1 {
		g.function(r.names.Offset(r.name), "long long", first)
		return
	}
	g.function(r.names.Offset(r.name), "long long i", relation.Add(first, relation.Mul(instance, relation.Of(e.stride(k, r.arena())))))
}

// strides writes the distance of a repeated kind's instances in each arena: each
// follows all that the one before has there.
func (e *placer) strides(k int) *group {
	name, runs := output.Printable(e.layout.Kinds[k].Name), e.kindRuns(k)
	g := newGroup(fmt.Sprintf("Bytes from one instance of %s to the next.", name))
	for len(runs) > 0 {
		first, key := runs[0], runs[0].arena()
		var lengths []relation.Expr
		runs = slices.DeleteFunc(runs, func(r run) bool {
			if r.arena() == key {
				lengths = append(lengths, r.bytes())
			}
			return r.arena() == key
		})
		stride := e.stride(k, key)
		g.Define(stride, e.each(func(p *layout.Placement) int64 { return e.distance(p, k, key) }), "bytes of "+key.String()+", of one instance", relation.Add(lengths...),
			"blocks.repeat", fmt.Sprintf("an instance of %s follows all that the one before has in the arena of %s", name, key))
		e.ends[key] = relation.Add(relation.Of(first.names.First(first.name)), relation.Mul(relation.Of(e.names.RepeatLen(k)), relation.Of(stride)))
	}
	return g
}

func (e *placer) stride(k int, key arenaKey) constname.Name {
	return e.names.Kinds[k].Stride(layout.Arena{Role: key.role, DType: key.dtype})
}

// gradientBuffer names the bytes of a gradient buffer.
var gradientBuffer = constname.OfWorld("gradientBufferBytes")

// gradients writes where each kind's backward pass has its gradients.
func (e *placer) gradients() *group {
	g := newGroup(fmt.Sprintf("The full gradients of a block, in bytes from the start of one of the gradientSlots buffers;\nbuffer n starts at n * %s.", gradientBuffer))
	var totals []relation.Expr
	for k := range e.layout.Kinds {
		if len(e.block(e.worlds[0], k).Grads) > 0 {
			totals = append(totals, relation.Of(e.kindGradients(g, k)))
		}
	}
	g.Define(gradientBuffer, e.each(func(p *layout.Placement) int64 { return p.GradBuffer.Bytes }), "bytes of a gradient buffer", largest(totals), "gradients.slots",
		"a gradient buffer is as large as the gradients of the block that has most")
	return g
}

// largest is the largest of numbers, 0 of none.
func largest(numbers []relation.Expr) relation.Expr {
	if len(numbers) == 0 {
		return relation.Num(0)
	}
	return relation.Call("largest", numbers...)
}

// kindGradients writes the gradients of one kind and returns the name of their
// sum.
func (e *placer) kindGradients(g *group, k int) constname.Name {
	kind, end := output.Printable(e.layout.Kinds[k].Name), relation.Num(0)
	for i, at := range e.block(e.worlds[0], k).Grads {
		bucket, names := e.gradBucket(k, at)
		name := e.gradName(k, at)
		g.Define(name, e.each(func(p *layout.Placement) int64 { return e.block(p, k).Grads[i].Offset }),
			"bytes into a gradient buffer, of "+output.Printable(bucket.Name), end, "gradients.slots", fmt.Sprintf("the gradient of %s in block %s starts where the one before it ends", output.Printable(bucket.Name), kind))
		end = relation.Add(relation.Of(name), relation.Of(names.Gathered()))
	}
	total := e.names.Kinds[k].GradBytes()
	g.Define(total, e.each(func(p *layout.Placement) int64 { return e.block(p, k).GradBytes }), "bytes of all gradients of a block "+kind, end, "gradients.slots",
		"the gradients of block "+kind+" end where the last of them does")
	return total
}

// gradBucket returns the bucket of a part of a gradient buffer.
func (e *placer) gradBucket(k int, at layout.GradBucket) (*layout.Bucket, *constname.Bucket) {
	if at.Shared {
		return &e.layout.Shared[at.Bucket], &e.names.Shared[at.Bucket]
	}
	return &e.layout.Kinds[k].Buckets[at.Bucket], &e.names.Own[k][at.Bucket]
}

func (e *placer) gradName(k int, at layout.GradBucket) constname.Name {
	if at.Shared {
		return e.names.Kinds[k].SharedGrad(&e.names.Shared[at.Bucket])
	}
	return e.names.Own[k][at.Bucket].Offset(constname.GradPart)
}

// wireFull, wireShard and partials name the halves of the staging arena, and of
// the scratch arena the second.
var (
	wireFull  = constname.OfWorld("wireFullBytes")
	wireShard = constname.OfWorld("wireShardBytes")
	partials  = constname.OfWorld("partialsBytes")
)

// staging writes the two halves of the staging arena, and of the scratch arena.
func (e *placer) staging() *group {
	var full, shard []relation.Expr
	e.names.EachBucket(func(_ int, b *layout.Bucket, n *constname.Bucket) {
		if !b.Trainable {
			return
		}
		wire, own := e.layout.WireType(b), relation.Of(n.Shard())
		shard = append(shard, relation.Mul(own, relation.Num(wire.Bytes())))
		if wire != b.DType {
			full = append(full, relation.Mul(own, relation.Num(wire.Bytes()), relation.Of(constname.World())))
		}
	})
	rounded := func(numbers []relation.Expr) relation.Expr {
		return relation.RoundUp(largest(numbers), relation.Of(relation.AlignBytes))
	}
	g := newGroup("Gradients on their way through a reduction, and sums of a step.")
	g.Define(wireFull, e.each(func(p *layout.Placement) int64 { return p.WireFull }), "bytes of staging, for a bucket in the type that it is reduced in", rounded(full),
		"gradients.reduce", "staging has room for the largest bucket that is reduced in another type than its own, rounded up to align_bytes")
	g.Define(wireShard, e.each(func(p *layout.Placement) int64 { return p.WireShard }), "bytes of staging behind it, for one reduced shard", rounded(shard),
		"gradients.reduce", "staging has room for the largest shard in the type that it is reduced in, rounded up to align_bytes")
	g.Constants = append(g.Constants, relation.Constant{Name: partials, Values: e.each(func(p *layout.Placement) int64 { return p.Partials }),
		What: "bytes of scratch from partialsStart on, for the partial sums of a norm", Field: "optimizer"})
	return g
}

// arenas writes the bytes of all allocations and how parts fill them.
func (e *placer) arenas() *group {
	g := newGroup("The arenas, which are all that Open allocates.")
	var all []relation.Expr
	for i, a := range e.worlds[0].Arenas {
		name := constname.Arena(a)
		all = append(all, relation.Of(name))
		g.Define(name, e.each(func(p *layout.Placement) int64 { return p.Arenas[i].Bytes }), "bytes", e.arenaEnd(a), "topology.world",
			fmt.Sprintf("the arena of %s ends where its last part does", arenaKey{a.Role, a.DType}))
	}
	if len(all) > 0 {
		g.Equal(relation.Of(constname.Peak()), relation.Add(all...), "topology.world", "all that is allocated is the arenas")
	}
	return g
}

// arenaEnd is where an arena's last part ends.
func (e *placer) arenaEnd(a layout.Arena) relation.Expr {
	switch a.Role {
	case layout.Slots:
		return e.slotsEnd(len(e.layout.Shared))
	case layout.GradBuffers:
		return relation.Mul(relation.Of(relation.GradSlots), relation.Of(gradientBuffer))
	case layout.Staging:
		return relation.Add(relation.Of(wireFull), relation.Of(wireShard))
	case layout.Scratch:
		return relation.Add(relation.Of(partialsStart), relation.Of(partials))
	}
	return e.end(arenaKey{a.Role, a.DType})
}
