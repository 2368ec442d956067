package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

func TestStepIsTheSameAtEveryWorldSize(t *testing.T) {
	normal := &random.Distribution{Kind: random.Normal, Std: 1}
	tm := testModel{worlds: []int64{1, 2, 4}, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{
		{name: "b", params: []param{
			{name: "w", shape: []int64{33}, dtype: dtype.Float32, init: normal},
			{name: "plain", shape: []int64{5}, dtype: dtype.Float32, plain: true, init: normal},
			{name: "low", shape: []int64{19}, dtype: dtype.BFloat16, init: normal},
			{name: "double", shape: []int64{3}, dtype: dtype.Float64, init: normal},
		}},
	}}
	d := tm.descriptor(t)
	var want string // of one rank on the CPU
	onBackends(t, func(t *testing.T, b *backend) {
		for _, n := range tm.worlds {
			got := weightsAfterSteps(t, b, int(n), d)
			if want == "" {
				want = got
			}
			if got != want {
				t.Errorf("weights at %d ranks differ from those at 1 on the CPU:\n%s\n%s", n, got, want)
			}
		}
	})
}

// weightsAfterSteps trains on n ranks and returns all weights.
func weightsAfterSteps(t *testing.T, b *backend, n int, d *Descriptor) (weights string) {
	t.Helper()
	b.must(t, n, d, func(ctx context.Context, m *Model) error {
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
			weights = text
		}
		return err
	})
	return weights
}

// squareLoss gives every parameter its own value as gradient.
func squareLoss(ctx context.Context, m *Model) error {
	p := m.Backward(ctx)
	b, g, err := p.GatherWithGrads(0, 0)
	if err != nil {
		return err
	}
	buckets := m.blocks[0].kind.Buckets
	second := buckets[0].Params[1].Start
	err = errors.Join(
		copyOver(ctx, Grad[float32](g, 0, 0, 0), Param[float32](b, 0, 0, 0)),
		copyOver(ctx, Grad[float32](g, 0, 1, second), Param[float32](b, 0, 1, second)),
		copyOver(ctx, Grad[dtype.BF16](g, 1, 0, 0), Param[dtype.BF16](b, 1, 0, 0)),
		copyOver(ctx, Grad[float64](g, 2, 0, 0), Param[float64](b, 2, 0, 0)),
	)
	if err != nil {
		return err
	}
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
	w, err0 := read(ctx, Param[float32](b, 0, 0, 0))
	plain, err1 := read(ctx, Param[float32](b, 0, 1, second))
	low, err2 := read(ctx, Param[dtype.BF16](b, 1, 0, 0))
	double, err3 := read(ctx, Param[float64](b, 2, 0, 0))
	b.Release()
	return fmt.Sprint(w, plain, low, double), errors.Join(err0, err1, err2, err3, p.End())
}

func TestANaNOnOneRankSkipsTheStepOnAll(t *testing.T) {
	tm := testModel{worlds: []int64{3}, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{{name: "b", params: []param{f32("w", 7), f32("unused", 3)}}}}
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
		return readAll(ctx, m.Eval(ctx), m.descriptor)
	})
}

