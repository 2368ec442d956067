package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/shardgen/shardgen/generated/alldtypes"
	"github.com/shardgen/shardgen/generated/oddshapes"
	"github.com/shardgen/shardgen/generated/tied"
	"github.com/shardgen/shardgen/generated/tiny"
	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// The tests here write out single faults that users of such systems met, in the
// way a trainer uses a package; the driver of TestEveryPackageDoesWhatItsSpecSays
// covers the same ground for all packages.

// atEveryWorld runs f on all ranks of 1, 2, 3, 4 and 8, and of up to 4 on
// emulated GPUs, with every float element i filled with i+1.
func atEveryWorld[M model](t *testing.T, open func(context.Context, *shard.Rank, shard.Options) (M, error), descriptor func() *shard.Descriptor, f func(ctx context.Context, m M, rank *shard.Rank) error) {
	t.Helper()
	run := func(t *testing.T, world int, l shard.Launcher) {
		t.Helper()
		err := shard.Run(t.Context(), l, func(ctx context.Context, rank *shard.Rank) error {
			m, err := open(ctx, rank, shard.Options{})
			if err != nil {
				return err
			}
			err = m.Update(ctx, func(shards *shard.Shards) error { return count(ctx, shards) })
			if err == nil {
				err = f(ctx, m, rank)
			}
			return errors.Join(err, m.Close())
		})
		if err != nil {
			t.Errorf("%d ranks: %v", world, err)
		}
	}
	t.Run("cpu", func(t *testing.T) {
		for _, world := range []int{1, 2, 3, 4, 8} {
			run(t, world, CPU(world))
		}
	})
	t.Run("emulated", func(t *testing.T) {
		m := emulated.Require(t)
		if err := Compile(t.Context(), m, filepath.Join("../../generated", descriptor().Package), descriptor()); err != nil {
			t.Fatal(err)
		}
		for world := 1; world <= largestEmulated; world++ {
			for _, schedule := range Schedules(world) {
				if err := m.Use(schedule); err != nil {
					t.Fatal(err)
				}
				run(t, world, m.Launcher(world))
				m.Clean(t)
			}
		}
	})
}

// count writes i+1 into element i of every float parameter, and 2^53+1+i, or
// what fits of it, into the others.
func count(ctx context.Context, shards *shard.Shards) error {
	for s := range shards.All() {
		var all []byte
		for i := range s.Len {
			if s.Type.IsFloat() {
				all = append(all, encode([]float64{float64(s.Offset + i + 1)}, s.Type)...)
				continue
			}
			n := []uint64{1<<53 + 1 + uint64(s.Offset+i)}
			if s.Type == dtype.Bool {
				n[0] &= 1
			}
			all = append(all, dtype.Bytes(n)[:s.Type.Bytes()]...)
		}
		if err := setValues(ctx, s, all); err != nil {
			return err
		}
	}
	return nil
}

// host copies a tensor's elements to the host. A copy that fails ends the rank.
func host[T dtype.Element](ctx context.Context, x shard.Tensor[T]) []T {
	list := make([]T, x.Numel())
	if err := x.CopyTo(ctx, list); err != nil {
		panic(err)
	}
	return list
}

// gradientShard copies a shard's reduced gradient to the host.
func gradientShard(ctx context.Context, s shard.Shard) ([]float32, error) {
	list := make([]float32, s.Len)
	return list, shard.ReadGradient(ctx, s, list)
}

