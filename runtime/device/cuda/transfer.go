package cuda

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
)

// stageBytes is the size of one of the two buffers that transfers go through: a
// fraction of a millisecond on the bus, and short enough to copy for the garbage
// collector, which can't stop a goroutine inside a copy.
const stageBytes = 4 << 20

// staging is page-locked memory of the host, which the GPU reads and writes by
// itself, and the stream of those copies. One transfer uses it at a time.
type staging struct {
	stream *Stream
	turn   chan struct{} // holds a token while no transfer runs
	stages [2]stage
}

// stage is a buffer and the point at which the GPU is done with it.
type stage struct {
	host []byte
	free device.Event
}

func newStaging(d *Device) (*staging, error) {
	s, err := d.OpenStream("transfer")
	if err != nil {
		return nil, err
	}
	g := &staging{stream: s, turn: make(chan struct{}, 1)}
	for i := range g.stages {
		var p unsafe.Pointer
		if err := d.within(cuMemHostAlloc, uintptr(unsafe.Pointer(&p)), stageBytes, hostPortable); err != nil {
			return nil, errors.Join(fmt.Errorf("%d bytes of page-locked host memory: %w", stageBytes, err), g.free(d), s.Close())
		}
		g.stages[i].host = unsafe.Slice((*byte)(p), stageBytes)
	}
	g.turn <- struct{}{}
	return g, nil
}

// free gives the buffers back. No transfer may run.
func (g *staging) free(d *Device) error {
	var all []error
	for i := range g.stages {
		if h := g.stages[i].host; h != nil {
			all = append(all, d.within(cuMemFreeHost, uintptr(unsafe.Pointer(unsafe.SliceData(h)))))
			g.stages[i].host = nil
		}
	}
	return errors.Join(all...)
}

// Read implements device.Device, at any length.
func (d *Device) Read(ctx context.Context, dst []byte, src device.Memory) error {
	return d.transfer(ctx, "read", dst, src, d.readThrough)
}

// Write implements device.Device, at any length. Where ctx ends it early, a part
// that is under way still arrives.
func (d *Device) Write(ctx context.Context, dst device.Memory, src []byte) error {
	return d.transfer(ctx, "write", src, dst, d.writeThrough)
}

// transfer checks a transfer and waits for its turn.
func (d *Device) transfer(ctx context.Context, what string, host []byte, m device.Memory, work func(context.Context, []byte, device.Memory) error) error {
	err := checkTransfer(host, m)
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil || m.Bytes() == 0 {
		return d.wrapTransfer(what, m, err)
	}
	select {
	case <-d.staging.turn:
	case <-ctx.Done():
		return d.wrapTransfer(what, m, context.Cause(ctx))
	}
	err = work(ctx, host, m)
	d.staging.turn <- struct{}{}
	return d.wrapTransfer(what, m, err)
}

func (d *Device) wrapTransfer(what string, m device.Memory, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s of %d bytes at %#x: %w", d.label(), what, m.Bytes(), m.Addr(), err)
}

func checkTransfer(host []byte, m device.Memory) error {
	if int64(len(host)) != m.Bytes() {
		return fmt.Errorf("the host's range has %d bytes, the device's %d", len(host), m.Bytes())
	}
	return checkMemory("range", m)
}

// readThrough lets the GPU fill one buffer while the host empties the other.
func (d *Device) readThrough(ctx context.Context, dst []byte, src device.Memory) error {
	g := d.staging
	var pending []byte // of dst, and on its way in the stage before
	for i := 0; len(dst) > 0 || pending != nil; i++ {
		var next []byte
		if len(dst) > 0 {
			next = dst[:min(len(dst), stageBytes)]
			if err := g.fetch(ctx, &g.stages[i%2], src.Slice(0, int64(len(next)))); err != nil {
				return err
			}
			dst, src = dst[len(next):], src.Slice(int64(len(next)), src.Bytes()-int64(len(next)))
		}
		if pending != nil {
			before := &g.stages[(i+1)%2]
			if err := g.stream.Synchronize(ctx, before.free); err != nil {
				return err
			}
			copy(pending, before.host)
		}
		pending = next
	}
	return nil
}

// fetch starts a copy from the GPU into a stage.
func (g *staging) fetch(ctx context.Context, s *stage, src device.Memory) error {
	if err := g.stream.Synchronize(ctx, s.free); err != nil {
		return err
	}
	g.stream.frame = [11]uintptr{uintptr(unsafe.Pointer(unsafe.SliceData(s.host))), uintptr(src.Addr()), uintptr(src.Bytes()), g.stream.handle}
	g.stream.submit("copy to the host", cuMemcpyDtoHAsync, 4)
	s.free = g.stream.Record()
	return g.stream.seen()
}

// writeThrough lets the host fill one buffer while the GPU empties the other.
func (d *Device) writeThrough(ctx context.Context, src []byte, dst device.Memory) error {
	g := d.staging
	for i := 0; len(src) > 0; i++ {
		n := min(len(src), stageBytes)
		if err := g.send(ctx, &g.stages[i%2], dst.Slice(0, int64(n)), src[:n]); err != nil {
			return err
		}
		src, dst = src[n:], dst.Slice(int64(n), dst.Bytes()-int64(n))
	}
	return g.stream.Synchronize(ctx, g.stream.Record())
}

// send copies bytes into a stage and starts their copy to the GPU.
func (g *staging) send(ctx context.Context, s *stage, dst device.Memory, src []byte) error {
	if err := g.stream.Synchronize(ctx, s.free); err != nil {
		return err
	}
	copy(s.host, src)
	g.stream.frame = [11]uintptr{uintptr(dst.Addr()), uintptr(unsafe.Pointer(unsafe.SliceData(s.host))), uintptr(len(src)), g.stream.handle}
	g.stream.submit("copy from the host", cuMemcpyHtoDAsync, 4)
	s.free = g.stream.Record()
	return g.stream.seen()
}
