package devicetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
)

// side is a device with its kernels, and memory in which ranges are laid out.
type side struct {
	device  device.Device
	kernels device.Kernels
	stream  device.Stream
	arena   device.Memory

	ranges []device.Memory // of the case that runs, in the order of its operands
}

func newSide(d device.Device, c device.Code) (*side, error) {
	k, err := d.Load(c)
	if err != nil {
		return nil, err
	}
	stream, err := d.NewStream("devicetest", true)
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return &side{device: d, kernels: k, stream: stream}, nil
}

func (s *side) close() error {
	return errors.Join(s.stream.Close(), s.device.Free(s.arena), s.kernels.Close())
}

// renew replaces a stream that failed. Where the device gives none, it is broken,
// and the error says why that is known.
func (s *side) renew(failed error) error {
	_ = s.stream.Close() // failed says why already
	stream, err := s.device.NewStream("devicetest", true)
	if err != nil {
		return errors.Join(failed, err)
	}
	s.stream = stream
	if err := s.stream.Synchronize(context.Background(), s.stream.Record()); err != nil {
		return errors.Join(failed, err)
	}
	return nil
}

// do runs a variant on memory with the given content and returns what it left.
func (s *side) do(ctx context.Context, v *variant, l *arrangement, initial []byte, n int64) ([]byte, error) {
	if err := s.reserve(l.bytes); err != nil {
		return nil, err
	}
	all := s.arena.Slice(0, l.bytes)
	if err := s.device.Write(ctx, all, initial); err != nil {
		return nil, err
	}
	s.ranges = s.ranges[:0]
	for _, p := range l.places {
		s.ranges = append(s.ranges, s.arena.Slice(p.start, p.bytes))
	}
	v.do(s, n)
	if err := s.stream.Synchronize(ctx, s.stream.Record()); err != nil {
		return nil, err
	}
	left := make([]byte, l.bytes)
	return left, s.device.Read(ctx, left, all)
}

// reserve makes room, more than is asked for, so that it is done a few times only.
func (s *side) reserve(bytes int64) error {
	if bytes <= s.arena.Bytes() {
		return nil
	}
	if err := s.device.Free(s.arena); err != nil {
		return err
	}
	s.arena = device.Memory{}
	mem, err := s.device.Alloc(2 * bytes)
	if err != nil {
		return fmt.Errorf("memory for the test: %w", err)
	}
	s.arena = mem
	return nil
}
