package random

import "math"

// quantile returns the z for which a standard normal number is below z with
// probability p, for p in (0, 1), to about 1 part in 10^16: algorithm AS 241,
// PPND16 (Wichura, "The percentage points of the normal distribution",
// Applied Statistics 37, 1988).
func quantile(p float64) float64 {
	q := p - 0.5
	if math.Abs(q) <= 0.425 {
		r := 0.180625 - float64(q*q)
		return q * horner(&centre, r) / horner(&centreBelow, r)
	}
	r := math.Sqrt(-log(min(p, 1-p)))
	var z float64
	if r <= 5 {
		z = horner(&middle, r-1.6) / horner(&middleBelow, r-1.6)
	} else {
		z = horner(&tail, r-5) / horner(&tailBelow, r-5)
	}
	return math.Copysign(z, q)
}

// The numerators and denominators (below) of AS 241, highest power first.
var (
	centre = [8]float64{
		2.5090809287301226727e+3, 3.3430575583588128105e+4, 6.7265770927008700853e+4, 4.5921953931549871457e+4,
		1.3731693765509461125e+4, 1.9715909503065514427e+3, 1.3314166789178437745e+2, 3.3871328727963666080e+0,
	}
	centreBelow = [8]float64{
		5.2264952788528545610e+3, 2.8729085735721942674e+4, 3.9307895800092710610e+4, 2.1213794301586595867e+4,
		5.3941960214247511077e+3, 6.8718700749205790830e+2, 4.2313330701600911252e+1, 1,
	}
	middle = [8]float64{
		7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e+0,
		3.64784832476320460504e+0, 5.76949722146069140550e+0, 4.63033784615654529590e+0, 1.42343711074968357734e+0,
	}
	middleBelow = [8]float64{
		1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
		6.89767334985100004550e-1, 1.67638483018380384940e+0, 2.05319162663775882187e+0, 1,
	}
	tail = [8]float64{
		2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
		2.96560571828504891230e-1, 1.78482653991729133580e+0, 5.46378491116411436990e+0, 6.65790464350110377720e+0,
	}
	tailBelow = [8]float64{
		2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
		1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1,
	}
)

// horner evaluates a polynomial of degree 7.
func horner(c *[8]float64, x float64) float64 {
	y := c[0]
	y = float64(y*x) + c[1]
	y = float64(y*x) + c[2]
	y = float64(y*x) + c[3]
	y = float64(y*x) + c[4]
	y = float64(y*x) + c[5]
	y = float64(y*x) + c[6]
	return float64(y*x) + c[7]
}

// log returns the natural logarithm of a positive normal number, to 2 units in
// the last place away from 1. With x = 2^e * m and m in [sqrt(1/2), sqrt(2)),
// log x = e*log 2 + 2*atanh(s) for s = (m-1)/(m+1), and the series of atanh,
// s + s^3/3 + s^5/5 + ..., is cut after s^21/21: |s| < 0.1716, so what is left
// out is below 2^-60 of the sum.
func log(x float64) float64 {
	const (
		ln2High = 0x1.62e42fee00000p-1 // the upper bits of log 2: a product with e is exact
		ln2Low  = 0x1.a39ef35793c76p-33
	)
	bits := math.Float64bits(x)
	exponent := int64(bits>>52) - 1023
	m := math.Float64frombits(bits&(1<<52-1) | 1023<<52)
	if m >= math.Sqrt2 {
		m /= 2
		exponent++
	}
	s := (m - 1) / (m + 1)
	square := s * s
	series := 1.0 / 21
	for k := 19.0; k >= 3; k -= 2 {
		series = float64(series*square) + 1/k
	}
	e := float64(exponent)
	twice := 2 * s
	small := float64(e*ln2Low) + float64(twice*float64(series*square))
	return float64(e*ln2High) + (twice + small)
}

// lowerTail returns the probability that a standard normal number is below
// -cut, for cut > 0: the p with quantile(p) = -cut, found by halving the range
// of bit patterns. It is good to cut*cut * 1e-16 of itself, and 0 for a cut
// so far out that nothing is beyond it (37 and more).
func lowerTail(cut float64) float64 {
	const smallestNormal = 1 << 52
	low, high := uint64(smallestNormal), math.Float64bits(0.5)
	if !(quantile(math.Float64frombits(low)) < -cut) {
		return 0
	}
	for high-low > 1 {
		middle := low + (high-low)/2
		if quantile(math.Float64frombits(middle)) < -cut {
			low = middle
		} else {
			high = middle
		}
	}
	return math.Float64frombits(high)
}
