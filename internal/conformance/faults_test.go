package conformance

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/shardgen/shardgen/generated/alldtypes"
	"github.com/shardgen/shardgen/generated/oddshapes"
	"github.com/shardgen/shardgen/generated/tied"
	"github.com/shardgen/shardgen/generated/tiny"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// The tests here write out single faults that users of such systems met, in the
// way a trainer uses a package; the driver of TestEveryPackageDoesWhatItsSpecSays
// covers the same ground for all packages.

// atEveryWorld runs f on all ranks of 1, 2, 3, 4 and 8, with every float element
// i filled with i+1.
func atEveryWorld[M model](t *testing.T, open func(context.Context, *shard.Rank, shard.Options) (M, error), f func(ctx context.Context, m M, rank *shard.Rank) error) {
	t.Helper()
	for _, world := range []int{1, 2, 3, 4, 8} {
		err := Run(t.Context(), world, func(ctx context.Context, rank *shard.Rank) error {
			m, err := open(ctx, rank, shard.Options{})
			if err != nil {
				return err
			}
			err = m.Update(ctx, count)
			if err == nil {
				err = f(ctx, m, rank)
			}
			return errors.Join(err, m.Close())
		})
		if err != nil {
			t.Errorf("%d ranks: %v", world, err)
		}
	}
}

// count writes i+1 into element i of every float parameter, and 2^53+1+i, or
// what fits of it, into the others.
func count(shards *shard.Shards) error {
	for s := range shards.All() {
		size := s.Type.Bytes()
		for i := range s.Len {
			at := s.Value.Host()[i*size : (i+1)*size]
			if s.Type.IsFloat() {
				copy(at, encode([]float64{float64(s.Offset + i + 1)}, s.Type))
				continue
			}
			n := []uint64{1<<53 + 1 + uint64(s.Offset+i)}
			if s.Type == dtype.Bool {
				n[0] &= 1
			}
			copy(at, dtype.Bytes(n)[:size])
		}
	}
	return nil
}

// gradientOf returns this rank's part of a reduced gradient by element.
func gradientOf(ctx context.Context, m model, name string) (map[int64]float32, error) {
	found := map[int64]float32{}
	err := m.Update(ctx, func(shards *shard.Shards) error {
		for s := range shards.All() {
			if s.Name != name {
				continue
			}
			values, err := shard.Gradient[float32](s)
			if err != nil {
				return err
			}
			for i, v := range values {
				found[s.Offset+int64(i)] = v
			}
		}
		return nil
	})
	return found, err
}

// everyElement wants a gradient to be a function of the element.
func everyElement(ctx context.Context, m model, name string, want func(i int64) float32) error {
	found, err := gradientOf(ctx, m, name)
	for i, got := range found {
		if got != want(i) {
			return fmt.Errorf("gradient of %s: element %d is %v, want %v", name, i, got, want(i))
		}
	}
	return err
}

func shapeIs(what string, got, want []int64) error {
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s has shape %v, want %v", what, got, want)
	}
	return nil
}

func TestEmptyParametersKeepTheirShape(t *testing.T) {
	atEveryWorld(t, oddshapes.Open, func(ctx context.Context, m *oddshapes.Model, _ *shard.Rank) error {
		f := m.Forward(ctx)
		first, err := f.First_()
		if err != nil {
			return err
		}
		err = errors.Join(shapeIs("empty.rows", first.Empty_Rows.Shape(), []int64{0, 8}), shapeIs("empty.columns", first.Empty_Columns.Shape(), []int64{8, 0}))
		if n := len(first.Empty_Rows.Host()) + len(first.Empty_Columns.Host()); n != 0 || first.Five.Host()[4] != 5 {
			err = errors.Join(err, fmt.Errorf("empty parameters have %d elements, and five is %v", n, first.Five.Host()))
		}
		first.Release()
		return errors.Join(err, f.End())
	})
}

// A block whose gradients have no element at all is handed out, reduced and
// stepped like any other.
func TestABlockOfEmptyParametersHasGradients(t *testing.T) {
	atEveryWorld(t, oddshapes.Open, func(ctx context.Context, m *oddshapes.Model, _ *shard.Rank) error {
		b := m.Backward(ctx)
		nothing, grads, err := b.Nothing()
		if err != nil {
			return err
		}
		err = errors.Join(shapeIs("nothing.b", nothing.B.Shape(), []int64{3, 0, 2}), shapeIs("its gradient", grads.B.Shape(), []int64{3, 0, 2}))
		if !grads.A.Planned() || grads.A.Host() == nil || len(grads.B.Host()) != 0 {
			err = errors.Join(err, errors.New("an empty gradient is not there"))
		}
		nothing.Release()
		grads.Reduce()
		return errors.Join(err, b.End())
	})
}

