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
)

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
	err = edit(ctx, Grad[float32](g, 0, 0, 0), func(i int, old float32) float32 { return old + scale*float32(m.rank.Rank()+1)*float32(i) })
	if err != nil {
		return err
	}
	b.Release()
	g.Reduce()
	return p.End()
}

// checkGrad expects factor*i for w, zero for unused, and ends the accumulation.
func checkGrad(ctx context.Context, m *Model, factor float32) error {
	return m.Update(ctx, func(s *Shards) error {
		for sh := range s.All() {
			grad, err := gradientOf(ctx, sh)
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
			if err := readAll(ctx, m.Forward(ctx), d); err != nil {
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
				if err := expect(ctx, SharedParam[float32](b, 0, 0, 0)); err != nil {
					return err
				}
				if err := edit(ctx, SharedGrad[float32](g, 0, 0, 0), func(_ int, old float32) float32 { return old + float32(k+1) }); err != nil {
					return err
				}
				b.Release()
				g.Reduce()
			}
			if err := p.End(); err != nil {
				return err
			}
			return m.Update(ctx, func(s *Shards) error {
				for sh := range s.All() {
					grad, err := gradientOf(ctx, sh)
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

func TestBlocksWithoutElementsHaveGradients(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{
		{name: "empty", params: []param{f32("e", 0, 8)}},
		{name: "frozen", params: []param{{name: "f", shape: []int64{5}, dtype: dtype.Float32, frozen: true}}},
	}}
	filled(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		p := m.Backward(ctx)
		frozen, none, err := p.GatherWithGrads(1, 0)
		if err != nil {
			return err
		}
		if Grad[float32](none, 0, 0, 0).Planned() {
			return errors.New("a frozen parameter has a gradient")
		}
		frozen.Release()
		none.Reduce()
		b, g, err := p.GatherWithGrads(0, 0)
		if err != nil {
			return err
		}
		x := Grad[float32](g, 0, 0, 0)
		if none, err := read(ctx, x); err != nil || !x.Planned() || len(none) != 0 || fmt.Sprint(x.Shape()) != "[0 8]" {
			return fmt.Errorf("gradient of no elements: planned %v, %d elements, shape %v, %w", x.Planned(), len(none), x.Shape(), err)
		}
		b.Release()
		g.Reduce()
		for _, again := range []func(){g.Reduce, g.Discard} {
			if err := wantStateError(again, "gradients of block empty"); err != nil {
				return err
			}
		}
		return p.End()
	})
}

// late runs a function when the stream comes to it, which takes its time.
type late func()

func (f late) Run(failed error) error {
	time.Sleep(10 * time.Millisecond)
	f()
	return failed
}

// onSideStream runs ranks of the CPU with a compute stream that works behind the
// caller.
func onSideStream(t *testing.T, n int, d *Descriptor, f func(ctx context.Context, m *Model, side *cpu.Stream) error) {
	t.Helper()
	backends[0].must(t, n, d, func(ctx context.Context, inline *Model) error {
		side := cpu.NewStream("side", false)
		defer side.Close()
		inline.rank.SetStream(side)
		m, err := Open(ctx, inline.rank, d, Options{})
		if err != nil {
			return err
		}
		defer m.Close()
		inline.rank.SetStream(nil)
		if m.compute != device.Stream(side) || m.rank.Stream() != inline.compute {
			return errors.New("SetStream did not set the stream of the next model, or nil did not take it back")
		}
		if err := fill(ctx, m); err != nil {
			return err
		}
		return f(ctx, m, side)
	})
}

func TestReductionsWaitForTheComputeStream(t *testing.T) {
	onSideStream(t, 2, mixed(2).descriptor(t), func(ctx context.Context, m *Model, side *cpu.Stream) error {
		p := m.Backward(ctx)
		for i := 3; i >= 0; i-- {
			b, g, err := p.GatherWithGrads(0, i)
			if err != nil {
				return err
			}
			x := Grad[float32](g, 0, 0, 0).Host()
			write := func() {
				for j := range x {
					x[j] += float32(j)
				}
			}
			if i%2 == 1 {
				side.Do(late(write))
			} else { // while the side stream is busy for the block before
				write()
			}
			b.Release()
			g.Reduce()
		}
		if err := p.End(); err != nil {
			return err
		}
		return wantGrads(ctx, m, func(name string, i int64) float32 {
			if strings.HasSuffix(name, ".w") {
				return float32(i)
			}
			return 0
		})
	})
}

func TestAGradientBufferIsNotHandedOutWhileItIsReduced(t *testing.T) {
	tm := trainable(2)
	tm.gradSlots, tm.prefetch = 1, 1 // the next block is there before the reduction
	filled(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		p := m.Backward(ctx)
		for i := 2; i >= 0; i-- {
			b, g, err := p.GatherWithGrads(0, i)
			if err != nil {
				return err
			}
			name := b.m.blocks[i].name + ".w"
			if err := edit(ctx, Grad[float32](g, 0, 0, 0), func(j int, old float32) float32 { return old + value(name, int64(j)) }); err != nil {
				return err
			}
			b.Release()
			if m.rank.Rank() == i%2 {
				time.Sleep(10 * time.Millisecond)
			}
			g.Reduce()
		}
		if err := p.End(); err != nil {
			return err
		}
		return wantGrads(ctx, m, value)
	})
}

// wantGrads compares all reduced gradients and keeps them.
func wantGrads(ctx context.Context, m *Model, want func(name string, i int64) float32) error {
	return m.Inspect(ctx, func(s *Shards) error {
		for sh := range s.All() {
			got, err := gradientOf(ctx, sh)
			if err != nil {
				return err
			}
			for i, v := range got {
				if at := sh.Offset + int64(i); v != want(sh.Name, at) {
					return fmt.Errorf("gradient of %s[%d] = %v, want %v", sh.Name, at, v, want(sh.Name, at))
				}
			}
		}
		return nil
	})
}

// backwardOf gives each element of the listed kinds' first parameter, which is
// bf16, the gradient g.
func backwardOf(ctx context.Context, m *Model, g float32, kinds ...int) error {
	p := m.Backward(ctx)
	for _, k := range kinds {
		b, grads, err := p.GatherWithGrads(k, 0)
		if err != nil {
			return err
		}
		if err := edit(ctx, Grad[dtype.BF16](grads, 0, 0, 0), func(int, dtype.BF16) dtype.BF16 { return dtype.BF16FromFloat32(g) }); err != nil {
			return err
		}
		b.Release()
		grads.Reduce()
	}
	return p.End()
}

func TestAParameterUsedInTheSecondMicroBatchOnlyAndOneNeverUsed(t *testing.T) {
	tm := testModel{worlds: []int64{2}, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{
		{name: "a", params: []param{bf16("a", 10)}}, {name: "b", params: []param{bf16("b", 3)}}, {name: "c", params: []param{bf16("c", 5)}},
	}}
	filled(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		for range 2 { // the second round must not find anything of the first
			// 1 + 1/256 is no bf16: the sum is kept in f32.
			if err := backwardOf(ctx, m, 1, 0); err != nil {
				return err
			}
			if err := backwardOf(ctx, m, 1.0/256, 1, 0); err != nil {
				return err
			}
			want := map[string]float32{"a": 1 + 1.0/256, "b": 1.0 / 256, "c": 0}
			if err := wantGrads(ctx, m, func(name string, _ int64) float32 { return want[name] }); err != nil {
				return err
			}
			if _, err := m.StepAdamW(ctx, optim.AdamW{LR: 0.1}); err != nil {
				return err
			}
			for i := range m.buckets {
				if m.buckets[i].summed {
					return fmt.Errorf("after the step %s still has a sum", m.buckets[i].name)
				}
			}
		}
		return nil
	})
}

func TestThawedParametersAreReducedInTheWireType(t *testing.T) {
	tm := testModel{worlds: []int64{2}, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{{name: "a", params: []param{bf16("a", 10)}}}}
	filled(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := m.Freeze("a"); err != nil {
			return err
		}
		if err := backwardOf(ctx, m, 5, 0); err != nil {
			return err
		}
		if _, err := m.StepAdamW(ctx, optim.AdamW{LR: 0.1}); err != nil {
			return err
		}
		if err := m.Unfreeze("a"); err != nil {
			return err
		}
		// Rank 0 contributes 1, rank 1 contributes 1/128: in bf16 the sum would
		// be rounded to 1, in f32 it is not.
		if err := backwardOf(ctx, m, []float32{1, 1.0 / 256}[m.rank.Rank()], 0); err != nil {
			return err
		}
		return wantGrads(ctx, m, func(string, int64) float32 { return (1 + 1.0/256) / 2 })
	})
}

func TestGradientsReducedWhileFrozenDoNotCount(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "b", params: []param{f32("w", 7), f32("unused", 3)}}}}
	filled(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := m.Freeze("w"); err != nil {
			return err
		}
		if err := backwardOnce(ctx, m, 1); err != nil {
			return err
		}
		if err := m.Unfreeze("*"); err != nil {
			return err
		}
		if err := backwardOnce(ctx, m, 2); err != nil {
			return err
		}
		return checkGrad(ctx, m, 2*1.5)
	})
}
