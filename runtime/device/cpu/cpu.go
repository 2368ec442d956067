// Package cpu is the device that every machine has: its memory is the
// process's, its kernels are Go, and its streams are goroutines or the caller
// itself.
//
// It takes device.Memory that the host can address and gives what
// [device.Device] and [device.Stream] promise; [Stream.Do] puts other work, such
// as a collective between ranks of one process, in the same order. Bad arguments
// become the stream's error, never a panic. It may import runtime/device and the
// packages below that.
package cpu

import (
	"context"
	"fmt"
	"sync"

	"github.com/shardgen/shardgen/runtime/device"
)

// AlignBytes is the alignment of what a device allocates.
const AlignBytes = 64 << 10

// Device is host memory and the processor. It is safe for use by many
// goroutines.
type Device struct {
	poisoned bool
	mu       sync.Mutex
	blocks   map[device.Addr]block
}

// block is one allocation: the aligned range that was handed out and what it
// was cut from.
type block struct{ given, mapped []byte }

// New returns the CPU. Memory that it allocates is counted for it alone, so
// that ranks in one process have memory of their own.
func New() device.Device { return newDevice(false) }

// Poisoned returns a CPU whose fresh memory is all ones: a NaN in every float
// type. What reads memory before writing it then shows in the results, where
// fresh pages of the system, which are zeros, would hide it.
func Poisoned() device.Device { return newDevice(true) }

func newDevice(poisoned bool) *Device {
	return &Device{poisoned: poisoned, blocks: map[device.Addr]block{}}
}

// Name implements device.Device.
func (d *Device) Name() string { return "cpu" }

// Alloc implements device.Device. No bytes are an empty range.
func (d *Device) Alloc(bytes int64) (device.Memory, error) {
	if bytes == 0 {
		return device.Memory{}, nil
	}
	if bytes < 0 || bytes > maxAllocBytes {
		return device.Memory{}, fmt.Errorf("cpu: allocation of %d bytes, expected 0 to %d", bytes, int64(maxAllocBytes))
	}
	mapped, err := reserve(bytes + AlignBytes)
	if err != nil {
		return device.Memory{}, fmt.Errorf("cpu: allocation of %d bytes: %w", bytes, err)
	}
	skip := int64(-device.HostMemory(mapped).Addr() & (AlignBytes - 1))
	given := mapped[skip : skip+bytes : skip+bytes]
	if d.poisoned {
		poison(given)
	}
	m := device.HostMemory(given)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blocks[m.Addr()] = block{given: given, mapped: mapped}
	return m, nil
}

func poison(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

// Free implements device.Device. The range must be one that Alloc returned,
// whole; an empty one is ignored.
func (d *Device) Free(m device.Memory) error {
	if m.Bytes() == 0 {
		return nil
	}
	d.mu.Lock()
	b, ok := d.blocks[m.Addr()]
	if ok = ok && int64(len(b.given)) == m.Bytes(); ok {
		delete(d.blocks, m.Addr())
	}
	d.mu.Unlock()
	if !ok {
		return fmt.Errorf("cpu: free of %d bytes at %#x: not allocated by this device, or freed before", m.Bytes(), m.Addr())
	}
	if err := release(b.mapped); err != nil {
		return fmt.Errorf("cpu: free of %d bytes at %#x: %w", m.Bytes(), m.Addr(), err)
	}
	return nil
}

// Read implements device.Device.
func (d *Device) Read(ctx context.Context, dst []byte, src device.Memory) error {
	return transfer(ctx, "read", dst, src.Host(), int64(len(dst)), src.Bytes())
}

// Write implements device.Device.
func (d *Device) Write(ctx context.Context, dst device.Memory, src []byte) error {
	return transfer(ctx, "write", dst.Host(), src, dst.Bytes(), int64(len(src)))
}

func transfer(ctx context.Context, what string, dst, src []byte, dstBytes, srcBytes int64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cpu: %s of %d bytes: %w", what, srcBytes, context.Cause(ctx))
	}
	if dstBytes != srcBytes {
		return fmt.Errorf("cpu: %s: the destination has %d bytes, the source %d", what, dstBytes, srcBytes)
	}
	if int64(len(dst)) != dstBytes || int64(len(src)) != srcBytes {
		return fmt.Errorf("cpu: %s of %d bytes: the memory belongs to another device, the host can't address it", what, srcBytes)
	}
	copy(dst, src)
	return nil
}
