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

// block is one allocation: how much was handed out, and how the driver takes it
// back.
type block struct {
	bytes int64
	free  function    // cuMemFree or cuMemFreeHost
	from  device.Addr // its argument
}

// Alloc implements device.Device. No bytes are an empty range. The error of a
// full GPU says how much is free.
func (d *Device) Alloc(bytes int64) (device.Memory, error) {
	if bytes == 0 {
		return device.Memory{}, nil
	}
	if err := d.checkBytes(bytes); err != nil {
		return device.Memory{}, err
	}
	given, from, err := d.allocAligned(bytes)
	if err != nil {
		return device.Memory{}, fmt.Errorf("%s: allocation of %d bytes: %w%s", d.label(), bytes, err, d.freeText(err))
	}
	return d.keep(device.DeviceMemory(given, bytes), block{bytes, cuMemFree, from})
}

// AllocPinned returns page-locked memory of the host, of undefined content: the
// only one that [Stream.Copy] takes, since the GPU reads and writes it by itself
// while the host goes on. Host returns it as bytes, which dtype.Slice views as
// other types. It is not Go's memory: nothing may use it after its Free.
//
// The memory can't be swapped out and is slow to allocate: take it once.
func (d *Device) AllocPinned(bytes int64) (device.Memory, error) {
	if bytes == 0 {
		return device.Memory{}, nil
	}
	if err := d.checkBytes(bytes); err != nil {
		return device.Memory{}, err
	}
	var p unsafe.Pointer
	if err := d.within(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), uintptr(bytes), hostPortable); err != nil {
		return device.Memory{}, fmt.Errorf("%s: %d bytes of page-locked host memory: %w", d.label(), bytes, err)
	}
	m := device.HostMemory(unsafe.Slice((*byte)(p), bytes))
	return d.keep(m, block{bytes, cuMemFreeHost, m.Addr()})
}

func (d *Device) checkBytes(bytes int64) error {
	if bytes < 0 || bytes > maxAllocBytes {
		return fmt.Errorf("%s: allocation of %d bytes, expected 0 to %d", d.label(), bytes, int64(maxAllocBytes))
	}
	return nil
}

// keep notes what was allocated, or gives it back where the device is closed
// meanwhile.
func (d *Device) keep(m device.Memory, b block) (device.Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending {
		return device.Memory{}, errors.Join(d.errClosed(), d.within(b.free, uintptr(b.from)))
	}
	d.note(m, b)
	return m, nil
}

// note adds an allocation to what is known, under the device's lock.
func (d *Device) note(m device.Memory, b block) {
	d.allocated[m.Addr()] = b
	if b.free == cuMemFreeHost {
		d.pinned = append(d.pinned, m)
	}
}

// isPinned says whether a range of the host is in memory that AllocPinned
// returned and nobody freed.
func (d *Device) isPinned(m device.Memory) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.pinned {
		if m.Bytes() <= p.Bytes() && m.Addr() >= p.Addr() && m.Addr()-p.Addr() <= device.Addr(p.Bytes()-m.Bytes()) {
			return true
		}
	}
	return false
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

// Free implements device.Device, and takes what AllocPinned returned as well. The
// range must be one that was returned, whole; an empty one is ignored. It waits
// until the work that the device's streams have now is done, as the driver would,
// but half a minute at most: where work is stuck, the memory stays allocated and
// the error says so.
func (d *Device) Free(m device.Memory) error {
	if m.Bytes() == 0 {
		return nil
	}
	if err := d.free(m); err != nil {
		return fmt.Errorf("%s: free of %d bytes at %#x: %w", d.label(), m.Bytes(), m.Addr(), err)
	}
	return nil
}

func (d *Device) free(m device.Memory) error {
	b, err := d.take(m) // first, so that no copy is added any more
	if err != nil {
		return err
	}
	if err := d.await(); err != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.note(m, b)
		return fmt.Errorf("%w; the memory stays allocated", err)
	}
	return d.within(b.free, uintptr(b.from))
}

// take removes an allocation from what is known.
func (d *Device) take(m device.Memory) (block, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.allocated[m.Addr()]
	if !ok || b.bytes != m.Bytes() {
		return block{}, errors.New("not allocated by this device, or freed before")
	}
	delete(d.allocated, m.Addr())
	d.pinned = slices.DeleteFunc(d.pinned, func(p device.Memory) bool { return p.Addr() == m.Addr() })
	return b, nil
}

// freeAll frees what was not freed, when no stream has work any more.
func (d *Device) freeAll() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []error
	for address, b := range d.allocated {
		if err := d.within(b.free, uintptr(b.from)); err != nil {
			all = append(all, fmt.Errorf("%s: free of %d bytes at %#x: %w", d.label(), b.bytes, address, err))
		}
	}
	clear(d.allocated)
	d.pinned = nil
	return errors.Join(all...)
}

// leaked says what stays allocated until the process ends.
func (d *Device) leaked() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var onGPU, pinned int64
	for _, b := range d.allocated {
		if b.free == cuMemFree {
			onGPU += b.bytes
		} else {
			pinned += b.bytes
		}
	}
	return fmt.Sprintf("%d bytes of the GPU's and %d of page-locked host memory", onGPU, pinned)
}
