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
	opNormTotal
	opAdamW
	opSGD
	opScale
)

var opNames = [...]string{
	opTask: "task", opWait: "wait", opZero: "zero", opCopy: "copy", opCast: "cast", opAccumulate: "accumulate",
	opFill: "fill", opNorm: "norm", opNormTotal: "total of norms", opAdamW: "adamw", opSGD: "sgd", opScale: "scale",
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
	factor   float64 // or divisor

	distribution *random.Distribution
	random       random.Stream
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
		return norm(c)
	case opNormTotal:
		return normTotal(c.dst, c.src)
	case opScale:
		return scale(c.dst, c.dstType, c.n, c.factor)
	case opAdamW:
		return adamW(&c.adamw, &c.state)
	case opSGD:
		return sgd(&c.sgd, &c.state)
	}
	return fmt.Errorf("operation %d is unknown", uint8(c.op))
}

// Copy implements device.Stream. The ranges are the same or do not overlap.
func (s *Stream) Copy(dst, src device.Memory) {
	if c := s.next(opCopy); c != nil {
		c.dst, c.src = dst, src
		s.submit()
	}
}

// kernels implements device.Kernels in Go: the same for every package.
type kernels struct{}

// Load implements device.Device. The kernels are the device's own, whatever the
// package has for GPUs.
func (d *Device) Load(device.Code) (device.Kernels, error) { return kernels{}, nil }

// Kernels returns the CPU's kernels.
func Kernels() device.Kernels { return kernels{} }

// Close implements device.Kernels.
func (kernels) Close() error { return nil }

// on returns a stream of the CPU. A foreign one has no place for an error.
func on(s device.Stream) *Stream {
	own, ok := s.(*Stream)
	if !ok {
		panic(fmt.Sprintf("cpu: a kernel was put on a %T: use a stream of the device that loaded the kernels", s))
	}
	return own
}

func (kernels) Zero(stream device.Stream, dst device.Memory) {
	s := on(stream)
	if c := s.next(opZero); c != nil {
		c.dst = dst
		s.submit()
	}
}

// Cast is between any two float types. Integers and bools can be "cast" to
// their own type only.
func (kernels) Cast(stream device.Stream, dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) {
	s := on(stream)
	if c := s.next(opCast); c != nil {
		c.dst, c.dstType, c.src, c.srcType, c.n = dst, dstType, src, srcType, n
		s.submit()
	}
}

// Accumulate takes a dst of f32 or f64, a src of f64, f32, bf16 or f16. Each
// element becomes T(src)/T(divisor) in dst's type T, added to what is there or
// stored.
func (kernels) Accumulate(stream device.Stream, dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64, divisor float64, store bool) {
	s := on(stream)
	if c := s.next(opAccumulate); c != nil {
		c.dst, c.dstType, c.src, c.srcType, c.n = dst, dstType, src, srcType, n
		c.factor, c.store = divisor, store
		s.submit()
	}
}

func (kernels) Fill(stream device.Stream, dst device.Memory, t dtype.DType, d *random.Distribution, r random.Stream, first, n int64) {
	s := on(stream)
	if c := s.next(opFill); c != nil {
		c.dst, c.dstType, c.distribution, c.random, c.first, c.n = dst, t, d, r, first, n
		s.submit()
	}
}

func (kernels) Norm(stream device.Stream, partials, src device.Memory, t dtype.DType, n int64) {
	s := on(stream)
	if c := s.next(opNorm); c != nil {
		c.dst, c.src, c.srcType, c.n = partials, src, t, n
		s.submit()
	}
}

func (kernels) NormTotal(stream device.Stream, total, partials device.Memory) {
	s := on(stream)
	if c := s.next(opNormTotal); c != nil {
		c.dst, c.src = total, partials
		s.submit()
	}
}

func (kernels) Scale(stream device.Stream, dst device.Memory, t dtype.DType, n int64, factor float64) {
	s := on(stream)
	if c := s.next(opScale); c != nil {
		c.dst, c.dstType, c.n, c.factor = dst, t, n, factor
		s.submit()
	}
}

func (kernels) AdamW(stream device.Stream, step optim.AdamWStep, state device.State) {
	s := on(stream)
	if c := s.next(opAdamW); c != nil {
		c.adamw, c.state = step, state
		s.submit()
	}
}

func (kernels) SGD(stream device.Stream, step optim.SGDStep, state device.State) {
	s := on(stream)
	if c := s.next(opSGD); c != nil {
		c.sgd, c.state = step, state
		s.submit()
	}
}
