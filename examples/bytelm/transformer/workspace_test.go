package transformer

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// model is a whole model's weights or gradients in memory of its own.
type model struct {
	embed  EmbedWeights
	blocks []BlockWeights
	head   HeadWeights
	all    [][]float32
}

func newModel(c Config, fill func(sizes []int) [][]float32) *model {
	m := &model{}
	outer := fill([]int{Vocab * c.Dim, c.Context * c.Dim, c.Dim, c.Dim})
	m.embed = EmbedWeights{outer[0], outer[1]}
	m.head = HeadWeights{LnF: outer[2], LnFBias: outer[3], LmHead: outer[0]}
	m.all = outer
	for range c.Layers {
		w := fill(blockShapes(c))
		m.blocks = append(m.blocks, blockWeights(w))
		m.all = append(m.all, w...)
	}
	return m
}

func randomModel(c Config) *model {
	seed := uint64(0)
	m := newModel(c, func(sizes []int) [][]float32 {
		seed += 100
		return randomAll(seed, sizes, 0.1)
	})
	for i := range m.head.LnF {
		m.head.LnF[i] = 1
	}
	for _, b := range m.blocks {
		for i := range b.Ln1 {
			b.Ln1[i], b.Ln2[i] = 1, 1
		}
	}
	return m
}

func emptyModel(c Config) *model {
	return newModel(c, func(sizes []int) [][]float32 { return randomAll(0, sizes, 0) })
}

func (m *model) forward(ws *Workspace, tokens []byte) {
	ws.Embed(m.embed, tokens, ws.X[0])
	for i, w := range m.blocks {
		ws.Block(w, ws.X[i], ws.X[i+1])
	}
}

// train runs both passes and adds the gradients to g.
func (m *model) train(ws *Workspace, g *model, tokens, targets []byte) float64 {
	last := len(m.blocks)
	m.forward(ws, tokens)
	loss := ws.Loss(m.head, ws.X[last], targets)
	ws.LossBackward(m.head, g.head, ws.X[last], targets, ws.Dx)
	for i := last - 1; i >= 0; i-- {
		ws.BlockBackward(m.blocks[i], g.blocks[i], ws.X[i], ws.Dx)
	}
	ws.EmbedBackward(g.embed, tokens, ws.Dx)
	return loss
}

var medium = Config{Layers: 2, Dim: 16, Heads: 2, Context: 70, Hidden: 64}

func TestTheNumberOfWorkersChangesNoBit(t *testing.T) {
	const batch = 3
	tokens, targets := randomBytes(1, batch*medium.Context), randomBytes(2, batch*medium.Context)
	m := randomModel(medium)
	want := emptyModel(medium)
	wantLoss := m.train(newTestWorkspace(t, medium, batch, 1), want, tokens, targets)
	for _, workers := range []int{1, 2, 3, 8} {
		ws := newTestWorkspace(t, medium, batch, workers)
		for range 3 { // the second time the buffers hold what the first left in them
			got := emptyModel(medium)
			if loss := m.train(ws, got, tokens, targets); loss != wantLoss {
				t.Errorf("%d workers: loss %v, want exactly %v", workers, loss, wantLoss)
			}
			for i := range want.all {
				requireSameBits(t, got.all[i], want.all[i])
			}
		}
	}
}

func requireSameBits(t *testing.T, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("element %d is %v, want exactly %v", i, got[i], want[i])
		}
	}
}

func TestTrainingAllocatesNothing(t *testing.T) {
	tokens, targets := randomBytes(1, 2*medium.Context), randomBytes(2, 2*medium.Context)
	m, g := randomModel(medium), emptyModel(medium)
	for _, workers := range []int{1, 2} {
		ws := newTestWorkspace(t, medium, 2, workers)
		if n := testing.AllocsPerRun(5, func() { m.train(ws, g, tokens, targets) }); n != 0 {
			t.Errorf("%d workers: %v allocations a step, want none", workers, n)
		}
	}
}