func TestFrozenParametersStayAndThawWithTheirState(t *testing.T) {
	tm := testModel{worlds: []int64{2}, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{{name: "b", params: []param{f32("w", 7), f32("unused", 3)}}}}
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
		if err := readAll(ctx, m.Eval(ctx), m.descriptor); err != nil {
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

func TestAFailedOrPanickingUpdateLeavesTheModelUsable(t *testing.T) {
	mustRun(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		if _, err := m.Forward(ctx).Gather(0, 0); err == nil || !strings.Contains(err.Error(), "no values yet") {
			return fmt.Errorf("gather before Init: %w", err)
		}
		if err := m.Init(ctx, 1); err == nil || !strings.Contains(err.Error(), "h.0.w") {
			return fmt.Errorf("Init without inits: %w", err)
		}
		if err := fill(ctx, m); err != nil {
			return err
		}
		boom := errors.New("boom")
		if err := m.Update(ctx, func(*Shards) error { return boom }); !errors.Is(err, boom) {
			return err
		}
		var kept *Shards
		func() {
			defer func() { _ = recover() }()
			_ = m.Update(ctx, func(s *Shards) error { kept = s; panic(boom) })
		}()
		if err := wantStateError(func() { kept.All()(func(Shard) bool { return true }) }, "returned"); err != nil {
			return err
		}
		return readAll(ctx, m.Eval(ctx), m.descriptor)
	})
}

// trainOnce goes forward and backward through four blocks, whose first parameter
// has as many elements as scratch, and steps.
func trainOnce(ctx context.Context, m *Model, scratch []float32) error {
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
		clear(scratch)
		scratch[0] = 1
		if err := Grad[float32](g, 0, 0, 0).CopyFrom(ctx, scratch); err != nil {
			return err
		}
		b.Release()
		g.Reduce()
	}
	if err := p.End(); err != nil {
		return err
	}
	_, err := m.StepAdamW(ctx, optim.AdamW{LR: 0.1})
	return err
}

func TestStepsThatThePlanHasNoStateForAreRefused(t *testing.T) {
	adamw := func(ctx context.Context, m *Model) error { _, err := m.StepAdamW(ctx, optim.AdamW{LR: 1}); return err }
	sgd := func(momentum float64) func(ctx context.Context, m *Model) error {
		return func(ctx context.Context, m *Model) error {
			_, err := m.StepSGD(ctx, optim.SGD{LR: 1, Momentum: momentum})
			return err
		}
	}
	for name, c := range map[string]struct {
		plan  layout.Optimizer
		param param
		step  func(context.Context, *Model) error
		words string // empty: it works
	}{
		"adamw without a plan":    {layout.Optimizer{}, f32("w", 9), adamw, "a step of AdamW, but the plan's optimizer is none"},
		"adamw instead of sgd":    {layout.Optimizer{Kind: layout.SGD, Masters: true}, bf16("w", 9), adamw, "the plan's optimizer is sgd"},
		"adamw instead of moment": {layout.Optimizer{Kind: layout.MomentumSGD, Masters: true}, bf16("w", 9), adamw, "the plan's optimizer is sgd with momentum"},
		"sgd instead of adamw":    {layout.Optimizer{Kind: layout.AdamW, Masters: true}, bf16("w", 9), sgd(0), "a step of SGD, but the plan's optimizer is adamw"},
		"sgd without a plan":      {layout.Optimizer{}, f32("w", 9), sgd(0), "a step of SGD, but the plan's optimizer is none"},
		"bf16 without masters":    {layout.Optimizer{Kind: layout.AdamW}, bf16("w", 9), adamw, "needs masters of b/bf16, which is bf16"},
		"f32 without masters":     {layout.Optimizer{Kind: layout.AdamW}, f32("w", 9), adamw, ""},
		"momentum without buffer": {layout.Optimizer{Kind: layout.SGD, Masters: true}, bf16("w", 9), sgd(0.9), "a step of SGD with momentum, but the plan's optimizer is sgd"},
		"sgd without momentum":    {layout.Optimizer{Kind: layout.SGD, Masters: true}, bf16("w", 9), sgd(0), ""},
		"no use of the buffer":    {layout.Optimizer{Kind: layout.MomentumSGD, Masters: true}, bf16("w", 9), sgd(0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			tm := testModel{worlds: []int64{2}, optimizer: c.plan, blocks: []testBlock{{name: "b", params: []param{c.param}}}}
			filled(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
				err := c.step(ctx, m)
				if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
					return fmt.Errorf("the step returned %w", err)
				}
				return m.Eval(ctx).End() // the model goes on
			})
		})
	}
}

func TestInsideAPassOnlyThePassIsAllowed(t *testing.T) {
	filled(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		p := m.Backward(ctx)
		for what, call := range everyCall(ctx, m) {
			if err := wantMisuse(call(), "a backward pass is open"); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return p.End()
	})
}

