package shard

import (
	"fmt"
	"slices"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Block is a gathered block, to be released once.
type Block struct {
	m          *Model
	position   int
	generation uint64 // of its slot's lease
	ticket     uint64 // of the gather that returned it
}

// residence is what slots and shared parameters have in common: memory into
// which buckets are gathered, and out of which they are released.
type residence struct {
	state   State
	done    device.Event  // behind the gather, on the gather stream
	readers device.Event  // behind the last reader, on the compute stream
	launch  []comm.Gather // what is started together
}

// slot is a residence for blocks.
type slot struct {
	residence
	lease  lease
	holder *block   // who is there; nil for nobody
	users  []uint64 // tickets of the gathers that the trainer has not released
}

// sharedParam is a residence for one shared parameter.
type sharedParam struct {
	residence
	bucket      *bucket
	users       int // held blocks that use it
	first, last int // positions of the first and last block that uses it
}

func (m *Model) buildSlots() {
	most := 0
	for i := range m.blocks {
		most = max(most, len(m.blocks[i].buckets))
	}
	for i := range m.shared {
		m.shared[i].launch = make([]comm.Gather, 0, 1)
	}
	m.slots = make([]slot, m.descriptor.Layout.MaxLive)
	for i := range m.slots {
		m.slots[i].launch = make([]comm.Gather, 0, most)
		m.slots[i].lease.model = m
		m.slots[i].lease.memory = m.arenas[layout.Slots][dtype.Invalid]
		m.slots[i].users = make([]uint64, 0, 4)
	}
}

// demand gathers the block at a position for the trainer.
func (m *Model) demand(position int) (Block, error) {
	b := &m.blocks[position]
	s := &m.slots[b.slot]
	if s.holder != b && len(s.users) > 0 {
		return Block{}, m.slotTaken(b, s.holder)
	}
	m.pass.cursor = position
	m.did(actGather, uint32(position))
	m.fetch(b)
	ticket := m.admit(b)
	m.prefetch()
	if err := m.await(b); err != nil {
		return Block{}, err
	}
	return Block{m: m, position: position, generation: s.lease.generation.Load(), ticket: ticket}, nil
}

func (m *Model) slotTaken(wanted, holder *block) error {
	return &StateError{
		Operation: "gather", Subject: "block " + wanted.name,
		Found: fmt.Sprintf("its slot %d of %d is held by block %s", wanted.slot, len(m.slots), holder.name),
		Fix:   fmt.Sprintf("release %s first, or raise gather.max_live above %d", holder.name, len(m.slots)),
	}
}

// fetch starts whatever gathers of a block are not under way yet. What the slot
// held, a prefetch that nobody used, is evicted.
func (m *Model) fetch(b *block) {
	s := &m.slots[b.slot]
	if s.holder != b {
		s.lease.end()
		s.holder = b
		m.begin(&s.residence, b.buckets...)
	}
	for _, i := range b.uses {
		if p := &m.shared[i]; p.state == NotAvailable {
			m.begin(&p.residence, p.bucket)
		}
	}
}

// admit counts a user of a fetched block and returns its ticket.
func (m *Model) admit(b *block) uint64 {
	m.tickets++
	s := &m.slots[b.slot]
	s.users = append(s.users, m.tickets)
	for _, i := range b.uses {
		m.shared[i].users++
	}
	return m.tickets
}

// begin puts the gathers of buckets into a residence on the gather stream, in one
// launch, behind the residence's last reader.
func (m *Model) begin(r *residence, buckets ...*bucket) {
	if r.readers.Stream != nil {
		m.gathers.Wait(r.readers)
	}
	r.launch = r.launch[:0]
	for _, b := range buckets {
		if b.place.GatheredBytes == 0 {
			continue
		}
		m.did(actAllGather, b.index)
		r.launch = append(r.launch, comm.Gather{Subject: b.name, Dst: b.gathered, Src: b.shard})
		m.stats.Gathers++
		m.stats.GatheredBytes += b.gathered.Bytes() - b.shard.Bytes()
	}
	m.comm.AllGathers(r.launch)
	r.done = m.gathers.Record()
	r.state = Inflight
}

// await makes the compute stream wait for a block's gathers. Where the host
// itself computes, the caller waits.
func (m *Model) await(b *block) error {
	err := m.arrive(&m.slots[b.slot].residence)
	for i := 0; err == nil && i < len(b.uses); i++ {
		err = m.arrive(&m.shared[b.uses[i]].residence)
	}
	if err != nil {
		return m.fail(fmt.Errorf("gather of block %s: %w", b.name, err))
	}
	return nil
}

func (m *Model) arrive(r *residence) error {
	if r.state == Available {
		return nil
	}
	if m.onHost() {
		if err := m.comm.Synchronize(m.pass.ctx, r.done); err != nil {
			return err
		}
	} else {
		m.compute.Wait(r.done)
	}
	r.state = Available
	return nil
}

// onHost reports whether the trainer's own goroutine reads the parameters.
func (m *Model) onHost() bool { return m.arenas[layout.Slots][dtype.Invalid].Host() != nil }

// prefetch starts the gathers of the blocks behind the cursor that their slots
// have room for. One whose slot is in use is tried again at the next release.
func (m *Model) prefetch() {
	for n := 1; n <= int(m.descriptor.Layout.Prefetch); n++ {
		next := m.pass.cursor + n*m.pass.kind.step()
		if next < 0 || next >= len(m.blocks) {
			return
		}
		b := &m.blocks[next]
		if s := &m.slots[b.slot]; s.holder != b && len(s.users) > 0 {
			return // so that gathers start in the pass's order, whatever is released first
		}
		m.fetch(b)
	}
}

// Release gives a gathered block back. Its tensors can't be used afterwards,
// unless another gather of the same block still holds it. It panics with a
// *StateError if the block was released already.
func (b Block) Release() {
	if b.m == nil {
		panic(&StateError{Operation: "release", Subject: "a block", Found: "its zero value", Fix: "release blocks that a pass returned without error"})
	}
	m := b.m
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	blk := &m.blocks[b.position]
	if !slices.Contains(m.slots[blk.slot].users, b.ticket) {
		panic(&StateError{Operation: "release", Subject: "block " + blk.name, Found: NotAvailable.String() + ": released already, or its pass ended", Fix: "release a block once per gather"})
	}
	m.release(blk, b.ticket)
	if m.pass.open && m.err == nil {
		m.prefetch()
	}
}

// release counts a user of a block out and frees what nobody uses any more.
func (m *Model) release(b *block, ticket uint64) {
	reader := m.compute.Record()
	s := &m.slots[b.slot]
	s.readers = reader
	i := slices.Index(s.users, ticket)
	s.users = slices.Delete(s.users, i, i+1)
	if len(s.users) == 0 {
		s.revoke()
	}
	for _, i := range b.uses {
		p := &m.shared[i]
		p.readers = reader
		p.users--
		if p.users == 0 && m.lastUse(p, b.position) {
			p.revoke()
		}
	}
}

// lastUse reports whether a pass needs a shared parameter no more once the block
// at the position is done with it.
func (m *Model) lastUse(p *sharedParam, position int) bool {
	if m.pass.kind == backward {
		return position <= p.first
	}
	return position >= p.last
}

// revoke empties a slot and ends all views of it.
func (s *slot) revoke() {
	s.lease.end()
	s.state, s.holder, s.users = NotAvailable, nil, s.users[:0]
}

// revoke lets the next use of a shared parameter gather it again. Views of it end
// with the blocks that they were taken from.
func (p *sharedParam) revoke() { p.state, p.users = NotAvailable, 0 }
