package goldenmodel

import "math"

// Linear writes y = x*weight' + bias: x is [rows, in], weight [out, in], bias
// [out] or nil, y [rows, out]. Sums run in f64 and are rounded once.
func Linear(y, x, weight, bias []float32, rows int) {
	in, out := len(x)/rows, len(y)/rows
	for r := range rows {
		for o := range out {
			sum := 0.0
			for i := range in {
				sum += float64(x[r*in+i]) * float64(weight[o*in+i])
			}
			if bias != nil {
				sum += float64(bias[o])
			}
			y[r*out+o] = float32(sum)
		}
	}
}

// LinearBackward is the backward pass of [Linear]: it adds to dWeight and dBias
// (which may be nil) and writes dx, unless that is nil.
func LinearBackward(dx, dWeight, dBias, dy, x, weight []float32, rows int) {
	in, out := len(x)/rows, len(dy)/rows
	for o := range out {
		for i := range in {
			dWeight[o*in+i] += dot(rows, func(r int) (float32, float32) { return dy[r*out+o], x[r*in+i] })
		}
		if dBias != nil {
			dBias[o] += dot(rows, func(r int) (float32, float32) { return dy[r*out+o], 1 })
		}
	}
	for i := range dx {
		dx[i] = dot(out, func(o int) (float32, float32) { return dy[i/in*out+o], weight[o*in+i%in] })
	}
}

// dot sums n products in f64 and rounds once.
func dot(n int, factors func(int) (float32, float32)) float32 {
	sum := 0.0
	for i := range n {
		a, b := factors(i)
		sum += float64(a) * float64(b)
	}
	return float32(sum)
}

// ReLU writes max(x, 0).
func ReLU(y, x []float32) {
	for i, v := range x {
		y[i] = max(v, 0)
	}
}

// ReLUBackward writes dx = dy where y, the output, is above 0, else 0. dx may
// be dy.
func ReLUBackward(dx, dy, y []float32) {
	for i, v := range y {
		d := dy[i]
		if v <= 0 {
			d = 0
		}
		dx[i] = d
	}
}

// Tanh writes the hyperbolic tangent of x. y may be x.
func Tanh(y, x []float32) {
	for i, v := range x {
		y[i] = float32(math.Tanh(float64(v)))
	}
}

// TanhBackward writes dx = dy * (1 - y*y), where y is the output. dx may
// be dy.
func TanhBackward(dx, dy, y []float32) {
	for i, v := range y {
		dx[i] = float32(float64(dy[i]) * (1 - float64(v)*float64(v)))
	}
}

// MSE returns the mean of (p-y)*(p-y) and writes its gradient, 2*(p-y)/n, to dp.
func MSE(dp, p, y []float32) float32 {
	sum, n := 0.0, float64(len(p))
	for i := range p {
		d := float64(p[i]) - float64(y[i])
		sum += d * d
		dp[i] = float32(2 * d / n)
	}
	return float32(sum / n)
}
