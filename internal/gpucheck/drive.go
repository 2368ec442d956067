package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
)

// training is a model that is trained and watched.
type training struct {
	model  *shard.Model
	rank   *shard.Rank
	layout *layout.Model
	trace  []record
}

// step does a forward pass, a backward pass and an optimizer step.
func (r *training) step(ctx context.Context, step int) error {
	if err := r.forward(ctx); err != nil {
		return err
	}
	if err := r.backward(ctx, step, integer); err != nil {
		return err
	}
	if err := r.gradients(ctx, true); err != nil {
		return err
	}
	result, err := r.apply(ctx)
	if err != nil {
		return err
	}
	if result.Skipped {
		return fmt.Errorf("the step was skipped: %d elements of the gradients are NaN or infinite", result.NonFinite)
	}
	norm := []float64{result.GradNorm, result.ClipScale}
	r.note(record{what: "the norm of the gradients", t: f64, value: dtype.Bytes(norm), bound: 1e-12 * result.GradNorm})
	return r.values(ctx)
}

func (r *training) note(x record) { r.trace = append(r.trace, x) }

// apply steps with the spec's optimizer. One rank also clips; the norm of several
// is summed in NCCL's order, which clipping would spread.
func (r *training) apply(ctx context.Context) (shard.StepResult, error) {
	clip := 0.0
	if r.rank.Size() == 1 {
		clip = 0.5
	}
	momentum := 0.0
	switch r.layout.Optimizer.Kind {
	case layout.AdamW:
		return r.model.StepAdamW(ctx, optim.AdamW{LR: 1e-2, WeightDecay: 0.1, ClipNorm: clip})
	case layout.MomentumSGD:
		momentum = 0.9
	}
	return r.model.StepSGD(ctx, optim.SGD{LR: 1e-2, Momentum: momentum, WeightDecay: 0.1, ClipNorm: clip})
}

// forward gathers all blocks and reads them.
func (r *training) forward(ctx context.Context) error {
	pass := r.model.Forward(ctx)
	for k := range r.layout.Kinds {
		for i := range r.layout.Kinds[k].Count {
			block, err := pass.Gather(k, int(r.layout.Kinds[k].First+i))
			if err != nil {
				return errors.Join(err, pass.End())
			}
			err = r.parameters(ctx, block, k)
			block.Release()
			if err != nil {
				return errors.Join(err, pass.End())
			}
		}
	}
	return pass.End()
}

// parameters reads all tensors of a gathered block.
func (r *training) parameters(ctx context.Context, block shard.Block, kind int) error {
	return r.each(kind, func(b *layout.Bucket, at place) error {
		a := accesses[b.DType]
		value, err := a.parameter(ctx, block, at)
		r.note(record{what: fmt.Sprintf("parameter %s of kind %s, gathered", b.Params[at.param].Name, r.layout.Kinds[kind].Name), t: b.DType, value: value})
		return err
	})
}

// backward gathers all blocks in the opposite order and gives their gradients
// values.
func (r *training) backward(ctx context.Context, step int, value gradient) error {
	pass := r.model.Backward(ctx)
	for k := len(r.layout.Kinds) - 1; k >= 0; k-- {
		for i := r.layout.Kinds[k].Count - 1; i >= 0; i-- {
			index := int(r.layout.Kinds[k].First + i)
			block, grads, err := pass.GatherWithGrads(k, index)
			if err != nil {
				return errors.Join(err, pass.End())
			}
			seed := fmt.Sprintf("step %d, rank %d, block %d/%d", step, r.rank.Rank(), k, index)
			err = r.fillGradients(ctx, grads, k, seed, value)
			block.Release()
			grads.Reduce()
			if err != nil {
				return errors.Join(err, pass.End())
			}
		}
	}
	return pass.End()
}

// fillGradients writes the gradients of a block.
func (r *training) fillGradients(ctx context.Context, grads shard.Grads, kind int, seed string, value gradient) error {
	return r.each(kind, func(b *layout.Bucket, at place) error {
		if !b.Trainable {
			return nil
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(seed + b.Params[at.param].Name)) // it never fails
		random := rand.New(rand.NewPCG(h.Sum64(), 1))
		wide := make([]float64, b.Params[at.param].Numel)
		for i := range wide {
			wide[i] = value(random)
		}
		return accesses[b.DType].setGradient(ctx, grads, at, wide)
	})
}

// gradient draws an element of a gradient.
type gradient func(*rand.Rand) float64

func integer(random *rand.Rand) float64 { return float64(random.IntN(15) - 7) }

// largestFraction bounds what fraction draws.
const largestFraction = 4

func fraction(random *rand.Rand) float64 {
	return max(-largestFraction, min(largestFraction, random.NormFloat64()))
}

// gradients reads the shards' reduced gradients, whose sums are exact or only
// bounded.
func (r *training) gradients(ctx context.Context, exact bool) error {
	return r.model.Inspect(ctx, func(all *shard.Shards) error {
		for s := range all.All() {
			if !s.Trainable {
				continue
			}
			value := elements(s.GradType, s.Len)
			if err := r.rank.Device().Read(ctx, value, s.Grad); err != nil {
				return err
			}
			x := record{what: "gradient of " + s.Name, t: s.GradType, value: value}
			if !exact {
				x.bound = r.sumBound(s)
			}
			r.note(x)
		}
		return nil
	})
}

