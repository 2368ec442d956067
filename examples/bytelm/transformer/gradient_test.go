package transformer

import (
	"math"
	"math/rand/v2"
	"testing"
)

// small has a context that is no multiple of a strip, and widths that differ.
var small = Config{Layers: 1, Dim: 8, Heads: 2, Context: 37, Hidden: 12}

const smallBatch = 2

func blockShapes(c Config) []int {
	return []int{
		c.Dim, c.Dim, 3 * c.Dim * c.Dim, 3 * c.Dim, c.Dim * c.Dim, c.Dim,
		c.Dim, c.Dim, c.Dim * c.Hidden, c.Hidden, c.Hidden * c.Dim, c.Dim,
	}
}

func blockWeights(s [][]float32) BlockWeights {
	return BlockWeights{
		Ln1: s[0], Ln1Bias: s[1], Qkv: s[2], QkvBias: s[3], Proj: s[4], ProjBias: s[5],
		Ln2: s[6], Ln2Bias: s[7], Up: s[8], UpBias: s[9], Down: s[10], DownBias: s[11],
	}
}

func headWeights(s [][]float32) HeadWeights {
	return HeadWeights{LnF: s[0], LnFBias: s[1], LmHead: s[2]}
}

// random fills a buffer with values that float32 and float64 both hold exactly.
func random(seed uint64, n int, spread float64) []float32 {
	r := rand.New(rand.NewPCG(seed, 0))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * spread)
	}
	return x
}

func randomAll(seed uint64, sizes []int, spread float64) [][]float32 {
	var all [][]float32
	for i, n := range sizes {
		all = append(all, random(seed+uint64(i), n, spread))
	}
	return all
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.IntN(Vocab))
	}
	return b
}

