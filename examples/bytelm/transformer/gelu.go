package transformer

// GPT-2's GELU is x*(1 + tanh(u))/2 with u = geluScale*(x + geluCubic*x³)
// (Hendrycks and Gimpel, "Gaussian Error Linear Units"). As (1 + tanh(u))/2 is
// the logistic function of 2u, one exponential gives it.
const (
	geluScale = 0.7978845608028654 // sqrt(2/pi)
	geluCubic = 0.044715
)

// gelu sets y[i] = GELU(x[i]) and leaves the factors in gates for geluInput:
// y[i] = x[i]*gates[i].
func gelu(x, gates, y []float32) {
	gates, y = gates[:len(x)], y[:len(x)]
	for i, v := range x {
		gates[i] = 1 / (1 + exp(-2*geluScale*(v+geluCubic*v*v*v)))
		y[i] = v * gates[i]
	}
}

// geluInput replaces d, the gradient of GELU's output, by that of its input x.
func geluInput(x, gates, d []float32) {
	gates, d = gates[:len(x)], d[:len(x)]
	for i, v := range x {
		slope := 2 * geluScale * (1 + 3*geluCubic*v*v)
		d[i] *= gates[i] * (1 + v*(1-gates[i])*slope)
	}
}
