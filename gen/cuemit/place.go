package cuemit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// worldEmitter writes where everything lies at one world size. All numbers are
// read from the world's placement; expressions say how they hang together.
type worldEmitter struct {
	*emitter
	ranks int64
	place *layout.Placement
	ends  map[arenaKey]string // where the next part of an arena starts
	slots []slotRun
}

// arenaKey names an arena.
type arenaKey struct {
	role  layout.Role
	dtype dtype.DType
}

// part is something that a rank keeps of a bucket between passes.
type part struct {
	name  constname.Part
	role  layout.Role
	field string // of the spec
	at    func(*layout.Place) int64
}

var parts = []part{
	{constname.ShardPart, layout.Shards, "shard", func(p *layout.Place) int64 { return p.Shard }},
	{constname.GradShardPart, layout.GradShards, "gradients", func(p *layout.Place) int64 { return p.Grad }},
	{constname.MasterPart, layout.Masters, "optimizer.master", func(p *layout.Place) int64 { return p.Master }},
	{constname.Moment1Part, layout.Moments, "optimizer", func(p *layout.Place) int64 { return p.Moments[0] }},
	{constname.Moment2Part, layout.Moments, "optimizer", func(p *layout.Place) int64 { return p.Moments[1] }},
}

// arena returns where a part of a bucket lies.
func (p *part) arena(b *layout.Bucket) arenaKey {
	if p.role == layout.Shards {
		return arenaKey{p.role, b.DType}
	}
	return arenaKey{p.role, b.GradType()}
}

// placement returns the groups of one world size.
func (e *emitter) placement(w int) ([]group, error) {
	we := &worldEmitter{emitter: e, ranks: e.layout.Worlds[w], place: e.plan.Worlds[w].Placement, ends: map[arenaKey]string{}}
	if err := we.findSlots(); err != nil {
		return nil, err
	}
	list := []group{we.slotGroup()}
	at := 0
	for k := range e.layout.Kinds {
		count := int(e.layout.Kinds[k].Count)
		groups, err := we.kind(k, we.place.Blocks[at:at+count])
		if err != nil {
			return nil, err
		}
		list, at = append(list, groups...), at+count
	}
	groups, err := we.shared()
	if err != nil {
		return nil, err
	}
	gradients, err := we.gradients()
	if err != nil {
		return nil, err
	}
	list = append(list, groups...)
	return append(list, gradients, we.staging(), we.arenas(), we.visitors()), nil
}

// name is a constant of this world size.
func (e *worldEmitter) name(what string) string { return constname.OfWorld(what, e.ranks) }

// linear returns the first of numbers that are equally spaced, and their
// distance, which is 0 for a single one.
func linear(what string, numbers []int64) (first, stride int64, err error) {
	first = numbers[0]
	if len(numbers) > 1 {
		stride = numbers[1] - first
	}
	for i, n := range numbers {
		if n != first+int64(i)*stride {
			return 0, 0, fmt.Errorf("%s of the instances of a block are not equally spaced: instance %d is at %d, expected %d", what, i, n, first+int64(i)*stride)
		}
	}
	return first, stride, nil
}

// run is a part of a bucket in all instances of a kind.
type run struct {
	*part
	bucket        *layout.Bucket
	names         *constname.Bucket
	first, stride int64
	distance      func(arenaKey) string // names the stride; nil where the kind is not repeated
}

// start names where the first instance lies.
func (r *run) start(ranks int64) string {
	if r.distance != nil {
		return r.names.First(r.name, ranks)
	}
	return r.names.Offset(r.name, ranks)
}

// bytes is the length of the part, as an expression.
func (r *run) bytes(ranks int64) string {
	return fmt.Sprintf("%s * %d", r.names.Shard(ranks), r.arena(r.bucket).dtype.Bytes())
}

