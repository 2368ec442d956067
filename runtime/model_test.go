package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// param describes a parameter of a test model.
type param struct {
	name   string
	shape  []int64
	dtype  dtype.DType
	frozen bool
	plain  bool // no weight decay
	init   *random.Distribution
}

// testBlock describes a block kind of a test model.
type testBlock struct {
	name   string
	count  int64 // 0: a single block
	params []param
	uses   []int
}

// testModel puts a descriptor together by hand, so that these tests depend on
// neither planner nor emitter.
type testModel struct {
	worlds            []int64
	align             int64
	maxLive, prefetch int64
	gradSlots         int64
	reduce            dtype.DType
	optimizer         layout.Optimizer
	blocks            []testBlock
	shared            []param
}

func (tm testModel) descriptor(t testing.TB) *Descriptor {
	t.Helper()
	m := layout.Model{
		AlignBytes: or(tm.align, 16), MaxLive: or(tm.maxLive, 2), Prefetch: tm.prefetch, GradSlots: or(tm.gradSlots, 2),
		Reduce: dtype.Float32, Optimizer: tm.optimizer, Worlds: tm.worlds,
	}
	if tm.reduce != dtype.Invalid {
		m.Reduce = tm.reduce
	}
	for _, b := range tm.blocks {
		kind := layout.Kind{Name: b.name, Count: or(b.count, 1), Uses: b.uses}
		if b.count > 0 {
			kind.Var = "i"
		}
		kind.Buckets = tm.buckets(t, b.name, b.params)
		m.Kinds = append(m.Kinds, kind)
	}
	for _, p := range tm.shared {
		m.Shared = append(m.Shared, tm.buckets(t, "shared", []param{p})...)
	}
	d := &Descriptor{Model: "test", Package: "test", ModelHash: "0", Layout: m}
	for w, n := range tm.worlds {
		place, err := m.Place(w)
		if err != nil {
			t.Fatal(err)
		}
		d.Worlds = append(d.Worlds, World{PlanHash: fmt.Sprintf("hash-%d", n), RestBytes: place.RestBytes(), PeakBytes: place.PeakBytes()})
	}
	return d
}

func or(n, fallback int64) int64 {
	if n == 0 {
		return fallback
	}
	return n
}

// buckets groups parameters by dtype and trainability, in order of appearance.
func (tm testModel) buckets(t testing.TB, block string, params []param) []layout.Bucket {
	t.Helper()
	var out []layout.Bucket
	find := func(p param, trainable bool) *layout.Bucket {
		for i := range out {
			if out[i].DType == p.dtype && out[i].Trainable == trainable {
				return &out[i]
			}
		}
		out = append(out, layout.Bucket{Name: fmt.Sprintf("%s/%s", block, p.dtype), DType: p.dtype, Trainable: trainable, Unit: layout.Unit(or(tm.align, 16), p.dtype.Bytes(), 1)})
		return &out[len(out)-1]
	}
	for _, p := range params {
		b := find(p, p.dtype.Trainable() && !p.frozen)
		n, err := layout.Numel(p.shape)
		if err != nil {
			t.Fatal(err)
		}
		b.Params = append(b.Params, layout.Param{Name: p.name, Shape: p.shape, Numel: n, Decay: !p.plain, Init: p.init})
	}
	for i := range out {
		var numels []int64
		for _, p := range out[i].Params {
			numels = append(numels, p.Numel)
		}
		starts, end, err := layout.Starts(numels, out[i].Unit)
		if err != nil {
			t.Fatal(err)
		}
		for j := range starts {
			out[i].Params[j].Start = starts[j]
		}
		out[i].End = end
		for _, w := range tm.worlds {
			shard, err := layout.ShardElements(end, w, out[i].Unit)
			if err != nil {
				t.Fatal(err)
			}
			out[i].ShardElements = append(out[i].ShardElements, shard)
		}
	}
	return out
}

// run opens the model on n ranks whose memory is full of garbage.
func run(t *testing.T, n int, d *Descriptor, f func(ctx context.Context, m *Model) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l := LocalRanks{Ranks: n, Timeout: 3 * time.Second, Device: func(int) (device.Device, error) { return cpu.Poisoned(), nil }}
	return Run(ctx, l, func(ctx context.Context, rank *Rank) error {
		m, err := Open(ctx, rank, d, Options{})
		if err != nil {
			return err
		}
		defer m.Close()
		return f(ctx, m)
	})
}

