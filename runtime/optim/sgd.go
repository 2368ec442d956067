package optim

import (
	"cmp"
	"errors"
)

// SGD holds the hyperparameters of stochastic gradient descent with the
// meaning they have in torch.optim.SGD: weight decay is added to the gradient,
// and momentum follows Sutskever et al., "On the importance of initialization
// and momentum in deep learning" (2013), with the rate outside the buffer.
type SGD struct {
	LR          float64 // learning rate
	Momentum    float64 // decay of the momentum buffer; 0 means no momentum
	Dampening   float64 // share of the gradient kept out of the buffer, but for the first step
	WeightDecay float64 // this share of p is added to the gradient
	ClipNorm    float64 // largest norm of the gradient; 0 means no clipping
	LossScale   float64 // what the loss was multiplied by; 0 and 1 mean nothing
	Nesterov    bool    // look ahead by one momentum step; needs Momentum and no Dampening
}

// Validate reports a field that is negative, NaN or too large for an f32, a loss
// scale that gradients can't be divided by, and Nesterov without momentum or with
// dampening.
func (o SGD) Validate() error {
	if o.Nesterov && (o.Momentum == 0 || o.Dampening != 0) {
		return errors.New("SGD.Nesterov needs SGD.Momentum above 0 and SGD.Dampening 0")
	}
	err := checkAll(
		field{"SGD.LR", o.LR}, field{"SGD.Momentum", o.Momentum}, field{"SGD.Dampening", o.Dampening},
		field{"SGD.WeightDecay", o.WeightDecay}, field{"SGD.ClipNorm", o.ClipNorm})
	return cmp.Or(err, checkLossScale(field{"SGD.LossScale", o.LossScale}))
}

// GradScale returns the factor that unscales and clips a gradient of the given
// norm, and the norm of the unscaled gradient before clipping; see [GradScale].
func (o SGD) GradScale(n Norm) (scale, norm float64) {
	return GradScale(n, o.LossScale, o.ClipNorm)
}

// SGDStep holds the scalars of one SGD step, as [AdamWStep] does for AdamW.
type SGDStep struct {
	GradScale   float64 // the gradient is multiplied by this first
	WeightDecay float64
	Momentum    float64
	Gain        float64 // 1 - Dampening; 1 in the first step
	LR          float64
	Nesterov    bool
}

// Prepare validates the hyperparameters and computes the scalars of a step.
// Steps are counted from 1; gradScale is what [SGD.GradScale] returned, or 1.
func (o SGD) Prepare(step int64, gradScale float64) (SGDStep, error) {
	if err := o.Validate(); err != nil {
		return SGDStep{}, err
	}
	if err := checkCall(step, gradScale); err != nil {
		return SGDStep{}, err
	}
	s := SGDStep{
		GradScale: gradScale, WeightDecay: o.WeightDecay, Momentum: o.Momentum,
		Gain: 1 - o.Dampening, LR: o.LR, Nesterov: o.Nesterov,
	}
	if step == 1 {
		s.Gain = 1
	}
	return s, nil
}

// WithoutDecay returns the scalars for parameters that are not decayed.
func (s SGDStep) WithoutDecay() SGDStep {
	s.WeightDecay = 0
	return s
}

// Update applies the step to a range of a shard in f32. The slices have grad's
// length, and grad is not written; momentum starts as zeros, and is not read
// and may be nil where the step has none. Per element, as in torch.optim.SGD:
//
//	g = grad * GradScale + WeightDecay*p
//	b = Momentum*b + (1-Dampening)*g      (the first step: b = g)
//	g = b, or g + Momentum*b with Nesterov
//	p = p - LR*g
func (s *SGDStep) Update(master, momentum, grad []float32) { sgd(s, master, momentum, grad) }

// Update64 is [SGDStep.Update] for f64 parameters, in f64.
func (s *SGDStep) Update64(master, momentum, grad []float64) { sgd(s, master, momentum, grad) }

func sgd[F float](s *SGDStep, master, momentum, grad []F) {
	if s.Momentum == 0 {
		sgdPlain(s, master, grad)
		return
	}
	gradScale, weightDecay, gain, lr := F(s.GradScale), F(s.WeightDecay), F(s.Gain), F(s.LR)
	mu := F(s.Momentum)
	master, momentum = master[:len(grad)], momentum[:len(grad)]
	for i := range grad {
		g := F(grad[i]*gradScale) + F(master[i]*weightDecay)
		b := F(momentum[i]*mu) + F(g*gain)
		momentum[i] = b
		if s.Nesterov {
			b = g + F(b*mu)
		}
		master[i] -= F(b * lr)
	}
}

func sgdPlain[F float](s *SGDStep, master, grad []F) {
	gradScale, weightDecay, lr := F(s.GradScale), F(s.WeightDecay), F(s.LR)
	master = master[:len(grad)]
	for i := range grad {
		g := F(grad[i]*gradScale) + F(master[i]*weightDecay)
		master[i] -= F(g * lr)
	}
}
