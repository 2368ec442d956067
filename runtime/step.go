package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// StepResult is what a step found; it is the same on all ranks.
type StepResult struct {
	GradNorm  float64 // 2-norm of all unscaled gradients before clipping; NaN or infinite where Skipped
	ClipScale float64 // what clipping multiplied the gradients by; 1 for none
	NonFinite int64   // elements that are NaN or infinite
	Skipped   bool    // some were, so nothing was updated
}

// StepAdamW updates all trainable parameters from the gradients reduced since
// the last step, and forgets these. A parameter that got no gradient counts as
// one whose gradient is zero. If any rank has a NaN or an infinity, no rank
// updates anything and the result says Skipped.
func (m *Model) StepAdamW(ctx context.Context, o optim.AdamW) (StepResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	res, scale, err := m.beginStep(ctx, o.Validate(), o.LossScale, o.ClipNorm)
	if err != nil || res.Skipped {
		return res, err
	}
	prepare := func(steps int64) (optim.AdamWStep, optim.AdamWStep, error) {
		s, err := o.Prepare(steps, scale)
		return s, s.WithoutDecay(), err
	}
	return res, updateRanges(ctx, m, prepare, m.rank.stream.AdamW)
}

// StepSGD is StepAdamW for stochastic gradient descent.
func (m *Model) StepSGD(ctx context.Context, o optim.SGD) (StepResult, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	invalid := o.Validate()
	if o.Momentum != 0 && m.descriptor.Layout.Optimizer.Moments == 0 {
		invalid = errors.Join(invalid, fmt.Errorf("SGD.Momentum is %g, but the plan has no momentum buffer; set optimizer.momentum: f32 in the spec and generate again", o.Momentum))
	}
	res, scale, err := m.beginStep(ctx, invalid, o.LossScale, o.ClipNorm)
	if err != nil || res.Skipped {
		return res, err
	}
	prepare := func(steps int64) (optim.SGDStep, optim.SGDStep, error) {
		s, err := o.Prepare(steps, scale)
		return s, s.WithoutDecay(), err
	}
	return res, updateRanges(ctx, m, prepare, m.rank.stream.SGD)
}

// updateRanges applies an optimizer's kernel to every range that is not frozen.
// prepare returns the scalars of a parameter's n-th step, with decay and
// without; almost always all parameters are at the same step.
func updateRanges[S any](ctx context.Context, m *Model, prepare func(n int64) (decayed, plain S, err error), apply func(S, device.State)) error {
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
			apply(decayed, r.state)
		} else {
			apply(plain, r.state)
		}
	}
	return m.endStep(ctx)
}

// beginStep agrees with the other ranks on the gradient's norm and whether it
// is finite, and returns what gradients are to be multiplied by.
func (m *Model) beginStep(ctx context.Context, invalid error, lossScale, clipNorm float64) (StepResult, float64, error) {
	if err := m.writable(ctx, "optimizer step"); err != nil {
		return StepResult{}, 0, err
	}
	if invalid != nil {
		return StepResult{}, 0, fmt.Errorf("optimizer step of model %s: %w", m.descriptor.Model, invalid)
	}
	m.completeGrads()
	total, err := m.globalNorm(ctx)
	if err != nil {
		return StepResult{}, 0, err
	}
	if !total.Finite() {
		m.forgetGrads()
		return StepResult{GradNorm: math.Sqrt(total.SumSquares), ClipScale: 1, NonFinite: total.NonFinite, Skipped: true}, 0, nil
	}
	scale, norm := optim.GradScale(total, lossScale, clipNorm)
	return StepResult{GradNorm: norm, ClipScale: optim.ClipCoefficient(norm, clipNorm)}, scale, nil
}

// endStep waits for the updates and forgets the gradients.
func (m *Model) endStep(ctx context.Context) error {
	m.forgetGrads()
	return m.fail(m.rank.stream.Synchronize(ctx, m.rank.stream.Record()))
}

// writable returns an error unless the shards may be written now.
func (m *Model) writable(ctx context.Context, operation string) error {
	if err := m.idle(operation); err != nil {
		return err
	}
	if !m.initialized {
		return &StateError{Operation: operation, Subject: "model " + m.descriptor.Model, Found: "its shards have no values yet", Fix: "call Init or Update first"}
	}
	return ctx.Err()
}

// globalNorm sums the norms of all ranks' gradient shards, frozen parameters
// left out, padding never in. Every element counts once: shards do not overlap.
func (m *Model) globalNorm(ctx context.Context) (optim.Norm, error) {
	m.norm = optim.Norm{}
	for i := range m.ranges {
		if r := &m.ranges[i]; !r.frozen {
			m.rank.stream.Norm(&m.norm, r.state.Grad, r.state.Type, r.state.N)
		}
	}
	if err := m.rank.stream.Synchronize(ctx, m.rank.stream.Record()); err != nil {
		return optim.Norm{}, m.fail(err)
	}
	sums := m.scratchHost[:16]
	binary.LittleEndian.PutUint64(sums, math.Float64bits(m.norm.SumSquares))
	binary.LittleEndian.PutUint64(sums[8:], math.Float64bits(float64(m.norm.NonFinite)))
	if err := m.sumOverRanks(ctx, "the gradient norm", sums); err != nil {
		return optim.Norm{}, err
	}
	return optim.Norm{
		SumSquares: math.Float64frombits(binary.LittleEndian.Uint64(sums)),
		NonFinite:  int64(math.Float64frombits(binary.LittleEndian.Uint64(sums[8:]))),
	}, nil
}

// sumOverRanks replaces the f64s in b by their sums over the ranks.
func (m *Model) sumOverRanks(ctx context.Context, subject string, b []byte) error {
	mem := m.scratch.Slice(0, int64(len(b)))
	if err := m.rank.device.Write(ctx, mem, b); err != nil {
		return m.fail(err)
	}
	m.comm.AllReduce(subject, mem, dtype.Float64)
	if err := m.settle(ctx); err != nil {
		return err
	}
	return m.fail(m.rank.device.Read(ctx, b, mem))
}

// stateOf collects what an optimizer step of a range works on.
func stateOf(r *stepRange) device.State {
	b := r.bucket
	part := func(mem device.Memory, t dtype.DType) device.Memory {
		if mem.Bytes() == 0 {
			return device.Memory{}
		}
		return mem.Slice(r.at.ShardOffset*t.Bytes(), r.at.Len*t.Bytes())
	}
	s := device.State{
		N: r.at.Len, Type: b.gradType,
		Master:  part(b.master, b.gradType),
		Moments: [2]device.Memory{part(b.moments[0], b.gradType), part(b.moments[1], b.gradType)},
		Grad:    part(b.grad, b.gradType),
	}
	if own := part(b.shard, b.layout.DType); b.layout.DType == b.gradType {
		s.Master = own
	} else {
		s.Copy, s.CopyType = own, b.layout.DType
	}
	return s
}