func TestInsideAnUpdateTheModelIsNotUsed(t *testing.T) {
	filled(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		calls := everyCall(ctx, m)
		calls["Close"] = m.Close
		inside := func(words string) func(*Shards) error {
			return func(*Shards) error {
				m.Stats()
				m.Memory()
				for what, call := range calls {
					if err := wantMisuse(call(), words); err != nil {
						return fmt.Errorf("%s: %w", what, err)
					}
				}
				return nil
			}
		}
		return errors.Join(m.Update(ctx, inside("its update is running")), m.Inspect(ctx, inside("its inspection is running")), m.Eval(ctx).End())
	})
}

// everyCall lists what a model can be asked between passes.
func everyCall(ctx context.Context, m *Model) map[string]func() error {
	return map[string]func() error{
		"Forward":   func() error { return m.Forward(ctx).End() },
		"Eval":      func() error { return m.Eval(ctx).End() },
		"Backward":  func() error { _, _, err := m.Backward(ctx).GatherWithGrads(0, 0); return err },
		"Init":      func() error { return m.Init(ctx, 1) },
		"StepAdamW": func() error { _, err := m.StepAdamW(ctx, optim.AdamW{LR: 1}); return err },
		"StepSGD":   func() error { _, err := m.StepSGD(ctx, optim.SGD{LR: 1}); return err },
		"ZeroGrad":  m.ZeroGrad,
		"Freeze":    func() error { return m.Freeze("*") },
		"Unfreeze":  func() error { return m.Unfreeze("*") },
		"Update":    func() error { return m.Update(ctx, func(*Shards) error { return nil }) },
		"Inspect":   func() error { return m.Inspect(ctx, func(*Shards) error { return nil }) },
	}
}

func TestBeforeInitOnlyWhatNeedsNoValuesIsAllowed(t *testing.T) {
	mustRun(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		calls := everyCall(ctx, m)
		for _, what := range []string{"Forward", "Eval", "Backward", "StepAdamW", "StepSGD"} {
			if err := wantMisuse(calls[what](), "no values yet"); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		for _, what := range []string{"ZeroGrad", "Freeze", "Unfreeze", "Inspect"} {
			if err := calls[what](); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return nil
	})
}

func TestNilContextsAndFunctionsAreRefused(t *testing.T) {
	filled(t, 1, trainable(1).descriptor(t), func(ctx context.Context, m *Model) error {
		calls := everyCall(nil, m)
		for _, what := range []string{"Forward", "Eval", "Backward", "Init", "StepAdamW", "StepSGD", "Update", "Inspect"} {
			if err := wantMisuse(calls[what](), "the context is nil"); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		for _, err := range []error{m.Update(ctx, nil), m.Inspect(ctx, nil)} {
			if err := wantMisuse(err, "the function is nil"); err != nil {
				return err
			}
		}
		p := m.Forward(ctx)
		b, err := p.Gather(0, 0)
		if err != nil {
			return err
		}
		x := Param[float32](b, 0, 0, 0)
		if err := wantMisuse(x.CopyTo(nil, make([]float32, 9)), "the context is nil"); err != nil {
			return err
		}
		b.Release()
		return p.End()
	})
}

func TestAFailedUpdateLeavesMastersAndCopiesAlike(t *testing.T) {
	boom := errors.New("boom")
	tm := testModel{worlds: []int64{2}, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{{name: "b", params: []param{bf16("w", 40)}}}}
	for name, end := range map[string]func() error{"error": func() error { return boom }, "panic": func() error { panic(boom) }} {
		t.Run(name, func(t *testing.T) {
			filled(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) (err error) {
				func() {
					defer func() { _ = recover() }()
					err = m.Update(ctx, func(s *Shards) error {
						for sh := range s.All() {
							if err := WriteValues(ctx, sh, slices.Repeat([]float32{3}, int(sh.Len))); err != nil {
								return err
							}
						}
						return end()
					})
				}()
				if name == "error" && !errors.Is(err, boom) {
					return err
				}
				p := m.Eval(ctx)
				b, err := p.Gather(0, 0)
				if err != nil {
					return err
				}
				w, err := read(ctx, Param[dtype.BF16](b, 0, 0, 0))
				if err != nil {
					return err
				}
				for i, v := range w {
					if v != dtype.BF16FromFloat32(3) {
						return fmt.Errorf("element %d is %v, its master 3", i, v)
					}
				}
				b.Release()
				return p.End()
			})
		})
	}
}

func TestInitAgainStartsAfresh(t *testing.T) {
	tm := trainable(2)
	tm.blocks[0].params[0].init = &random.Distribution{Kind: random.Normal, Std: 1}
	var want string
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		for round := range 2 {
			if err := m.Init(ctx, 3); err != nil {
				return err
			}
			for range 2 {
				p := m.Backward(ctx)
				b, g, err := p.GatherWithGrads(0, 1)
				if err != nil {
					return err
				}
				if err := copyOver(ctx, Grad[float32](g, 0, 0, 0), Param[float32](b, 0, 0, 0)); err != nil {
					return err
				}
				b.Release()
				g.Reduce()
				if err := p.End(); err != nil {
					return err
				}
				if _, err := m.StepAdamW(ctx, optim.AdamW{LR: 0.1}); err != nil {
					return err
				}
			}
			p := m.Eval(ctx)
			b, err := p.Gather(0, 1)
			if err != nil {
				return err
			}
			w, err := read(ctx, Param[float32](b, 0, 0, 0))
			b.Release()
			if err := errors.Join(err, p.End()); err != nil {
				return err
			}
			got := fmt.Sprint(w)
			if m.rank.Rank() != 0 {
				continue
			}
			if round == 0 {
				want = got
			}
			if got != want {
				return fmt.Errorf("after the second Init %s, after the first %s", got, want)
			}
		}
		return nil
	})
}

