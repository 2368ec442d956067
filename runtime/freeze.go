package shard

import (
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
			r := stepRange{bucket: b, name: m.owner(b, s.Param), param: &b.layout.Params[s.Param], at: s}
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

// Unfreeze ends what Freeze did. Bias correction goes on where it stopped.
func (m *Model) Unfreeze(patterns ...string) error { return m.setFrozen("unfreeze", false, patterns) }

func (m *Model) setFrozen(operation string, frozen bool, patterns []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.idle(operation); err != nil {
		return err
	}
	for _, p := range patterns {
		if !m.anyTrainable(p) {
			return fmt.Errorf("%s: no trainable parameter of model %s matches %q", operation, m.descriptor.Model, p)
		}
	}
	for i := range m.buckets {
		if b := &m.buckets[i]; b.layout.Trainable {
			m.freezeBucket(b, frozen, patterns)
		}
	}
	for i := range m.ranges {
		if r := &m.ranges[i]; matchAny(patterns, r.name) {
			r.frozen = frozen
		}
	}
	return nil
}

func (m *Model) anyTrainable(pattern string) bool {
	for i := range m.buckets {
		b := &m.buckets[i]
		for p := range b.layout.Params {
			if b.layout.Trainable && layout.Match(pattern, m.owner(b, p)) {
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
		if !matchAny(patterns, m.owner(b, p)) || b.frozenParams[p] == frozen {
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
