package transformer

// BlockWeights are the weights of one block, or their gradients. Matrices are
// [in, out].
type BlockWeights struct {
	Ln1, Ln1Bias   []float32 // [Dim]: layer norm before attention
	Qkv, QkvBias   []float32 // [Dim, 3*Dim], [3*Dim]: queries, keys, values
	Proj, ProjBias []float32 // [Dim, Dim], [Dim]: attention's way back
	Ln2, Ln2Bias   []float32 // [Dim]: layer norm before the feed-forward part
	Up, UpBias     []float32 // [Dim, Hidden], [Hidden]
	Down, DownBias []float32 // [Hidden, Dim], [Dim]
}

// blockState is all that the backward pass of a block needs, and the scratch
// space of its forward pass. Buffers are [batch*context, width].
type blockState struct {
	normal1, normal2 []float32 // dim: outputs of the layer norms
	stats1, stats2   []moments
	qkv              []float32 // 3*dim
	probs            []float32 // [batch, heads, context, context]
	mixed            []float32 // dim: output of attention
	middle           []float32 // dim: the residual stream between the two halves
	up, gates        []float32 // hidden: input of GELU and its factor
	active           []float32 // hidden: output of GELU
}

// blockGradient holds the gradients of a blockState.
type blockGradient struct {
	out              []float32 // dim: of the block's output
	normal1, normal2 []float32
	qkv              []float32
	scores           []float32 // [batch, context, context]: one head's at a time
	mixed            []float32
	middle           []float32
	active           []float32 // becomes that of up
}

func newBlockState(c Config, rows int) blockState {
	dim, hidden := rows*c.Dim, rows*c.Hidden
	return blockState{
		normal1: make([]float32, dim), normal2: make([]float32, dim),
		stats1: make([]moments, rows), stats2: make([]moments, rows),
		qkv: make([]float32, 3*dim), probs: make([]float32, rows*c.Heads*c.Context),
		mixed: make([]float32, dim), middle: make([]float32, dim),
		up: make([]float32, hidden), gates: make([]float32, hidden), active: make([]float32, hidden),
	}
}

func newBlockGradient(c Config, rows int) blockGradient {
	dim := rows * c.Dim
	return blockGradient{
		out: make([]float32, dim), normal1: make([]float32, dim), normal2: make([]float32, dim),
		qkv: make([]float32, 3*dim), scores: make([]float32, rows*c.Context),
		mixed: make([]float32, dim), middle: make([]float32, dim),
		active: make([]float32, rows*c.Hidden),
	}
}

// sequence views the part of the state that belongs to one sequence of n rows.
func (s blockState) sequence(c Config, i int) blockState {
	n := c.Context
	return blockState{
		normal1: part(s.normal1, i, n*c.Dim), normal2: part(s.normal2, i, n*c.Dim),
		stats1: part(s.stats1, i, n), stats2: part(s.stats2, i, n),
		qkv: part(s.qkv, i, 3*n*c.Dim), probs: part(s.probs, i, n*c.Heads*n),
		mixed: part(s.mixed, i, n*c.Dim), middle: part(s.middle, i, n*c.Dim),
		up: part(s.up, i, n*c.Hidden), gates: part(s.gates, i, n*c.Hidden), active: part(s.active, i, n*c.Hidden),
	}
}

func (g blockGradient) sequence(c Config, i int) blockGradient {
	n := c.Context
	return blockGradient{
		out: part(g.out, i, n*c.Dim), normal1: part(g.normal1, i, n*c.Dim), normal2: part(g.normal2, i, n*c.Dim),
		qkv: part(g.qkv, i, 3*n*c.Dim), scores: part(g.scores, i, n*n),
		mixed: part(g.mixed, i, n*c.Dim), middle: part(g.middle, i, n*c.Dim),
		active: part(g.active, i, n*c.Hidden),
	}
}

// part returns the i-th of the pieces of size elements that make up s.
func part[E any](s []E, i, size int) []E { return s[i*size:][:size:size] }

// Block sets y to the block's output for the input x, both
// [batch*context, dim]. It keeps nothing: whoever needs the gradient keeps x.
func (ws *Workspace) Block(w BlockWeights, x, y []float32) {
	ws.forward = blockForward{ws: ws, w: w, x: x, y: y}
	ws.team.run(ws.batch, &ws.forward)
}

// BlockBackward computes the block's forward pass on x again, replaces dx, the
// gradient of the block's output, by that of its input, and adds the gradients
// of the weights w to g.
func (ws *Workspace) BlockBackward(w, g BlockWeights, x, dx []float32) {
	ws.backward = blockBackward{ws: ws, w: w, x: x, dx: dx}
	ws.team.run(ws.batch, &ws.backward)
	ws.weights = blockGradients{ws: ws, g: g, x: x}
	ws.team.run(weightGroups, &ws.weights)
}

