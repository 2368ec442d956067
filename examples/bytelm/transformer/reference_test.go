package transformer

import "math"

// The same model in float64, one loop after another: the oracle that the
// package's results and, by central differences, its gradients are held
// against.

func refLinear(w, bias, x []float64, in, out int) []float64 {
	rows := len(x) / in
	y := make([]float64, rows*out)
	for r := range rows {
		for o := range out {
			sum := bias[o]
			for i := range in {
				sum += x[r*in+i] * w[i*out+o]
			}
			y[r*out+o] = sum
		}
	}
	return y
}

func refLayerNorm(gain, bias, x []float64) []float64 {
	dim := len(gain)
	y := make([]float64, len(x))
	for first := 0; first < len(x); first += dim {
		row := x[first : first+dim]
		var mean, variance float64
		for _, v := range row {
			mean += v / float64(dim)
		}
		for _, v := range row {
			variance += (v - mean) * (v - mean) / float64(dim)
		}
		for i, v := range row {
			y[first+i] = (v-mean)/math.Sqrt(variance+1e-5)*gain[i] + bias[i]
		}
	}
	return y
}

func refGELU(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = 0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
	}
	return y
}

func refSoftmax(scores []float64) []float64 {
	var sum float64
	p := make([]float64, len(scores))
	for i, s := range scores {
		p[i] = math.Exp(s)
		sum += p[i]
	}
	for i := range p {
		p[i] /= sum
	}
	return p
}

// refAttend is attention over one sequence's [context, 3*dim] buffer.
func refAttend(c Config, qkv []float64) []float64 {
	hd, stride := c.Dim/c.Heads, 3*c.Dim
	mixed := make([]float64, c.Context*c.Dim)
	for h := range c.Heads {
		for row := range c.Context {
			scores := make([]float64, row+1)
			for seen := range scores {
				scores[seen] = -float64(row-seen) / math.Pow(4, float64(h))
				for i := range hd {
					scores[seen] += qkv[row*stride+h*hd+i] * qkv[seen*stride+c.Dim+h*hd+i] / math.Sqrt(float64(hd))
				}
			}
			for seen, p := range refSoftmax(scores) {
				for i := range hd {
					mixed[row*c.Dim+h*hd+i] += p * qkv[seen*stride+2*c.Dim+h*hd+i]
				}
			}
		}
	}
	return mixed
}

func refAdd(a, b []float64) []float64 {
	sum := make([]float64, len(a))
	for i := range a {
		sum[i] = a[i] + b[i]
	}
	return sum
}

// refBlock takes a block's weights in the order of blockShapes.
func refBlock(c Config, w [][]float64, x []float64) []float64 {
	size := c.Context * c.Dim
	var y []float64
	for first := 0; first < len(x); first += size {
		in := x[first : first+size]
		mixed := refAttend(c, refLinear(w[2], w[3], refLayerNorm(w[0], w[1], in), c.Dim, 3*c.Dim))
		middle := refAdd(in, refLinear(w[4], w[5], mixed, c.Dim, c.Dim))
		up := refLinear(w[8], w[9], refLayerNorm(w[6], w[7], middle), c.Dim, c.Hidden)
		y = append(y, refAdd(middle, refLinear(w[10], w[11], refGELU(up), c.Hidden, c.Dim))...)
	}
	return y
}

// refLoss takes the head's weights: layer norm's gain and bias, the embedding.
func refLoss(c Config, w [][]float64, x []float64, targets []byte) float64 {
	normal := refLayerNorm(w[0], w[1], x)
	var loss float64
	for r, target := range targets {
		logits := make([]float64, Vocab)
		for token := range logits {
			for i := range c.Dim {
				logits[token] += normal[r*c.Dim+i] * w[2][token*c.Dim+i]
			}
		}
		loss -= math.Log(refSoftmax(logits)[target]) / float64(len(targets))
	}
	return loss
}

// refEmbed takes the token and the position embedding.
func refEmbed(c Config, w [][]float64, tokens []byte) []float64 {
	x := make([]float64, 0, len(tokens)*c.Dim)
	for r, token := range tokens {
		position := r % c.Context
		x = append(x, refAdd(w[0][int(token)*c.Dim:][:c.Dim], w[1][position*c.Dim:][:c.Dim])...)
	}
	return x
}