func TestPatternsThatMatchNothingFreezeNothing(t *testing.T) {
	filled(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		for _, patterns := range [][]string{{""}, {"h"}, {"h.1.w", "x"}, {"[h]*"}, {"h.?.w"}, {"h.{i}.w"}} {
			if err := m.Freeze(patterns...); err == nil {
				return fmt.Errorf("patterns %q were accepted", patterns)
			}
		}
		for i := range m.ranges {
			if m.ranges[i].frozen {
				return fmt.Errorf("%s is frozen", m.ranges[i].name)
			}
		}
		if err := errors.Join(m.Freeze(), m.Freeze("***"), m.Freeze("h.*", "*.w"), m.Unfreeze("h.0.w", "h.0.w")); err != nil {
			return err
		}
		for i := range m.ranges {
			if r := &m.ranges[i]; r.frozen == (r.name == "h.0.w") {
				return fmt.Errorf("%s: frozen is %v", r.name, r.frozen)
			}
		}
		if m.buckets[0].frozen != 0 || m.buckets[1].frozen != 1 {
			return fmt.Errorf("the buckets count %d and %d frozen parameters", m.buckets[0].frozen, m.buckets[1].frozen)
		}
		return nil
	})
}

// stepped returns the values of w after the steps, on one rank.
func stepped(t *testing.T, steps func(context.Context, *Model) error) []float32 {
	t.Helper()
	tm := testModel{worlds: []int64{1}, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{{name: "b", params: []param{f32("w", 7), f32("unused", 3)}}}}
	var out []float32
	mustRun(t, 1, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		if err := steps(ctx, m); err != nil {
			return err
		}
		p := m.Eval(ctx)
		b, err := p.Gather(0, 0)
		if err != nil {
			return err
		}
		w, err := read(ctx, Param[float32](b, 0, 0, 0))
		out = append(out, w...)
		b.Release()
		return errors.Join(err, p.End())
	})
	return out
}