// runs finds the parts of a bucket of a kind, or of a shared one.
func (e *worldEmitter) runs(b *layout.Bucket, n *constname.Bucket, distance func(arenaKey) string, places []*layout.Place) ([]run, error) {
	var list []run
	for i := range parts {
		offsets := make([]int64, len(places))
		for j, p := range places {
			offsets[j] = parts[i].at(p)
		}
		first, stride, err := linear(fmt.Sprintf("%s %ss", output.Printable(b.Name), parts[i].name), offsets)
		if err != nil {
			return nil, err
		}
		if first != layout.None {
			list = append(list, run{&parts[i], b, n, first, stride, distance})
		}
	}
	return list, nil
}

// kind returns a group for each bucket of a kind.
func (e *worldEmitter) kind(k int, blocks []layout.BlockPlace) ([]group, error) {
	kind := &e.layout.Kinds[k]
	var all [][]run
	for b := range kind.Buckets {
		places := make([]*layout.Place, len(blocks))
		for i := range blocks {
			places[i] = &blocks[i].Buckets[b]
		}
		runs, err := e.runs(&kind.Buckets[b], &e.names.Own[k][b], e.distance(k), places)
		if err != nil {
			return nil, err
		}
		all = append(all, runs)
	}
	groups := e.runGroups(all)
	for b := range kind.Buckets {
		if err := e.blockSlots(&groups[b], k, b, blocks); err != nil {
			return nil, err
		}
	}
	if kind.Count == 1 {
		return groups, nil
	}
	strides, err := e.strides(k, all)
	return append([]group{strides}, groups...), err
}

// distance returns how the instances of a repeated kind are apart, nil for any
// other kind.
func (e *worldEmitter) distance(k int) func(arenaKey) string {
	switch kind := &e.layout.Kinds[k]; {
	case kind.Var == "":
		return nil
	case kind.Count == 1:
		return func(arenaKey) string { return "" }
	}
	return func(key arenaKey) string { return e.stride(k, key) }
}

// instances names the number of blocks of a repeated kind.
func (e *emitter) instances(k int) string {
	if e.layout.Kinds[k].Var == "" {
		return ""
	}
	return e.plan.Kinds[k].GoName + "Len"
}

// runGroups writes the parts of all buckets of a kind: in each arena they follow
// one another.
func (e *worldEmitter) runGroups(all [][]run) []group {
	groups := make([]group, len(all))
	for b := range all {
		for i := range all[b] {
			r := &all[b][i]
			groups[b].addRun(e, r)
			e.ends[r.arena(r.bucket)] = r.start(e.ranks) + " + " + r.bytes(e.ranks)
		}
	}
	return groups
}

// strides writes the distance of a repeated kind's instances in each arena: each
// follows all that the one before has there.
func (e *worldEmitter) strides(k int, all [][]run) (group, error) {
	name := output.Printable(e.layout.Kinds[k].Name)
	g := group{Title: []string{fmt.Sprintf("World %d: bytes from one instance of %s to the next.", e.ranks, name)}}
	first, lengths := map[arenaKey]*run{}, map[arenaKey][]string{}
	for _, r := range slices.Concat(all...) {
		key := r.arena(r.bucket)
		lengths[key] = append(lengths[key], r.bytes(e.ranks))
		if before := first[key]; before == nil {
			first[key] = &r
			g.Constants = append(g.Constants, constant{e.stride(k, key), r.stride, fmt.Sprintf("bytes of %s of %s; what an instance has of them; blocks.repeat", key.role, key.dtype)})
		} else if before.stride != r.stride {
			return g, fmt.Errorf("instances of %s are %d and %d bytes apart in the arena of %s of %s, expected one distance", name, before.stride, r.stride, key.role, key.dtype)
		}
	}
	for _, r := range slices.Concat(all...) {
		if key := r.arena(r.bucket); first[key].part == r.part && first[key].bucket == r.bucket {
			g.Rules = append(g.Rules, e.rule(e.stride(k, key)+" == "+strings.Join(lengths[key], " + "), "blocks.repeat",
				fmt.Sprintf("an instance of %s follows all that the one before has in the arena of %s of %s", name, key.role, key.dtype)))
			e.ends[key] = fmt.Sprintf("%s + %s * %s", r.start(e.ranks), e.instances(k), e.stride(k, key))
		}
	}
	return g, nil
}

