package conformance

import (
	"context"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// late works on tensors as a trainer's kernels do: by copies that are put on the
// compute stream, while the host goes on. Only at the end of a pass the host
// looks at what was read. A gather that overwrites a slot too early, or a
// reduction that takes a gradient before it is written, shows there.
type late struct {
	device device.Device
	stream device.Stream
	room   device.Memory
	used   int64 // bytes of room
	reads  []lateRead
}

// lateRead is a copy of a tensor, and what it must be.
type lateRead struct {
	what string
	copy device.Memory
	want []byte
	t    dtype.DType
}

// lateAlign is the alignment of each copy in bytes.
const lateAlign = 64

// newLate makes room for one pass through the oracle's blocks: at most every
// tensor, its fresh gradient and what is written to that.
func (o *Oracle) newLate(d device.Device, s device.Stream) (late, error) {
	bytes := int64(0)
	for i := range o.Blocks {
		for _, f := range o.Blocks[i].Fields {
			bytes += 3 * (f.Owner.Numel*f.Owner.Type.Bytes() + lateAlign)
		}
	}
	room, err := d.Alloc(bytes)
	return late{device: d, stream: s, room: room}, err
}

func (l *late) close() error { return l.device.Free(l.room) }

// place returns room for bytes.
func (l *late) place(bytes int64) device.Memory {
	m := l.room.Slice(l.used, bytes)
	l.used += (bytes + lateAlign - 1) / lateAlign * lateAlign
	return m
}

// read puts the reading of a tensor on the stream.
func (l *late) read(what string, from device.Memory, want []byte, t dtype.DType) {
	to := l.place(from.Bytes())
	l.stream.Copy(to, from)
	l.reads = append(l.reads, lateRead{what, to, want, t})
}

// write puts the writing of a tensor on the stream.
func (l *late) write(ctx context.Context, to device.Memory, b []byte) error {
	from := l.place(to.Bytes())
	if err := l.device.Write(ctx, from, b); err != nil {
		return err
	}
	l.stream.Copy(to, from)
	return nil
}

// end waits for the stream and compares what was read, which the record takes in.
func (l *late) end(ctx context.Context, record *Record) error {
	reads := l.reads
	l.used, l.reads = 0, nil
	if err := l.stream.Synchronize(ctx, l.stream.Record()); err != nil {
		return err
	}
	for _, r := range reads {
		got := make([]byte, r.copy.Bytes())
		if err := l.device.Read(ctx, got, r.copy); err != nil {
			return err
		}
		record.add(r.what, got)
		if err := difference(r.what+", read by the compute stream", got, r.want, r.t); err != nil {
			return err
		}
	}
	return nil
}
