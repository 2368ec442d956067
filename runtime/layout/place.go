package layout

import (
	"fmt"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// Role says what an arena holds.
type Role uint8

// The roles of arenas. What stays between passes comes first: see Rest.
const (
	Shards      Role = iota // the rank's shard of every bucket
	Masters                 // high-precision copies of low-precision shards
	Moments                 // optimizer state
	GradShards              // reduced and accumulated gradients
	Slots                   // gathered blocks, shared parameters behind them
	GradBuffers             // full-size gradients of blocks in a backward pass
	Staging                 // gradients on their way through a reduce-scatter
	Scratch                 // sums that ranks agree on, and partial sums of a norm
	roles
)

var roleNames = [roles]string{"shards", "masters", "moments", "gradient shards", "slots", "gradient buffers", "staging", "scratch"}

func (r Role) String() string { return roleNames[r] }

// Rest reports whether the arena's content lives between passes.
func (r Role) Rest() bool { return r < Slots }

// Arena is one allocation. Arenas of mixed element types have DType Invalid.
type Arena struct {
	Role  Role
	DType dtype.DType
	Bytes int64
}

// None marks a place that a bucket does not have.
const None int64 = -1

// Place is where the parts of one bucket lie, in bytes from the start of the
// arena of that role (and, where arenas are typed, of the part's type).
type Place struct {
	ShardElements int64
	Shard         int64
	Master        int64 // None: the shard is its own master, or there is none
	Moments       [2]int64
	Grad          int64 // None where the bucket is not trainable
	Slot          int64 // where the gathered bucket starts
	GatheredBytes int64 // ranks x shard bytes
}

// Placement is the memory of one rank at one world size. It is the same on
// every rank.
type Placement struct {
	World      int64
	Arenas     []Arena
	Blocks     []BlockPlace
	Shared     []Place // for each of Model.Shared
	SlotBytes  []int64 // for each of the MaxLive slots
	SlotStarts []int64 // of the same, in bytes from the start of the arena
	GradBuffer GradPlace
	WireFull   int64 // bytes of staging for a whole bucket in its wire type; 0 if none needs it
	WireShard  int64 // bytes of staging behind it for one reduced shard
	Partials   int64 // bytes of scratch behind the sums, for the norms of all chunks of a rank's gradients
}

// SumsBytes is the room for what ranks sum up in a step, at the start of the
// scratch arena; partial sums follow at the next multiple of the alignment.
const SumsBytes = 64

// PartialsStart returns where the partial sums start in the scratch arena, in
// bytes.
func (m *Model) PartialsStart() int64 {
	return (SumsBytes + m.AlignBytes - 1) / m.AlignBytes * m.AlignBytes
}

// BlockPlace is where one block's buckets lie.
type BlockPlace struct {
	Kind      int   // index in Model.Kinds
	Instance  int64 // counted from 0
	Slot      int64 // position mod MaxLive
	Buckets   []Place
	Grads     []GradBucket // what its backward pass hands out, in this order
	GradBytes int64        // of all Grads
}

// GradBucket is one bucket of a block's gradient buffer.
type GradBucket struct {
	Shared bool
	Bucket int   // index in the kind's Buckets, or in Model.Shared
	Offset int64 // bytes from the start of the gradient buffer
}

// GradPlace says how the gradient buffers lie in their arena: buffer i starts
// at i*Bytes.
type GradPlace struct {
	Count, Bytes int64
}

// Place computes the memory of a rank for the world size at index w of
// Model.Worlds. Its arenas are all that the runtime allocates.
func (m *Model) Place(w int) (*Placement, error) {
	p := &placer{model: m, w: w, out: &Placement{World: m.Worlds[w]}}
	p.placeBlocks()
	p.placeShared()
	p.placeSlots()
	p.placeGradBuffers()
	p.placeStaging()
	p.placeScratch()
	p.collectArenas()
	if err := p.err(fmt.Sprintf("memory of a rank at world size %d", m.Worlds[w])); err != nil {
		return nil, err
	}
	return p.out, nil
}

// RestBytes returns what stays between passes: shards, masters, moments and
// gradient shards.
func (p *Placement) RestBytes() int64 {
	var n int64
	for _, a := range p.Arenas {
		if a.Role.Rest() {
			n += a.Bytes
		}
	}
	return n
}

// PeakBytes returns all that is allocated.
func (p *Placement) PeakBytes() int64 {
	var n int64
	for _, a := range p.Arenas {
		n += a.Bytes
	}
	return n
}

// placer lays things out one after another; sizes holds the end of each arena.
type placer struct {
	counter
	model *Model
	w     int
	out   *Placement
	sizes [roles][dtype.Count]int64
}

// take reserves bytes at the end of an arena and returns their start.
func (p *placer) take(r Role, t dtype.DType, bytes int64) int64 {
	start := p.sizes[r][t]
	p.sizes[r][t] = p.add(start, bytes)
	return start
}

func (p *placer) placeBlocks() {
	position := int64(0)
	for k := range p.model.Kinds {
		kind := &p.model.Kinds[k]
		for i := range kind.Count {
			block := BlockPlace{Kind: k, Instance: i, Slot: position % p.model.MaxLive}
			for b := range kind.Buckets {
				block.Buckets = append(block.Buckets, p.placeBucket(&kind.Buckets[b]))
			}
			p.out.Blocks = append(p.out.Blocks, block)
			position++
		}
	}
}

func (p *placer) placeShared() {
	for i := range p.model.Shared {
		p.out.Shared = append(p.out.Shared, p.placeBucket(&p.model.Shared[i]))
	}
}

// placeBucket reserves what a bucket keeps between passes.
func (p *placer) placeBucket(b *Bucket) Place {
	shard := b.ShardElements[p.w]
	bytes := p.mul(shard, b.DType.Bytes())
	at := Place{
		ShardElements: shard,
		Shard:         p.take(Shards, b.DType, bytes),
		Master:        None,
		Moments:       [2]int64{None, None},
		Grad:          None,
		GatheredBytes: p.mul(bytes, p.out.World),
	}
	if !b.Trainable {
		return at
	}
	t := b.GradType()
	stateBytes := p.mul(shard, t.Bytes())
	p.out.Partials = p.add(p.out.Partials, p.partialBytes(b))
	at.Grad = p.take(GradShards, t, stateBytes)
	if p.model.HasMaster(b) {
		at.Master = p.take(Masters, t, stateBytes)
	}
	for i := range p.model.Optimizer.Kind.Moments() {
		at.Moments[i] = p.take(Moments, t, stateBytes)
	}
	return at
}

// partialBytes returns the most that the norms of the chunks of a bucket's
// gradients need on a rank. The parts of its parameters that the rank owns have no
// more elements than its shard; each is cut into chunks of its own, so each but the
// first may have one chunk more.
func (p *placer) partialBytes(b *Bucket) int64 {
	parts := int64(0)
	for i := range b.Params {
		if b.Params[i].Numel > 0 {
			parts++
		}
	}
	return p.add(optim.PartialBytes(b.ShardElements[p.w]), p.mul(optim.NormBytes, max(parts-1, 0)))
}

// placeSlots sizes each slot by its largest block and puts the slots, and the
// shared parameters' own behind them, one after another.
func (p *placer) placeSlots() {
	p.out.SlotBytes = make([]int64, p.model.MaxLive)
	for i := range p.out.Blocks {
		block := &p.out.Blocks[i]
		p.out.SlotBytes[block.Slot] = max(p.out.SlotBytes[block.Slot], p.gatheredBytes(block))
	}
	p.out.SlotStarts = make([]int64, p.model.MaxLive)
	for i, bytes := range p.out.SlotBytes {
		p.out.SlotStarts[i] = p.take(Slots, dtype.Invalid, bytes)
	}
	for i := range p.out.Blocks {
		block := &p.out.Blocks[i]
		at := p.out.SlotStarts[block.Slot]
		for b := range block.Buckets {
			block.Buckets[b].Slot = at
			at = p.add(at, block.Buckets[b].GatheredBytes)
		}
	}
	for i := range p.out.Shared {
		p.out.Shared[i].Slot = p.take(Slots, dtype.Invalid, p.out.Shared[i].GatheredBytes)
	}
}

func (p *placer) gatheredBytes(block *BlockPlace) int64 {
	var n int64
	for b := range block.Buckets {
		n = p.add(n, block.Buckets[b].GatheredBytes)
	}
	return n
}

// placeGradBuffers lays out each block's gradients, own buckets first, and
// sizes all buffers by the largest.
func (p *placer) placeGradBuffers() {
	largest := int64(0)
	for i := range p.out.Blocks {
		block := &p.out.Blocks[i]
		kind := &p.model.Kinds[block.Kind]
		for b := range kind.Buckets {
			if kind.Buckets[b].Trainable {
				p.placeGrad(block, GradBucket{Bucket: b}, &block.Buckets[b])
			}
		}
		for _, s := range kind.Uses {
			if p.model.Shared[s].Trainable {
				p.placeGrad(block, GradBucket{Shared: true, Bucket: s}, &p.out.Shared[s])
			}
		}
		largest = max(largest, block.GradBytes)
	}
	p.out.GradBuffer = GradPlace{Count: p.model.GradSlots, Bytes: largest}
	p.take(GradBuffers, dtype.Invalid, p.mul(p.model.GradSlots, largest))
}

// placeGrad puts the gradient of a bucket behind those that the block has.
func (p *placer) placeGrad(block *BlockPlace, grad GradBucket, bucket *Place) {
	grad.Offset = block.GradBytes
	block.Grads = append(block.Grads, grad)
	block.GradBytes = p.add(block.GradBytes, bucket.GatheredBytes)
}

// placeStaging sizes the two halves of the staging arena: a whole bucket in its
// wire type, where that is not its own type, and one reduced shard. Reductions
// run one after another, so one of each is enough. A wire type narrower than the
// bucket's own can leave either short of the alignment, so both are rounded up.
func (p *placer) placeStaging() {
	for b := range p.model.Buckets() {
		if !b.Trainable {
			continue
		}
		wire := p.model.WireType(b)
		shardBytes := p.mul(b.ShardElements[p.w], wire.Bytes())
		p.out.WireShard = max(p.out.WireShard, shardBytes)
		if wire != b.DType {
			p.out.WireFull = max(p.out.WireFull, p.mul(shardBytes, p.out.World))
		}
	}
	p.out.WireFull = p.roundUp(p.out.WireFull, p.model.AlignBytes)
	p.out.WireShard = p.roundUp(p.out.WireShard, p.model.AlignBytes)
	p.take(Staging, dtype.Invalid, p.out.WireFull)
	p.take(Staging, dtype.Invalid, p.out.WireShard)
}

// placeScratch makes room for the sums of a step, and for the norms of chunks.
func (p *placer) placeScratch() {
	p.out.Partials = p.roundUp(p.out.Partials, p.model.AlignBytes)
	p.take(Scratch, dtype.Invalid, p.model.PartialsStart())
	p.take(Scratch, dtype.Invalid, p.out.Partials)
}

// collectArenas lists the arenas that are not empty, by role and type, and
// checks that their sum fits.
func (p *placer) collectArenas() {
	var all int64
	for r := range p.sizes {
		for t, bytes := range p.sizes[r] {
			if bytes > 0 {
				p.out.Arenas = append(p.out.Arenas, Arena{Role: Role(r), DType: dtype.DType(t), Bytes: bytes})
				all = p.add(all, bytes)
			}
		}
	}
}