func (e *worldEmitter) stride(k int, key arenaKey) string {
	return e.names.Kinds[k].Stride(layout.Arena{Role: key.role, DType: key.dtype}, e.ranks)
}

// what names a part in a sentence.
func (p *part) what() string {
	if p.name == constname.GradShardPart {
		return "gradient shard"
	}
	return string(p.name)
}

// addRun writes where a part starts.
func (g *group) addRun(e *worldEmitter, r *run) {
	key := r.arena(r.bucket)
	end, found := e.ends[key]
	if !found {
		end = "0"
	}
	name, arena := output.Printable(r.bucket.Name), fmt.Sprintf("%s of %s", key.role, key.dtype)
	g.Title = []string{fmt.Sprintf("World %d: where a rank has bucket %s, in bytes from the start of an arena.", e.ranks, name)}
	g.Constants = append(g.Constants, constant{r.start(e.ranks), r.first, fmt.Sprintf("bytes into %s; %s; %s", arena, startNote(end), r.field)})
	g.Rules = append(g.Rules, e.rule(r.start(e.ranks)+" == "+end, r.field, fmt.Sprintf("the %s of %s starts where the part before it in the arena of %s ends", r.what(), name, arena)))
	if r.distance == nil {
		return
	}
	if stride := r.distance(key); stride == "" {
		g.function(r.names.Offset(r.name, e.ranks), "long long", r.start(e.ranks))
	} else {
		g.function(r.names.Offset(r.name, e.ranks), "long long i", r.start(e.ranks)+" + i * "+stride)
	}
}

// startNote says where something starts, for a comment.
func startNote(end string) string {
	if end == "0" {
		return "its start"
	}
	return end
}

func (g *group) function(name, parameter, body string) {
	g.Functions = append(g.Functions, fmt.Sprintf("SHARDGEN_FUNCTION long long %s(%s) { return %s; }", name, parameter, body))
}

// shared returns a group for each shared bucket.
func (e *worldEmitter) shared() ([]group, error) {
	var list []group
	for s := range e.layout.Shared {
		b, n, at := &e.layout.Shared[s], &e.names.Shared[s], &e.place.Shared[s]
		runs, err := e.runs(b, n, nil, []*layout.Place{at})
		if err != nil {
			return nil, err
		}
		g := e.runGroups([][]run{runs})[0]
		e.gathered(&g, b, n, at)
		slot, end := n.Offset(constname.SlotPart, e.ranks), e.slotsEnd(s)
		g.Constants = append(g.Constants, constant{slot, at.Slot, "bytes into the arena of slots, of its gathered copy; " + end + "; gather"})
		g.Rules = append(g.Rules, e.rule(slot+" == "+end, "gather", fmt.Sprintf("the slot of %s is behind those of blocks and of the shared parameters before it", output.Printable(b.Name))))
		list = append(list, g)
	}
	return list, nil
}

// slotsEnd is where the slot of a shared bucket starts.
func (e *worldEmitter) slotsEnd(s int) string {
	if s == 0 {
		return e.name("slotStart") + "(maxLive)"
	}
	before := &e.names.Shared[s-1]
	return before.Offset(constname.SlotPart, e.ranks) + " + " + before.Gathered(e.ranks)
}