func TestScalarsStayScalarsAndHaveOneOwner(t *testing.T) {
	atEveryWorld(t, oddshapes.Open, func(ctx context.Context, m *oddshapes.Model, rank *shard.Rank) error {
		f := m.Forward(ctx)
		first, err := f.First_()
		if err != nil {
			return err
		}
		err = shapeIs("temperature", first.Temperature.Shape(), []int64{})
		if first.Temperature.Numel() != 1 || first.Temperature.Host()[0] != 1 {
			err = errors.Join(err, fmt.Errorf("temperature is %v", first.Temperature.Host()))
		}
		first.Release()
		if err := errors.Join(err, f.End()); err != nil {
			return err
		}
		owned, err := gradientOf(ctx, m, "temperature")
		if owns := len(owned) == 1; owns != (rank.Rank() == 0) || len(owned) > 1 {
			err = errors.Join(err, fmt.Errorf("rank %d owns %d elements of a scalar", rank.Rank(), len(owned)))
		}
		return err
	})
}

// At 8 ranks the last ones own nothing of a parameter of 5 elements, and no rank
// owns rows of a [101, 7].
func TestFullShapesComeFromTheSpecOnEveryRank(t *testing.T) {
	atEveryWorld(t, oddshapes.Open, func(ctx context.Context, m *oddshapes.Model, _ *shard.Rank) error {
		return m.Update(ctx, func(shards *shard.Shards) error {
			for s := range shards.All() {
				if s.Name == "prime" && !slices.Equal(s.Shape, []int64{101, 7}) || s.Name == "five" && !slices.Equal(s.Shape, []int64{5}) {
					return fmt.Errorf("shard of %s has shape %v", s.Name, s.Shape)
				}
			}
			return nil
		})
	})
}

func TestTypesOfOneGatherDoNotMix(t *testing.T) {
	atEveryWorld(t, alldtypes.Open, func(ctx context.Context, m *alldtypes.Model, _ *shard.Rank) error {
		f := m.Forward(ctx)
		mix, err := f.Mix(1)
		if err != nil {
			return err
		}
		for i, got := range mix.Brain.Host() {
			if got.Float32() != float32(i+1) {
				err = fmt.Errorf("brain[%d] is %v", i, got.Float32())
			}
		}
		if mix.Single.Host()[8] != 9 || mix.Double.Host()[10] != 11 || mix.Half.Host()[17].Float32() != 18 || mix.E4m3.Host()[7].Float32() != 8 {
			err = errors.Join(err, fmt.Errorf("single %v, double %v, half %v, e4m3 %v", mix.Single.Host(), mix.Double.Host(), mix.Half.Host(), mix.E4m3.Host()))
		}
		mix.Release()
		return errors.Join(err, f.End())
	})
}

func TestIntegersComeBackBitForBit(t *testing.T) {
	atEveryWorld(t, alldtypes.Open, func(ctx context.Context, m *alldtypes.Model, _ *shard.Rank) error {
		f := m.Eval(ctx)
		mix, err := f.Mix(0)
		if err != nil {
			return err
		}
		for i, got := range mix.Index.Host() {
			if got != 1<<53+1+int64(i) {
				err = fmt.Errorf("index[%d] is %d", i, got)
			}
		}
		if !mix.Mask.Host()[0] || mix.Mask.Host()[1] || mix.U8.Host()[3] != 4 {
			err = errors.Join(err, fmt.Errorf("mask %v, u8 %v", mix.Mask.Host(), mix.U8.Host()))
		}
		mix.Release()
		return errors.Join(err, f.End())
	})
}

func TestOnlyTrainableTypesHaveGradients(t *testing.T) {
	var names []string
	for f := range reflect.TypeFor[alldtypes.MixGrads]().Fields() {
		if f.IsExported() {
			names = append(names, f.Name)
		}
	}
	if want := []string{"Double", "Single", "Brain", "Half"}; !slices.Equal(names, want) {
		t.Errorf("gradients of %v, want %v", names, want)
	}
}

func TestTiedNamesSeeOneStorage(t *testing.T) {
	atEveryWorld(t, tied.Open, func(ctx context.Context, m *tied.Model, _ *shard.Rank) error {
		f := m.Forward(ctx)
		owners, err := f.Owners()
		if err != nil {
			return err
		}
		if owners.A.DevicePtr() != owners.B.DevicePtr() || owners.B.Name() != "a" || owners.B.Host()[11] != 12 {
			err = fmt.Errorf("a is at %#x, b is %s at %#x with %v", owners.A.DevicePtr(), owners.B.Name(), owners.B.DevicePtr(), owners.B.Host())
		}
		owners.Release()
		tail, gather := f.Tail()
		if gather != nil {
			return gather
		}
		if tail.C.Host()[11] != 12 {
			err = errors.Join(err, fmt.Errorf("c is %v", tail.C.Host()))
		}
		err = errors.Join(err, shapeIs("c", tail.C.Shape(), []int64{4, 3}))
		tail.Release()
		return errors.Join(err, f.End())
	})
}

