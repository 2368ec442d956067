package transformer

import "math"

// exp returns e to the x to a few units in the last place, several times faster
// than math.Exp: x = k*ln(2) + r, and the Taylor series of e^r up to r^6, where
// |r| is at most ln(2)/2 and the rest of the series below 2e-7. It saturates
// outside of [-87, 88], where float32 would underflow or overflow.
func exp(x float32) float32 {
	if x < -87 {
		x = -87
	} else if x > 88 {
		x = 88
	}
	// Adding 1.5*2^23 leaves no bits for a fraction: it rounds to an integer,
	// which then lies in the lowest bits of the sum.
	const shift = 3 << 22
	shifted := float32(x*math.Log2E) + shift
	k := shifted - shift
	// ln(2) in two parts: the first has few enough bits for k*high to be exact.
	const high, low = 0.693359375, math.Ln2 - 0.693359375
	r := x - k*high - k*low
	series := 1 + r*(1+r*(1./2+r*(1./6+r*(1./24+r*(1./120+r*(1./720))))))
	power := math.Float32frombits((math.Float32bits(shifted) + 127) << 23) // 2^k
	return series * power
}