func oneStep(ctx context.Context, m *Model, scale float32, o optim.AdamW) (StepResult, error) {
	if err := backwardOnce(ctx, m, scale); err != nil {
		return StepResult{}, err
	}
	return m.StepAdamW(ctx, o)
}

func TestAStepAfterSkippedOnesIsAFirstStep(t *testing.T) {
	o := optim.AdamW{LR: 0.1, WeightDecay: 0.1}
	fresh := stepped(t, func(ctx context.Context, m *Model) error { _, err := oneStep(ctx, m, 1, o); return err })
	after := stepped(t, func(ctx context.Context, m *Model) error {
		for _, bad := range []float64{math.NaN(), math.Inf(1)} {
			if res, err := oneStep(ctx, m, float32(bad), o); err != nil || !res.Skipped {
				return fmt.Errorf("step over %v: %+v, %w", bad, res, err)
			}
		}
		_, err := oneStep(ctx, m, 1, o)
		return err
	})
	if fmt.Sprint(fresh) != fmt.Sprint(after) {
		t.Errorf("after skipped steps %v, want %v", after, fresh)
	}
}

func TestALossScaleChangesNothingButTheRange(t *testing.T) {
	plain := optim.AdamW{LR: 0.1, ClipNorm: 0.5, Eps: 0.1}
	scaled := plain
	scaled.LossScale = 8
	want := stepped(t, func(ctx context.Context, m *Model) error { _, err := oneStep(ctx, m, 1, plain); return err })
	got := stepped(t, func(ctx context.Context, m *Model) error { _, err := oneStep(ctx, m, 8, scaled); return err })
	unclipped := plain
	unclipped.ClipNorm = 0
	other := stepped(t, func(ctx context.Context, m *Model) error { _, err := oneStep(ctx, m, 1, unclipped); return err })
	if fmt.Sprint(got) != fmt.Sprint(want) || fmt.Sprint(want) == fmt.Sprint(other) {
		t.Errorf("with a loss scale %v, without %v, without clipping %v", got, want, other)
	}
}

