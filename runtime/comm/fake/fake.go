// Package fake is a transport without peers: it claims to be one rank of a
// group of any size, moves nothing between ranks and counts what it was asked.
// It measures what the host does around collectives, and tests what a caller
// asks for.
//
// It takes and gives what [comm.Communicator] says, but for the data: gathered
// parts of other ranks stay what they were. It may import runtime/comm,
// runtime/device/cpu and the packages below those.
package fake

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// Call is one collective that was asked for.
type Call struct {
	Operation comm.Operation
	Subject   string
	Bytes     int64 // a rank's part
	DType     dtype.DType
	Root      int
}

// Count says how often a collective was asked for, and for how much in all.
type Count struct {
	Calls int64
	Bytes int64 // of the rank's part
}

// Communicator implements [comm.Communicator] on an inline stream of the CPU,
// so that a collective is behind the caller when the call returns. It is for
// one goroutine, but for Abort and Err.
type Communicator struct {
	// MoveOwn copies the rank's own part where a real transport would put it;
	// without it nothing is moved at all, and nothing is read.
	MoveOwn bool
	// Record keeps every call for Calls, which allocates.
	Record bool

	rank, size int
	stream     *cpu.Stream
	calls      []Call
	counts     [comm.Barrier + 1]Count
	sequence   uint64
	task       outcome
	failed     atomic.Pointer[error]
}

// outcome is the task that puts a collective's error on the stream.
type outcome struct{ err error }

// Run implements cpu.Task.
func (o *outcome) Run(failed error) error {
	if failed != nil {
		return failed
	}
	return o.err
}

// New returns rank's end of a group of size ranks that does not exist. A rank
// outside the group fails every collective.
func New(rank, size int) *Communicator {
	c := &Communicator{rank: rank, size: size, stream: cpu.NewStream("fake comm", true)}
	if rank < 0 || rank >= size {
		c.Abort(fmt.Errorf("rank %d of %d ranks, expected 0 to %d", rank, size, size-1))
	}
	return c
}

// Calls returns the calls so far, in order, if Record was set.
func (c *Communicator) Calls() []Call { return c.calls }

// Count returns how often an operation was asked for since the last Reset.
func (c *Communicator) Count(o comm.Operation) Count {
	if int(o) >= len(c.counts) {
		return Count{}
	}
	return c.counts[o]
}

// Reset forgets the calls and the counts.
func (c *Communicator) Reset() {
	c.calls, c.counts = c.calls[:0], [len(c.counts)]Count{}
}

// Rank implements comm.Communicator.
func (c *Communicator) Rank() int { return c.rank }

// Size implements comm.Communicator.
func (c *Communicator) Size() int { return c.size }

// GatherStream implements comm.Communicator. All collectives are on one stream.
func (c *Communicator) GatherStream() device.Stream { return c.stream }

// ReduceStream implements comm.Communicator.
func (c *Communicator) ReduceStream() device.Stream { return c.stream }

// Split implements comm.Communicator: all ranks are taken to pass this one's
// color and keys in the order of their ranks.
func (c *Communicator) Split(context.Context, string, int, int) (comm.Communicator, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	part := New(c.rank, c.size)
	part.MoveOwn, part.Record = c.MoveOwn, c.Record
	return part, nil
}

// Close implements comm.Communicator.
func (c *Communicator) Close() error { return c.stream.Close() }

// AllGather implements comm.Communicator.
func (c *Communicator) AllGather(subject string, dst, src device.Memory) {
	if c.add(Call{Operation: comm.AllGather, Subject: subject, Bytes: src.Bytes()}, c.checkParts(dst, src)) && c.MoveOwn {
		c.stream.Copy(c.own(dst), src)
	}
}

// AllGathers implements comm.Communicator: each is counted and recorded as an
// AllGather.
func (c *Communicator) AllGathers(all []comm.Gather) {
	for i := range all {
		c.AllGather(all[i].Subject, all[i].Dst, all[i].Src)
	}
}

