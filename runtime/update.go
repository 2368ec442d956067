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

	model *Model
}

// Update calls update with this rank's shards and their reduced gradients, which
// it may read and write in any way: an optimizer of the trainer's own, an average,
// values from elsewhere. Afterwards low-precision copies are made anew from the
// masters and the gradients are forgotten. Every rank must call it; it waits for
// all of them before it calls update. If update
// fails or panics, what it wrote stays, the gradients too, and its error is
// returned. It can't use the model otherwise.
func (m *Model) Update(ctx context.Context, update func(*Shards) error) error {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	if err := m.idle(ctx, "update"); err != nil {
		return err
	}
	if err := m.gradsWhole("update"); err != nil {
		return err
	}
	m.did(actUpdate, 0)
	failed := true // also where update panics
	defer func() {
		if failed {
			m.did(actFailedUpdate, 0)
		}
	}()
	if err := m.agree(ctx, "an update"); err != nil {
		return err
	}
	var refreshed error
	err := m.show(ctx, "update", update, func() { refreshed = m.refreshAll(ctx) })
	if err = cmp.Or(err, refreshed); err != nil {
		return err
	}
	failed = false
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
	value, t := b.value()
	out := Shard{
		Name: b.params[seg.Param].name(), Shape: slices.Clone(p.Shape), Offset: seg.ParamOffset, Len: seg.Len,
		Type: t, Value: elementsOf(value, t, seg), Trainable: b.layout.Trainable, Decay: p.Decay, model: m,
	}
	if b.layout.Trainable {
		out.GradType, out.Frozen = b.gradType, b.frozenParams[seg.Param]
		out.Grad = elementsOf(b.grad, b.gradType, seg)
	}
	return out
}

// Values returns a shard's values on the host, without a copy. It is an error
// if they are not of type T, or not in host memory: then ReadValues copies them.
// The slice is good until the function of Update or Inspect returns.
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
		return nil, fmt.Errorf("shard of %s: it is not in host memory; copy it with ReadValues or ReadGradient", name)
	}
	return dtype.Slice[T](m.Host()), nil
}

// ReadValues copies a shard's values, of which there are Len, to dst, on every
// device. Kernels of the trainer's on the compute stream are waited for.
func ReadValues[T dtype.Element](ctx context.Context, s Shard, dst []T) error {
	return readElements(ctx, s, s.Type, s.Value, dst)
}

// WriteValues copies src over a shard's values, inside Update.
func WriteValues[T dtype.Element](ctx context.Context, s Shard, src []T) error {
	return writeElements(ctx, s, s.Type, s.Value, src)
}

// ReadGradient is ReadValues for the shard's reduced gradient.
func ReadGradient[T dtype.Element](ctx context.Context, s Shard, dst []T) error {
	return readElements(ctx, s, s.GradType, s.Grad, dst)
}

// WriteGradient is WriteValues for the shard's reduced gradient.
func WriteGradient[T dtype.Element](ctx context.Context, s Shard, src []T) error {
	return writeElements(ctx, s, s.GradType, s.Grad, src)
}

func readElements[T dtype.Element](ctx context.Context, s Shard, t dtype.DType, m device.Memory, dst []T) error {
	if err := checkElements[T](ctx, s, t, m, int64(len(dst))); err != nil {
		return err
	}
	return s.model.rank.device.Read(ctx, dtype.Bytes(dst), m)
}

func writeElements[T dtype.Element](ctx context.Context, s Shard, t dtype.DType, m device.Memory, src []T) error {
	if err := checkElements[T](ctx, s, t, m, int64(len(src))); err != nil {
		return err
	}
	return s.model.rank.device.Write(ctx, m, dtype.Bytes(src))
}

// checkElements returns an error unless m holds n elements of T, and waits for
// the compute stream.
func checkElements[T dtype.Element](ctx context.Context, s Shard, t dtype.DType, m device.Memory, n int64) error {
	switch want := dtype.Of[T](); {
	case s.model == nil:
		return fmt.Errorf("copy of a shard: it is the zero value; take shards from All")
	case ctx == nil:
		return s.model.misuse("copy of the shard of "+s.Name, "the context is nil", "pass context.Background()")
	case m.Bytes() == 0:
		return fmt.Errorf("gradient of %s: the parameter is not trainable", s.Name)
	case want != t:
		return fmt.Errorf("shard of %s: it holds %s, not %s", s.Name, t, want)
	case n != s.Len:
		return fmt.Errorf("shard of %s: it has %d elements, but the slice has %d", s.Name, s.Len, n)
	}
	return s.model.awaitCompute(ctx)
}