// gathered writes the length of a bucket's gathered copy.
func (e *worldEmitter) gathered(g *group, b *layout.Bucket, n *constname.Bucket, at *layout.Place) {
	g.Constants = append(g.Constants, constant{n.Gathered(e.ranks), at.GatheredBytes, "bytes of the gathered bucket; ranks * shard * bytes of an element; topology.world"})
	g.Rules = append(g.Rules, e.rule(fmt.Sprintf("%s == %s * %s * %d", n.Gathered(e.ranks), constname.World(e.ranks), n.Shard(e.ranks), b.DType.Bytes()), "topology.world",
		fmt.Sprintf("the gathered copy of %s is the shards of all ranks", output.Printable(b.Name))))
}

// gradients writes where each kind's backward pass has its gradients.
func (e *worldEmitter) gradients() (group, error) {
	g := group{Title: []string{
		fmt.Sprintf("World %d: the full gradients of a block, in bytes from the start of one of the gradientSlots buffers;", e.ranks),
		"buffer n starts at n * " + e.name("gradientBufferBytes") + ".",
	}}
	largest, at := "0", 0
	for k := range e.layout.Kinds {
		kind := &e.layout.Kinds[k]
		blocks := e.place.Blocks[at : at+int(kind.Count)]
		for i := range blocks {
			if !slices.Equal(blocks[i].Grads, blocks[0].Grads) {
				return g, fmt.Errorf("the gradients of instance %d of %s are not where those of instance 0 are", i, output.Printable(kind.Name))
			}
		}
		if len(blocks[0].Grads) > 0 {
			largest = fmt.Sprintf("larger(%s, %s)", largest, e.kindGradients(&g, k, &blocks[0]))
		}
		at += len(blocks)
	}
	buffer := e.name("gradientBufferBytes")
	g.Constants = append(g.Constants, constant{buffer, e.place.GradBuffer.Bytes, "bytes of a gradient buffer; the gradients of the block that has most; gradients.slots"})
	g.Rules = append(g.Rules, e.rule(buffer+" == "+largest, "gradients.slots", "a gradient buffer is as large as the gradients of the block that has most"))
	return g, nil
}

// kindGradients writes the gradients of one kind and returns the name of their
// sum.
func (e *worldEmitter) kindGradients(g *group, k int, block *layout.BlockPlace) string {
	kind, end := &e.layout.Kinds[k], "0"
	for _, at := range block.Grads {
		bucket, names := e.gradBucket(k, at)
		name := e.gradName(k, at)
		g.Constants = append(g.Constants, constant{name, at.Offset, fmt.Sprintf("bytes into a gradient buffer, of %s; %s; gradients.slots", output.Printable(bucket.Name), startNote(end))})
		g.Rules = append(g.Rules, e.rule(name+" == "+end, "gradients.slots",
			fmt.Sprintf("the gradient of %s in block %s starts where the one before it ends", output.Printable(bucket.Name), output.Printable(kind.Name))))
		end = name + " + " + names.Gathered(e.ranks)
	}
	total := e.names.Kinds[k].GradBytes(e.ranks)
	g.Constants = append(g.Constants, constant{total, block.GradBytes, fmt.Sprintf("bytes of all gradients of a block %s; %s; gradients.slots", output.Printable(kind.Name), end)})
	g.Rules = append(g.Rules, e.rule(total+" == "+end, "gradients.slots", "the gradients of block "+output.Printable(kind.Name)+" end where the last of them does"))
	return total
}

// gradBucket returns the bucket of a part of a gradient buffer.
func (e *worldEmitter) gradBucket(k int, at layout.GradBucket) (*layout.Bucket, *constname.Bucket) {
	if at.Shared {
		return &e.layout.Shared[at.Bucket], &e.names.Shared[at.Bucket]
	}
	return &e.layout.Kinds[k].Buckets[at.Bucket], &e.names.Own[k][at.Bucket]
}

func (e *worldEmitter) gradName(k int, at layout.GradBucket) string {
	if at.Shared {
		return e.names.Kinds[k].SharedGrad(&e.names.Shared[at.Bucket], e.ranks)
	}
	return e.names.Own[k][at.Bucket].Offset(constname.GradPart, e.ranks)
}