func mustRun(t *testing.T, n int, d *Descriptor, f func(ctx context.Context, m *Model) error) {
	t.Helper()
	if err := run(t, n, d, f); err != nil {
		t.Fatalf("%d ranks: %v", n, err)
	}
}

// value is what the tests put into element i of a parameter.
func value(name string, i int64) float32 {
	h := float32(0)
	for _, c := range name {
		h += float32(c)
	}
	return h + float32(i%251)
}

// fill writes value(name, i) into every f32 and bf16 element that the rank owns.
func fill(ctx context.Context, m *Model) error {
	return m.Update(ctx, func(s *Shards) error {
		for sh := range s.All() {
			for i := range sh.Len {
				v := value(sh.Name, sh.Offset+i)
				switch sh.Type {
				case dtype.Float32:
					x, err := Values[float32](sh)
					if err != nil {
						return err
					}
					x[i] = v
				case dtype.BFloat16:
					x, err := Values[dtype.BF16](sh)
					if err != nil {
						return err
					}
					x[i] = dtype.BF16FromFloat32(v)
				default:
					return fmt.Errorf("unexpected type %s", sh.Type)
				}
			}
		}
		return nil
	})
}

// expect checks a gathered f32 tensor against value.
func expect(x Tensor[float32]) error {
	name := x.Name()
	for i, v := range x.Host() {
		if want := value(name, int64(i)); v != want {
			return fmt.Errorf("%s[%d] = %v, want %v", name, i, v, want)
		}
	}
	return nil
}

func f32(name string, shape ...int64) param {
	return param{name: name, shape: shape, dtype: dtype.Float32}
}

func TestGatherIsExactOnDirtyMemoryAtEveryWorldSize(t *testing.T) {
	tm := testModel{worlds: []int64{1, 2, 3, 4, 8}, prefetch: 1, blocks: []testBlock{
		{name: "odd", params: []param{f32("a", 5), f32("b", 3), f32("c", 10), f32("none", 0, 8), f32("scalar")}},
		{name: "h.{i}", count: 5, params: []param{f32("h.{i}.w", 7, 3), f32("h.{i}.one", 1), f32("h.{i}.prime", 101)}},
		{name: "empty", params: []param{f32("e", 0, 8), f32("e2", 8, 0)}},
	}}
	d := tm.descriptor(t)
	for _, n := range tm.worlds {
		mustRun(t, int(n), d, func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			for range 2 {
				if err := readAll(m, m.Forward(ctx), d); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// readAll goes forward through all blocks and checks every f32 parameter.
func readAll(m *Model, p Pass, d *Descriptor) error {
	for k := range d.Layout.Kinds {
		kind := &d.Layout.Kinds[k]
		for i := range int(kind.Count) {
			b, err := p.Gather(k, i)
			if err != nil {
				return err
			}
			for bucket := range kind.Buckets {
				for j, param := range kind.Buckets[bucket].Params {
					x := Param[float32](b, bucket, j, param.Start)
					if got, want := fmt.Sprint(x.Shape()), fmt.Sprint(append([]int64{}, param.Shape...)); got != want {
						return fmt.Errorf("%s: shape %s, want %s", x.Name(), got, want)
					}
					if err := expect(x); err != nil {
						return err
					}
				}
			}
			b.Release()
		}
	}
	return p.End()
}

func TestReadingAParameterThatIsNotGatheredPanics(t *testing.T) {
	for _, numel := range []int64{1, 2, 6} {
		tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "b", params: []param{f32("w", numel)}}}}
		mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			p := m.Forward(ctx)
			b, err := p.Gather(0, 0)
			if err != nil {
				return err
			}
			x := Param[float32](b, 0, 0, 0)
			b.Release()
			if err := wantStateError(func() { x.Host() }, "released"); err != nil {
				return err
			}
			if err := wantStateError(func() { b.Release() }, "released already"); err != nil {
				return err
			}
			if err := wantStateError(func() { Tensor[float32]{}.Host() }, "never gathered"); err != nil {
				return err
			}
			return p.End()
		})
	}
}

