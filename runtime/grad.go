package shard

import (
	"context"
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Grads are the gradients that a backward pass hands out for a block: zeroed
// buffers of full size, to be reduced or discarded once.
type Grads struct {
	m          *Model
	position   int
	buffer     int // -1 where nothing of the block is trainable
	generation uint64
}

// bufferState says who has a gradient buffer.
type bufferState uint8

const (
	bufferFree bufferState = iota
	bufferHeld             // by the trainer
	bufferReducing
)

// gradBuffer is room for the full-size gradients of one block.
type gradBuffer struct {
	lease lease
	state bufferState
	block *block       // whose gradients it has
	done  device.Event // behind the last reduction, on the reduce stream

	launch  []comm.Reduction // what is started together
	buckets []*bucket        // whose gradients those are
}

func (m *Model) buildGradBuffers() {
	at, most := m.place.GradBuffer, 0
	for i := range m.blocks {
		most = max(most, len(m.blocks[i].grads))
	}
	m.gradBuffers = make([]gradBuffer, at.Count)
	for i := range m.gradBuffers {
		m.gradBuffers[i].launch = make([]comm.Reduction, 0, most)
		m.gradBuffers[i].buckets = make([]*bucket, 0, most)
		m.gradBuffers[i].lease.model = m
		if at.Bytes > 0 {
			m.gradBuffers[i].lease.memory = m.arenas[layout.GradBuffers][dtype.Invalid].Slice(int64(i)*at.Bytes, at.Bytes)
		}
	}
}

// gradBucket returns the bucket that a part of a block's gradient buffer is of.
func (m *Model) gradBucket(b *block, at *layout.GradBucket) *bucket {
	if at.Shared {
		return m.shared[at.Bucket].bucket
	}
	return b.buckets[at.Bucket]
}

// GatherWithGrads is Gather, with a zeroed buffer for the gradients of the
// block's trainable parameters, those it shares with others included. It belongs
// to a backward pass. Where all buffers are being reduced it waits for the first
// of them; where the trainer holds all of them it fails at once.
func (p Pass) GatherWithGrads(kind, index int) (Block, Grads, error) {
	if p.m == nil {
		return Block{}, Grads{}, errNoPass
	}
	p.m.rank.mu.Lock()
	defer p.m.rank.mu.Unlock()
	b, g, err := p.gatherWithGrads(kind, index)
	return b, g, p.note(err)
}

func (p Pass) gatherWithGrads(kind, index int) (Block, Grads, error) {
	m := p.m
	if err := p.enter("gather with gradients"); err != nil {
		return Block{}, Grads{}, err
	}
	if m.pass.kind != backward {
		return Block{}, Grads{}, m.misuse("gather with gradients", "the pass is a "+m.pass.kind.String(), "take gradients from a Backward pass")
	}
	position, err := m.position(kind, index)
	if err != nil {
		return Block{}, Grads{}, err
	}
	buffer, err := m.chooseBuffer(&m.blocks[position])
	if err != nil {
		return Block{}, Grads{}, err
	}
	b, err := m.demand(position)
	if err != nil {
		return Block{}, Grads{}, err
	}
	g, err := m.handOut(position, buffer)
	if err != nil {
		m.release(&m.blocks[position], b.ticket)
		return Block{}, Grads{}, err
	}
	return b, g, nil
}

// chooseBuffer picks a free gradient buffer, else the one whose reduction was
// started first; -1 for a block that has no gradients. Gradients without
// elements need a buffer too: it says whether they were given back.
func (m *Model) chooseBuffer(b *block) (int, error) {
	if len(b.grads) == 0 {
		return -1, nil
	}
	chosen := -1
	for i := range m.gradBuffers {
		switch g := &m.gradBuffers[i]; {
		case g.state == bufferFree:
			return i, nil
		case g.state == bufferReducing && (chosen < 0 || g.done.Seq < m.gradBuffers[chosen].done.Seq):
			chosen = i
		}
	}
	if chosen >= 0 {
		return chosen, nil
	}
	return 0, &StateError{
		Operation: "gather with gradients", Subject: "block " + b.name,
		Found: fmt.Sprintf("all %d gradient buffers are held, by blocks %s", len(m.gradBuffers), strings.Join(m.heldGrads(), ", ")),
		Fix:   fmt.Sprintf("reduce or discard one first, or raise gradients.slots above %d", len(m.gradBuffers)),
	}
}

// handOut zeroes a buffer, behind the reduction that reads it, and gives it to
// the trainer.
func (m *Model) handOut(position, buffer int) (Grads, error) {
	b := &m.blocks[position]
	if buffer < 0 {
		return Grads{m: m, position: position, buffer: -1}, nil
	}
	g := &m.gradBuffers[buffer]
	if g.state == bufferReducing {
		if err := m.reduced(g); err != nil {
			return Grads{}, err
		}
	}
	m.kernels.Zero(m.compute, g.lease.memory.Slice(0, b.gradBytes))
	if m.onHost() { // the trainer's goroutine writes next
		if err := m.settleCompute(m.pass.ctx); err != nil {
			return Grads{}, err
		}
	}
	g.lease.end()
	g.state, g.block = bufferHeld, b
	return Grads{m: m, position: position, buffer: buffer, generation: g.lease.generation.Load()}, nil
}

// reduced makes what follows on the compute stream wait for a buffer's
// reduction.
func (m *Model) reduced(g *gradBuffer) error {
	if m.onHost() {
		if err := m.comm.Synchronize(m.pass.ctx, g.done); err != nil {
			return m.fail(fmt.Errorf("reduction of the gradients of block %s: %w", g.block.name, err))
		}
		return nil
	}
	m.compute.Wait(g.done)
	return nil
}

// Reduce starts the reduction of the gradients: a reduce-scatter of each bucket
// over its group, summed in rank order, one division, and an addition to this
// rank's gradient shard. The tensors can't be used afterwards. The pass's End
// waits for it. It panics with a *StateError if the gradients were given back
// before.
func (g Grads) Reduce() {
	g.giveBack("reduce", func(m *Model, b *block, buffer *gradBuffer) {
		m.reductions.Wait(m.compute.Record())
		m.reduce(b, buffer)
		buffer.done = m.reductions.Record()
		m.did(actReduce, uint32(b.position))
		buffer.state = bufferReducing
	})
}

// Discard gives the gradients back without reducing them. Every rank must
// discard what another does.
func (g Grads) Discard() {
	g.giveBack("discard", func(m *Model, b *block, buffer *gradBuffer) {
		buffer.state = bufferFree
		m.did(actDiscard, uint32(b.position))
	})
}

func (g Grads) giveBack(operation string, do func(*Model, *block, *gradBuffer)) {
	if g.m == nil {
		panic(&StateError{Operation: operation, Subject: "gradients", Found: "their zero value", Fix: "use gradients that a backward pass returned without error"})
	}
	if g.buffer < 0 {
		return
	}
	g.m.rank.mu.Lock()
	defer g.m.rank.mu.Unlock()
	b, buffer := &g.m.blocks[g.position], &g.m.gradBuffers[g.buffer]
	if buffer.lease.generation.Load() != g.generation {
		panic(&StateError{Operation: operation, Subject: "gradients of block " + b.name, Found: "reduced or discarded already, or the pass ended", Fix: "give gradients back once"})
	}
	buffer.lease.end()
	do(g.m, b, buffer)
}

// reduce puts the reductions of a block's gradients on the reduce stream: cast to
// the wire type, reduce-scatter, divide and accumulate. They are started together,
// but for casts: staging has room for one at a time.
func (m *Model) reduce(b *block, g *gradBuffer) {
	staged := false
	for i := range b.grads {
		own := m.gradBucket(b, &b.grads[i])
		if own.place.GatheredBytes == 0 || own.frozen == len(own.layout.Params) {
			continue
		}
		cast := own.wire != own.layout.DType
		if cast && staged {
			m.scatter(g)
		}
		staged = staged || cast
		full, part := m.reduceSource(own, g.lease.memory.Slice(b.grads[i].Offset, own.place.GatheredBytes))
		m.did(actReduceScatter, own.index)
		g.launch = append(g.launch, comm.Reduction{Subject: own.name, Dst: part, Src: full, Type: own.wire})
		g.buckets = append(g.buckets, own)
	}
	m.scatter(g)
}

// reduceSource returns a bucket's gradient in its wire type, and where this rank's
// part of the sum goes: the staging arena, or, without a cast, the gradient itself.
func (m *Model) reduceSource(b *bucket, grad device.Memory) (full, part device.Memory) {
	shardBytes := b.place.ShardElements * b.wire.Bytes()
	if b.wire == b.layout.DType {
		return grad, grad.Slice(int64(m.comm.Rank())*shardBytes, shardBytes)
	}
	staging, world := m.arenas[layout.Staging][dtype.Invalid], int64(m.comm.Size())
	full = staging.Slice(0, world*shardBytes)
	m.kernels.Cast(m.reductions, full, b.wire, grad, b.layout.DType, world*b.place.ShardElements)
	return full, staging.Slice(m.place.WireFull, shardBytes)
}

// scatter starts what a gradient buffer has in its launch, and adds the sums to the
// gradient shards.
func (m *Model) scatter(g *gradBuffer) {
	m.comm.ReduceScatters(g.launch)
	for i, b := range g.buckets {
		at := &g.launch[i]
		m.kernels.Accumulate(m.reductions, b.grad, b.gradType, at.Dst, b.wire, b.place.ShardElements, m.divideBy, !b.summed)
		b.summed = true
		m.stats.Reductions++
		m.stats.ReducedBytes += at.Src.Bytes() - at.Dst.Bytes()
	}
	g.launch, g.buckets = g.launch[:0], g.buckets[:0]
}

// giveBack takes a buffer back at the end of a pass, when its reduction is done.
func (g *gradBuffer) giveBack() {
	g.lease.end()
	g.state = bufferFree
}

// heldGrads names the blocks whose gradients the trainer holds.
func (m *Model) heldGrads() []string {
	var names []string
	for i := range m.gradBuffers {
		if m.gradBuffers[i].state == bufferHeld {
			names = append(names, m.gradBuffers[i].block.name)
		}
	}
	return names
}

// ZeroGrad forgets the gradients accumulated since the last step: the next
// reduction stores instead of adding.
func (m *Model) ZeroGrad() error {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	if err := m.idle(context.Background(), "zeroing gradients"); err != nil {
		return err
	}
	m.did(actZeroGrad, 0)
	m.forgetGrads()
	return nil
}

// gradsWhole returns an error where a backward pass has failed after some of its
// gradients were reduced: what there is of a sum is good for nothing.
func (m *Model) gradsWhole(operation string) error {
	if m.spoiled {
		return m.misuse(operation, "the last backward pass failed, so its gradients are incomplete", "call ZeroGrad and make the pass again")
	}
	return nil
}

func (m *Model) forgetGrads() {
	m.spoiled = false
	for i := range m.buckets {
		m.buckets[i].summed = false
	}
}

// completeGrads makes gradient shards that got no gradient zero.
func (m *Model) completeGrads() {
	for i := range m.buckets {
		if b := &m.buckets[i]; b.layout.Trainable && !b.summed {
			m.kernels.Zero(m.compute, b.grad)
			b.summed = true
		}
	}
}
