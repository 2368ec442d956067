package shard

import (
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
type arenas [len(roleCount)][int(dtype.Bool) + 1]device.Memory

// roleCount has as many elements as there are roles.
var roleCount [int(layout.Staging) + 1]struct{}

// scratchBytes holds a gradient norm: a sum and a count, each an f64.
const scratchBytes = 16

// Open allocates a model's memory on a rank and makes sure that all ranks of
// its communicator run the same plan. Every rank of the communicator must call
// it. Shards start as zeros; Init, Load or Update gives them values.
func Open(ctx context.Context, rank *Rank, d *Descriptor, _ Options) (*Model, error) {
	w, err := d.world(rank.Size())
	if err != nil {
		return nil, err
	}
	place, err := d.Layout.Place(w)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", d.Model, err)
	}
	if err := d.checkMemory(w, place); err != nil {
		return nil, err
	}
	m := &Model{rank: rank, descriptor: d, world: w, place: place, divideBy: d.divisor(w), comm: rank.comm, stream: rank.comm.Stream()}
	failed := m.allocate()
	if err := m.agree(ctx, failed); err != nil {
		return nil, errors.Join(err, m.free())
	}
	m.build()
	return m, nil
}

// checkMemory compares what the planner promised with what the layout says.
func (d *Descriptor) checkMemory(w int, p *layout.Placement) error {
	planned := d.Worlds[w]
	if planned.RestBytes == p.RestBytes() && planned.PeakBytes == p.PeakBytes() {
		return nil
	}
	return fmt.Errorf("model %s: planned for %d bytes at rest and %d at peak, but its layout needs %d and %d; generate the package again",
		d.Model, planned.RestBytes, planned.PeakBytes, p.RestBytes(), p.PeakBytes())
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
			m.rank.stream.Zero(mem)
		}
	}
	scratch, err := m.rank.device.Alloc(scratchBytes)
	if err != nil {
		return fmt.Errorf("allocating %d bytes for norms: %w", scratchBytes, err)
	}
	m.scratch = scratch
	return nil
}

// free gives all memory back.
func (m *Model) free() error {
	var errs []error
	for r := range m.arenas {
		for t := range m.arenas[r] {
			if m.arenas[r][t].Bytes() > 0 {
				errs = append(errs, m.rank.device.Free(m.arenas[r][t]))
				m.arenas[r][t] = device.Memory{}
			}
		}
	}
	if m.scratch.Bytes() > 0 {
		errs = append(errs, m.rank.device.Free(m.scratch))
		m.scratch = device.Memory{}
	}
	return errors.Join(errs...)
}

// introduction is what ranks tell each other at Open: whether they could
// allocate, the plan's hash and the model's name, cut to its length.
const introductionBytes = 128

// agree exchanges introductions and returns the same error on every rank where
// one failed or has another plan.
func (m *Model) agree(ctx context.Context, failed error) error {
	own := m.introduce(failed)
	all := make([]byte, introductionBytes*m.rank.Size())
	if err := m.exchange(ctx, all, own); err != nil {
		return errors.Join(failed, fmt.Errorf("model %s: opening: %w", m.descriptor.Model, err))
	}
	first := all[:introductionBytes]
	for r := range m.rank.Size() {
		other := all[r*introductionBytes : (r+1)*introductionBytes]
		if other[0] != 0 {
			return errors.Join(failed, fmt.Errorf("model %s: rank %d could not open it", m.descriptor.Model, r))
		}
		if string(other) != string(first) {
			return fmt.Errorf("ranks run different plans: rank 0 has %s, rank %d has %s; build all ranks from one generated package",
				introduced(first), r, introduced(other))
		}
	}
	return nil
}

func (m *Model) introduce(failed error) []byte {
	own := make([]byte, introductionBytes)
	if failed != nil {
		own[0] = 1
	}
	n := copy(own[1:], m.descriptor.Worlds[m.world].PlanHash+" ("+m.descriptor.Model)
	if n < len(own)-2 {
		own[1+n] = ')'
	}
	return own
}

func introduced(b []byte) string {
	end := len(b)
	for end > 1 && b[end-1] == 0 {
		end--
	}
	return "plan " + string(b[1:end])
}

// exchange gathers every rank's src into dst, through device memory.
func (m *Model) exchange(ctx context.Context, dst, src []byte) error {
	dev := m.rank.device
	mem, err := dev.Alloc(int64(len(dst) + len(src)))
	if err != nil {
		return err
	}
	from, to := mem.Slice(int64(len(dst)), int64(len(src))), mem.Slice(0, int64(len(dst)))
	err = dev.Write(ctx, from, src)
	if err == nil {
		m.comm.AllGather("the plan's hash", to, from)
		if err = m.comm.Synchronize(ctx, m.stream.Record()); err != nil {
			m.comm.Abort(err)
			_ = m.drain() // returns the same error, when nothing uses mem any more
		}
	}
	if err == nil {
		err = dev.Read(ctx, dst, to)
	}
	return errors.Join(err, dev.Free(mem))
}