// wantStateError calls f and returns an error unless it panics with a
// *StateError that has the words.
func wantStateError(f func(), words string) (err error) {
	defer func() {
		state, ok := recover().(*StateError)
		if !ok || !strings.Contains(state.Error(), words) {
			err = fmt.Errorf("no *StateError with %q, but %v", words, state)
		}
	}()
	f()
	return nil
}

func TestUnusedPrefetchesAreGoneAtEnd(t *testing.T) {
	tm := testModel{worlds: []int64{2}, maxLive: 3, prefetch: 2, blocks: []testBlock{
		{name: "a", params: []param{f32("a.w", 9)}}, {name: "b", params: []param{f32("b.w", 6)}}, {name: "c", params: []param{f32("c.w", 5)}},
	}}
	boom := errors.New("boom")
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		for step, kinds := range [][]int{{0, 1, 2}, {0, 2}, {0, 1, 2}, {0}, {2, 1, 0}, {0, 1, 2}} {
			p := m.Forward(ctx)
			for _, k := range kinds {
				b, err := p.Gather(k, 0)
				if err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
				if err := expect(Param[float32](b, 0, 0, 0)); err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
				b.Release()
			}
			if step == 3 {
				m.note(boom)
			}
			if err := p.End(); (step == 3) != errors.Is(err, boom) {
				return fmt.Errorf("step %d: End returned %v", step, err)
			}
			for i := range m.slots {
				if m.slots[i].state != NotAvailable || m.slots[i].holder != nil {
					return fmt.Errorf("step %d: slot %d is %s", step, i, m.slots[i].state)
				}
			}
		}
		return nil
	})
}

func TestSlotHeldByAUserIsRefusedAndNamesBothBlocks(t *testing.T) {
	tm := testModel{worlds: []int64{2}, maxLive: 2, prefetch: 1, blocks: []testBlock{{name: "h.{i}", count: 4, params: []param{f32("h.{i}.w", 9)}}}}
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Forward(ctx)
		b0, err := p.Gather(0, 0)
		if err != nil {
			return err
		}
		again, err := p.Gather(0, 0)
		if err != nil {
			return err
		}
		var state *StateError
		if _, err := p.Gather(0, 2); !errors.As(err, &state) || !strings.Contains(err.Error(), "h.2") || !strings.Contains(err.Error(), "h.0") {
			return fmt.Errorf("gather into a held slot: %v", err)
		}
		b0.Release()
		if err := expect(Param[float32](again, 0, 0, 0)); err != nil {
			return fmt.Errorf("after one of two releases: %w", err)
		}
		again.Release()
		if _, err := p.Gather(0, 4); err == nil || !strings.Contains(err.Error(), "0..3") {
			return fmt.Errorf("gather out of range: %v", err)
		}
		if err := p.End(); !errors.As(err, &state) {
			return fmt.Errorf("End did not return the pass's first error but %v", err)
		}
		return nil
	})
}

func TestEndNamesWhatWasForgotten(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "h.{i}", count: 2, params: []param{f32("h.{i}.w", 9)}}}}
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		_, g, err := p.GatherWithGrads(0, 1)
		if err != nil {
			return err
		}
		if err := m.Update(ctx, func(*Shards) error { return nil }); err == nil || !strings.Contains(err.Error(), "End first") {
			return fmt.Errorf("update inside a pass: %v", err)
		}
		if err := m.Forward(ctx).End(); err == nil || !strings.Contains(err.Error(), "backward pass is open") {
			return fmt.Errorf("second pass: %v", err)
		}
		err = p.End()
		if err == nil || !strings.Contains(err.Error(), "h.1 not released") || !strings.Contains(err.Error(), "neither reduced nor discarded") {
			return fmt.Errorf("End: %v", err)
		}
		if err := wantStateError(g.Reduce, "the pass ended"); err != nil {
			return err
		}
		return readAll(m, m.Eval(ctx), m.descriptor)
	})
}

func TestGradientsAreSummedDividedAndAddedOnce(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 4} {
		tm := testModel{worlds: []int64{n}, blocks: []testBlock{{name: "b", params: []param{f32("w", 7), f32("unused", 3)}}}}
		mustRun(t, int(n), tm.descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			for round := range 2 { // the second round must not see the first
				for micro := range 2 {
					if err := backwardOnce(ctx, m, float32(micro+1)); err != nil {
						return err
					}
				}
				sum := float32(n*(n+1)) / 2 / float32(n) * 3 // mean over ranks of k+1, both micro-batches
				if err := checkGrad(ctx, m, sum); err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
			}
			return nil
		})
	}
}