// staging writes the two halves of the staging arena, and of the scratch arena.
func (e *worldEmitter) staging() group {
	full, shard := "0", "0"
	e.names.EachBucket(func(b *layout.Bucket, n *constname.Bucket, _ string) {
		if !b.Trainable {
			return
		}
		wire := e.layout.WireType(b)
		bytes := fmt.Sprintf("%s * %d", n.Shard(e.ranks), wire.Bytes())
		shard = fmt.Sprintf("larger(%s, %s)", shard, bytes)
		if wire != b.DType {
			full = fmt.Sprintf("larger(%s, %s * %s)", full, bytes, constname.World(e.ranks))
		}
	})
	g := group{Title: []string{fmt.Sprintf("World %d: gradients on their way through a reduction, and sums of a step.", e.ranks)}}
	for _, c := range []struct {
		name       string
		value      int64
		note, what string
		sum        string
	}{
		{"wireFullBytes", e.place.WireFull, "bytes of staging, for a bucket in the type that it is reduced in", "the largest bucket that is reduced in another type than its own, rounded up to align_bytes", full},
		{"wireShardBytes", e.place.WireShard, "bytes of staging behind it, for one reduced shard", "the largest shard in the type that it is reduced in, rounded up to align_bytes", shard},
	} {
		g.Constants = append(g.Constants, constant{e.name(c.name), c.value, c.note + "; gradients.reduce"})
		g.Rules = append(g.Rules, e.rule(fmt.Sprintf("%s == roundUp(%s, alignBytes)", e.name(c.name), c.sum), "gradients.reduce", "staging has room for "+c.what))
	}
	g.Constants = append(g.Constants, constant{e.name("partialsBytes"), e.place.Partials, "bytes of scratch from partialsStart on, for the partial sums of a norm; optimizer"})
	return g
}

// arenas writes the bytes of all allocations and how parts fill them.
func (e *worldEmitter) arenas() group {
	g := group{Title: []string{fmt.Sprintf("World %d: the arenas, which are all that Open allocates.", e.ranks)}}
	var all []string
	for _, a := range e.place.Arenas {
		name := constname.Arena(a, e.ranks)
		all = append(all, name)
		g.Constants = append(g.Constants, constant{name, a.Bytes, "bytes of the arena of " + arenaTitle(a) + "; topology.world"})
		if sum := e.arenaSum(a); sum != "" {
			g.Rules = append(g.Rules, e.rule(name+" == "+sum, "topology.world", "the arena of "+arenaTitle(a)+" ends where its last part does"))
		}
	}
	if len(all) > 0 {
		g.Rules = append(g.Rules, e.rule(constname.Peak(e.ranks)+" == "+strings.Join(all, " + "), "topology.world", "all that is allocated is the arenas"))
	}
	return g
}

func arenaTitle(a layout.Arena) string {
	if a.DType == dtype.Invalid {
		return a.Role.String()
	}
	return fmt.Sprintf("%s of %s", a.Role, a.DType)
}

// arenaSum is where an arena's last part ends; empty for one whose parts the
// header does not name.
func (e *worldEmitter) arenaSum(a layout.Arena) string {
	switch a.Role {
	case layout.Slots:
		return e.slotsEnd(len(e.layout.Shared))
	case layout.GradBuffers:
		return "gradientSlots * " + e.name("gradientBufferBytes")
	case layout.Staging:
		return e.name("wireFullBytes") + " + " + e.name("wireShardBytes")
	case layout.Scratch:
		return "partialsStart + " + e.name("partialsBytes")
	}
	return e.ends[arenaKey{a.Role, a.DType}]
}

// visitors writes functions that name every place once.
func (e *worldEmitter) visitors() group {
	g := group{Title: []string{fmt.Sprintf("World %d: every arena, bucket and gradient, one after another.", e.ranks)}}
	g.Functions = append(g.Functions,
		e.visitor("eachArena", e.visitArenas()), e.visitor("eachBucket", e.visitBuckets()), e.visitor("eachGradient", e.visitGradients()))
	return g
}