// blockForward is the forward pass of a block; its parts are the sequences.
type blockForward struct {
	ws   *Workspace
	w    BlockWeights
	x, y []float32
}

func (f *blockForward) part(i int) {
	c := f.ws.config
	s := f.ws.state.sequence(c, i)
	s.run(c, f.w, part(f.x, i, c.Context*c.Dim))
	y := part(f.y, i, c.Context*c.Dim)
	linear(f.w.Down, f.w.DownBias, dense(s.active, c.Context, c.Hidden), dense(y, c.Context, c.Dim))
	addTo(y, s.middle)
}

// run fills the state of one sequence. The last product, which gives the block's
// output, is left to the caller: the backward pass does not need it.
func (s blockState) run(c Config, w BlockWeights, x []float32) {
	n := c.Context
	layerNorm(w.Ln1, w.Ln1Bias, x, s.normal1, s.stats1)
	linear(w.Qkv, w.QkvBias, dense(s.normal1, n, c.Dim), dense(s.qkv, n, 3*c.Dim))
	c.attend(s.qkv, s.probs, s.mixed)
	linear(w.Proj, w.ProjBias, dense(s.mixed, n, c.Dim), dense(s.middle, n, c.Dim))
	addTo(s.middle, x)
	layerNorm(w.Ln2, w.Ln2Bias, s.middle, s.normal2, s.stats2)
	linear(w.Up, w.UpBias, dense(s.normal2, n, c.Dim), dense(s.up, n, c.Hidden))
	gelu(s.up, s.gates, s.active)
}

// blockBackward takes the gradient from a block's output to its input; its
// parts are the sequences. What the weights' gradients need stays behind in the
// workspace.
type blockBackward struct {
	ws    *Workspace
	w     BlockWeights
	x, dx []float32
}

func (b *blockBackward) part(i int) {
	c, w := b.ws.config, b.w
	n := c.Context
	s, g := b.ws.state.sequence(c, i), b.ws.grad.sequence(c, i)
	x, dx := part(b.x, i, n*c.Dim), part(b.dx, i, n*c.Dim)
	s.run(c, w, x)

	copy(g.out, dx)
	copy(g.middle, dx)
	linearInput(w.Down, dense(g.out, n, c.Dim), dense(g.active, n, c.Hidden))
	geluInput(s.up, s.gates, g.active)
	linearInput(w.Up, dense(g.active, n, c.Hidden), dense(g.normal2, n, c.Dim))
	layerNormInput(w.Ln2, s.middle, g.normal2, g.middle, s.stats2)

	copy(dx, g.middle)
	linearInput(w.Proj, dense(g.middle, n, c.Dim), dense(g.mixed, n, c.Dim))
	c.attendInput(s.qkv, s.probs, g.mixed, g.qkv, g.scores)
	linearInput(w.Qkv, dense(g.qkv, n, 3*c.Dim), dense(g.normal1, n, c.Dim))
	layerNormInput(w.Ln1, x, g.normal1, dx, s.stats1)
}

// weightGroups is the number of parts of blockGradients.
const weightGroups = 4

// blockGradients adds up the weights' gradients; a part is one matrix and the
// vectors near it, summed over all rows in order.
type blockGradients struct {
	ws *Workspace
	g  BlockWeights
	x  []float32
}

func (b *blockGradients) part(i int) {
	c, s, d, g := b.ws.config, &b.ws.state, &b.ws.grad, &b.g
	n := b.ws.rows()
	switch i { // the largest first, so that workers finish together
	case 0:
		linearWeights(g.Up, g.UpBias, dense(s.normal2, n, c.Dim), dense(d.active, n, c.Hidden))
	case 1:
		linearWeights(g.Down, g.DownBias, dense(s.active, n, c.Hidden), dense(d.out, n, c.Dim))
	case 2:
		linearWeights(g.Qkv, g.QkvBias, dense(s.normal1, n, c.Dim), dense(d.qkv, n, 3*c.Dim))
	case 3:
		linearWeights(g.Proj, g.ProjBias, dense(s.mixed, n, c.Dim), dense(d.middle, n, c.Dim))
		layerNormWeights(g.Ln1, g.Ln1Bias, b.x, d.normal1, s.stats1)
		layerNormWeights(g.Ln2, g.Ln2Bias, s.middle, d.normal2, s.stats2)
	}
}
