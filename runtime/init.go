package shard

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
)

// Init gives every parameter the initial values that the spec says. Element i of
// a parameter depends on the seed, its owner's name and i only, so a model has
// the same values at every world size. Optimizer state and gradients are
// cleared, so that Init also starts a model afresh; what Freeze holds back stays
// so. Every rank must call it, with the same seed. Other seeds, and parameters
// without an init, are errors that name them, and then nothing is written.
func (m *Model) Init(ctx context.Context, seed uint64) error {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	if err := m.idle(ctx, "init"); err != nil {
		return err
	}
	if names := m.withoutInit(); len(names) > 0 {
		return fmt.Errorf("init of model %s: %d parameters have no init in the spec: %s; add `init` to them, or fill the shards with Update",
			m.descriptor.Model, len(names), abridge(names))
	}
	if err := m.agreeOnSeed(ctx, seed); err != nil {
		return err
	}
	m.did(actInit, 0)
	m.clear()
	for i := range m.buckets {
		m.initBucket(&m.buckets[i], seed)
	}
	m.initialized = true
	return m.settleCompute(ctx)
}

// agreeOnSeed returns the same error on every rank where one has another seed.
func (m *Model) agreeOnSeed(ctx context.Context, seed uint64) error {
	const bytes = 8
	all := make([]byte, bytes*m.rank.Size())
	if err := m.exchange(ctx, "the seed", all, binary.LittleEndian.AppendUint64(nil, seed)); err != nil {
		return m.fail(fmt.Errorf("init: %w", err))
	}
	first := binary.LittleEndian.Uint64(all)
	for r := range m.rank.Size() {
		if other := binary.LittleEndian.Uint64(all[r*bytes:]); other != first {
			return fmt.Errorf("init of model %s: rank 0 has the seed %d, rank %d has %d; pass the same on every rank", m.descriptor.Model, first, r, other)
		}
	}
	return nil
}

func (m *Model) withoutInit() []string {
	var names []string
	for i := range m.buckets {
		b := &m.buckets[i]
		for p := range b.layout.Params {
			if b.layout.Params[p].Init == nil && b.layout.Params[p].Numel > 0 {
				names = append(names, b.params[p].name())
			}
		}
	}
	return names
}

// abridge lists the first few names.
func abridge(names []string) string {
	const most = 6
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// clear zeroes all that lives between passes: padding, moments and gradients.
func (m *Model) clear() {
	for r := range layout.Slots {
		for _, mem := range m.arenas[r] {
			if mem.Bytes() > 0 {
				m.kernels.Zero(m.compute, mem)
			}
		}
	}
	m.forgetGrads()
	for i := range m.ranges {
		m.ranges[i].steps = 0
	}
}

// initBucket fills the rank's part of a bucket: the master, where there is one,
// and from it the low-precision shard, which so is the rounded master.
func (m *Model) initBucket(b *bucket, seed uint64) {
	mem, t := b.value()
	for seg := range b.layout.Segments(b.place.ShardElements, int64(m.rank.Rank())) {
		p := &b.layout.Params[seg.Param]
		values := random.NewStream(seed, b.params[seg.Param].name())
		m.kernels.Fill(m.compute, elementsOf(mem, t, seg), t, p.Init, values, seg.ParamOffset, seg.Len)
	}
	m.refresh(b)
}

// refresh writes the low-precision shard from the master.
func (m *Model) refresh(b *bucket) {
	if b.master.Bytes() > 0 {
		m.kernels.Cast(m.compute, b.shard, b.layout.DType, b.master, b.gradType, b.place.ShardElements)
	}
}
