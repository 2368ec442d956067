package optim

import (
	"cmp"
	"math"
)

// AdamW holds the hyperparameters of Adam with decoupled weight decay
// (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), with
// the meaning they have in torch.optim.AdamW. A trainer may change any of them
// from step to step.
type AdamW struct {
	LR          float64 // learning rate
	Beta1       float64 // decay of the first moment; 0 means 0.9, [Zero] means 0
	Beta2       float64 // decay of the second moment; 0 means 0.999, [Zero] means 0
	Eps         float64 // added to the denominator; 0 means 1e-8, [Zero] means 0
	WeightDecay float64 // share of LR*p taken from p; 0 means none
	ClipNorm    float64 // largest norm of the gradient; 0 means no clipping
	LossScale   float64 // what the loss was multiplied by; 0 and 1 mean nothing
}

// Validate reports a field that is negative, NaN or too large for an f32, a loss
// scale that gradients can't be divided by, and a beta that is not below 1.
func (o AdamW) Validate() error {
	err := checkAll(
		field{"AdamW.LR", o.LR}, field{"AdamW.Beta1", o.Beta1}, field{"AdamW.Beta2", o.Beta2},
		field{"AdamW.Eps", o.Eps}, field{"AdamW.WeightDecay", o.WeightDecay},
		field{"AdamW.ClipNorm", o.ClipNorm})
	return cmp.Or(err, checkLossScale(field{"AdamW.LossScale", o.LossScale}),
		checkBelowOne(field{"AdamW.Beta1", o.Beta1}, field{"AdamW.Beta2", o.Beta2}))
}

// GradScale returns the factor that unscales and clips a gradient of the given
// norm, and the norm of the unscaled gradient before clipping; see [GradScale].
func (o AdamW) GradScale(n Norm) (scale, norm float64) {
	return GradScale(n, o.LossScale, o.ClipNorm)
}

// AdamWStep holds the scalars of one AdamW step. They are computed in f64 and
// rounded once to the arithmetic type of a shard; its fields are what a kernel
// on another device needs.
type AdamWStep struct {
	GradScale float64 // the gradient is multiplied by this first
	Keep      float64 // 1 - LR*WeightDecay: what decay leaves of a parameter
	Gain1     float64 // 1 - Beta1
	Keep1     float64 // 1 - Gain1, used where Gain1 >= 0.5
	Beta2     float64
	Gain2     float64 // 1 - Beta2
	StepSize  float64 // LR / (1 - Beta1^step)
	Root2     float64 // sqrt(1 - Beta2^step)
	Eps       float64
}

// Prepare validates the hyperparameters and computes the scalars of a step.
// Steps are counted from 1; gradScale is what [AdamW.GradScale] returned, or 1.
func (o AdamW) Prepare(step int64, gradScale float64) (AdamWStep, error) {
	if err := o.Validate(); err != nil {
		return AdamWStep{}, err
	}
	if err := checkCall(step, gradScale); err != nil {
		return AdamWStep{}, err
	}
	beta1, beta2 := orDefault(o.Beta1, 0.9), orDefault(o.Beta2, 0.999)
	return AdamWStep{
		GradScale: gradScale,
		Keep:      1 - float64(o.LR*o.WeightDecay),
		Gain1:     1 - beta1,
		Keep1:     1 - (1 - beta1),
		Beta2:     beta2,
		Gain2:     1 - beta2,
		StepSize:  o.LR / (1 - power(beta1, step)),
		Root2:     math.Sqrt(1 - power(beta2, step)),
		Eps:       orDefault(o.Eps, 1e-8),
	}, nil
}

// WithoutDecay returns the scalars for parameters that are not decayed.
func (s AdamWStep) WithoutDecay() AdamWStep {
	s.Keep = 1
	return s
}

// Update applies the step to a range of a shard in f32; the four slices have
// grad's length, and grad is not written. Per element, as in torch.optim.AdamW:
//
//	g = grad * GradScale
//	p = p * (1 - LR*WeightDecay)
//	m = m + (1-Beta1) * (g-m)
//	v = Beta2*v + (1-Beta2)*g*g
//	p = p - LR/(1-Beta1^step) * m / (sqrt(v)/sqrt(1-Beta2^step) + Eps)
//
// Where Beta1 <= 0.5 the first moment is g - (g-m)*Beta1, the same number
// rounded more closely, so that Beta1 = 0 gives m = g.
func (s *AdamWStep) Update(master, m, v, grad []float32) { adamW(s, master, m, v, grad) }

// Update64 is [AdamWStep.Update] for f64 parameters, in f64.
func (s *AdamWStep) Update64(master, m, v, grad []float64) { adamW(s, master, m, v, grad) }

func adamW[F float](s *AdamWStep, master, m, v, grad []F) {
	gradScale, keep := F(s.GradScale), F(s.Keep)
	gain1, keep1, beta2, gain2 := F(s.Gain1), F(s.Keep1), F(s.Beta2), F(s.Gain2)
	stepSize, root2, eps := F(s.StepSize), F(s.Root2), F(s.Eps)
	nearOld := s.Gain1 < 0.5
	master, m, v = master[:len(grad)], m[:len(grad)], v[:len(grad)]
	for i := range grad {
		g := F(grad[i] * gradScale)
		if nearOld {
			m[i] += F((g - m[i]) * gain1)
		} else {
			m[i] = g - F((g-m[i])*keep1)
		}
		v[i] = F(v[i]*beta2) + F(F(g*g)*gain2)
		denominator := F(F(math.Sqrt(float64(v[i])))/root2) + eps
		master[i] = F(master[i]*keep) - F(F(m[i]*stepSize)/denominator)
	}
}
