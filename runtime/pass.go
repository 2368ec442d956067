package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// passKind says what a pass is for.
type passKind uint8

const (
	forward passKind = iota + 1
	eval
	backward
)

var passNames = [...]string{forward: "forward pass", eval: "evaluation pass", backward: "backward pass"}

func (k passKind) String() string { return passNames[k] }

// step returns the direction in which the pass goes through the positions.
func (k passKind) step() int {
	if k == backward {
		return -1
	}
	return 1
}

// passState is the open pass of a model.
type passState struct {
	number uint64 // counts passes; a Pass holds the one it belongs to
	open   bool
	kind   passKind
	ctx    context.Context
	cursor int // position of the last block that the trainer asked for; -1 before the first
	err    error
}

// Pass is one traversal of the blocks. It is a value; copies are the same pass.
type Pass struct {
	m      *Model
	number uint64
	refuse error // why the pass could not be opened
}

// Block is a gathered block, to be released once.
type Block struct {
	m          *Model
	position   int
	generation uint64
}

// residence is what slots and shared parameters have in common: memory into
// which buckets are gathered, and out of which they are released.
type residence struct {
	lease   lease
	state   State
	users   int          // gathered by the trainer and not yet released
	done    device.Event // behind the gather, on the group's stream
	readers device.Event // behind the last reader, on the compute stream
}

// slot is a residence for blocks; holder is who is there, nil for nobody.
type slot struct {
	residence
	holder *block
}

// sharedParam is a residence for one shared parameter.
type sharedParam struct {
	residence
	bucket      *bucket
	first, last int // positions of the first and last block that uses it
}

func (m *Model) buildSlots() {
	m.slots = make([]slot, m.descriptor.Layout.MaxLive)
	for i := range m.slots {
		m.slots[i].lease.memory = m.arenas[layout.Slots][dtype.Invalid]
		m.slots[i].lease.device = m.rank.device
	}
}

// Forward opens a pass through the blocks in their order.
func (m *Model) Forward(ctx context.Context) Pass { return m.openPass(ctx, forward) }

// Eval opens a forward pass that no backward pass follows.
func (m *Model) Eval(ctx context.Context) Pass { return m.openPass(ctx, eval) }

// Backward opens a pass through the blocks in reverse order.
func (m *Model) Backward(ctx context.Context) Pass { return m.openPass(ctx, backward) }

func (m *Model) openPass(ctx context.Context, kind passKind) Pass {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.openable(kind); err != nil {
		return Pass{m: m, refuse: err}
	}
	m.pass = passState{number: m.pass.number + 1, open: true, kind: kind, ctx: ctx, cursor: -1}
	return Pass{m: m, number: m.pass.number}
}

func (m *Model) openable(kind passKind) error {
	if err := m.idle(passNames[kind]); err != nil {
		return err
	}
	if !m.initialized {
		return &StateError{Operation: passNames[kind], Subject: "model " + m.descriptor.Model, Found: "its shards have no values yet", Fix: "call Init or Update first"}
	}
	return nil
}

// enter returns an error unless the pass is the model's open one.
func (p Pass) enter() error {
	if p.refuse != nil {
		return p.refuse
	}
	if err := p.m.usable(); err != nil {
		return err
	}
	if !p.m.pass.open || p.m.pass.number != p.number {
		return &StateError{Operation: "gather", Subject: "model " + p.m.descriptor.Model, Found: "the pass has ended", Fix: "open a new pass"}
	}
	return p.m.pass.ctx.Err()
}