// backwardOnce contributes scale*(rank+1)*i to element i of w.
func backwardOnce(ctx context.Context, m *Model, scale float32) error {
	p := m.Backward(ctx)
	b, g, err := p.GatherWithGrads(0, 0)
	if err != nil {
		return err
	}
	x := Grad[float32](g, 0, 0, 0)
	for i := range x.Host() {
		x.Host()[i] += scale * float32(m.rank.Rank()+1) * float32(i)
	}
	b.Release()
	g.Reduce()
	return p.End()
}

// checkGrad expects factor*i for w, zero for unused, and ends the accumulation.
func checkGrad(ctx context.Context, m *Model, factor float32) error {
	return m.Update(ctx, func(s *Shards) error {
		for sh := range s.All() {
			grad, err := Gradient[float32](sh)
			if err != nil {
				return err
			}
			for i, v := range grad {
				want := factor * float32(sh.Offset+int64(i))
				if sh.Name == "unused" {
					want = 0
				}
				if math.Abs(float64(v-want)) > 1e-6*math.Abs(float64(want)) {
					return fmt.Errorf("gradient of %s[%d] = %v, want %v", sh.Name, sh.Offset+int64(i), v, want)
				}
			}
		}
		return nil
	})
}

func TestGradientBuffersHeldByTheTrainerAreNamed(t *testing.T) {
	tm := testModel{worlds: []int64{2}, maxLive: 3, gradSlots: 2, blocks: []testBlock{{name: "h.{i}", count: 3, params: []param{f32("h.{i}.w", 9)}}}}
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		for i := 2; i >= 1; i-- {
			if _, _, err := p.GatherWithGrads(0, i); err != nil {
				return err
			}
		}
		_, _, err := p.GatherWithGrads(0, 0)
		if err == nil || !strings.Contains(err.Error(), "h.2") || !strings.Contains(err.Error(), "h.1") || !strings.Contains(err.Error(), "gradients.slots") {
			return fmt.Errorf("third gradient buffer of two: %v", err)
		}
		if err := p.End(); err == nil {
			return errors.New("End after an error returned nil")
		}
		return nil
	})
}

func TestSharedParameterIsGatheredOnceAPassAndReducedForEachUser(t *testing.T) {
	tm := testModel{worlds: []int64{1, 2, 3}, prefetch: 1, shared: []param{f32("wte", 11)}, blocks: []testBlock{
		{name: "embed", params: []param{f32("wpe", 4)}, uses: []int{0}},
		{name: "h.{i}", count: 3, params: []param{f32("h.{i}.w", 5)}},
		{name: "head", params: []param{f32("ln", 3)}, uses: []int{0}},
	}}
	d := tm.descriptor(t)
	for _, n := range tm.worlds {
		mustRun(t, int(n), d, func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			if err := readAll(m, m.Forward(ctx), d); err != nil {
				return err
			}
			if got := m.Stats().Gathers; got != 6 {
				return fmt.Errorf("%d gathers in a pass over 5 blocks and a shared parameter", got)
			}
			p := m.Backward(ctx)
			for _, k := range []int{2, 0} {
				b, g, err := p.GatherWithGrads(k, 0)
				if err != nil {
					return err
				}
				if err := expect(SharedParam[float32](b, 0, 0, 0)); err != nil {
					return err
				}
				grad := SharedGrad[float32](g, 0, 0, 0).Host()
				for i := range grad {
					grad[i] += float32(k + 1)
				}
				b.Release()
				g.Reduce()
			}
			if err := p.End(); err != nil {
				return err
			}
			return m.Update(ctx, func(s *Shards) error {
				for sh := range s.All() {
					grad, err := Gradient[float32](sh)
					if err != nil {
						return err
					}
					for _, v := range grad {
						if want := map[bool]float32{true: 4, false: 0}[sh.Name == "wte"]; v != want {
							return fmt.Errorf("gradient of %s: %v, want %v", sh.Name, v, want)
						}
					}
				}
				return nil
			})
		})
	}
}

