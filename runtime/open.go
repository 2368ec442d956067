package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Options are what a trainer may choose at Open and the plan leaves open. There
// is nothing to choose yet; trainers pass the zero value.
type Options struct{}

// arenas are a rank's allocations, by role and element type.
type arenas [len(roleCount)][dtype.Count]device.Memory

// roleCount has as many elements as there are roles.
var roleCount [int(layout.Scratch) + 1]struct{}

// Open allocates a model's memory on a rank and makes sure that all ranks of
// its communicator run the same plan. Every rank of the communicator must call
// it; where it fails on one, it fails on all with that rank's reason. Shards
// have no values until Init or Update gives them some.
func Open(ctx context.Context, rank *Rank, d *Descriptor, _ Options) (*Model, error) {
	if ctx == nil || rank == nil || rank.comm == nil || d == nil {
		return nil, errors.New("open: the context, the rank or the descriptor is nil; a rank comes from Run or NewRank")
	}
	rank.mu.Lock()
	defer rank.mu.Unlock()
	m := &Model{
		rank: rank, descriptor: d, comm: rank.comm, compute: rank.stream,
		gathers: rank.comm.GatherStream(), reductions: rank.comm.ReduceStream(),
	}
	m.ordinal = rank.models
	rank.models++
	failed := m.prepare()
	if failed != nil { // what there is may be all the memory that is left to tell the others
		_ = m.drain()
		failed = errors.Join(failed, m.free())
	}
	if err := m.introduceAll(ctx, failed); err != nil {
		_ = m.drain() // err says it already
		return nil, errors.Join(fmt.Errorf("model %s: %w", d.Model, err), m.free())
	}
	m.build()
	return m, nil
}

// prepare picks what the plan says of the group's size and allocates it.
func (m *Model) prepare() error {
	var err error
	if m.world, err = m.descriptor.world(m.rank.Size()); err != nil {
		return err
	}
	if m.place, err = m.descriptor.Layout.Place(m.world); err != nil {
		return err
	}
	if err := m.descriptor.checkMemory(m.world, m.place); err != nil {
		return err
	}
	m.divideBy = m.descriptor.divisor(m.world)
	if m.kernels, err = m.rank.device.Load(m.descriptor.Code); err != nil {
		return fmt.Errorf("loading its kernels on %s: %w", m.rank.device.Name(), err)
	}
	return m.allocate()
}

// checkMemory compares what the planner promised with what the layout says.
func (d *Descriptor) checkMemory(w int, p *layout.Placement) error {
	planned := d.Worlds[w]
	if planned.RestBytes == p.RestBytes() && planned.PeakBytes == p.PeakBytes() {
		return nil
	}
	return fmt.Errorf("planned for %d bytes at rest and %d at peak, but its layout needs %d and %d; generate the package again",
		planned.RestBytes, planned.PeakBytes, p.RestBytes(), p.PeakBytes())
}

// divisor is what summed gradients are divided by.
func (d *Descriptor) divisor(w int) float64 {
	if d.Layout.DivideBy != 0 {
		return float64(d.Layout.DivideBy)
	}
	return float64(d.Layout.Worlds[w])
}

// allocate makes the arenas. What lives between passes starts as zeros, so that
// the padding of shards is zero; slots and buffers are written before use.
func (m *Model) allocate() error {
	for _, a := range m.place.Arenas {
		mem, err := m.rank.device.Alloc(a.Bytes)
		if err != nil {
			return fmt.Errorf("allocating %d bytes for %s: %w", a.Bytes, a.Role, err)
		}
		m.arenas[a.Role][a.DType] = mem
		if a.Role.Rest() {
			m.kernels.Zero(m.compute, mem) // Init or Update waits for it
		}
	}
	scratch := m.arenas[layout.Scratch][dtype.Invalid]
	m.sums = scratch.Slice(0, layout.SumsBytes)
	m.partials = scratch.Slice(m.descriptor.Layout.PartialsStart(), m.place.Partials)
	return nil
}

// free gives all memory back, and the kernels.
func (m *Model) free() error {
	var errs []error
	if m.kernels != nil {
		errs = append(errs, m.kernels.Close())
		m.kernels = nil
	}
	for r := range m.arenas {
		for t := range m.arenas[r] {
			if m.arenas[r][t].Bytes() > 0 {
				errs = append(errs, m.rank.device.Free(m.arenas[r][t]))
				m.arenas[r][t] = device.Memory{}
			}
		}
	}
	return errors.Join(errs...)
}

// introductionBytes is the length of what ranks tell each other at Open: a byte
// that is not 0 if they could not prepare, then why, else the plan's hash and the
// model's name; cut to fit, padded with zeros.
const introductionBytes = 512

// introduceAll exchanges introductions and returns the same error on every rank where
// one failed to prepare or has another plan.
func (m *Model) introduceAll(ctx context.Context, failed error) error {
	own := m.introduce(failed)
	all := make([]byte, introductionBytes*m.rank.Size())
	if err := m.exchange(ctx, "the plan's hash", all, own); err != nil {
		return errors.Join(failed, fmt.Errorf("opening: %w", err))
	}
	first := all[:introductionBytes]
	for r := range m.rank.Size() {
		other := all[r*introductionBytes : (r+1)*introductionBytes]
		switch {
		case failed != nil && r == m.rank.Rank():
			return &openError{rank: r, err: failed}
		case other[0] != 0:
			return &openError{rank: r, err: errors.New(introduced(other))}
		case string(other) != string(first):
			return fmt.Errorf("ranks run different plans: rank 0 has %s, rank %d has %s; build all ranks from one generated package",
				introduced(first), r, introduced(other))
		}
	}
	return nil
}

// openError says which rank could not prepare a model.
type openError struct {
	rank int
	err  error
}

func (e *openError) Error() string {
	return fmt.Sprintf("rank %d could not open it: %v", e.rank, e.err)
}

func (e *openError) Unwrap() error { return e.err }

func (m *Model) introduce(failed error) []byte {
	own := make([]byte, introductionBytes)
	if failed != nil {
		own[0] = 1
		copy(own[1:], failed.Error())
		return own
	}
	copy(own[1:], fmt.Sprintf("plan %s (%s)", m.descriptor.Worlds[m.world].PlanHash, m.descriptor.Model))
	return own
}

func introduced(b []byte) string { return string(bytes.TrimRight(b[1:], "\x00")) }

// exchange gathers every rank's src into dst, through device memory. subject
// says what it is, for errors.
func (m *Model) exchange(ctx context.Context, subject string, dst, src []byte) error {
	both, n := append(make([]byte, len(dst)), src...), int64(len(dst))
	err := m.rank.through(ctx, both, m.gathers, func(mem device.Memory) {
		m.comm.AllGather(subject, mem.Slice(0, n), mem.Slice(n, int64(len(src))))
	})
	copy(dst, both)
	return err
}