// values reads the shards' masters.
func (r *training) values(ctx context.Context) error {
	return r.model.Inspect(ctx, func(all *shard.Shards) error {
		for s := range all.All() {
			value := elements(s.Type, s.Len)
			if err := r.rank.Device().Read(ctx, value, s.Value); err != nil {
				return err
			}
			r.note(record{what: "value of " + s.Name, t: s.Type, value: value})
		}
		return nil
	})
}

// sumBound bounds how far two sums of the ranks' gradients can lie apart after
// their division by the number of ranks N. Each addition rounds by u, half a unit
// in the last place of the type in which they are reduced, of at most N*g, g being
// the largest element: both sums are within (N-1)*N*u*g of the exact one. Twice
// that, divided by N, for each block that uses the parameter.
func (r *training) sumBound(s shard.Shard) float64 {
	wire := s.GradType
	if wire != f64 {
		wire = r.layout.Reduce
	}
	return 2 * float64(r.rank.Size()-1) * halfUnit[wire] * largestFraction * float64(r.users(s.Name))
}

// halfUnit is half a unit in the last place at 1 of the types that are added up.
var halfUnit = map[dtype.DType]float64{f64: 0x1p-53, f32: 0x1p-24, bf16: 0x1p-8, dtype.Float16: 0x1p-11}

// users returns how many blocks have gradients of a parameter.
func (r *training) users(name string) (count int64) {
	for i := range r.layout.Shared {
		if r.layout.Shared[i].Params[0].Name != name {
			continue
		}
		for _, k := range r.layout.Kinds {
			if slices.Contains(k.Uses, i) {
				count += k.Count
			}
		}
	}
	return max(1, count)
}

// place is where a parameter of a block is: in a bucket of its own or shared.
type place struct {
	shared        bool
	bucket, param int
	start         int64 // elements
}

// each calls visit for all parameters of a block that have elements.
func (r *training) each(kind int, visit func(*layout.Bucket, place) error) error {
	k := &r.layout.Kinds[kind]
	for b := range k.Buckets {
		if err := eachParam(&k.Buckets[b], place{bucket: b}, visit); err != nil {
			return err
		}
	}
	for _, s := range k.Uses {
		if err := eachParam(&r.layout.Shared[s], place{shared: true, bucket: s}, visit); err != nil {
			return err
		}
	}
	return nil
}

func eachParam(b *layout.Bucket, at place, visit func(*layout.Bucket, place) error) error {
	for p := range b.Params {
		if b.Params[p].Numel == 0 {
			continue
		}
		at.param, at.start = p, b.Params[p].Start
		if err := visit(b, at); err != nil {
			return err
		}
	}
	return nil
}

// access reads and writes tensors of one element type.
type access struct {
	parameter   func(context.Context, shard.Block, place) ([]byte, error)
	setGradient func(context.Context, shard.Grads, place, []float64) error
}

// accesses are those of all types.
var accesses = map[dtype.DType]access{
	dtype.Float64: accessOf[float64](), dtype.Float32: accessOf[float32](), dtype.BFloat16: accessOf[dtype.BF16](), dtype.Float16: accessOf[dtype.F16](),
	dtype.Float8E4M3: accessOf[dtype.F8E4M3](), dtype.Float8E5M2: accessOf[dtype.F8E5M2](),
	dtype.Int8: accessOf[int8](), dtype.Int16: accessOf[int16](), dtype.Int32: accessOf[int32](), dtype.Int64: accessOf[int64](),
	dtype.Uint8: accessOf[uint8](), dtype.Uint16: accessOf[uint16](), dtype.Uint32: accessOf[uint32](), dtype.Uint64: accessOf[uint64](),
	dtype.Bool: accessOf[bool](),
}

func accessOf[T dtype.Element]() access {
	return access{
		parameter: func(ctx context.Context, b shard.Block, at place) ([]byte, error) {
			t := shard.Param[T]
			if at.shared {
				t = shard.SharedParam[T]
			}
			tensor := t(b, at.bucket, at.param, at.start)
			values := make([]T, tensor.Numel())
			err := tensor.CopyTo(ctx, values)
			return dtype.Bytes(values), err
		},
		setGradient: func(ctx context.Context, g shard.Grads, at place, wide []float64) error {
			t := shard.Grad[T]
			if at.shared {
				t = shard.SharedGrad[T]
			}
			tensor := t(g, at.bucket, at.param, at.start)
			values := make([]T, len(wide))
			narrow(dtype.Bytes(values), dtype.Of[T](), wide)
			return tensor.CopyFrom(ctx, values)
		},
	}
}

// narrow writes numbers as elements of a type.
func narrow(dst []byte, t dtype.DType, wide []float64) {
	if t == f64 {
		copy(dst, dtype.Bytes(wide))
		return
	}
	dtype.Convert(dst, t, dtype.Bytes(wide), f64, int64(len(wide)))
}
