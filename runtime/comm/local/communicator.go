package local

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// Communicator is one rank's end of a [Group]; see [comm.Communicator]. Its
// collectives are called by one goroutine at a time, as its stream's methods.
type Communicator struct {
	group  *Group
	rank   int
	stream *cpu.Stream
	tasks  []collective // one more than the stream holds, reused in turn
	timer  *time.Timer
	wake   chan struct{} // has room for one token
	parts  [][]byte      // of every rank's source, while it is summed
	small  []byte        // result of a small all-reduce until it can be stored
	phases uint64        // phases of moving that this rank has been through

	issued   atomic.Uint64 // collectives put on the stream
	reached  atomic.Uint64 // the collective that the rank has come to
	finished atomic.Uint64 // collectives behind the rank
	asleep   atomic.Bool   // it is about to block on wake
	left     atomic.Pointer[error]
}

func newCommunicator(g *Group, rank, size int) *Communicator {
	c := &Communicator{
		group: g, rank: rank,
		stream: cpu.NewStream(fmt.Sprintf("comm of rank %d", rank), false),
		tasks:  make([]collective, cpu.QueueLength+1),
		timer:  time.NewTimer(time.Hour),
		wake:   make(chan struct{}, 1),
		parts:  make([][]byte, size),
		small:  make([]byte, smallBytes),
	}
	c.timer.Stop()
	return c
}

// Rank implements comm.Communicator.
func (c *Communicator) Rank() int { return c.rank }

// Size implements comm.Communicator.
func (c *Communicator) Size() int { return len(c.group.ranks) }

// GatherStream implements comm.Communicator. All collectives are on one stream.
func (c *Communicator) GatherStream() device.Stream { return c.stream }

// ReduceStream implements comm.Communicator.
func (c *Communicator) ReduceStream() device.Stream { return c.stream }

// AllGather implements comm.Communicator. Where src is the rank's own part of
// dst, only the others' parts are copied.
func (c *Communicator) AllGather(subject string, dst, src device.Memory) {
	t := c.next(request{op: comm.AllGather, subject: subject, bytes: src.Bytes()})
	t.dst, t.src = dst, src
	t.fault = c.checkParts(dst, src)
	c.stream.Do(t)
}

// AllGathers implements comm.Communicator: one after another, since a collective
// here costs no launch.
func (c *Communicator) AllGathers(all []comm.Gather) {
	for i := range all {
		c.AllGather(all[i].Subject, all[i].Dst, all[i].Src)
	}
}

// ReduceScatter implements comm.Communicator. dst may be the rank's own part of
// src. The element types are all but bool and the f8 formats.
func (c *Communicator) ReduceScatter(subject string, dst, src device.Memory, t dtype.DType) {
	task := c.next(request{op: comm.ReduceScatter, subject: subject, bytes: dst.Bytes(), dtype: t})
	task.dst, task.src = dst, src
	if task.fault = c.checkParts(src, dst); task.fault == nil {
		task.fault = checkSum(t, dst, src)
	}
	c.stream.Do(task)
}

// ReduceScatters implements comm.Communicator, as AllGathers.
func (c *Communicator) ReduceScatters(all []comm.Reduction) {
	for i := range all {
		c.ReduceScatter(all[i].Subject, all[i].Dst, all[i].Src, all[i].Type)
	}
}

// AllReduce implements comm.Communicator, for the element types of
// [Communicator.ReduceScatter]. Every rank gets the same bits.
func (c *Communicator) AllReduce(subject string, buf device.Memory, t dtype.DType) {
	task := c.next(request{op: comm.AllReduce, subject: subject, bytes: buf.Bytes(), dtype: t})
	task.dst, task.src = buf, buf
	task.fault = checkSum(t, buf, buf)
	c.stream.Do(task)
}

// Broadcast implements comm.Communicator.
func (c *Communicator) Broadcast(subject string, buf device.Memory, root int) {
	t := c.next(request{op: comm.Broadcast, subject: subject, bytes: buf.Bytes(), root: root})
	t.dst, t.src = buf, buf
	if t.fault = checkHost(buf); root < 0 || root >= c.Size() {
		t.fault = fmt.Errorf("the root is rank %d, the group has ranks 0 to %d", root, c.Size()-1)
	}
	c.stream.Do(t)
}

// Barrier implements comm.Communicator.
func (c *Communicator) Barrier(subject string) {
	c.stream.Do(c.next(request{op: comm.Barrier, subject: subject}))
}

// Synchronize implements comm.Communicator.
func (c *Communicator) Synchronize(ctx context.Context, e device.Event) error {
	return c.stream.Synchronize(ctx, e)
}

// Abort implements comm.Communicator.
func (c *Communicator) Abort(cause error) {
	if cause != nil {
		cause = &comm.AbortError{Rank: c.rank, Cause: cause}
	}
	c.group.Abort(cause)
}

// Err implements comm.Communicator.
func (c *Communicator) Err() error { return c.group.Err() }

// Close implements comm.Communicator. The rank counts as having left the group:
// what it has put on its stream is done, or fails where not all take part.
func (c *Communicator) Close() error {
	c.group.Leave(c.rank, nil)
	return c.stream.Close()
}

// next returns the task for the rank's next collective. The stream holds fewer
// tasks than there are, but the oldest may still be on it: Do waits for room.
func (c *Communicator) next(r request) *collective {
	seq := c.issued.Add(1)
	t := &c.tasks[seq%uint64(len(c.tasks))]
	*t = collective{rank: c, seq: seq, request: r}
	return t
}

// checkParts checks that whole holds a part of every rank.
func (c *Communicator) checkParts(whole, part device.Memory) error {
	size := int64(c.Size())
	if whole.Bytes()%size != 0 || whole.Bytes()/size != part.Bytes() {
		return fmt.Errorf("a rank's part has %d bytes, the whole has %d, expected %d times the part", part.Bytes(), whole.Bytes(), size)
	}
	if err := checkHost(whole); err != nil {
		return err
	}
	return checkHost(part)
}

func checkHost(m device.Memory) error {
	if int64(len(m.Host())) != m.Bytes() {
		return fmt.Errorf("%d bytes at %#x belong to a device whose memory the host can't address; use that device's transport", m.Bytes(), m.Addr())
	}
	return nil
}

// checkSum checks that two ranges are elements that can be summed.
func checkSum(t dtype.DType, a, b device.Memory) error {
	if !summable(t) {
		return fmt.Errorf("elements of %s can't be summed", t)
	}
	for _, m := range [...]device.Memory{a, b} {
		if m.Bytes()%t.Bytes() != 0 || m.Bytes() > 0 && int64(m.Addr())%t.Bytes() != 0 {
			return fmt.Errorf("%d bytes at %#x are not whole, aligned elements of %s", m.Bytes(), m.Addr(), t)
		}
	}
	return checkHost(a)
}