func wide(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func wideAll(xs [][]float32) [][]float64 {
	var all [][]float64
	for _, x := range xs {
		all = append(all, wide(x))
	}
	return all
}

// filled returns gradient buffers that already hold a value, as those of a
// second user of a shared weight do.
const before = 0.25

func filled(sizes []int) [][]float32 {
	all := randomAll(0, sizes, 0)
	for _, x := range all {
		for i := range x {
			x[i] = before
		}
	}
	return all
}

func dot(a, b []float64) float64 {
	var sum float64
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func newTestWorkspace(t *testing.T, c Config, batch, workers int) *Workspace {
	t.Helper()
	ws, err := NewWorkspace(c, batch, workers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ws.Close)
	return ws
}

// requireClose compares a buffer with its exact values, relative to the
// greatest of them.
func requireClose(t *testing.T, name string, got []float32, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", name, len(got), len(want))
	}
	var top float64
	for _, v := range want {
		top = max(top, math.Abs(v))
	}
	for i, v := range want {
		if diff := math.Abs(float64(got[i]) - v); !(diff <= tolerance*top) {
			t.Fatalf("%s[%d] = %v, want %v (difference %.2g, allowed %.2g)", name, i, got[i], v, diff, tolerance*top)
		}
	}
}

// differences returns the derivatives of f by x's elements, by central
// differences. With steps of 1e-4 in float64 they are good to about 1e-7.
func differences(x []float64, f func() float64) []float64 {
	const step = 1e-4
	slopes := make([]float64, len(x))
	for i, v := range x {
		x[i] = v + step
		up := f()
		x[i] = v - step
		slopes[i] = (up - f()) / (2 * step)
		x[i] = v
	}
	return slopes
}

// requireGradients compares gradients that were added to `before`.
func requireGradients(t *testing.T, names []string, got [][]float32, weights [][]float64, f func() float64) {
	t.Helper()
	for i, name := range names {
		want := differences(weights[i], f)
		for j := range want {
			want[j] += before
		}
		requireClose(t, name, got[i], want, gradientTolerance)
	}
}

const (
	valueTolerance    = 2e-6
	gradientTolerance = 1e-5
)

func TestBlockMatchesTheReferenceAndItsDifferences(t *testing.T) {
	c := small
	size := smallBatch * c.Context * c.Dim
	w := randomAll(1, blockShapes(c), 0.4)
	x, r := random(50, size, 1), random(51, size, 1)
	w64, x64, r64 := wideAll(w), wide(x), wide(r)
	loss := func() float64 { return dot(r64, refBlock(c, w64, x64)) }

	ws := newTestWorkspace(t, c, smallBatch, 2)
	y := make([]float32, size)
	ws.Block(blockWeights(w), x, y)
	requireClose(t, "output", y, refBlock(c, w64, x64), valueTolerance)

	g, dx := filled(blockShapes(c)), append([]float32(nil), r...)
	ws.BlockBackward(blockWeights(w), blockWeights(g), x, dx)
	requireClose(t, "input gradient", dx, differences(x64, loss), gradientTolerance)
	names := []string{
		"Ln1", "Ln1Bias", "Qkv", "QkvBias", "Proj", "ProjBias",
		"Ln2", "Ln2Bias", "Up", "UpBias", "Down", "DownBias",
	}
	requireGradients(t, names, g, w64, loss)
}

func TestHeadMatchesTheReferenceAndItsDifferences(t *testing.T) {
	c := Config{Layers: 1, Dim: 4, Heads: 1, Context: 9, Hidden: 4}
	rows := smallBatch * c.Context
	sizes := []int{c.Dim, c.Dim, Vocab * c.Dim}
	w, x, targets := randomAll(1, sizes, 1), random(50, rows*c.Dim, 1), randomBytes(3, rows)
	w64, x64 := wideAll(w), wide(x)
	loss := func() float64 { return refLoss(c, w64, x64, targets) }

	ws := newTestWorkspace(t, c, smallBatch, 2)
	got := ws.Loss(headWeights(w), x, targets)
	if want := loss(); math.Abs(got-want) > valueTolerance*want {
		t.Errorf("loss = %v, want %v", got, want)
	}
	g, dx := filled(sizes), random(52, len(x), 1)
	ws.LossBackward(headWeights(w), headWeights(g), x, targets, dx)
	requireClose(t, "input gradient", dx, differences(x64, loss), gradientTolerance)
	requireGradients(t, []string{"LnF", "LnFBias", "LmHead"}, g, w64, loss)
}

func TestEmbedMatchesTheReferenceAndItsDifferences(t *testing.T) {
	c := Config{Layers: 1, Dim: 4, Heads: 1, Context: 9, Hidden: 4}
	rows := smallBatch * c.Context
	sizes := []int{Vocab * c.Dim, c.Context * c.Dim}
	w, r := randomAll(1, sizes, 1), random(50, rows*c.Dim, 1)
	tokens := randomBytes(2, rows)
	tokens[3] = tokens[rows-1] // a token that occurs twice
	w64, r64 := wideAll(w), wide(r)

	ws := newTestWorkspace(t, c, smallBatch, 1)
	ws.Embed(EmbedWeights{w[0], w[1]}, tokens, ws.X[0])
	requireClose(t, "output", ws.X[0], refEmbed(c, w64, tokens), valueTolerance)

	g := filled(sizes)
	ws.EmbedBackward(EmbedWeights{g[0], g[1]}, tokens, r)
	loss := func() float64 { return dot(r64, refEmbed(c, w64, tokens)) }
	requireGradients(t, []string{"Wte", "Wpe"}, g, w64, loss)
}

func TestLayersMatchTheirDifferencesAlone(t *testing.T) {
	const rows, dim, out = 5, 8, 12
	x, r := random(1, rows*dim, 1), random(2, rows*dim, 1)
	x64, r64 := wide(x), wide(r)

	t.Run("layer norm", func(t *testing.T) {
		w, y, stats := randomAll(3, []int{dim, dim}, 1), make([]float32, rows*dim), make([]moments, rows)
		w64 := wideAll(w)
		loss := func() float64 { return dot(r64, refLayerNorm(w64[0], w64[1], x64)) }
		layerNorm(w[0], w[1], x, y, stats)
		requireClose(t, "output", y, refLayerNorm(w64[0], w64[1], x64), valueTolerance)
		dx := make([]float32, rows*dim)
		layerNormInput(w[0], x, r, dx, stats)
		requireClose(t, "input gradient", dx, differences(x64, loss), gradientTolerance)
		g := filled([]int{dim, dim})
		layerNormWeights(g[0], g[1], x, r, stats)
		requireGradients(t, []string{"gain", "bias"}, g, w64, loss)
	})
	t.Run("gelu", func(t *testing.T) {
		y, gates, d := make([]float32, rows*dim), make([]float32, rows*dim), append([]float32(nil), r...)
		gelu(x, gates, y)
		requireClose(t, "output", y, refGELU(x64), valueTolerance)
		geluInput(x, gates, d)
		loss := func() float64 { return dot(r64, refGELU(x64)) }
		requireClose(t, "input gradient", d, differences(x64, loss), gradientTolerance)
	})
	t.Run("linear", func(t *testing.T) {
		sizes := []int{dim * out, out}
		w, r := randomAll(3, sizes, 1), random(2, rows*out, 1)
		w64, r64 := wideAll(w), wide(r)
		loss := func() float64 { return dot(r64, refLinear(w64[0], w64[1], x64, dim, out)) }
		y, dx, g := make([]float32, rows*out), make([]float32, rows*dim), filled(sizes)
		linear(w[0], w[1], dense(x, rows, dim), dense(y, rows, out))
		requireClose(t, "output", y, refLinear(w64[0], w64[1], x64, dim, out), valueTolerance)
		linearInput(w[0], dense(r, rows, out), dense(dx, rows, dim))
		requireClose(t, "input gradient", dx, differences(x64, loss), gradientTolerance)
		linearWeights(g[0], g[1], dense(x, rows, dim), dense(r, rows, out))
		requireGradients(t, []string{"weight", "bias"}, g, w64, loss)
	})
	t.Run("attention", func(t *testing.T) {
		c := small
		qkv, r := random(5, 3*c.Context*c.Dim, 1), random(6, c.Context*c.Dim, 1)
		qkv64, r64 := wide(qkv), wide(r)
		probs, mixed := make([]float32, c.Heads*c.Context*c.Context), make([]float32, c.Context*c.Dim)
		c.attend(qkv, probs, mixed)
		requireClose(t, "output", mixed, refAttend(c, qkv64), valueTolerance)
		dqkv, scratch := make([]float32, len(qkv)), make([]float32, c.Context*c.Context)
		c.attendInput(qkv, probs, r, dqkv, scratch)
		loss := func() float64 { return dot(r64, refAttend(c, qkv64)) }
		requireClose(t, "input gradient", dqkv, differences(qkv64, loss), gradientTolerance)
	})
}

func TestExpIsGoodToAFewUnitsInTheLastPlace(t *testing.T) {
	for x := float32(-87); x < 88; x += 0.0137 {
		want := math.Exp(float64(x))
		if got := float64(exp(x)); math.Abs(got-want) > 4e-7*want {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if low, high := exp(float32(math.Inf(-1))), exp(float32(math.Inf(1))); low != exp(-87) || high != exp(88) {
		t.Errorf("exp of the infinities is %v and %v, want it to saturate", low, high)
	}
}

func TestProductsOfEveryFormMatchTheDefinition(t *testing.T) {
	for _, size := range []struct{ m, n, k int }{{1, 1, 1}, {3, 5, 7}, {64, 128, 4}, {65, 129, 33}, {130, 260, 70}} {
		a, b := random(1, size.m*size.k, 1), random(2, size.k*size.n, 1)
		want := make([]float64, size.m*size.n)
		for i := range want {
			row, col := i/size.n, i%size.n
			for l := range size.k {
				want[i] += 2 * float64(a[row*size.k+l]) * float64(b[l*size.n+col])
			}
			want[i] += 3
		}
		left, right := dense(a, size.m, size.k), dense(b, size.k, size.n)
		forms := map[string]func(c matrix){
			"a*b":   func(c matrix) { multiply(plain, plain, 2, left, right, 3, c) },
			"aᵀ*b":  func(c matrix) { multiply(transposed, plain, 2, flip(left), right, 3, c) },
			"a*bᵀ":  func(c matrix) { multiply(plain, transposed, 2, left, flip(right), 3, c) },
			"aᵀ*bᵀ": func(c matrix) { multiply(transposed, transposed, 2, flip(left), flip(right), 3, c) },
		}
		for name, form := range forms {
			c := dense(make([]float32, size.m*size.n), size.m, size.n)
			for i := range c.Data {
				c.Data[i] = 1
			}
			form(c)
			requireClose(t, name, c.Data, want, 1e-5)
		}
	}
}

// flip returns the transpose of m in memory of its own.
func flip(m matrix) matrix {
	f := dense(make([]float32, m.Rows*m.Cols), m.Cols, m.Rows)
	for r := range m.Rows {
		for c := range m.Cols {
			f.Data[c*f.Stride+r] = m.Data[r*m.Stride+c]
		}
	}
	return f
}
