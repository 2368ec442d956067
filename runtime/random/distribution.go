package random

import (
	"errors"
	"fmt"
	"math"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// Kind is a family of distributions, under the name that a spec gives it.
type Kind string

// The distributions of the language.
const (
	Zeros           Kind = "zeros"
	Ones            Kind = "ones"
	Constant        Kind = "constant"         // Value
	Normal          Kind = "normal"           // mean Mean, standard deviation Std
	TruncatedNormal Kind = "truncated_normal" // Normal, given that it is within Mean ± Cut*Std
	Uniform         Kind = "uniform"          // uniform in [Low, High)
)

// known reports whether the kind is one of the language's.
func (k Kind) known() bool { return k == Zeros || k == Ones || k == Constant || k.Random() }

// Random reports whether the elements differ: it is not zeros, ones or a constant.
func (k Kind) Random() bool { return k == Normal || k == TruncatedNormal || k == Uniform }

// Distribution says what initial values a parameter has. The zero value is
// refused by [Distribution.Validate].
type Distribution struct {
	Kind      Kind
	Value     float64 // Constant
	Mean, Std float64 // Normal, TruncatedNormal
	Cut       float64 // TruncatedNormal: in units of Std
	Low, High float64 // Uniform
}

// Validate reports why a parameter of type t can't have this distribution.
func (d Distribution) Validate(t dtype.DType) error {
	for _, x := range [...]float64{d.Value, d.Mean, d.Std, d.Cut, d.Low, d.High} {
		if x-x != 0 {
			return fmt.Errorf("init %s: %v is no finite number", d.Kind, x)
		}
	}
	switch {
	case !d.Kind.known():
		return fmt.Errorf("init: unknown distribution %q", string(d.Kind))
	case t.Bytes() == 0:
		return errors.New("init: the parameter has no dtype")
	case d.Kind.Random() && !t.IsFloat():
		return fmt.Errorf("init %s: a parameter of type %s can only be ones, zeros or a constant", d.Kind, t)
	}
	return d.validateParameters(t)
}

func (d Distribution) validateParameters(t dtype.DType) error {
	switch d.Kind {
	case Constant:
		if !t.IsFloat() && !isInteger(d.Value, t) {
			return fmt.Errorf("init constant: %v is no value of type %s", d.Value, t)
		}
	case Normal, TruncatedNormal:
		if d.Std < 0 {
			return fmt.Errorf("init %s: std is %v, expected 0 or more", d.Kind, d.Std)
		}
		if d.Kind == TruncatedNormal && d.Cut <= 0 {
			return fmt.Errorf("init truncated_normal: cut is %v, expected a number above 0, in units of std", d.Cut)
		}
	case Uniform:
		if !(d.Low < d.High) {
			return fmt.Errorf("init uniform: low is %v and high is %v, expected low < high", d.Low, d.High)
		}
		if math.IsInf(d.High-d.Low, 1) {
			return fmt.Errorf("init uniform: from %v to %v is more than a float64 holds, expected a smaller range", d.Low, d.High)
		}
	}
	return nil
}

// isInteger reports whether x is a value of an integer type or bool (0 and 1).
func isInteger(x float64, t dtype.DType) bool {
	valueBits := int(8 * t.Bytes())
	low, high := -math.Ldexp(1, valueBits-1), math.Ldexp(1, valueBits-1)
	switch {
	case t == dtype.Bool:
		low, high = 0, 2
	case t >= dtype.Uint8:
		low, high = 0, math.Ldexp(1, valueBits)
	}
	return x == math.Trunc(x) && x >= low && x < high
}