// halve is an optimizer of the trainer's own, which copies on every device: it
// adds half of the gradient to the value.
func halve(ctx context.Context, m *Model) error {
	return m.Update(ctx, func(s *Shards) error {
		for sh := range s.All() {
			x, g := make([]float32, sh.Len), make([]float32, sh.Len)
			err := errors.Join(ReadValues(ctx, sh, x), ReadGradient(ctx, sh, g))
			for i := range x {
				x[i] += g[i] / 2
			}
			if err = errors.Join(err, WriteValues(ctx, sh, x), WriteGradient(ctx, sh, g)); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestUnscaleDividesAndClipsForAnUpdate(t *testing.T) {
	mustRun(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		b, g, err := p.GatherWithGrads(0, 1)
		if err != nil {
			return err
		}
		err = edit(ctx, Grad[float32](g, 0, 0, 0), func(i int, _ float32) float32 { return []float32{2: 48, 8: 0}[i] }) // on both ranks: the mean
		if err != nil {
			return err
		}
		b.Release()
		g.Reduce()
		if err := p.End(); err != nil {
			return err
		}
		res, err := m.Unscale(ctx, 4, 3)
		if err != nil || res.GradNorm != 12 || res.Skipped || math.Abs(res.ClipScale-0.25) > 1e-6 {
			t.Errorf("result %+v, %v", res, err)
		}
		if err := halve(ctx, m); err != nil {
			return err
		}
		f := m.Eval(ctx)
		b, err = f.Gather(0, 1)
		if err != nil {
			return err
		}
		w, err := read(ctx, Param[float32](b, 0, 0, 0))
		if err != nil {
			return err
		}
		got, want := w[2], value("h.1.w", 2)+float32(48*res.ClipScale/4)/2
		if math.Abs(float64(got-want)) > 1e-4 {
			t.Errorf("updated to %v, want %v", got, want)
		}
		b.Release()
		return f.End()
	})
}

func TestUnscaleForgetsGradientsThatAreNotFinite(t *testing.T) {
	mustRun(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		b, g, err := p.GatherWithGrads(0, 1)
		if err != nil {
			return err
		}
		if m.rank.Rank() == 1 {
			nan := slices.Concat([]float32{float32(math.NaN())}, make([]float32, 8))
			if err := Grad[float32](g, 0, 0, 0).CopyFrom(ctx, nan); err != nil {
				return err
			}
		}
		b.Release()
		g.Reduce()
		if err := p.End(); err != nil {
			return err
		}
		if res, err := m.Unscale(ctx, 0, 0); err != nil || !res.Skipped || res.NonFinite != 1 {
			t.Errorf("result %+v, %v", res, err)
		}
		return m.Inspect(ctx, func(s *Shards) error {
			for sh := range s.All() {
				if x, err := gradientOf(ctx, sh); err != nil || slices.ContainsFunc(x, func(y float32) bool { return y != 0 }) {
					t.Errorf("gradient of %s: %v, %v", sh.Name, x, err)
				}
			}
			return nil
		})
	})
}

func TestCopiesOfShardsCheckWhatTheyAreGiven(t *testing.T) {
	tm := trainable(1)
	tm.blocks[0].params = append(tm.blocks[0].params, param{name: "h.{i}.f", shape: []int64{3}, dtype: dtype.Float32, frozen: true})
	mustRun(t, 1, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		return m.Update(ctx, func(s *Shards) error {
			for sh := range s.All() {
				none := context.Context(nil)
				for err, want := range map[error]string{
					ReadValues(ctx, sh, make([]float32, sh.Len+1)): "elements, but the slice has",
					WriteValues(ctx, sh, make([]float64, sh.Len)):  "it holds f32, not f64",
					ReadValues(none, sh, make([]float32, sh.Len)):  "the context is nil",
					ReadValues(ctx, Shard{}, make([]float32, 1)):   "zero value",
				} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("error %v, want %q", err, want)
					}
				}
				if err := ReadGradient(ctx, sh, make([]float32, sh.Len)); (err == nil) != sh.Trainable {
					t.Errorf("gradient of %s: %v", sh.Name, err)
				}
			}
			return nil
		})
	})
}

// Gradients that are finite, and are not once they are divided by the loss scale.
func TestAStepThatWouldOverflowIsSkipped(t *testing.T) {
	mustRun(t, 1, trainable(1).descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		b, g, err := p.GatherWithGrads(0, 1)
		if err != nil {
			return err
		}
		dw := make([]float32, 9)
		dw[3] = 1e10
		if err := Grad[float32](g, 0, 0, 0).CopyFrom(ctx, dw); err != nil {
			return err
		}
		b.Release()
		g.Reduce()
		if err := p.End(); err != nil {
			return err
		}
		res, err := m.StepAdamW(ctx, optim.AdamW{LR: 1, LossScale: 0x1p-126})
		if err != nil || !res.Skipped || res.NonFinite != 0 {
			t.Errorf("result %+v, %v", res, err)
		}
		return nil
	})
}

func TestAnUpdateThatFailsOnOneRankIsTold(t *testing.T) {
	for name, end := range map[string]func() error{
		"error": func() error { return errors.New("only here") },
		"panic": func() error { panic("only here") },
	} {
		t.Run(name, func(t *testing.T) {
			onBackends(t, func(t *testing.T, b *backend) { updateFailsOnOne(t, b, end) })
		})
	}
}

func updateFailsOnOne(t *testing.T, b *backend, end func() error) {
	err := b.runShort(2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		func() {
			defer func() { _ = recover() }()
			_ = m.Update(ctx, func(*Shards) error {
				if m.rank.Rank() == 1 {
					return end()
				}
				return nil
			})
		}()
		_, err := m.StepAdamW(ctx, optim.AdamW{})
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "rank 0 did Step, rank 1 an Update that failed") {
		t.Errorf("error %v", err)
	}
}
