package shard

import (
	"context"
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/layout"
)

// stepRange is the part of one trainable parameter that this rank owns: what an
// optimizer step and a norm walk over.
type stepRange struct {
	bucket *bucket
	name   string // the owner's, expanded
	param  *layout.Param
	at     layout.Segment
	state  device.State
	frozen bool
	steps  int64 // optimizer steps taken, for bias correction
}

func (m *Model) buildRanges() {
	for i := range m.buckets {
		b := &m.buckets[i]
		if !b.layout.Trainable {
			continue
		}
		for s := range b.layout.Segments(b.place.ShardElements, int64(m.rank.Rank())) {
			r := stepRange{bucket: b, name: b.params[s.Param].name(), param: &b.layout.Params[s.Param], at: s}
			r.state = stateOf(&r)
			m.ranges = append(m.ranges, r)
		}
	}
}

// Freeze keeps trainable parameters as they are: steps leave them and their
// optimizer state alone, and their gradients do not count in norms. Patterns
// match owners' names, `*` stands for any characters. A pattern that matches no
// trainable parameter is an error, and then nothing is frozen. All ranks must
// freeze alike.
func (m *Model) Freeze(patterns ...string) error { return m.setFrozen("freeze", true, patterns) }

// Unfreeze ends what Freeze did. Bias correction goes on where it stopped;
// gradients reduced before do not count, as if there had been none.
func (m *Model) Unfreeze(patterns ...string) error { return m.setFrozen("unfreeze", false, patterns) }

func (m *Model) setFrozen(operation string, frozen bool, patterns []string) error {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	if err := m.idle(context.Background(), operation); err != nil {
		return err
	}
	for _, p := range patterns {
		if !m.anyTrainable(p) {
			return fmt.Errorf("%s: no trainable parameter of model %s matches %q", operation, m.descriptor.Model, p)
		}
	}
	m.did(freezeAct(frozen), newDigest.texts(patterns).detail())
	for i := range m.buckets {
		if b := &m.buckets[i]; b.layout.Trainable {
			m.freezeBucket(b, frozen, patterns)
		}
	}
	for i := range m.ranges {
		if r := &m.ranges[i]; r.frozen != frozen && matchAny(patterns, r.name) {
			r.frozen = frozen
			if !frozen && r.bucket.summed {
				m.kernels.Zero(m.compute, r.state.Grad)
			}
		}
	}
	return nil
}

func freezeAct(frozen bool) act {
	if frozen {
		return actFreeze
	}
	return actUnfreeze
}

func (m *Model) anyTrainable(pattern string) bool {
	for i := range m.buckets {
		b := &m.buckets[i]
		for p := range b.layout.Params {
			if b.layout.Trainable && layout.Match(pattern, b.params[p].name()) {
				return true
			}
		}
	}
	return false
}

// freezeBucket counts the bucket's frozen parameters: one that is frozen as a
// whole is not reduced.
func (m *Model) freezeBucket(b *bucket, frozen bool, patterns []string) {
	for p := range b.layout.Params {
		if !matchAny(patterns, b.params[p].name()) || b.frozenParams[p] == frozen {
			continue
		}
		b.frozenParams[p] = frozen
		if frozen {
			b.frozen++
		} else {
			b.frozen--
		}
	}
}

func matchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if layout.Match(p, name) {
			return true
		}
	}
	return false
}
