package cuda

import (
	"context"
	"fmt"
	"time"

	"github.com/shardgen/shardgen/runtime/device"
)

// stageBytes is the size of one of the two buffers that transfers go through: a
// fraction of a millisecond on the bus, and short enough to copy for the garbage
// collector, which can't stop a goroutine inside a copy.
const stageBytes = 4 << 20

// staging is page-locked memory of the host and the stream of its copies. One
// transfer uses it at a time.
type staging struct {
	stream *Stream
	turn   chan struct{} // holds a token while no transfer runs
	stages [2]stage
}

// stage is a buffer and the point at which the GPU is done with it.
type stage struct {
	host device.Memory
	free device.Event
}

func (d *Device) openStaging() (err error) {
	d.staging = &staging{turn: make(chan struct{}, 1)}
	d.staging.resume()
	if d.staging.stream, err = d.OpenStream("transfer"); err != nil {
		return err
	}
	for i := range d.staging.stages {
		if d.staging.stages[i].host, err = d.AllocPinned(stageBytes); err != nil {
			return err
		}
	}
	return nil
}

// stop waits for the transfer that runs, and lets no other begin.
func (g *staging) stop(limit time.Duration) error {
	select {
	case <-g.turn:
		return nil
	case <-time.After(limit):
		return fmt.Errorf("a read or a write has not ended after %v", limit)
	}
}

// resume ends a transfer's turn, or a stop.
func (g *staging) resume() {
	select {
	case g.turn <- struct{}{}:
	default: // the transfer that stop waited for ended meanwhile
	}
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
	defer d.staging.resume()
	if d.closed.Load() {
		return d.errClosed()
	}
	return d.wrapTransfer(what, m, work(ctx, host, m))
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
			copy(pending, before.host.Host())
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
	g.stream.Copy(s.host.Slice(0, src.Bytes()), src)
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
	copy(s.host.Host(), src)
	g.stream.Copy(dst, s.host.Slice(0, dst.Bytes()))
	s.free = g.stream.Record()
	return g.stream.seen()
}
