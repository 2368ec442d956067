package cpu

import (
	"context"
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// op says what a command does.
type op uint8

const (
	opTask op = iota + 1
	opWait
	opZero
	opCopy
	opCast
	opAccumulate
	opFill
	opNorm
	opAdamW
	opSGD
)

var opNames = [...]string{
	opTask: "task", opWait: "wait", opZero: "zero", opCopy: "copy", opCast: "cast", opAccumulate: "accumulate",
	opFill: "fill", opNorm: "norm", opAdamW: "adamw", opSGD: "sgd",
}

func (o op) String() string { return opNames[o] }

// command is one piece of work. It is plain data, so that adding it to a ring
// allocates nothing; op says which fields count.
type command struct {
	op       op
	store    bool
	dstType  dtype.DType
	srcType  dtype.DType
	dst, src device.Memory
	n, first int64
	divisor  float64

	distribution *random.Distribution
	random       random.Stream
	norm         *optim.Norm
	adamw        optim.AdamWStep
	sgd          optim.SGDStep
	state        device.State

	task  Task
	event device.Event
}

func (c *command) run() error {
	switch c.op {
	case opWait:
		return c.event.Stream.Synchronize(context.Background(), c.event)
	case opZero:
		return zero(c.dst)
	case opCopy:
		return copyBytes(c.dst, c.src)
	case opCast:
		return cast(c.dst, c.dstType, c.src, c.srcType, c.n)
	case opAccumulate:
		return accumulate(c)
	case opFill:
		return fill(c)
	case opNorm:
		return norm(c.norm, c.src, c.srcType, c.n)
	case opAdamW:
		return adamW(&c.adamw, &c.state)
	case opSGD:
		return sgd(&c.sgd, &c.state)
	}
	return fmt.Errorf("operation %d is unknown", uint8(c.op))
}

// Zero implements device.Stream.
func (s *Stream) Zero(dst device.Memory) {
	if c := s.next(opZero); c != nil {
		c.dst = dst
		s.submit()
	}
}

// Copy implements device.Stream. The ranges are the same or do not overlap.
func (s *Stream) Copy(dst, src device.Memory) {
	if c := s.next(opCopy); c != nil {
		c.dst, c.src = dst, src
		s.submit()
	}
}

// Cast implements device.Stream, between any two float types. Integers and
// bools can be "cast" to their own type only.
func (s *Stream) Cast(dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) {
	if c := s.next(opCast); c != nil {
		c.dst, c.dstType, c.src, c.srcType, c.n = dst, dstType, src, srcType, n
		s.submit()
	}
}

// Accumulate implements device.Stream: dst is f32 or f64, src f64, f32, bf16 or
// f16. Each element becomes T(src)/T(divisor) in dst's type T, added to what is
// there or stored.
func (s *Stream) Accumulate(dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64, divisor float64, store bool) {
	if c := s.next(opAccumulate); c != nil {
		c.dst, c.dstType, c.src, c.srcType, c.n = dst, dstType, src, srcType, n
		c.divisor, c.store = divisor, store
		s.submit()
	}
}

// Fill implements device.Stream. d must stay unchanged until the stream has
// passed the command.
func (s *Stream) Fill(dst device.Memory, t dtype.DType, d *random.Distribution, r random.Stream, first, n int64) {
	if c := s.next(opFill); c != nil {
		c.dst, c.dstType, c.distribution, c.random, c.first, c.n = dst, t, d, r, first, n
		s.submit()
	}
}

// Norm implements device.Stream, for f32 and f64. One call keeps the sum's
// chunks whole only where it starts at a multiple of optim.ChunkElements.
func (s *Stream) Norm(out *optim.Norm, src device.Memory, t dtype.DType, n int64) {
	if c := s.next(opNorm); c != nil {
		c.norm, c.src, c.srcType, c.n = out, src, t, n
		s.submit()
	}
}

// AdamW implements device.Stream.
func (s *Stream) AdamW(step optim.AdamWStep, state device.State) {
	if c := s.next(opAdamW); c != nil {
		c.adamw, c.state = step, state
		s.submit()
	}
}

// SGD implements device.Stream.
func (s *Stream) SGD(step optim.SGDStep, state device.State) {
	if c := s.next(opSGD); c != nil {
		c.sgd, c.state = step, state
		s.submit()
	}
}