func TestOpenRefusesRanksWithDifferentPlans(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "b", params: []param{f32("w", 8)}}}}
	one, two := tm.descriptor(t), tm.descriptor(t)
	two.Worlds[0].PlanHash = "another"
	errs := make([]error, 2)
	err := Run(context.Background(), Local(2), func(ctx context.Context, rank *Rank) error {
		d := one
		if rank.Rank() == 1 {
			d = two
		}
		_, errs[rank.Rank()] = Open(ctx, rank, d, Options{})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "hash-2") || !strings.Contains(err.Error(), "another") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestOpenRefusesAWorldSizeOutsideThePlan(t *testing.T) {
	tm := testModel{worlds: []int64{2, 4}, blocks: []testBlock{{name: "b", params: []param{f32("w", 8)}}}}
	err := run(t, 1, tm.descriptor(t), func(context.Context, *Model) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "1 ranks") || !strings.Contains(err.Error(), "2, 4") {
		t.Fatal(err)
	}
}

func TestAPanickingRankEndsTheOthersWithItsError(t *testing.T) {
	tm := testModel{worlds: []int64{3}, blocks: []testBlock{{name: "b", params: []param{f32("w", 8)}}}}
	start := time.Now()
	err := run(t, 3, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		if m.rank.Rank() == 1 {
			panic("lost my mind")
		}
		_, err := m.Forward(ctx).Gather(0, 0)
		return err
	})
	var rank *RankError
	if !errors.As(err, &rank) || rank.Rank != 1 || !strings.Contains(err.Error(), "lost my mind") {
		t.Fatal(err)
	}
	if time.Since(start) > 2*time.Second {
		t.Error("the other ranks waited for the deadline")
	}
}

func TestARankThatSkipsAGatherIsNamedBeforeTheDeadline(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "h.{i}", count: 3, params: []param{f32("h.{i}.w", 8)}}}}
	start := time.Now()
	err := run(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Forward(ctx)
		for i := m.rank.Rank(); i < 3; i++ {
			b, err := p.Gather(0, i)
			if err != nil {
				return err
			}
			b.Release()
		}
		return p.End()
	})
	if err == nil || !strings.Contains(err.Error(), "h.0") || !strings.Contains(err.Error(), "h.1") || time.Since(start) > 2*time.Second {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
}

func TestStepIsTheSameAtEveryWorldSize(t *testing.T) {
	normal := &random.Distribution{Kind: random.Normal, Std: 1}
	tm := testModel{worlds: []int64{1, 2, 4}, optimizer: layout.Optimizer{Masters: true, Moments: 2}, blocks: []testBlock{
		{name: "b", params: []param{
			{name: "w", shape: []int64{33}, dtype: dtype.Float32, init: normal},
			{name: "plain", shape: []int64{5}, dtype: dtype.Float32, plain: true, init: normal},
			{name: "low", shape: []int64{19}, dtype: dtype.BFloat16, init: normal},
			{name: "double", shape: []int64{3}, dtype: dtype.Float64, init: normal},
		}},
	}}
	d := tm.descriptor(t)
	var want string
	for _, n := range tm.worlds {
		var got string
		mustRun(t, int(n), d, func(ctx context.Context, m *Model) error {
			if err := m.Init(ctx, 7); err != nil {
				return err
			}
			for range 3 {
				if err := squareLoss(ctx, m); err != nil {
					return err
				}
				res, err := m.StepAdamW(ctx, optim.AdamW{LR: 0.01, WeightDecay: 0.1})
				if err != nil {
					return err
				}
				if res.Skipped || !(res.GradNorm > 0) {
					return fmt.Errorf("step: %+v", res)
				}
			}
			text, err := dump(ctx, m)
			if m.rank.Rank() == 0 {
				got = text
			}
			return err
		})
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("weights at %d ranks differ from those at 1:\n%s\n%s", n, got, want)
		}
	}
}

