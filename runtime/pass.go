package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

func (k passKind) act() act {
	switch k {
	case eval:
		return actEval
	case backward:
		return actBackward
	}
	return actForward
}

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

// Forward opens a pass through the blocks in their order.
func (m *Model) Forward(ctx context.Context) Pass { return m.openPass(ctx, forward) }

// Eval opens a forward pass that no backward pass follows.
func (m *Model) Eval(ctx context.Context) Pass { return m.openPass(ctx, eval) }

// Backward opens a pass through the blocks in reverse order.
func (m *Model) Backward(ctx context.Context) Pass { return m.openPass(ctx, backward) }

func (m *Model) openPass(ctx context.Context, kind passKind) Pass {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	err := m.ready(ctx, kind.String())
	if err == nil && kind == backward {
		err = m.gradsWhole(kind.String())
	}
	if err != nil {
		return Pass{m: m, refuse: err}
	}
	m.did(kind.act(), 0)
	m.pass = passState{number: m.pass.number + 1, open: true, kind: kind, ctx: ctx, cursor: -1}
	return Pass{m: m, number: m.pass.number}
}

// Gather returns the block of a kind with the spec's index, its parameters
// gathered on the compute stream. The next blocks of the pass's direction are
// on their way when it returns. A block that is already gathered is shared and
// counted: each Gather wants its Release.
func (p Pass) Gather(kind, index int) (Block, error) {
	if p.m == nil {
		return Block{}, errNoPass
	}
	p.m.rank.mu.Lock()
	defer p.m.rank.mu.Unlock()
	b, err := p.gather(kind, index)
	return b, p.note(err)
}

func (p Pass) gather(kind, index int) (Block, error) {
	if err := p.enter("gather"); err != nil {
		return Block{}, err
	}
	position, err := p.m.position(kind, index)
	if err != nil {
		return Block{}, err
	}
	return p.m.demand(position)
}

var errNoPass = &StateError{Operation: "use", Subject: "a pass", Found: "its zero value", Fix: "take it from Forward, Eval or Backward"}

// current reports whether the pass is the model's open one.
func (p Pass) current() bool {
	return p.refuse == nil && p.m.pass.open && p.m.pass.number == p.number
}

// enter returns an error unless the pass may go on.
func (p Pass) enter(operation string) error {
	m := p.m
	switch {
	case p.refuse != nil:
		return p.refuse
	case m.err != nil:
		return m.err
	case !p.current():
		return m.misuse(operation, "the pass has ended", "open a new pass")
	case m.pass.ctx.Err() != nil:
		return fmt.Errorf("%s in the %s of model %s: %w", operation, m.pass.kind, m.descriptor.Model, context.Cause(m.pass.ctx))
	}
	return nil
}

// note keeps the pass's first error for End.
func (p Pass) note(err error) error {
	if err != nil && p.current() && p.m.pass.err == nil {
		p.m.pass.err = err
	}
	return err
}

// position finds a block by its kind and the spec's index.
func (m *Model) position(kind, index int) (int, error) {
	if kind < 0 || kind >= len(m.kindStart) {
		return 0, fmt.Errorf("gather: the model has no block kind %d, only 0..%d", kind, len(m.kindStart)-1)
	}
	k := &m.descriptor.Layout.Kinds[kind]
	n := int64(index) - k.First
	if n < 0 || n >= k.Count {
		return 0, fmt.Errorf("gather of block %s: index %d is not in %d..%d", k.Name, index, k.First, k.First+k.Count-1)
	}
	return m.kindStart[kind] + int(n), nil
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
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	switch {
	case p.current():
		return m.endPass()
	case p.refuse != nil:
		return p.refuse
	case m.err != nil:
		return m.err
	}
	return m.misuse("end of a pass", "it has ended", "end a pass once")
}

func (m *Model) endPass() error {
	err := m.pass.err
	if err == nil {
		err = m.leftOver()
	}
	ctx := m.pass.ctx
	m.pass.open, m.pass.ctx = false, nil
	m.spoiled = m.spoiled || err != nil && m.pass.kind == backward && m.anySummed()
	if m.err == nil {
		settled := m.settlePass(ctx, m.pass.kind.String())
		if err == nil {
			err = settled
		}
	}
	m.revokeAll()
	return err
}

// settlePass waits for what the pass has started. A context that has ended on all
// ranks alike leaves collectives that all of them have started, and that so will be
// done: they are given some time.
func (m *Model) settlePass(ctx context.Context, subject string) error {
	err := m.synchronize(ctx)
	if err != nil && ctx.Err() != nil && m.comm.Err() == nil {
		more, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), grace, context.Cause(ctx))
		defer cancel()
		err = m.synchronize(more)
	}
	if err != nil {
		return m.fail(fmt.Errorf("%s: %w", subject, err))
	}
	return nil
}

func (m *Model) anySummed() bool {
	return slices.ContainsFunc(m.buckets, func(b bucket) bool { return b.summed })
}

// leftOver names what a trainer forgot to give back.
func (m *Model) leftOver() error {
	var held []string
	for i := range m.slots {
		if len(m.slots[i].users) > 0 {
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

// revokeAll takes everything back that a pass handed out or fetched. What the
// trainer did not release may have readers on the compute stream.
func (m *Model) revokeAll() {
	m.pass.open = false
	reader := m.compute.Record()
	for i := range m.slots {
		m.slots[i].readers = reader
		m.slots[i].revoke()
	}
	for i := range m.shared {
		m.shared[i].readers = reader
		m.shared[i].revoke()
	}
	for i := range m.gradBuffers {
		m.gradBuffers[i].giveBack()
	}
}
