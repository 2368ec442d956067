package transformer

import "math"

// HeadWeights are the last layer norm and the matrix that turns the residual
// stream into logits, which is the token embedding again; or their gradients.
type HeadWeights struct {
	LnF, LnFBias []float32 // [Dim]
	LmHead       []float32 // [Vocab, Dim]
}

// headState holds a head's intermediate values and their gradients.
type headState struct {
	normal, dnormal []float32 // [batch*context, dim]
	stats           []moments
	logits          []float32 // [batch*context, Vocab]: then probabilities, then gradients
	losses          []float64 // [batch]: sums over a sequence's tokens
}

func newHeadState(c Config, batch int) headState {
	rows := batch * c.Context
	return headState{
		normal: make([]float32, rows*c.Dim), dnormal: make([]float32, rows*c.Dim),
		stats: make([]moments, rows), logits: make([]float32, rows*Vocab),
		losses: make([]float64, batch),
	}
}

// Loss returns the cross-entropy in nats per token, averaged over all rows of
// x [batch*context, dim]. targets[r] is the token that follows row r.
func (ws *Workspace) Loss(w HeadWeights, x []float32, targets []byte) float64 {
	ws.headPass = headPass{ws: ws, w: w, x: x, targets: targets}
	ws.team.run(ws.batch, &ws.headPass)
	var sum float64
	for _, loss := range ws.head.losses {
		sum += loss
	}
	return sum / float64(ws.rows())
}

// LossBackward computes Loss again, sets dx to the gradient of its input x and
// adds the gradients of the weights w to g.
func (ws *Workspace) LossBackward(w, g HeadWeights, x []float32, targets []byte, dx []float32) {
	ws.headPass = headPass{ws: ws, w: w, x: x, targets: targets, dx: dx}
	ws.team.run(ws.batch, &ws.headPass)
	ws.headWeights = headGradients{ws: ws, g: g, x: x}
	ws.team.run(Vocab/tileRows, &ws.headWeights)
}

// Logits sets logits [Vocab] to the scores of the tokens that may follow one row
// of x [batch*context, dim].
func (ws *Workspace) Logits(w HeadWeights, x []float32, row int, logits []float32) {
	dim := ws.config.Dim
	normal := ws.head.normal[:dim]
	layerNorm(w.LnF, w.LnFBias, x[row*dim:][:dim], normal, ws.head.stats[:1])
	multiply(plain, transposed, 1, dense(normal, 1, dim), dense(w.LmHead, Vocab, dim), 0, dense(logits, 1, Vocab))
}

// headPass is a head's forward pass, and its backward pass where dx is set; its
// parts are the sequences.
type headPass struct {
	ws      *Workspace
	w       HeadWeights
	x       []float32
	targets []byte
	dx      []float32
}

func (h *headPass) part(i int) {
	c, s, w := h.ws.config, &h.ws.head, h.w
	n := c.Context
	x, targets := part(h.x, i, n*c.Dim), part(h.targets, i, n)
	normal, stats := part(s.normal, i, n*c.Dim), part(s.stats, i, n)
	logits := dense(part(s.logits, i, n*Vocab), n, Vocab)
	lm := dense(w.LmHead, Vocab, c.Dim)

	layerNorm(w.LnF, w.LnFBias, x, normal, stats)
	multiply(plain, transposed, 1, dense(normal, n, c.Dim), lm, 0, logits)
	s.losses[i] = crossEntropy(logits.Data, targets)
	if h.dx == nil {
		return
	}
	dx, dnormal := part(h.dx, i, n*c.Dim), part(s.dnormal, i, n*c.Dim)
	crossEntropyInput(logits.Data, targets, 1/float32(h.ws.rows()))
	multiply(plain, plain, 1, logits, lm, 0, dense(dnormal, n, c.Dim))
	clear(dx)
	layerNormInput(w.LnF, x, dnormal, dx, stats)
}

// crossEntropy returns the sum of -log(probability of the target) over the rows
// and replaces logits by probabilities.
func crossEntropy(logits []float32, targets []byte) float64 {
	var loss float64
	for r, target := range targets {
		row := part(logits, r, Vocab)
		wanted := row[target]
		top, sum := softmax(row)
		loss += math.Log(float64(sum)) + float64(top) - float64(wanted)
	}
	return loss
}

// crossEntropyInput replaces probabilities by the logits' gradient, scale*(p - 1)
// at the target and scale*p elsewhere.
func crossEntropyInput(probs []float32, targets []byte, scale float32) {
	for r, target := range targets {
		row := part(probs, r, Vocab)
		row[target]--
		for i := range row {
			row[i] *= scale
		}
	}
}

// headGradients adds up a head's weights' gradients; a part is tileRows rows of
// the matrix, and the layer norm goes with the first.
type headGradients struct {
	ws *Workspace
	g  HeadWeights
	x  []float32
}

func (h *headGradients) part(i int) {
	s, n, dim := &h.ws.head, h.ws.rows(), h.ws.config.Dim
	dlogits := window(dense(s.logits, n, Vocab), 0, i*tileRows, n, tileRows)
	dlm := dense(part(h.g.LmHead, i, tileRows*dim), tileRows, dim)
	multiply(transposed, plain, 1, dlogits, dense(s.normal, n, dim), 1, dlm)
	if i == 0 {
		layerNormWeights(h.g.LnF, h.g.LnFBias, h.x, s.dnormal, s.stats)
	}
}
