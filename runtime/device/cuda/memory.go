package cuda

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
)

// AlignBytes is the alignment of what a device allocates.
const AlignBytes = 64 << 10

// maxAllocBytes is more than any GPU has, and leaves room for alignment.
const maxAllocBytes = 1 << 47

// block is one allocation: how much was handed out, and the driver's address.
type block struct {
	bytes  int64
	driver device.Addr
}

// Alloc implements device.Device. No bytes are an empty range. The error of a
// full GPU says how much is free.
func (d *Device) Alloc(bytes int64) (device.Memory, error) {
	if bytes == 0 {
		return device.Memory{}, nil
	}
	if bytes < 0 || bytes > maxAllocBytes {
		return device.Memory{}, fmt.Errorf("%s: allocation of %d bytes, expected 0 to %d", d.label(), bytes, int64(maxAllocBytes))
	}
	given, from, err := d.allocAligned(bytes)
	if err != nil {
		return device.Memory{}, fmt.Errorf("%s: allocation of %d bytes: %w%s", d.label(), bytes, err, d.freeText(err))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.allocated[given] = block{bytes: bytes, driver: from}
	return device.DeviceMemory(given, bytes), nil
}

// allocAligned asks the driver for memory, and for more where it does not come
// aligned: large ranges do.
func (d *Device) allocAligned(bytes int64) (given, from device.Addr, err error) {
	if from, err = d.allocate(bytes); err != nil || from%AlignBytes == 0 {
		return from, from, err
	}
	if err := d.within(cuMemFree, uintptr(from)); err != nil {
		return 0, 0, err
	}
	from, err = d.allocate(bytes + AlignBytes)
	return (from + AlignBytes - 1) &^ (AlignBytes - 1), from, err
}

func (d *Device) allocate(bytes int64) (device.Addr, error) {
	var address uint64
	err := d.within(cuMemAlloc, uintptr(unsafe.Pointer(&address)), uintptr(bytes))
	return device.Addr(address), err
}

// freeText says how much memory there is where an error is that it is full.
func (d *Device) freeText(err error) string {
	if codeOf(err) != errOutOfMemory {
		return ""
	}
	free, total, err := d.MemoryBytes()
	if err != nil {
		return ""
	}
	return fmt.Sprintf("; %d of the GPU's %d bytes are free", free, total)
}

// Free implements device.Device. The range must be one that Alloc returned,
// whole; an empty one is ignored. It waits for work that no Synchronize can be
// waiting for any more: that of streams that failed, and of transfers that ended
// early.
func (d *Device) Free(m device.Memory) error {
	if m.Bytes() == 0 {
		return nil
	}
	d.mu.Lock()
	b, ok := d.allocated[m.Addr()]
	if ok = ok && b.bytes == m.Bytes(); ok {
		delete(d.allocated, m.Addr())
	}
	d.mu.Unlock()
	if !ok {
		return fmt.Errorf("%s: free of %d bytes at %#x: not allocated by this device, or freed before", d.label(), m.Bytes(), m.Addr())
	}
	d.awaitAbandoned()
	if err := d.within(cuMemFree, uintptr(b.driver)); err != nil {
		return fmt.Errorf("%s: free of %d bytes at %#x: %w", d.label(), m.Bytes(), m.Addr(), err)
	}
	return nil
}

// awaitAbandoned waits until the work of failed streams has ended, and that of
// transfers: their Synchronize returned before. It is bounded as Close is, and
// what it finds changes nothing.
func (d *Device) awaitAbandoned() {
	d.mu.Lock()
	streams := slices.Clone(d.streams)
	d.mu.Unlock()
	for _, s := range streams {
		if !s.closed.Load() && (s.failed.Load() != nil || s == d.staging.stream) {
			_ = s.ended()
		}
	}
}

// freeAll frees what was not freed.
func (d *Device) freeAll() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []error
	for address, b := range d.allocated {
		if err := d.within(cuMemFree, uintptr(b.driver)); err != nil {
			all = append(all, fmt.Errorf("%s: free of %d bytes at %#x: %w", d.label(), b.bytes, address, err))
		}
		delete(d.allocated, address)
	}
	return errors.Join(all...)
}
