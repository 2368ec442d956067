package shard

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Shards is what one rank owns of a model, while Update or Inspect runs.
type Shards struct {
	m    *Model
	open atomic.Bool
}

// Shard is the part of one parameter that this rank owns: elements
// [Offset, Offset+Len) in row-major order.
type Shard struct {
	Name      string // the owner's name
	Shape     []int64
	Offset    int64       // elements from the parameter's start
	Len       int64       // elements, > 0
	Type      dtype.DType // of Value: the master's where there is one, else the parameter's
	Value     device.Memory
	Trainable bool          // planned to have a gradient
	Frozen    bool          // held back by Freeze
	Decay     bool          // weight decay applies
	GradType  dtype.DType   // f32, or f64 for f64 parameters
	Grad      device.Memory // reduced gradient; empty where not Trainable
}

// Update calls update with this rank's shards and their reduced gradients, which
// it may read and write in any way: an optimizer of the trainer's own, an average,
// values from elsewhere. Afterwards low-precision copies are made anew from the
// masters and the gradients are forgotten. Every rank must call it. If update
// fails or panics, what it wrote stays, the gradients too, and its error is
// returned. It can't use the model otherwise.
func (m *Model) Update(ctx context.Context, update func(*Shards) error) error {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	var refreshed error
	err := m.show(ctx, "update", update, func() { refreshed = m.refreshAll(ctx) })
	if err = cmp.Or(err, refreshed); err != nil {
		return err
	}
	m.forgetGrads()
	m.initialized = true
	return nil
}

// refreshAll makes all low-precision copies anew.
func (m *Model) refreshAll(ctx context.Context) error {
	for i := range m.buckets {
		m.refresh(&m.buckets[i])
	}
	return m.settleCompute(ctx)
}

// Inspect calls inspect with this rank's shards, their masters' values and the
// gradients reduced so far, and changes nothing; neither may inspect. It waits
// for no other rank.
func (m *Model) Inspect(ctx context.Context, inspect func(*Shards) error) error {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	return m.show(ctx, "inspection", inspect, func() {})
}

// show calls do with the shards, gradients that nothing was reduced into zeroed,
// and then done, even if do panics. The rank's lock is free while do runs, so
// that a call of the model inside it is refused rather than waiting for itself.
func (m *Model) show(ctx context.Context, operation string, do func(*Shards) error, done func()) error {
	if err := m.idle(ctx, operation); err != nil {
		return err
	}
	if do == nil {
		return m.misuse(operation, "the function is nil", "pass one that reads or writes the shards")
	}
	m.completeGrads()
	if err := m.settleCompute(ctx); err != nil {
		return err
	}
	s := &Shards{m: m}
	s.open.Store(true)
	m.visit = operation
	m.rank.mu.Unlock()
	defer func() {
		s.open.Store(false)
		m.rank.mu.Lock()
		m.visit = ""
		done()
	}()
	if err := do(s); err != nil {
		return fmt.Errorf("%s of model %s: %w", operation, m.descriptor.Model, err)
	}
	return nil
}

// All yields the shards in the order of the plan. Parameters of which this rank
// owns nothing are left out.
func (s *Shards) All() iter.Seq[Shard] {
	return func(yield func(Shard) bool) {
		if !s.open.Load() {
			panic(&StateError{Operation: "read", Subject: "a model's shards", Found: "their Update or Inspect has returned", Fix: "use shards inside the function that it calls"})
		}
		for i := range s.m.buckets {
			b := &s.m.buckets[i]
			for seg := range b.layout.Segments(b.place.ShardElements, int64(s.m.rank.Rank())) {
				if !yield(s.m.shardOf(b, seg)) {
					return
				}
			}
		}
	}
}

func (m *Model) shardOf(b *bucket, seg layout.Segment) Shard {
	p := &b.layout.Params[seg.Param]
	out := Shard{
		Name: b.params[seg.Param].name(), Shape: slices.Clone(p.Shape), Offset: seg.ParamOffset, Len: seg.Len,
		Type: b.layout.DType, Trainable: b.layout.Trainable, Decay: p.Decay,
	}
	value := b.shard
	if b.master.Bytes() > 0 {
		value, out.Type = b.master, b.gradType
	}
	out.Value = value.Slice(seg.ShardOffset*out.Type.Bytes(), seg.Len*out.Type.Bytes())
	if b.layout.Trainable {
		out.GradType, out.Frozen = b.gradType, b.frozenParams[seg.Param]
		out.Grad = b.grad.Slice(seg.ShardOffset*b.gradType.Bytes(), seg.Len*b.gradType.Bytes())
	}
	return out
}

// Values returns a shard's values on the host, without a copy. It is an error
// if they are not of type T or not in host memory.
func Values[T dtype.Element](s Shard) ([]T, error) {
	return hostElements[T](s.Name, s.Type, s.Value)
}

// Gradient is Values for the shard's reduced gradient.
func Gradient[T dtype.Element](s Shard) ([]T, error) {
	if !s.Trainable {
		return nil, fmt.Errorf("gradient of %s: the parameter is not trainable", s.Name)
	}
	return hostElements[T](s.Name, s.GradType, s.Grad)
}

func hostElements[T dtype.Element](name string, t dtype.DType, m device.Memory) ([]T, error) {
	if want := dtype.Of[T](); want != t {
		return nil, fmt.Errorf("shard of %s: it holds %s, not %s", name, t, want)
	}
	if m.Host() == nil {
		return nil, fmt.Errorf("shard of %s: it is not in host memory; copy it with Device.Read", name)
	}
	return dtype.Slice[T](m.Host()), nil
}
