package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
)

func TestGatherIsExactOnDirtyMemoryAtEveryWorldSize(t *testing.T) {
	tm := testModel{worlds: []int64{1, 2, 3, 4, 8}, prefetch: 1, blocks: []testBlock{
		{name: "odd", params: []param{f32("a", 5), f32("b", 3), f32("c", 10), f32("none", 0, 8), f32("scalar")}},
		{name: "h.{i}", count: 5, params: []param{f32("h.{i}.w", 7, 3), f32("h.{i}.one", 1), f32("h.{i}.prime", 101)}},
		{name: "empty", params: []param{f32("e", 0, 8), f32("e2", 8, 0)}},
	}}
	d := tm.descriptor(t)
	for _, n := range tm.worlds {
		mustRun(t, int(n), d, func(ctx context.Context, m *Model) error {
			if mem := m.Memory(); mem.AllocatedBytes != mem.PeakBytes || mem.PeakBytes == 0 {
				return fmt.Errorf("planned and allocated memory differ: %+v", mem)
			}
			if err := fill(ctx, m); err != nil {
				return err
			}
			for range 2 {
				if err := readAll(ctx, m.Forward(ctx), d); err != nil {
					return err
				}
			}
			return nil
		})
	}
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
				if err := expect(ctx, Param[float32](b, 0, 0, 0)); err != nil {
					return fmt.Errorf("step %d: %w", step, err)
				}
				b.Release()
			}
			if step == 3 {
				p.note(boom)
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
		if err := expect(ctx, Param[float32](again, 0, 0, 0)); err != nil {
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
		return readAll(ctx, m.Eval(ctx), m.descriptor)
	})
}

func TestGathersFromManyGoroutinesAreSafe(t *testing.T) {
	tm := trainable(1)
	tm.maxLive = 3
	mustRun(t, 1, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Forward(ctx)
		errs := make(chan error)
		for g := range 6 {
			go func() {
				b, err := p.Gather(0, g%3)
				if err == nil {
					err = expect(ctx, Param[float32](b, 0, 0, 0))
					b.Release()
				}
				errs <- err
			}()
		}
		for range 6 {
			if err := <-errs; err != nil {
				return err
			}
		}
		return p.End()
	})
}

func TestTwoModelsOnOneRankDoNotMeet(t *testing.T) {
	one, two := trainable(2).descriptor(t), trainable(2).descriptor(t)
	mustRun(t, 2, one, func(ctx context.Context, m *Model) error {
		other, err := Open(ctx, m.rank, two, Options{})
		if err != nil {
			return err
		}
		defer other.Close()
		for _, model := range []*Model{m, other} {
			if err := fill(ctx, model); err != nil {
				return err
			}
		}
		a, b := m.Forward(ctx), other.Forward(ctx)
		x, err := a.Gather(0, 0)
		if err != nil {
			return err
		}
		y, err := b.Gather(0, 1)
		if err != nil {
			return err
		}
		if err := errors.Join(expect(ctx, Param[float32](x, 0, 0, 0)), expect(ctx, Param[float32](y, 0, 0, 0))); err != nil {
			return err
		}
		x.Release()
		y.Release()
		return errors.Join(a.End(), b.End())
	})
}

func TestReleasingTwiceDoesNotTakeAnothersBlock(t *testing.T) {
	filled(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		p := m.Forward(ctx)
		one, err := p.Gather(0, 1)
		if err != nil {
			return err
		}
		two, err := p.Gather(0, 1)
		if err != nil {
			return err
		}
		one.Release()
		if err := wantStateError(one.Release, "h.1: not available: released already"); err != nil {
			return err
		}
		if err := expect(ctx, Param[float32](two, 0, 0, 0)); err != nil {
			return fmt.Errorf("after the other was released twice: %w", err)
		}
		view := Param[float32](two, 0, 0, 0)
		two.Release()
		if err := wantStateError(func() { view.Host() }, "read of h.1.w"); err != nil {
			return err
		}
		return p.End()
	})
}

func TestViewsOfASharedParameterEndWithTheirBlock(t *testing.T) {
	filled(t, 2, mixed(2).descriptor(t), func(ctx context.Context, m *Model) error {
		p := m.Forward(ctx)
		b, err := p.Gather(0, 0)
		if err != nil {
			return err
		}
		x := SharedParam[dtype.BF16](b, 0, 0, 0)
		shared, err := read(ctx, x)
		if err != nil {
			return err
		}
		if got, want := shared[36], dtype.BF16FromFloat32(value("shared", 36)); got != want {
			return fmt.Errorf("shared[36] = %v, want %v", got, want)
		}
		b.Release()
		if m.shared[0].state != Available {
			return fmt.Errorf("with three users ahead the parameter is %s", m.shared[0].state)
		}
		if err := wantStateError(func() { x.Host() }, "read of shared"); err != nil {
			return err
		}
		return p.End()
	})
}

