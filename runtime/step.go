package shard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
)

// StepResult is what a step found; it is the same on all ranks.
type StepResult struct {
	GradNorm  float64 // 2-norm of all unscaled gradients before clipping; NaN or infinite where Skipped
	ClipScale float64 // what clipping multiplied the gradients by; 1 for none
	NonFinite int64   // elements that are NaN or infinite
	Skipped   bool    // some were, or would be once unscaled, so nothing was updated
}

// StepAdamW updates all trainable parameters from the gradients reduced since
// the last step, and forgets these. A parameter that got no gradient counts as
// one whose gradient is zero. If any rank has a NaN or an infinity, no rank
// updates anything and the result says Skipped.
func (m *Model) StepAdamW(ctx context.Context, o optim.AdamW) (StepResult, error) {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	invalid := errors.Join(o.Validate(), m.hasState("AdamW", layout.AdamW))
	res, scale, err := m.beginStep(ctx, actStep, adamWDigest(o), invalid, o.LossScale, o.ClipNorm)
	if err != nil || res.Skipped {
		return res, err
	}
	prepare := func(steps int64) (optim.AdamWStep, optim.AdamWStep, error) {
		s, err := o.Prepare(steps, scale)
		return s, s.WithoutDecay(), err
	}
	return res, updateRanges(ctx, m, prepare, m.kernels.AdamW)
}

// StepSGD is StepAdamW for stochastic gradient descent.
func (m *Model) StepSGD(ctx context.Context, o optim.SGD) (StepResult, error) {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	state := m.hasState("SGD with momentum", layout.MomentumSGD)
	if o.Momentum == 0 {
		state = m.hasState("SGD", layout.SGD, layout.MomentumSGD)
	}
	invalid := errors.Join(o.Validate(), state)
	res, scale, err := m.beginStep(ctx, actStep, sgdDigest(o), invalid, o.LossScale, o.ClipNorm)
	if err != nil || res.Skipped {
		return res, err
	}
	prepare := func(steps int64) (optim.SGDStep, optim.SGDStep, error) {
		s, err := o.Prepare(steps, scale)
		return s, s.WithoutDecay(), err
	}
	return res, updateRanges(ctx, m, prepare, m.kernels.SGD)
}

func adamWDigest(o optim.AdamW) digest {
	return newDigest.floats(o.LR, o.Beta1, o.Beta2, o.Eps, o.WeightDecay, o.ClipNorm, o.LossScale)
}

func sgdDigest(o optim.SGD) digest {
	nesterov := 0.0
	if o.Nesterov {
		nesterov = 1
	}
	return newDigest.floats(o.LR, o.Momentum, o.Dampening, o.WeightDecay, nesterov, o.ClipNorm, o.LossScale)
}

// hasState returns an error unless the plan is for an optimizer of one of the
// kinds, and keeps the masters that it needs.
func (m *Model) hasState(optimizer string, kinds ...layout.OptimizerKind) error {
	const fix = "set `optimizer` in the spec and generate again, or step with Update"
	if planned := m.descriptor.Layout.Optimizer.Kind; !slices.Contains(kinds, planned) {
		return fmt.Errorf("a step of %s, but the plan's optimizer is %s; %s", optimizer, planned, fix)
	}
	for i := range m.buckets {
		b := &m.buckets[i]
		if b.layout.Trainable && b.layout.DType != b.gradType && !m.descriptor.Layout.Optimizer.Masters {
			return fmt.Errorf("%s needs masters of %s, which is %s, the plan has none; %s", optimizer, b.name, b.layout.DType, fix)
		}
	}
	return nil
}

// updateRanges applies an optimizer's kernel to every range that is not frozen.
// prepare returns the scalars of a parameter's n-th step, with decay and
// without; almost always all parameters are at the same step.
func updateRanges[S any](ctx context.Context, m *Model, prepare func(n int64) (decayed, plain S, err error), apply func(device.Stream, S, device.State)) error {
	var decayed, plain S
	prepared := int64(0)
	for i := range m.ranges {
		r := &m.ranges[i]
		if r.frozen {
			continue
		}
		r.steps++
		if r.steps != prepared {
			var err error
			if decayed, plain, err = prepare(r.steps); err != nil {
				return m.fail(err)
			}
			prepared = r.steps
		}
		if r.param.Decay {
			apply(m.compute, decayed, r.state)
		} else {
			apply(m.compute, plain, r.state)
		}
	}
	return m.endStep(ctx)
}