// a is read under three names in two blocks: 1 through c, then 2 through b.
func TestGradientsOfTiedNamesAddUp(t *testing.T) {
	atEveryWorld(t, tied.Open, func(ctx context.Context, m *tied.Model, _ *shard.Rank) error {
		b := m.Backward(ctx)
		tail, tailGrads, err := b.Tail()
		if err != nil {
			return err
		}
		add(tailGrads.C, func(int64) float32 { return 1 })
		tail.Release()
		tailGrads.Reduce()
		owners, grads, err := b.Owners()
		if err != nil {
			return err
		}
		add(grads.A, func(int64) float32 { return 0.5 })
		add(grads.B, func(int64) float32 { return 1.5 })
		owners.Release()
		grads.Reduce()
		if err := b.End(); err != nil {
			return err
		}
		return everyElement(ctx, m, "a", func(int64) float32 { return 3 })
	})
}

func add(x shard.Tensor[float32], value func(i int64) float32) {
	for i := range x.Host() {
		x.Host()[i] += value(int64(i))
	}
}

// Rank k contributes i*(k+1) to element i of 7; at 3 ranks the sum is 6i, the
// mean 2i.
func TestGradientShardsLineUpWithParameterShards(t *testing.T) {
	atEveryWorld(t, tied.Open, func(ctx context.Context, m *tied.Model, rank *shard.Rank) error {
		b := m.Backward(ctx)
		bare, grads, err := b.Bare()
		if err != nil {
			return err
		}
		add(grads.Scale, func(i int64) float32 { return float32(i) * float32(rank.Rank()+1) })
		bare.Release()
		grads.Reduce()
		if err := b.End(); err != nil {
			return err
		}
		return everyElement(ctx, m, "scale", func(i int64) float32 { return float32(i) * float32(rank.Size()+1) / 2 })
	})
}

// Two micro-batches: layer 2 is in both, layer 1 in the second only, layer 0 in
// none.
func TestMicroBatchesMayUseDifferentBlocks(t *testing.T) {
	atEveryWorld(t, tied.Open, func(ctx context.Context, m *tied.Model, _ *shard.Rank) error {
		for batch, layers := range [][]int{{2}, {2, 1}} {
			b := m.Backward(ctx)
			for _, i := range layers {
				layer, grads, err := b.Layer(i)
				if err != nil {
					return err
				}
				add(grads.Weight, func(int64) float32 { return float32(batch + 1) })
				layer.Release()
				grads.Reduce()
			}
			if err := b.End(); err != nil {
				return err
			}
		}
		return m.Update(ctx, func(shards *shard.Shards) error {
			for s := range shards.All() {
				want, known := map[string]float32{"layer.0.weight": 0, "layer.1.weight": 2, "layer.2.weight": 3}[s.Name]
				if !known {
					continue
				}
				values, err := shard.Gradient[float32](s)
				if err != nil || slices.ContainsFunc(values, func(v float32) bool { return v != want }) {
					return errors.Join(err, fmt.Errorf("gradient of %s is %v, want %v", s.Name, values, want))
				}
			}
			return nil
		})
	})
}

// A branch that is not taken leaves a prefetch; the pass's end puts it back, also
// where the trainer stops in the middle.
func TestABranchNotTakenLeavesNothingBehind(t *testing.T) {
	atEveryWorld(t, tiny.Open, func(ctx context.Context, m *tiny.Model, _ *shard.Rank) error {
		for _, layers := range [][]int{{0, 1, 2}, {0, 2}, {0}, {}, {0, 1, 2}} {
			f := m.Forward(ctx)
			for _, i := range layers {
				h, err := f.H(i)
				if err != nil {
					return err
				}
				if got := h.Mlp.Host()[60].Float32(); got != 61 || h.Ln_1.Host()[15] != 16 || h.Ln_1.Name() != fmt.Sprintf("h.%d.ln_1.weight", i) {
					return fmt.Errorf("layers %v: %s holds %v, mlp[60] is %v", layers, h.Ln_1.Name(), h.Ln_1.Host(), got)
				}
				h.Release()
			}
			if err := f.End(); err != nil {
				return fmt.Errorf("layers %v: %w", layers, err)
			}
		}
		return nil
	})
}

// A step that fails half-way, with a prefetch under way, ends with its own error
// and does not spoil the next.
func TestAFailedPassDoesNotSpoilTheNext(t *testing.T) {
	atEveryWorld(t, tiny.Open, func(ctx context.Context, m *tiny.Model, _ *shard.Rank) error {
		f := m.Forward(ctx)
		h, err := f.H(0)
		if err != nil {
			return err
		}
		h.Release()
		_, failed := f.H(tiny.HLen)
		if end := f.End(); failed == nil || !errors.Is(end, failed) {
			return fmt.Errorf("gathering layer %d: error %v, the pass ends with %v", tiny.HLen, failed, end)
		}
		f = m.Forward(ctx)
		if h, err = f.H(1); err != nil {
			return err
		}
		if h.Mlp.Host()[60].Float32() != 61 {
			err = fmt.Errorf("layer 1 holds %v", h.Mlp.Host())
		}
		h.Release()
		return errors.Join(err, f.End())
	})
}