// gradientOf returns this rank's part of a reduced gradient by element.
func gradientOf(ctx context.Context, m model, name string) (map[int64]float32, error) {
	found := map[int64]float32{}
	err := m.Update(ctx, func(shards *shard.Shards) error {
		for s := range shards.All() {
			if s.Name != name {
				continue
			}
			values, err := gradientShard(ctx, s)
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
	atEveryWorld(t, oddshapes.Open, oddshapes.Descriptor, func(ctx context.Context, m *oddshapes.Model, _ *shard.Rank) error {
		f := m.Forward(ctx)
		first, err := f.First_()
		if err != nil {
			return err
		}
		err = errors.Join(shapeIs("empty.rows", first.Empty_Rows.Shape(), []int64{0, 8}), shapeIs("empty.columns", first.Empty_Columns.Shape(), []int64{8, 0}))
		if n := len(host(ctx, first.Empty_Rows)) + len(host(ctx, first.Empty_Columns)); n != 0 || host(ctx, first.Five)[4] != 5 {
			err = errors.Join(err, fmt.Errorf("empty parameters have %d elements, and five is %v", n, host(ctx, first.Five)))
		}
		first.Release()
		return errors.Join(err, f.End())
	})
}

// A block whose gradients have no element at all is handed out, reduced and
// stepped like any other.
func TestABlockOfEmptyParametersHasGradients(t *testing.T) {
	atEveryWorld(t, oddshapes.Open, oddshapes.Descriptor, func(ctx context.Context, m *oddshapes.Model, _ *shard.Rank) error {
		b := m.Backward(ctx)
		nothing, grads, err := b.Nothing()
		if err != nil {
			return err
		}
		err = errors.Join(shapeIs("nothing.b", nothing.B.Shape(), []int64{3, 0, 2}), shapeIs("its gradient", grads.B.Shape(), []int64{3, 0, 2}))
		if !grads.A.Planned() || grads.A.Host() == nil || len(host(ctx, grads.B)) != 0 {
			err = errors.Join(err, errors.New("an empty gradient is not there"))
		}
		nothing.Release()
		grads.Reduce()
		return errors.Join(err, b.End())
	})
}

func TestScalarsStayScalarsAndHaveOneOwner(t *testing.T) {
	atEveryWorld(t, oddshapes.Open, oddshapes.Descriptor, func(ctx context.Context, m *oddshapes.Model, rank *shard.Rank) error {
		f := m.Forward(ctx)
		first, err := f.First_()
		if err != nil {
			return err
		}
		err = shapeIs("temperature", first.Temperature.Shape(), []int64{})
		if first.Temperature.Numel() != 1 || host(ctx, first.Temperature)[0] != 1 {
			err = errors.Join(err, fmt.Errorf("temperature is %v", host(ctx, first.Temperature)))
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
	atEveryWorld(t, oddshapes.Open, oddshapes.Descriptor, func(ctx context.Context, m *oddshapes.Model, _ *shard.Rank) error {
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
	atEveryWorld(t, alldtypes.Open, alldtypes.Descriptor, func(ctx context.Context, m *alldtypes.Model, _ *shard.Rank) error {
		f := m.Forward(ctx)
		mix, err := f.Mix(1)
		if err != nil {
			return err
		}
		for i, got := range host(ctx, mix.Brain) {
			if got.Float32() != float32(i+1) {
				err = fmt.Errorf("brain[%d] is %v", i, got.Float32())
			}
		}
		if host(ctx, mix.Single)[8] != 9 || host(ctx, mix.Double)[10] != 11 || host(ctx, mix.Half)[17].Float32() != 18 || host(ctx, mix.E4m3)[7].Float32() != 8 {
			err = errors.Join(err, fmt.Errorf("single %v, double %v, half %v, e4m3 %v", host(ctx, mix.Single), host(ctx, mix.Double), host(ctx, mix.Half), host(ctx, mix.E4m3)))
		}
		mix.Release()
		return errors.Join(err, f.End())
	})
}

func TestIntegersComeBackBitForBit(t *testing.T) {
	atEveryWorld(t, alldtypes.Open, alldtypes.Descriptor, func(ctx context.Context, m *alldtypes.Model, _ *shard.Rank) error {
		f := m.Eval(ctx)
		mix, err := f.Mix(0)
		if err != nil {
			return err
		}
		for i, got := range host(ctx, mix.Index) {
			if got != 1<<53+1+int64(i) {
				err = fmt.Errorf("index[%d] is %d", i, got)
			}
		}
		if !host(ctx, mix.Mask)[0] || host(ctx, mix.Mask)[1] || host(ctx, mix.U8)[3] != 4 {
			err = errors.Join(err, fmt.Errorf("mask %v, u8 %v", host(ctx, mix.Mask), host(ctx, mix.U8)))
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
	atEveryWorld(t, tied.Open, tied.Descriptor, func(ctx context.Context, m *tied.Model, _ *shard.Rank) error {
		f := m.Forward(ctx)
		owners, err := f.Owners()
		if err != nil {
			return err
		}
		if owners.A.DevicePtr() != owners.B.DevicePtr() || owners.B.Name() != "a" || host(ctx, owners.B)[11] != 12 {
			err = fmt.Errorf("a is at %#x, b is %s at %#x with %v", owners.A.DevicePtr(), owners.B.Name(), owners.B.DevicePtr(), host(ctx, owners.B))
		}
		owners.Release()
		tail, gather := f.Tail()
		if gather != nil {
			return gather
		}
		if host(ctx, tail.C)[11] != 12 {
			err = errors.Join(err, fmt.Errorf("c is %v", host(ctx, tail.C)))
		}
		err = errors.Join(err, shapeIs("c", tail.C.Shape(), []int64{4, 3}))
		tail.Release()
		return errors.Join(err, f.End())
	})
}

// A kernel of a trainer's may still write into what it was given when the same is
// gathered again, in the same pass or in the next: parameters of the block's own,
// and shared ones, for a block in another slot.
func TestAGatherWaitsForKernelsOfTheLastHolder(t *testing.T) {
	atEveryWorld(t, tied.Open, tied.Descriptor, func(ctx context.Context, m *tied.Model, rank *shard.Rank) error {
		r, err := reachOf(rank.Device())
		if err != nil {
			return err
		}
		junk, err := r.device.Alloc(48)
		if err == nil {
			err = r.device.Write(ctx, junk, bytes.Repeat([]byte{0xab}, 48))
		}
		for n := 0; n < 4 && err == nil; n++ {
			err = spoilTail(ctx, m, func(x shard.Tensor[float32]) { rank.Stream().Copy(r.memory(x, 0), junk.Slice(0, 4*x.Numel())) })
		}
		return errors.Join(err, rank.Stream().Synchronize(ctx, rank.Stream().Record()), r.device.Free(junk))
	})
}

// spoilTail wants a and d as they should be, before and after it lets spoil write
// over them: over a by its name c.
func spoilTail(ctx context.Context, m *tied.Model, spoil func(shard.Tensor[float32])) error {
	f := m.Forward(ctx)
	before, err := readOwners(ctx, f)
	if err != nil {
		return err
	}
	tail, err := f.Tail()
	if err != nil {
		return err
	}
	before = append(before, host(ctx, tail.D)...)
	spoil(tail.C)
	spoil(tail.D)
	tail.Release()
	after, err := readOwners(ctx, f)
	if want := []float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5}; !slices.Equal(before, want) || !slices.Equal(after, want[:12]) {
		err = errors.Join(err, fmt.Errorf("a and d are %v, then a is %v", before, after))
	}
	return errors.Join(err, f.End())
}

func readOwners(ctx context.Context, f tied.ForwardPass) ([]float32, error) {
	owners, err := f.Owners()
	if err != nil {
		return nil, err
	}
	defer owners.Release()
	return host(ctx, owners.A), nil
}

// a is read under three names in two blocks: 1 through c, then 2 through b.
func TestGradientsOfTiedNamesAddUp(t *testing.T) {
	atEveryWorld(t, tied.Open, tied.Descriptor, func(ctx context.Context, m *tied.Model, _ *shard.Rank) error {
		b := m.Backward(ctx)
		tail, tailGrads, err := b.Tail()
		if err != nil {
			return err
		}
		add(ctx, tailGrads.C, func(int64) float32 { return 1 })
		tail.Release()
		tailGrads.Reduce()
		owners, grads, err := b.Owners()
		if err != nil {
			return err
		}
		add(ctx, grads.A, func(int64) float32 { return 0.5 })
		add(ctx, grads.B, func(int64) float32 { return 1.5 })
		owners.Release()
		grads.Reduce()
		if err := b.End(); err != nil {
			return err
		}
		return everyElement(ctx, m, "a", func(int64) float32 { return 3 })
	})
}

func add(ctx context.Context, x shard.Tensor[float32], value func(i int64) float32) {
	list := host(ctx, x)
	for i := range list {
		list[i] += value(int64(i))
	}
	if err := x.CopyFrom(ctx, list); err != nil {
		panic(err)
	}
}

// Rank k contributes i*(k+1) to element i of 7; at 3 ranks the sum is 6i, the
// mean 2i.
func TestGradientShardsLineUpWithParameterShards(t *testing.T) {
	atEveryWorld(t, tied.Open, tied.Descriptor, func(ctx context.Context, m *tied.Model, rank *shard.Rank) error {
		b := m.Backward(ctx)
		bare, grads, err := b.Bare()
		if err != nil {
			return err
		}
		add(ctx, grads.Scale, func(i int64) float32 { return float32(i) * float32(rank.Rank()+1) })
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
	atEveryWorld(t, tied.Open, tied.Descriptor, func(ctx context.Context, m *tied.Model, _ *shard.Rank) error {
		for batch, layers := range [][]int{{2}, {2, 1}} {
			b := m.Backward(ctx)
			for _, i := range layers {
				layer, grads, err := b.Layer(i)
				if err != nil {
					return err
				}
				add(ctx, grads.Weight, func(int64) float32 { return float32(batch + 1) })
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
				values, err := gradientShard(ctx, s)
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
	atEveryWorld(t, tiny.Open, tiny.Descriptor, func(ctx context.Context, m *tiny.Model, _ *shard.Rank) error {
		for _, layers := range [][]int{{0, 1, 2}, {0, 2}, {0}, {}, {0, 1, 2}} {
			f := m.Forward(ctx)
			for _, i := range layers {
				h, err := f.H(i)
				if err != nil {
					return err
				}
				if got := host(ctx, h.Mlp)[60].Float32(); got != 61 || host(ctx, h.Ln_1)[15] != 16 || h.Ln_1.Name() != fmt.Sprintf("h.%d.ln_1.weight", i) {
					return fmt.Errorf("layers %v: %s holds %v, mlp[60] is %v", layers, h.Ln_1.Name(), host(ctx, h.Ln_1), got)
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
	atEveryWorld(t, tiny.Open, tiny.Descriptor, func(ctx context.Context, m *tiny.Model, _ *shard.Rank) error {
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
		if host(ctx, h.Mlp)[60].Float32() != 61 {
			err = fmt.Errorf("layer 1 holds %v", host(ctx, h.Mlp))
		}
		h.Release()
		return errors.Join(err, f.End())
	})
}
