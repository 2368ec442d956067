package shard

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// lease is memory that changes hands: a slot, with the shared parameters that its
// block uses, or a gradient buffer. Its generation counts the holders, so that a
// tensor of an earlier one is told apart.
type lease struct {
	generation atomic.Uint64
	model      *Model
	memory     device.Memory
}

// end takes the memory away from its holder.
func (l *lease) end() { l.generation.Add(1) }

// Tensor is a gathered parameter or a gradient: a view of elements of type T
// that is valid until its block is released (or its gradient reduced). The zero
// value stands for a tensor that is not there.
type Tensor[T dtype.Element] struct {
	lease      *lease
	generation uint64
	offset     int64 // bytes from the start of the lease's memory
	param      *parameter
}

// Host returns the elements in row-major order, without a copy. The slice is good
// until the block's Release (the gradient's Reduce or Discard): then its memory is
// used for something else, and after the model's Close it is gone. It panics with a
// *StateError after release, and where the memory is not the host's: then
// CopyTo reads it.
func (t Tensor[T]) Host() []T {
	t.check("read")
	if t.param.Numel == 0 {
		return []T{}
	}
	m := t.lease.memory.Host()
	if m == nil {
		panic(&StateError{Operation: "host access", Subject: t.Name(), Found: "it is in the memory of " + t.lease.model.rank.device.Name(), Fix: "use CopyTo or DevicePtr"})
	}
	return dtype.Slice[T](m[t.offset : t.offset+t.bytes()])
}

// DevicePtr returns the address of the first element. It panics with a
// *StateError after release.
func (t Tensor[T]) DevicePtr() device.Addr {
	t.check("address")
	return t.lease.memory.Addr() + device.Addr(t.offset)
}