// beginStep agrees with the other ranks on the gradient's norm and whether it
// is finite, and returns what gradients are to be multiplied by.
func (m *Model) beginStep(ctx context.Context, a act, call digest, invalid error, lossScale, clipNorm float64) (StepResult, float64, error) {
	if err := m.ready(ctx, "optimizer step"); err != nil {
		return StepResult{}, 0, err
	}
	if invalid != nil {
		return StepResult{}, 0, fmt.Errorf("optimizer step of model %s: %w", m.descriptor.Model, invalid)
	}
	if err := m.gradsWhole("optimizer step"); err != nil {
		return StepResult{}, 0, err
	}
	m.did(a, call.detail())
	m.completeGrads()
	total, err := m.globalNorm(ctx)
	if err != nil {
		return StepResult{}, 0, err
	}
	scale, norm := optim.GradScale(total, lossScale, clipNorm)
	if !total.Finite() || scale*math.Sqrt(total.SumSquares) > math.MaxFloat32 {
		m.forgetGrads()
		return StepResult{GradNorm: norm, ClipScale: 1, NonFinite: total.NonFinite, Skipped: true}, 0, nil
	}
	return StepResult{GradNorm: norm, ClipScale: optim.ClipCoefficient(norm, clipNorm)}, scale, nil
}

// Unscale divides the gradients reduced since the last step by lossScale (0 and 1:
// nothing to divide by) and clips them to clipNorm (0: no clipping), in place, for
// an optimizer of the trainer's own that [Model.Update] calls next. What it finds
// and returns is what a step does: where any rank has a NaN or an infinity, the
// gradients of all ranks are forgotten and the result says Skipped. Every rank
// must call it.
func (m *Model) Unscale(ctx context.Context, lossScale, clipNorm float64) (StepResult, error) {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	invalid := optim.SGD{LossScale: lossScale, ClipNorm: clipNorm}.Validate()
	res, scale, err := m.beginStep(ctx, actUnscale, newDigest.floats(lossScale, clipNorm), invalid, lossScale, clipNorm)
	if err != nil || res.Skipped {
		return res, err
	}
	for i := range m.ranges {
		if r := &m.ranges[i]; !r.frozen && scale != 1 {
			m.kernels.Scale(m.compute, r.state.Grad, r.state.Type, r.state.N, scale)
		}
	}
	return res, m.settleCompute(ctx)
}

// endStep waits for the updates and forgets the gradients.
func (m *Model) endStep(ctx context.Context) error {
	m.forgetGrads()
	return m.settleCompute(ctx)
}

// globalNorm sums the norms of all ranks' gradient shards, frozen parameters
// left out, padding never in. Every element counts once: shards do not overlap.
func (m *Model) globalNorm(ctx context.Context) (optim.Norm, error) {
	total, end := m.zeroNorm(), int64(0)
	for i := range m.ranges {
		if r := &m.ranges[i]; !r.frozen {
			bytes := optim.PartialBytes(r.state.N)
			m.kernels.Norm(m.compute, m.partials.Slice(end, bytes), r.state.Grad, r.state.Type, r.state.N)
			end += bytes
		}
	}
	m.kernels.NormTotal(m.compute, total, m.partials.Slice(0, end))
	return m.sumOverRanks(ctx, "the gradient norm")
}

// stateOf collects what an optimizer step of a range works on. Where the plan
// has no masters of low-precision parameters, there is none to step.
func stateOf(r *stepRange) device.State {
	b := r.bucket
	s := device.State{N: r.at.Len, Type: b.gradType, Grad: elementsOf(b.grad, b.gradType, r.at)}
	for i, mem := range b.moments {
		s.Moments[i] = elementsOf(mem, b.gradType, r.at)
	}
	if value, t := b.value(); t == b.gradType {
		s.Master = elementsOf(value, t, r.at)
	}
	if own := b.layout.DType; own != b.gradType {
		s.Copy, s.CopyType = elementsOf(b.shard, own, r.at), own
	}
	return s
}
