// Package optim holds the arithmetic of an optimizer step: what a trainer
// passes ([AdamW], [SGD]), the scalars of one step, worked out once
// ([AdamWStep], [SGDStep]), the elementwise updates of a shard, and the norm of
// its gradient ([Norm]).
//
// It takes and gives plain slices and numbers, knows nothing of shards or
// ranks, never allocates in an update and imports only the standard library.
// Every product that feeds a sum is converted explicitly, so no compiler fuses
// the two and all architectures give the same bits.
package optim

import (
	"fmt"
	"math"
)

// Zero stands for a real zero in a field whose zero value means the default,
// as in AdamW{LR: 1e-3, Beta1: optim.Zero}.
const Zero = 0x1p-1000

// float is the arithmetic type of a shard: f64 for f64 parameters, else f32.
type float interface{ float32 | float64 }

// orDefault resolves a field in which 0 means the default and Zero means 0.
func orDefault(x, byDefault float64) float64 {
	switch x {
	case 0:
		return byDefault
	case Zero:
		return 0
	}
	return x
}

type field struct {
	name  string
	value float64
}

// checkAll reports the first field that is negative, NaN, or infinite in f32, the
// type of most shards.
func checkAll(fields ...field) error {
	for _, f := range fields {
		if !(f.value >= 0) || f.value > math.MaxFloat32 {
			return fmt.Errorf("%s is %v, expected a number from 0 to %v", f.name, f.value, math.MaxFloat32)
		}
	}
	return nil
}

// checkLossScale reports a scale by which f32 gradients can't be divided: its
// inverse is 0 or infinite, or it loses digits.
func checkLossScale(f field) error {
	if f.value != 0 && !(f.value >= 0x1p-126 && f.value <= 0x1p126) {
		return fmt.Errorf("%s is %v, expected 0 for none, or a number from 2^-126 to 2^126", f.name, f.value)
	}
	return nil
}

// checkBelowOne reports the first field that is 1 or more.
func checkBelowOne(fields ...field) error {
	for _, f := range fields {
		if f.value >= 1 {
			return fmt.Errorf("%s is %v, expected a number below 1", f.name, f.value)
		}
	}
	return nil
}

// checkCall checks what the runtime passes beside the hyperparameters.
func checkCall(step int64, gradScale float64) error {
	if step < 1 {
		return fmt.Errorf("step is %d, steps are counted from 1", step)
	}
	return checkAll(field{"the gradient scale", gradScale})
}

// power returns b to the n by squaring. It has products only, so nothing can
// be fused and, unlike math.Pow, it gives the same bits everywhere.
func power(b float64, n int64) float64 {
	result := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 == 1 {
			result *= b
		}
		b *= b
	}
	return result
}
