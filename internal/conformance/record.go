package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
)

// Record is what one rank had at the points of a run, as hashes: two runs with
// equal records had the same bits in all shards, masters, gradients and gathered
// tensors.
type Record struct {
	hash   hash.Hash
	points []string
}

func newRecord() *Record { return &Record{hash: sha256.New()} }

// add takes in the bits of something.
func (r *Record) add(name string, b []byte) {
	fmt.Fprintf(r.hash, "%q %d\n", name, len(b))
	r.hash.Write(b)
}

// mark ends what belongs to a point.
func (r *Record) mark(point string) {
	r.points = append(r.points, fmt.Sprintf("%s: %x", point, r.hash.Sum(nil)))
	r.hash.Reset()
}

// Differs says where two records part, nil where they are equal.
func (r *Record) Differs(from *Record) error {
	for i, point := range r.points {
		if i == len(from.points) || point != from.points[i] {
			return fmt.Errorf("the bits differ at point %d, after %.40s", i+1, point)
		}
	}
	if len(r.points) != len(from.points) {
		return fmt.Errorf("%d points instead of %d", len(r.points), len(from.points))
	}
	return nil
}

// note records this rank's shards and the gradients reduced so far, as they are in
// the device's memory when Inspect shows them.
func (c *checker) note(ctx context.Context, point string) error {
	err := c.model.Inspect(ctx, func(shards *shard.Shards) error {
		for s := range shards.All() {
			c.record.add(s.Name, binary.LittleEndian.AppendUint64(nil, uint64(s.Offset)))
			if err := errors.Join(c.noteMemory(ctx, "values", s.Value), c.noteMemory(ctx, "gradient", s.Grad)); err != nil {
				return err
			}
		}
		return nil
	})
	c.record.mark(point)
	return err
}

func (c *checker) noteMemory(ctx context.Context, what string, m device.Memory) error {
	b := make([]byte, m.Bytes())
	err := c.reach.device.Read(ctx, b, m)
	c.record.add(what, b)
	return err
}