// ReduceScatter implements comm.Communicator; with MoveOwn the sum is this
// rank's part alone.
func (c *Communicator) ReduceScatter(subject string, dst, src device.Memory, t dtype.DType) {
	if c.add(Call{Operation: comm.ReduceScatter, Subject: subject, Bytes: dst.Bytes(), DType: t}, c.checkParts(src, dst)) && c.MoveOwn {
		c.stream.Copy(dst, c.own(src))
	}
}

// ReduceScatters implements comm.Communicator, as AllGathers.
func (c *Communicator) ReduceScatters(all []comm.Reduction) {
	for i := range all {
		c.ReduceScatter(all[i].Subject, all[i].Dst, all[i].Src, all[i].Type)
	}
}

// AllReduce implements comm.Communicator as if every rank had what this one has:
// f32 and f64 are multiplied by the number of ranks, other types stay as they are.
func (c *Communicator) AllReduce(subject string, buf device.Memory, t dtype.DType) {
	sums := t == dtype.Float32 || t == dtype.Float64
	if c.add(Call{Operation: comm.AllReduce, Subject: subject, Bytes: buf.Bytes(), DType: t}, nil) && sums {
		cpu.Kernels().Scale(c.stream, buf, t, buf.Bytes()/t.Bytes(), float64(c.size))
	}
}

// Broadcast implements comm.Communicator; buf stays as it is.
func (c *Communicator) Broadcast(subject string, buf device.Memory, root int) {
	var fault error
	if root < 0 || root >= c.size {
		fault = fmt.Errorf("the root is rank %d, the group has ranks 0 to %d", root, c.size-1)
	}
	c.add(Call{Operation: comm.Broadcast, Subject: subject, Bytes: buf.Bytes(), Root: root}, fault)
}

// Barrier implements comm.Communicator.
func (c *Communicator) Barrier(subject string) {
	c.add(Call{Operation: comm.Barrier, Subject: subject}, nil)
}

// Synchronize implements comm.Communicator.
func (c *Communicator) Synchronize(ctx context.Context, e device.Event) error {
	return c.stream.Synchronize(ctx, e)
}

// Abort implements comm.Communicator.
func (c *Communicator) Abort(cause error) {
	if cause == nil {
		cause = fmt.Errorf("rank %d aborted the group without a cause", c.rank)
	}
	c.failed.CompareAndSwap(nil, &cause)
}

// Err implements comm.Communicator.
func (c *Communicator) Err() error {
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// own returns this rank's part of a range that holds every rank's.
func (c *Communicator) own(whole device.Memory) device.Memory {
	part := whole.Bytes() / int64(c.size)
	return whole.Slice(int64(c.rank)*part, part)
}

func (c *Communicator) checkParts(whole, part device.Memory) error {
	size := int64(max(c.size, 1))
	if whole.Bytes()%size != 0 || whole.Bytes()/size != part.Bytes() {
		return fmt.Errorf("a rank's part has %d bytes, the whole has %d, expected %d times the part", part.Bytes(), whole.Bytes(), size)
	}
	return nil
}

// add counts a call and reports whether it may go on. What is wrong becomes the
// stream's error, as with a real transport.
func (c *Communicator) add(call Call, fault error) bool {
	c.sequence++
	c.counts[call.Operation].Calls++
	c.counts[call.Operation].Bytes += call.Bytes
	if c.Record {
		c.calls = append(c.calls, call)
	}
	if err := c.Err(); err != nil {
		fault = err
	}
	c.task.err = nil
	if fault != nil {
		err := &comm.Error{Operation: call.Operation, Sequence: c.sequence, Subject: call.Subject, Rank: c.rank, Cause: fault}
		c.Abort(err)
		c.task.err = err
	}
	c.stream.Do(&c.task)
	return fault == nil
}