func TestSmallStepsAgainstTheGradientLowerTheLoss(t *testing.T) {
	text := []byte(strings.Repeat("for i := range n { sum += i }\n", 10))
	tokens, targets := text[:2*medium.Context], text[1:2*medium.Context+1]
	ws, m := newTestWorkspace(t, medium, 2, 2), randomModel(medium)
	first := m.train(ws, emptyModel(medium), tokens, targets)
	var last float64
	for range 20 {
		g := emptyModel(medium)
		last = m.train(ws, g, tokens, targets)
		for i, w := range m.all {
			for j := range w {
				w[j] -= 0.2 * g.all[i][j]
			}
		}
	}
	if last > 0.6*first {
		t.Errorf("the loss went from %.3f to %.3f, want it to fall by 40%%", first, last)
	}
}

func TestNoRowSeesLaterTokens(t *testing.T) {
	const changed = 41
	ws, m := newTestWorkspace(t, medium, 1, 1), randomModel(medium)
	tokens := randomBytes(1, medium.Context)
	m.forward(ws, tokens)
	want := slices.Clone(ws.X[medium.Layers])
	tokens[changed]++
	m.forward(ws, tokens)
	got, edge := ws.X[medium.Layers], changed*medium.Dim
	requireSameBits(t, got[:edge], want[:edge])
	if slices.Equal(got[edge:edge+medium.Dim], want[edge:edge+medium.Dim]) {
		t.Error("the changed token's own row is the same as before")
	}
}

func TestLogitsGiveTheLossOfOneRow(t *testing.T) {
	ws, m := newTestWorkspace(t, medium, 1, 1), randomModel(medium)
	tokens, targets := randomBytes(1, medium.Context), randomBytes(2, medium.Context)
	m.forward(ws, tokens)
	x := ws.X[medium.Layers]
	var sum float64
	logits := make([]float32, Vocab)
	for row, target := range targets {
		ws.Logits(m.head, x, row, logits)
		sum -= math.Log(refSoftmax(wide(logits))[target]) / float64(len(targets))
	}
	if loss := ws.Loss(m.head, x, targets); math.Abs(loss-sum) > 1e-5 {
		t.Errorf("loss %v, but %v by the logits of its rows", loss, sum)
	}
}

func TestSizesThatTheLayersCannotWorkWithAreRefused(t *testing.T) {
	for _, test := range []struct {
		name           string
		change         func(c *Config)
		batch, workers int
		want           string
	}{
		{"no layers", func(c *Config) { c.Layers = 0 }, 1, 1, "Layers is 0"},
		{"no context", func(c *Config) { c.Context = 0 }, 1, 1, "Context is 0"},
		{"no heads", func(c *Config) { c.Heads = 0 }, 1, 1, "Heads is 0"},
		{"heads of different width", func(c *Config) { c.Dim = 20 }, 1, 1, "multiple of 4*Heads = 8"},
		{"unaligned hidden rows", func(c *Config) { c.Hidden = 6 }, 1, 1, "Hidden is 6"},
		{"no sequences", func(c *Config) {}, 0, 1, "batch is 0"},
		{"no workers", func(c *Config) {}, 1, 0, "workers is 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := small
			test.change(&c)
			_, err := NewWorkspace(c, test.batch, test.workers)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func BenchmarkStep(b *testing.B) {
	c := Config{Layers: 2, Dim: 64, Heads: 4, Context: 64, Hidden: 256}
	const batch = 4
	ws, err := NewWorkspace(c, batch, 1)
	if err != nil {
		b.Fatal(err)
	}
	defer ws.Close()
	m, g := randomModel(c), emptyModel(c)
	tokens, targets := randomBytes(1, batch*c.Context), randomBytes(2, batch*c.Context)
	for b.Loop() {
		m.train(ws, g, tokens, targets)
	}
	b.ReportMetric(float64(b.N*batch*c.Context)/b.Elapsed().Seconds(), "tokens/s")
}