// CopyTo copies all elements to dst, which must have Numel of them, when the
// compute stream has done its work so far.
func (t Tensor[T]) CopyTo(ctx context.Context, dst []T) error {
	if err := t.checkCopy(ctx, "copy", len(dst)); err != nil {
		return err
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	return t.lease.model.rank.device.Read(ctx, dtype.Bytes(dst), t.lease.memory.Slice(t.offset, t.bytes()))
}

// CopyFrom copies src, which must have Numel elements, over the tensor. For a
// parameter that changes the gathered copy only, not the shards.
func (t Tensor[T]) CopyFrom(ctx context.Context, src []T) error {
	if err := t.checkCopy(ctx, "copy", len(src)); err != nil {
		return err
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	return t.lease.model.rank.device.Write(ctx, t.lease.memory.Slice(t.offset, t.bytes()), dtype.Bytes(src))
}

// settle waits for the compute stream: it is behind the gather, and kernels of
// the trainer's that use the tensor are on it.
func (t Tensor[T]) settle(ctx context.Context) error {
	if err := t.lease.model.awaitCompute(ctx); err != nil {
		return fmt.Errorf("copy of %s: %w", t.Name(), err)
	}
	return nil
}

// awaitCompute waits for the compute stream on behalf of a caller that does not
// hold the rank's lock: a stream is used by one goroutine at a time.
func (m *Model) awaitCompute(ctx context.Context) error {
	m.rank.mu.Lock()
	e := m.compute.Record()
	m.rank.mu.Unlock()
	return m.compute.Synchronize(ctx, e)
}

// Planned reports whether the tensor is there at all: a gradient of a parameter
// that is not trainable is not.
func (t Tensor[T]) Planned() bool { return t.lease != nil }

// Numel returns the number of elements.
func (t Tensor[T]) Numel() int64 {
	if t.param == nil {
		return 0
	}
	return t.param.Numel
}

// DType returns the element type, that of T.
func (t Tensor[T]) DType() dtype.DType { return dtype.Of[T]() }

// Shape returns a copy of the dimensions, as the spec gives them; empty for a
// scalar.
func (t Tensor[T]) Shape() []int64 {
	if t.param == nil {
		return nil
	}
	return slices.Clone(t.param.Shape)
}

// Name returns the owner's name, such as "h.3.mlp.weight".
func (t Tensor[T]) Name() string {
	if t.param == nil {
		return "a tensor"
	}
	return t.param.name()
}

func (t Tensor[T]) bytes() int64 { return bytesOf[T](t.param.Numel) }

func (t Tensor[T]) check(operation string) {
	if err := t.state(operation); err != nil {
		panic(err)
	}
}

// state returns why the tensor can't be used now.
func (t Tensor[T]) state(operation string) *StateError {
	if t.lease == nil {
		return &StateError{Operation: operation, Subject: t.Name(), Found: "it was never gathered", Fix: "take it from a pass"}
	}
	if t.lease.generation.Load() != t.generation {
		return &StateError{Operation: operation, Subject: t.Name(), Found: NotAvailable.String() + ": its block was released or its gradient reduced", Fix: "use it before, or gather the block again"}
	}
	return nil
}

func (t Tensor[T]) checkCopy(ctx context.Context, operation string, n int) error {
	if err := t.state(operation); err != nil {
		return err
	}
	if ctx == nil {
		return &StateError{Operation: operation, Subject: t.Name(), Found: "the context is nil", Fix: "pass context.Background()"}
	}
	if int64(n) != t.param.Numel {
		return fmt.Errorf("%s of %s: it has shape %v, %d elements, but the slice has %d", operation, t.Name(), t.param.Shape, t.param.Numel, n)
	}
	return nil
}

// Param returns the view of a parameter of a gathered block's own bucket. start
// is its place in the bucket in elements. Generated code calls it.
func Param[T dtype.Element](b Block, bucket, param int, start int64) Tensor[T] {
	if b.m == nil {
		return Tensor[T]{}
	}
	blk := &b.m.blocks[b.position]
	return gathered[T](b, blk, blk.buckets[bucket], param, start)
}

// SharedParam is Param for a shared parameter that the block uses. The view ends
// with the block, though the parameter may stay gathered for others.
func SharedParam[T dtype.Element](b Block, shared, param int, start int64) Tensor[T] {
	if b.m == nil {
		return Tensor[T]{}
	}
	return gathered[T](b, &b.m.blocks[b.position], b.m.shared[shared].bucket, param, start)
}

// gathered returns the view of a parameter of a bucket that a block has gathered.
func gathered[T dtype.Element](b Block, blk *block, own *bucket, param int, start int64) Tensor[T] {
	return view[T](&b.m.slots[blk.slot].lease, b.generation, own.place.Slot, start, &own.params[param])
}

// view returns the tensor of a parameter in memory that changes hands: start
// elements behind where its bucket begins, which is in bytes.
func view[T dtype.Element](l *lease, generation uint64, bucketStart, start int64, p *parameter) Tensor[T] {
	return Tensor[T]{lease: l, generation: generation, offset: bucketStart + bytesOf[T](start), param: p}
}

// bytesOf returns the size of elements of a type.
func bytesOf[T dtype.Element](elements int64) int64 {
	var zero T
	return elements * int64(unsafe.Sizeof(zero))
}

// Grad returns the view of a gradient of the block's own bucket.
func Grad[T dtype.Element](g Grads, bucket, param int, start int64) Tensor[T] {
	return gradTensor[T](g, false, bucket, param, start)
}

// SharedGrad is Grad for a shared parameter that the block uses.
func SharedGrad[T dtype.Element](g Grads, shared, param int, start int64) Tensor[T] {
	return gradTensor[T](g, true, shared, param, start)
}

// gradTensor finds the bucket among the few that the block's backward pass
// hands out.
func gradTensor[T dtype.Element](g Grads, shared bool, bucket, param int, start int64) Tensor[T] {
	if g.m == nil || g.buffer < 0 {
		return Tensor[T]{}
	}
	blk := &g.m.blocks[g.position]
	for i := range blk.grads {
		at := &blk.grads[i]
		if at.Shared == shared && at.Bucket == bucket {
			return view[T](&g.m.gradBuffers[g.buffer].lease, g.generation, at.Offset, start, &g.m.gradBucket(blk, at).params[param])
		}
	}
	return Tensor[T]{}
}
