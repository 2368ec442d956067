// Package device is the boundary to the memory and the processor that a rank
// computes on. Package cpu implements it in Go; a GPU implements it through its
// driver. Nothing above this package knows which one it has.
package device

import (
	"context"
	"fmt"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// Addr is an address in a device's memory. It is an integer, so that nothing
// can follow it on the host by mistake.
type Addr uint64

// Memory is a range of a device's memory. Its zero value is an empty range.
type Memory struct {
	addr  Addr
	bytes int64
	host  []byte // the same range, where the host can address it
}

// HostMemory is memory that the host addresses as b.
func HostMemory(b []byte) Memory { return Memory{addr: hostAddr(b), bytes: int64(len(b)), host: b} }

// DeviceMemory is memory that only the device can address.
func DeviceMemory(addr Addr, bytes int64) Memory { return Memory{addr: addr, bytes: bytes} }

// Addr returns the address of the first byte.
func (m Memory) Addr() Addr { return m.addr }

// Bytes returns the length of the range.
func (m Memory) Bytes() int64 { return m.bytes }

// Host returns the range as the host sees it, nil where it can't.
func (m Memory) Host() []byte { return m.host }

// Slice returns the range [offset, offset+bytes). It panics if that is not
// inside m, as slicing does.
func (m Memory) Slice(offset, bytes int64) Memory {
	if offset < 0 || bytes < 0 || offset > m.bytes-bytes {
		panic(fmt.Sprintf("device: range of %d bytes at %d is not inside %d bytes", bytes, offset, m.bytes))
	}
	s := Memory{addr: m.addr + Addr(offset), bytes: bytes}
	if m.host != nil {
		s.host = m.host[offset : offset+bytes : offset+bytes]
	}
	return s
}

// Device allocates memory, makes streams and loads kernels. It is safe for use
// by many goroutines.
type Device interface {
	// Name says which device it is, such as "cpu" or "cuda:0 (NVIDIA H100)".
	Name() string
	// Alloc returns memory aligned to at least 64 KiB, of undefined content.
	Alloc(bytes int64) (Memory, error)
	// Free gives memory back that Alloc returned.
	Free(Memory) error
	// NewStream returns a queue of work. Where inline is true and the device is
	// the host itself, work is done by the caller, before the call returns.
	NewStream(name string, inline bool) (Stream, error)
	// Load makes a package's kernels ready for the device's streams. A device that
	// runs none of the package's code, such as the CPU, ignores it.
	Load(Code) (Kernels, error)
	// Read and Write copy between host and device memory and wait for it. They are
	// not ordered with streams: work that touches the memory must be done.
	Read(ctx context.Context, dst []byte, src Memory) error
	Write(ctx context.Context, dst Memory, src []byte) error
}

// Code is what a generated package has for GPUs.
type Code struct {
	Package string // its name, for messages
	Command string // the command that generates it, for messages
	Source  string // hash of its CUDA source, hexadecimal; empty where it was generated without
	Fatbin  string // content of its zz_kernels.fatbin: see package fatbin
}

// Event is a point in a stream's work. The zero event is always past.
type Event struct {
	Stream Stream
	Seq    uint64
}

// Stream is a queue of work that is done in order. Its methods return before
// the work is done, unless the stream is inline; the first error of any work
// makes all later work fail with it. A stream is used by one goroutine at a
// time. Nothing in it allocates.
type Stream interface {
	// Copy copies src over dst; both have the same length.
	Copy(dst, src Memory)
	// Record returns the point behind all work so far.
	Record() Event
	// Wait makes later work of this stream start after an event of another, and
	// fail if the work before that event has. Both streams are of one device.
	Wait(Event)
	// Synchronize waits until all work before the event is done and returns the
	// stream's first error if that happened before the event. It ends early, with
	// ctx's cause, when ctx does.
	Synchronize(ctx context.Context, e Event) error
	// Close waits for the work and frees the stream. It returns the stream's first
	// error where no Synchronize has.
	Close() error
}

// Kernels puts computation on streams of the device that loaded them. A bad
// argument, or a kernel that the package was generated without, becomes the
// stream's error. Ranges start at multiples of the package's align_bytes.
// Nothing here allocates.
type Kernels interface {
	// Zero fills dst with zero bytes.
	Zero(s Stream, dst Memory)
	// Cast converts n elements, rounding to nearest even.
	Cast(s Stream, dst Memory, dstType dtype.DType, src Memory, srcType dtype.DType, n int64)
	// Accumulate adds src/divisor to n elements of dst, or stores it there. The
	// division is done in dst's type (f32 or f64), once per element.
	Accumulate(s Stream, dst Memory, dstType dtype.DType, src Memory, srcType dtype.DType, n int64, divisor float64, store bool)
	// Fill writes elements [first, first+n) of a parameter's initial values. d must
	// stay unchanged until the stream has passed it.
	Fill(s Stream, dst Memory, t dtype.DType, d *random.Distribution, r random.Stream, first, n int64)
	// Norm writes the norm of each chunk of src's n elements (f32 or f64) over
	// partials, optim.PartialBytes(n): see optim.PutNorms.
	Norm(s Stream, partials, src Memory, t dtype.DType, n int64)
	// NormTotal adds all norms in partials, optim.NormBytes each, to the one in
	// total: see optim.Norm.AddAll.
	NormTotal(s Stream, total, partials Memory)
	// Scale multiplies n elements of f32 or f64 by factor, in their own type.
	Scale(s Stream, dst Memory, t dtype.DType, n int64, factor float64)
	// AdamW updates state.N elements of a shard and, where state.Copy is not
	// empty, writes their low-precision copy in the same pass.
	AdamW(s Stream, step optim.AdamWStep, state State)
	// SGD is AdamW's counterpart; state.Moments[0] is empty without momentum.
	SGD(s Stream, step optim.SGDStep, state State)
	// Close frees the kernels, when no stream uses them any more.
	Close() error
}

// State is what an optimizer step of one range of a shard reads and writes.
type State struct {
	N        int64       // elements
	Type     dtype.DType // of Master, Moments and Grad: f32 or f64
	Master   Memory
	Moments  [2]Memory
	Grad     Memory
	Copy     Memory // low-precision copy of Master; empty where Master is the parameter
	CopyType dtype.DType
}
