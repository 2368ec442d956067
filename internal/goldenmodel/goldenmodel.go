// Package goldenmodel holds two tiny models in plain Go, and what DeepSpeed and
// torch measured when they trained them, for tests that compare a whole
// training step with theirs. It takes and gives f32 slices, one batch of one
// rank at a time; sharding, averaging over ranks and the optimizer are the
// test's. It imports only the standard library.
package goldenmodel

// Sizes of the MLP and its batch on one rank.
const (
	MLPIn, MLPHidden, MLPOut = 17, 33, 5
	MLPRows                  = 4
)

// MLP holds the parameters, or the gradients, of
// Linear(17,33) -> relu -> Linear(33,5) with a mean squared loss.
type MLP struct {
	FC1Weight []float32 `json:"fc1.weight"` // [33, 17]
	FC1Bias   []float32 `json:"fc1.bias"`   // [33]
	FC2Weight []float32 `json:"fc2.weight"` // [5, 33]
	FC2Bias   []float32 `json:"fc2.bias"`   // [5]
}

// NewMLP returns an MLP of zeros.
func NewMLP() MLP {
	return MLP{
		make([]float32, MLPHidden*MLPIn), make([]float32, MLPHidden),
		make([]float32, MLPOut*MLPHidden), make([]float32, MLPOut),
	}
}

// Params lists the slices in the order of the fields.
func (p MLP) Params() [][]float32 {
	return [][]float32{p.FC1Weight, p.FC1Bias, p.FC2Weight, p.FC2Bias}
}

// MLPNames names [MLP.Params] as the models in the vectors do.
var MLPNames = []string{"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}

// Step runs forward and backward on the batch of a rank, x [4, 17] and y
// [4, 5]: it adds the gradients to grad and returns the loss.
func (p MLP) Step(grad MLP, x, y []float32) float32 {
	hidden, active := make([]float32, MLPRows*MLPHidden), make([]float32, MLPRows*MLPHidden)
	out, dOut := make([]float32, MLPRows*MLPOut), make([]float32, MLPRows*MLPOut)
	Linear(hidden, x, p.FC1Weight, p.FC1Bias, MLPRows)
	ReLU(active, hidden)
	Linear(out, active, p.FC2Weight, p.FC2Bias, MLPRows)
	loss := MSE(dOut, out, y)
	LinearBackward(hidden, grad.FC2Weight, grad.FC2Bias, dOut, active, p.FC2Weight, MLPRows)
	ReLUBackward(hidden, hidden, active)
	LinearBackward(nil, grad.FC1Weight, grad.FC1Bias, hidden, x, p.FC1Weight, MLPRows)
	return loss
}

// Sizes of the Odd model and its micro-batch on one rank.
const (
	OddIn, OddA, OddB, OddOut = 3, 7, 5, 1
	OddRows                   = 3
)

// Odd holds the parameters, or the gradients, of Linear(3,7) -> tanh ->
// Linear(7,5, no bias) -> tanh -> Linear(5,1) with a mean squared loss: sizes
// that no world size divides.
type Odd struct {
	AWeight []float32 `json:"a.weight"` // [7, 3]
	ABias   []float32 `json:"a.bias"`   // [7]
	BWeight []float32 `json:"b.weight"` // [5, 7]
	CWeight []float32 `json:"c.weight"` // [1, 5]
	CBias   []float32 `json:"c.bias"`   // [1]
}

// NewOdd returns an Odd of zeros.
func NewOdd() Odd {
	return Odd{
		make([]float32, OddA*OddIn), make([]float32, OddA), make([]float32, OddB*OddA),
		make([]float32, OddOut*OddB), make([]float32, OddOut),
	}
}

// Params lists the slices in the order of the fields.
func (p Odd) Params() [][]float32 {
	return [][]float32{p.AWeight, p.ABias, p.BWeight, p.CWeight, p.CBias}
}

// OddNames names [Odd.Params] as the models in the vectors do.
var OddNames = []string{"a.weight", "a.bias", "b.weight", "c.weight", "c.bias"}

// Step runs forward and backward on a micro-batch of a rank, x [3, 3] and y
// [3, 1]: it adds the gradients of the unscaled loss to grad and returns it.
func (p Odd) Step(grad Odd, x, y []float32) float32 {
	a, b := make([]float32, OddRows*OddA), make([]float32, OddRows*OddB)
	out, dOut := make([]float32, OddRows*OddOut), make([]float32, OddRows*OddOut)
	Linear(a, x, p.AWeight, p.ABias, OddRows)
	Tanh(a, a)
	Linear(b, a, p.BWeight, nil, OddRows)
	Tanh(b, b)
	Linear(out, b, p.CWeight, p.CBias, OddRows)
	loss := MSE(dOut, out, y)
	dA, dB := make([]float32, len(a)), make([]float32, len(b))
	LinearBackward(dB, grad.CWeight, grad.CBias, dOut, b, p.CWeight, OddRows)
	TanhBackward(dB, dB, b)
	LinearBackward(dA, grad.BWeight, nil, dB, a, p.BWeight, OddRows)
	TanhBackward(dA, dA, a)
	LinearBackward(nil, grad.AWeight, grad.ABias, dA, x, p.AWeight, OddRows)
	return loss
}
