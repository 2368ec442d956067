package transformer

import "math"

// strip is how many rows of an attention matrix are computed at once. A strip
// that ends at row n needs the first n columns only.
const strip = 32

// headView is what one attention head reads of a sequence: rows of head
// width inside the joint [context, 3*dim] buffer.
type headView struct{ q, k, v matrix }

// view finds a head's queries, keys and values in a sequence's qkv buffer.
func (c Config) view(qkv []float32, head int) headView {
	part := func(i int) matrix {
		return matrix{Rows: c.Context, Cols: c.headDim(), Stride: 3 * c.Dim, Data: qkv[i*c.Dim+head*c.headDim():]}
	}
	return headView{part(0), part(1), part(2)}
}

// output finds a head's columns in a sequence's [context, dim] buffer.
func (c Config) output(mixed []float32, head int) matrix {
	return window(dense(mixed, c.Context, c.Dim), 0, head*c.headDim(), c.Context, c.headDim())
}

// scale is 1/sqrt(head width), the factor of attention scores.
func (c Config) scale() float32 { return float32(1 / math.Sqrt(float64(c.headDim()))) }

// slope is how much a head's scores fall per token of distance (Press, Smith and
// Lewis, "Train Short, Test Long", 2022, with steeper slopes): the first head
// begins with a look at the last few tokens, the others see further. A model
// that is trained for only a minute gets clearly further with it.
func slope(head int) float32 { return float32(math.Exp2(-2 * float64(head))) }

// attend mixes the values of one sequence: per head mixed = probs*v with
// probs = softmax(scale*q*kᵀ - slope*distance) over the tokens up to the row's
// own. probs is [heads, context, context] and stays for attendInput.
func (c Config) attend(qkv, probs, mixed []float32) {
	for head := range c.Heads {
		in, out := c.view(qkv, head), c.output(mixed, head)
		p := dense(probs[head*c.Context*c.Context:], c.Context, c.Context)
		causalOuter(c.scale(), in.q, in.k, p)
		for row := range c.Context {
			causalSoftmax(p.Data[row*c.Context:][:c.Context], row, slope(head))
		}
		causalMix(p, in.v, out)
	}
}

// attendInput sets dqkv to the gradient of attend's input, from the gradient
// dmixed of its output. scratch holds one [context, context] matrix.
func (c Config) attendInput(qkv, probs, dmixed, dqkv, scratch []float32) {
	ds := dense(scratch, c.Context, c.Context)
	for head := range c.Heads {
		in, din, dout := c.view(qkv, head), c.view(dqkv, head), c.output(dmixed, head)
		p := dense(probs[head*c.Context*c.Context:], c.Context, c.Context)
		multiply(transposed, plain, 1, p, dout, 0, din.v)
		causalOuter(c.scale(), dout, in.v, ds)
		for row := range c.Context {
			softmaxInput(p.Data[row*c.Context:][:c.Context], ds.Data[row*c.Context:][:c.Context], row)
		}
		causalMix(ds, in.k, din.q)
		multiply(transposed, plain, 1, ds, in.q, 0, din.k)
	}
}

// causalOuter sets c = alpha*a*bᵀ on and below the diagonal; what is above it
// is left undefined.
func causalOuter(alpha float32, a, b, c matrix) {
	for top := 0; top < c.Rows; top += strip {
		end := min(top+strip, c.Rows)
		multiply(plain, transposed, alpha, window(a, top, 0, end-top, a.Cols), window(b, 0, 0, end, b.Cols),
			0, window(c, top, 0, end-top, end))
	}
}

// causalMix sets c = a*b for an a that is zero above the diagonal.
func causalMix(a, b, c matrix) {
	for top := 0; top < c.Rows; top += strip {
		end := min(top+strip, c.Rows)
		multiply(plain, plain, 1, window(a, top, 0, end-top, end), window(b, 0, 0, end, b.Cols),
			0, window(c, top, 0, end-top, c.Cols))
	}
}

// causalSoftmax lowers the scores up to the row's own token by their distance,
// replaces them by probabilities and clears the rest.
func causalSoftmax(scores []float32, row int, slope float32) {
	for i := range scores[:row+1] {
		scores[i] -= slope * float32(row-i)
	}
	softmax(scores[:row+1])
	clear(scores[row+1:])
}

// softmax replaces scores by exp(score)/sum(exp(scores)) and returns the
// greatest score and the sum, taken relative to it.
func softmax(scores []float32) (top, sum float32) {
	top = scores[0]
	for _, s := range scores {
		top = max(top, s)
	}
	for i, s := range scores {
		e := exp(s - top)
		scores[i] = e
		sum += e
	}
	inverse := 1 / sum
	for i := range scores {
		scores[i] *= inverse
	}
	return top, sum
}

// softmaxInput replaces d, the gradient of a row's probabilities p, by that of
// its scores, p*(d - sum(p*d)), and clears what the row does not see.
func softmaxInput(p, d []float32, row int) {
	seen := d[:row+1]
	var along float32
	for i, v := range seen {
		along += p[i] * v
	}
	for i, v := range seen {
		seen[i] = p[i] * (v - along)
	}
	clear(d[row+1:])
}