func TestOtherPassesDoNotSpoilTheOpenOne(t *testing.T) {
	filled(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		ended := m.Forward(ctx)
		if err := ended.End(); err != nil {
			return err
		}
		p := m.Forward(ctx)
		refused := m.Backward(ctx)
		for what, c := range map[string]struct {
			pass  Pass
			words string
		}{"an ended pass": {ended, "has ended"}, "a second pass": {refused, "forward pass is open"}} {
			_, err := c.pass.Gather(0, 0)
			if err := wantMisuse(err, c.words); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if err := wantMisuse(c.pass.End(), c.words); err != nil {
				return fmt.Errorf("End of %s: %w", what, err)
			}
		}
		return p.End()
	})
}

func TestGathersThatCanNotBeAreErrorsOfThePass(t *testing.T) {
	for name, c := range map[string]struct {
		call  func(Pass) error
		words string
	}{
		"no such kind":                {func(p Pass) error { _, err := p.Gather(1, 0); return err }, "no block kind 1"},
		"negative kind":               {func(p Pass) error { _, err := p.Gather(-1, 0); return err }, "no block kind -1"},
		"negative index":              {func(p Pass) error { _, err := p.Gather(0, -1); return err }, "index -1 is not in 0..2"},
		"gradients of a forward pass": {func(p Pass) error { _, _, err := p.GatherWithGrads(0, 0); return err }, "the pass is a forward pass"},
	} {
		t.Run(name, func(t *testing.T) {
			filled(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
				p := m.Forward(ctx)
				err := c.call(p)
				if err == nil || !strings.Contains(err.Error(), c.words) {
					return fmt.Errorf("the gather returned %w", err)
				}
				if ended := p.End(); !errors.Is(ended, err) {
					return fmt.Errorf("End returned %w", ended)
				}
				return readAll(ctx, m.Eval(ctx), m.descriptor)
			})
		})
	}
}

func TestModelsOfOneRankTakeTurns(t *testing.T) {
	d := trainable(1).descriptor(t)
	mustRun(t, 1, d, func(ctx context.Context, m *Model) error {
		other, err := Open(ctx, m.rank, d, Options{})
		if err != nil {
			return err
		}
		defer other.Close()
		errs := make(chan error)
		for _, model := range []*Model{m, other} {
			go func() {
				err := fill(ctx, model)
				for i := 0; i < 50 && err == nil; i++ {
					err = readAll(ctx, model.Forward(ctx), d)
				}
				errs <- err
			}()
		}
		return errors.Join(<-errs, <-errs)
	})
}

func TestASlotIsNotTakenFromReadersOnTheComputeStream(t *testing.T) {
	d := testModel{worlds: []int64{2}, maxLive: 1, blocks: trainable(2).blocks}.descriptor(t)
	for name, leave := range map[string]func(context.Context, *Model, Pass, Block) error{
		"release": func(_ context.Context, _ *Model, p Pass, b Block) error {
			b.Release()
			_, err := p.Gather(0, 1)
			return err
		},
		"end": func(ctx context.Context, m *Model, p Pass, _ Block) error {
			if err := wantMisuse(p.End(), "h.0 not released"); err != nil {
				return err
			}
			_, err := m.Forward(ctx).Gather(0, 1)
			return err
		},
		"close": func(_ context.Context, m *Model, _ Pass, _ Block) error { return m.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			onSideStream(t, 2, d, func(ctx context.Context, m *Model, side *cpu.Stream) error {
				p := m.Forward(ctx)
				b, err := p.Gather(0, 0)
				if err != nil {
					return err
				}
				x, read := Param[float32](b, 0, 0, 0).Host(), make([]float32, 9)
				side.Do(late(func() { copy(read, x) }))
				if err := leave(ctx, m, p, b); err != nil {
					return err
				}
				if err := side.Synchronize(ctx, side.Record()); err != nil {
					return err
				}
				for i, v := range read {
					if v != value("h.0.w", int64(i)) {
						return fmt.Errorf("the reader found %v at %d, not %v", v, i, value("h.0.w", int64(i)))
					}
				}
				return nil
			})
		})
	}
}

func TestRanksMayReleaseInAnotherOrder(t *testing.T) {
	tm := testModel{worlds: []int64{2}, maxLive: 3, prefetch: 2, blocks: []testBlock{{name: "h.{i}", count: 6, params: []param{f32("h.{i}.w", 9)}}}}
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Forward(ctx)
		var held [3]Block
		for i := range held {
			var err error
			if held[i], err = p.Gather(0, i); err != nil {
				return err
			}
		}
		first := m.rank.Rank()
		held[first].Release()
		held[1-first].Release()
		held[2].Release()
		for i := 3; i < 6; i++ {
			b, err := p.Gather(0, i)
			if err != nil {
				return err
			}
			if err := expect(ctx, Param[float32](b, 0, 0, 0)); err != nil {
				return err
			}
			b.Release()
		}
		return p.End()
	})
}