// squareLoss gives every parameter its own value as gradient.
func squareLoss(ctx context.Context, m *Model) error {
	p := m.Backward(ctx)
	b, g, err := p.GatherWithGrads(0, 0)
	if err != nil {
		return err
	}
	buckets := m.blocks[0].kind.Buckets
	copy(Grad[float32](g, 0, 0, 0).Host(), Param[float32](b, 0, 0, 0).Host())
	copy(Grad[float32](g, 0, 1, buckets[0].Params[1].Start).Host(), Param[float32](b, 0, 1, buckets[0].Params[1].Start).Host())
	copy(Grad[dtype.BF16](g, 1, 0, 0).Host(), Param[dtype.BF16](b, 1, 0, 0).Host())
	copy(Grad[float64](g, 2, 0, 0).Host(), Param[float64](b, 2, 0, 0).Host())
	b.Release()
	g.Reduce()
	return p.End()
}

// dump prints all values of the model of squareLoss.
func dump(ctx context.Context, m *Model) (string, error) {
	p := m.Eval(ctx)
	b, err := p.Gather(0, 0)
	if err != nil {
		return "", err
	}
	second := m.blocks[0].kind.Buckets[0].Params[1].Start
	text := fmt.Sprint(Param[float32](b, 0, 0, 0).Host(), Param[float32](b, 0, 1, second).Host(), Param[dtype.BF16](b, 1, 0, 0).Host(), Param[float64](b, 2, 0, 0).Host())
	b.Release()
	return text, p.End()
}

func TestANaNOnOneRankSkipsTheStepOnAll(t *testing.T) {
	tm := testModel{worlds: []int64{3}, optimizer: layout.Optimizer{Masters: true, Moments: 2}, blocks: []testBlock{{name: "b", params: []param{f32("w", 7), f32("unused", 3)}}}}
	mustRun(t, 3, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		scale := float32(1)
		if m.rank.Rank() == 2 {
			scale = float32(math.NaN())
		}
		if err := backwardOnce(ctx, m, scale); err != nil {
			return err
		}
		res, err := m.StepAdamW(ctx, optim.AdamW{LR: 1})
		if err != nil {
			return err
		}
		if !res.Skipped || res.NonFinite != 7 {
			return fmt.Errorf("step: %+v", res)
		}
		return readAll(m, m.Eval(ctx), m.descriptor)
	})
}

func TestFrozenParametersStayAndThawWithTheirState(t *testing.T) {
	tm := testModel{worlds: []int64{2}, optimizer: layout.Optimizer{Masters: true, Moments: 2}, blocks: []testBlock{{name: "b", params: []param{f32("w", 7), f32("unused", 3)}}}}
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		if err := m.Freeze("nothing.*"); err == nil {
			return errors.New("a pattern that matches nothing was accepted")
		}
		if err := m.Freeze("*"); err != nil {
			return err
		}
		before := m.Stats().Reductions
		if err := backwardOnce(ctx, m, 1); err != nil {
			return err
		}
		if m.Stats().Reductions != before {
			return errors.New("a bucket whose parameters are all frozen was reduced")
		}
		if res, err := m.StepAdamW(ctx, optim.AdamW{LR: 1}); err != nil || res.GradNorm != 0 {
			return fmt.Errorf("step over frozen parameters: %+v, %w", res, err)
		}
		if err := readAll(m, m.Eval(ctx), m.descriptor); err != nil {
			return err
		}
		if err := m.Unfreeze("w"); err != nil {
			return err
		}
		if err := backwardOnce(ctx, m, 1); err != nil {
			return err
		}
		if res, err := m.StepAdamW(ctx, optim.AdamW{LR: 1}); err != nil || res.GradNorm == 0 {
			return fmt.Errorf("step after unfreezing: %+v, %w", res, err)
		}
		return nil
	})
}

// trainOnce goes forward and backward through four blocks and steps.
func trainOnce(ctx context.Context, m *Model) error {
	f := m.Forward(ctx)
	for i := range 4 {
		b, err := f.Gather(0, i)
		if err != nil {
			return err
		}
		b.Release()
	}
	if err := f.End(); err != nil {
		return err
	}
	p := m.Backward(ctx)
	for i := 3; i >= 0; i-- {
		b, g, err := p.GatherWithGrads(0, i)
		if err != nil {
			return err
		}
		Grad[float32](g, 0, 0, 0).Host()[0] += 1
		b.Release()
		g.Reduce()
	}
	if err := p.End(); err != nil {
		return err
	}
	_, err := m.StepAdamW(ctx, optim.AdamW{LR: 0.1})
	return err
}