func (e *worldEmitter) visitor(name string, lines []string) string {
	parameter := "Visit visit"
	if len(lines) == 0 {
		parameter = "Visit"
	}
	return fmt.Sprintf("template <class Visit>\nvoid %s(%s) {\n%s}", e.name(name), parameter, strings.Join(lines, ""))
}

func (e *worldEmitter) visitArenas() []string {
	var lines []string
	for _, a := range e.place.Arenas {
		t := ""
		if a.DType != dtype.Invalid {
			t = a.DType.String()
		}
		lines = append(lines, fmt.Sprintf("  visit(ArenaPlace{%s, %s, %s});\n", strconv.Quote(a.Role.String()), strconv.Quote(t), constname.Arena(a, e.ranks)))
	}
	return lines
}

func (e *worldEmitter) visitBuckets() []string {
	var lines []string
	for k := range e.layout.Kinds {
		var body []string
		for b := range e.layout.Kinds[k].Buckets {
			body = append(body, e.visitBucket(&e.layout.Kinds[k].Buckets[b], &e.names.Own[k][b], e.instances(k) != ""))
		}
		lines = append(lines, e.eachInstance(k, body)...)
	}
	for s := range e.layout.Shared {
		lines = append(lines, "  "+e.visitBucket(&e.layout.Shared[s], &e.names.Shared[s], false))
	}
	return lines
}

// eachInstance puts lines into a loop over the instances of a repeated kind.
func (e *worldEmitter) eachInstance(k int, body []string) []string {
	instances, indent := e.instances(k), "  "
	if instances == "" || len(body) == 0 {
		return indented(body, indent)
	}
	loop := []string{fmt.Sprintf("  for (long long i = 0; i < %s; i++) {\n", instances)}
	return append(append(loop, indented(body, indent+indent)...), "  }\n")
}

func indented(lines []string, by string) []string {
	for i := range lines {
		lines[i] = by + lines[i]
	}
	return lines
}

func (e *worldEmitter) visitBucket(b *layout.Bucket, n *constname.Bucket, repeated bool) string {
	call, instance := "", "0"
	if repeated {
		call, instance = "(i)", "i"
	}
	offset := func(part constname.Part, there bool) string {
		if !there {
			return "-1"
		}
		return n.Offset(part, e.ranks) + call
	}
	moments := int64(0)
	if b.Trainable {
		moments = e.layout.Optimizer.Moments
	}
	return fmt.Sprintf("visit(BucketPlace{%s, %s, %s, %s, %s, %s, %s, %s, %s, %s});\n", literal(output.Printable(b.Name)), instance, n.Shard(e.ranks),
		offset(constname.ShardPart, true), offset(constname.MasterPart, e.layout.HasMaster(b)), offset(constname.Moment1Part, moments > 0),
		offset(constname.Moment2Part, moments > 1), offset(constname.GradShardPart, b.Trainable), offset(constname.SlotPart, true), n.Gathered(e.ranks))
}

func (e *worldEmitter) visitGradients() []string {
	var lines []string
	at := 0
	for k := range e.layout.Kinds {
		kind, instance := &e.layout.Kinds[k], "0"
		if e.instances(k) != "" {
			instance = "i"
		}
		var body []string
		for _, grad := range e.place.Blocks[at].Grads {
			bucket, names := e.gradBucket(k, grad)
			body = append(body, fmt.Sprintf("visit(GradientPlace{%s, %s, %s, %s, %s});\n", literal(output.Printable(kind.Name)), instance,
				literal(output.Printable(bucket.Name)), e.gradName(k, grad), names.Gathered(e.ranks)))
		}
		lines, at = append(lines, e.eachInstance(k, body)...), at+int(kind.Count)
	}
	return lines
}