// Gather returns the block of a kind with the spec's index, its parameters
// gathered on the compute stream. The next blocks of the pass's direction are
// on their way when it returns. A block that is already gathered is shared and
// counted: each Gather wants its Release.
func (p Pass) Gather(kind, index int) (Block, error) {
	if p.m == nil {
		return Block{}, errNoPass
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if err := p.enter(); err != nil {
		return Block{}, p.m.note(err)
	}
	position, err := p.m.position(kind, index)
	if err != nil {
		return Block{}, p.m.note(err)
	}
	b, err := p.m.demand(position)
	return b, p.m.note(err)
}

var errNoPass = &StateError{Operation: "gather", Subject: "a pass", Found: "its zero value", Fix: "take it from Forward, Eval or Backward"}

// note keeps the pass's first error for End.
func (m *Model) note(err error) error {
	if err != nil && m.pass.open && m.pass.err == nil {
		m.pass.err = err
	}
	return err
}

// position finds a block by its kind and the spec's index.
func (m *Model) position(kind, index int) (int, error) {
	k := &m.descriptor.Layout.Kinds[kind]
	n := int64(index) - k.First
	if n < 0 || n >= k.Count {
		return 0, fmt.Errorf("gather of block %s: index %d is not in %d..%d", k.Name, index, k.First, k.First+k.Count-1)
	}
	return m.kindStart[kind] + int(n), nil
}

// demand gathers the block at a position for the trainer.
func (m *Model) demand(position int) (Block, error) {
	b := &m.blocks[position]
	s := &m.slots[b.slot]
	if s.holder != b && s.users > 0 {
		return Block{}, m.slotTaken(b, s.holder)
	}
	m.pass.cursor = position
	m.hold(b)
	m.prefetch()
	if err := m.await(b); err != nil {
		return Block{}, err
	}
	return Block{m: m, position: position, generation: s.lease.generation.Load()}, nil
}

func (m *Model) slotTaken(wanted, holder *block) error {
	return &StateError{
		Operation: "gather", Subject: "block " + wanted.name,
		Found: fmt.Sprintf("its slot %d of %d is held by block %s", wanted.slot, len(m.slots), holder.name),
		Fix:   fmt.Sprintf("release %s first, or raise gather.max_live above %d", holder.name, len(m.slots)),
	}
}

// hold starts the gathers that a block needs and counts its user.
func (m *Model) hold(b *block) {
	m.fetch(b)
	m.slots[b.slot].users++
	for _, s := range b.uses {
		m.shared[s].users++
	}
}

// fetch starts whatever gathers of a block are not under way yet. What the slot
// held, a prefetch that nobody used, is evicted.
func (m *Model) fetch(b *block) {
	s := &m.slots[b.slot]
	if s.holder != b || s.state == NotAvailable {
		m.begin(&s.residence, b.buckets...)
		s.holder, s.lease.holder = b, b
	}
	for _, i := range b.uses {
		if p := &m.shared[i]; p.state == NotAvailable {
			m.begin(&p.residence, p.bucket)
		}
	}
}

// begin puts the gathers of buckets into a residence on the group's stream,
// behind the residence's last reader.
func (m *Model) begin(r *residence, buckets ...*bucket) {
	r.lease.end()
	if r.readers.Stream != nil {
		m.stream.Wait(r.readers)
	}
	for _, b := range buckets {
		if b.place.GatheredBytes == 0 {
			continue
		}
		m.comm.AllGather(b.name, b.gathered, b.shard)
		m.stats.Gathers++
		m.stats.GatheredBytes += b.gathered.Bytes() - b.shard.Bytes()
	}
	r.done = m.stream.Record()
	r.state = Inflight
}

// await makes the compute stream wait for a block's gathers. Where the host
// itself computes, the caller waits.
func (m *Model) await(b *block) error {
	if err := m.arrive(&m.slots[b.slot].residence); err != nil {
		return err
	}
	for _, i := range b.uses {
		if err := m.arrive(&m.shared[i].residence); err != nil {
			return err
		}
	}
	return nil
}

func (m *Model) arrive(r *residence) error {
	if r.state == Available {
		return nil
	}
	if m.onHost() {
		if err := m.fail(m.comm.Synchronize(m.pass.ctx, r.done)); err != nil {
			return err
		}
	} else {
		m.rank.stream.Wait(r.done)
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
		if s := &m.slots[b.slot]; s.holder == b || s.users == 0 {
			m.fetch(b)
		}
	}
}

// Release gives a gathered block back. Its tensors can't be used afterwards. It
// panics with a *StateError if the block was released already.
func (b Block) Release() {
	if b.m == nil {
		panic(&StateError{Operation: "release", Subject: "a block", Found: "its zero value", Fix: "release blocks that a pass returned without error"})
	}
	b.m.mu.Lock()
	defer b.m.mu.Unlock()
	blk := &b.m.blocks[b.position]
	s := &b.m.slots[blk.slot]
	if s.lease.generation.Load() != b.generation {
		panic(&StateError{Operation: "release", Subject: "block " + blk.name, Found: NotAvailable.String() + ": released already, or its pass ended", Fix: "release a block once per gather"})
	}
	b.m.release(blk)
	if b.m.pass.open && b.m.err == nil {
		b.m.prefetch()
	}
}

// release counts a user of a block out and frees what nobody uses any more.
func (m *Model) release(b *block) {
	reader := m.rank.stream.Record()
	s := &m.slots[b.slot]
	s.leave(reader, true)
	if s.state == NotAvailable {
		s.holder = nil
	}
	for _, i := range b.uses {
		p := &m.shared[i]
		p.leave(reader, m.lastUse(p, b.position))
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

// leave counts a user out. The last one frees the residence, if it may.
func (r *residence) leave(reader device.Event, free bool) {
	r.users--
	r.readers = reader
	if r.users == 0 && free {
		r.revoke()
	}
}

// revoke ends whatever is in a residence.
func (r *residence) revoke() {
	r.lease.end()
	r.state, r.users = NotAvailable, 0
}

// End closes the pass: prefetches that nobody used are waited for and put back,
// reductions are waited for. It returns the pass's first error, or an error that
// names blocks that were not released or gradients neither reduced nor
// discarded. It must be called on every rank alike.
func (p Pass) End() error {
	if p.m == nil {
		return errNoPass
	}
	m := p.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.refuse != nil {
		return p.refuse
	}
	if !m.pass.open || m.pass.number != p.number {
		if err := m.usable(); err != nil {
			return err
		}
		return &StateError{Operation: "end", Subject: "a pass of model " + m.descriptor.Model, Found: "it has ended", Fix: "end a pass once"}
	}
	return m.endPass()
}

func (m *Model) endPass() error {
	err := m.pass.err
	if err == nil {
		err = m.leftOver()
	}
	ctx := m.pass.ctx
	m.pass.open, m.pass.ctx = false, nil
	if m.err == nil {
		settled := m.settle(ctx)
		if err == nil {
			err = settled
		}
	}
	m.revokeAll()
	return err
}

// leftOver names what a trainer forgot to give back.
func (m *Model) leftOver() error {
	var held []string
	for i := range m.slots {
		if m.slots[i].users > 0 {
			held = append(held, "block "+m.slots[i].holder.name)
		}
	}
	var errs []error
	if len(held) > 0 {
		errs = append(errs, &StateError{Operation: "end", Subject: "the " + m.pass.kind.String(), Found: strings.Join(held, ", ") + " not released", Fix: "release every block that the pass returned"})
	}
	if names := m.heldGrads(); len(names) > 0 {
		errs = append(errs, &StateError{Operation: "end", Subject: "the backward pass", Found: "gradients of " + strings.Join(names, ", ") + " neither reduced nor discarded", Fix: "call Reduce or Discard on every gradient"})
	}
	return errors.Join(errs...)
}

// revokeAll takes everything back that a pass handed out or fetched.
func (m *Model) revokeAll() {
	m.pass.open = false
	for i := range m.slots {
		m.slots[i].revoke()
		m.slots[i].holder = nil
	}
	for i := range m.shared {
		m.shared[i].revoke()
	}
	for i := range m.gradBuffers {
		m.gradBuffers[i].giveBack()
	}
}
