package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/shardgen/shardgen/examples/bytelm/bytelm"
	"github.com/shardgen/shardgen/examples/bytelm/corpus"
	"github.com/shardgen/shardgen/examples/bytelm/transformer"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/optim"
)

const (
	microBatches = 4 // of a step, shared out among the ranks; gradients.divide_by in model.yaml
	batch        = 2 // sequences in a micro-batch
)

// result is what a run leaves behind.
type result struct {
	losses  []float64 // mean over the micro-batches, by step
	weights weights
	sample  string
}

// weights are whole parameters by name.
type weights map[string][]float32

// trainer is one rank at work.
type trainer struct {
	rank, ranks int
	options     options
	text        *corpus.Corpus
	model       *bytelm.Model
	ws          *transformer.Workspace
	tokens      []byte
	targets     []byte
	tied        []float32               // the head's part of the tied matrix's gradient
	losses      [][microBatches]float64 // by step; shared by the ranks, each writes its own micro-batches
}

// train runs a model on so many ranks of this process from its first step to
// its last.
func train(ctx context.Context, ranks int, text *corpus.Corpus, o options) (*result, error) {
	fmt.Printf("\n%d rank(s), %d steps\n", ranks, o.steps)
	out := &result{}
	losses := make([][microBatches]float64, o.steps)
	err := shard.Run(ctx, shard.Local(ranks), func(ctx context.Context, rank *shard.Rank) error {
		t, err := newTrainer(ctx, rank, text, o, losses)
		if err != nil {
			return err
		}
		defer t.close()
		if err := t.train(ctx); err != nil {
			return err
		}
		return t.finish(ctx, out)
	})
	if err != nil {
		return nil, err
	}
	for i := range losses {
		out.losses = append(out.losses, mean(losses[i]))
	}
	return out, nil
}

func newTrainer(ctx context.Context, rank *shard.Rank, text *corpus.Corpus, o options, losses [][microBatches]float64) (*trainer, error) {
	workers := 1
	if rank.Size() == 1 {
		workers = 2 // one rank has the cores to itself
	}
	ws, err := transformer.NewWorkspace(config, batch, workers)
	if err != nil {
		return nil, err
	}
	m, err := bytelm.Open(ctx, rank, bytelm.Options{})
	if err != nil {
		ws.Close()
		return nil, err
	}
	n := batch * config.Context
	t := &trainer{
		rank: rank.Rank(), ranks: rank.Size(), options: o, text: text, model: m, ws: ws,
		tokens: make([]byte, n), targets: make([]byte, n),
		tied: make([]float32, transformer.Vocab*config.Dim), losses: losses,
	}
	if err := errors.Join(m.Init(ctx, o.seed), t.checkSizes(ctx)); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *trainer) close() {
	t.model.Close()
	t.ws.Close()
}

// train takes the steps. Rank 0 says how it goes.
func (t *trainer) train(ctx context.Context) error {
	begin, shown := time.Now(), 0
	for n := range t.options.steps {
		if err := t.step(ctx, n); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
		every := max(t.options.steps/9, 1)
		if t.rank == 0 && (n == 0 || (n+1)%every == 0 || n+1 == t.options.steps) {
			t.report(n, shown, time.Since(begin))
			shown = n + 1
		}
	}
	if t.rank == 0 {
		t.reportCosts()
	}
	return nil
}

// step goes through the rank's micro-batches of step n and updates the weights.
func (t *trainer) step(ctx context.Context, n int) error {
	for micro := t.rank; micro < microBatches; micro += t.ranks {
		if err := t.text.Batch(t.options.seed, n, micro, config.Context, t.tokens, t.targets); err != nil {
			return err
		}
		loss, err := t.forward(t.model.Forward(ctx))
		if err != nil {
			return err
		}
		t.losses[n][micro] = loss
		if err := t.backward(ctx); err != nil {
			return err
		}
	}
	_, err := t.model.Step(ctx, optim.AdamW{LR: t.rate(n), Beta2: 0.99, WeightDecay: 0.01})
	return err
}

// forward gathers each block, computes with it and releases it; the next one is
// on its way meanwhile. It returns the micro-batch's mean loss.
func (t *trainer) forward(f bytelm.ForwardPass) (float64, error) {
	e, err := f.Embed()
	if err != nil {
		return 0, err
	}
	t.ws.Embed(embedWeights(e), t.tokens, t.ws.X[0])
	e.Release()
	for i := range bytelm.HLen {
		h, err := f.H(i)
		if err != nil {
			return 0, err
		}
		t.ws.Block(blockWeights(h), t.ws.X[i], t.ws.X[i+1])
		h.Release()
	}
	head, err := f.Head()
	if err != nil {
		return 0, err
	}
	loss := t.ws.Loss(headWeights(head), t.ws.X[bytelm.HLen], t.targets)
	head.Release()
	return loss, f.End()
}

// backward gathers the blocks in reverse order, computes each again from its
// input and differentiates it. Reduce adds the gradients up over the ranks while
// the next block computes.
//
// The token embedding is also the head's matrix. Its two gradients could be
// reduced apart, and would be added up after; here a rank adds its own two first,
// so that the order of all additions is the same with any number of ranks.
func (t *trainer) backward(ctx context.Context) error {
	b := t.model.Backward(ctx)
	head, g, err := b.Head()
	if err != nil {
		return err
	}
	clear(t.tied)
	t.ws.LossBackward(headWeights(head), headGradients(g, t.tied), t.ws.X[bytelm.HLen], t.targets, t.ws.Dx)
	head.Release()
	g.Reduce()
	for i := bytelm.HLen - 1; i >= 0; i-- {
		h, g, err := b.H(i)
		if err != nil {
			return err
		}
		t.ws.BlockBackward(blockWeights(h), blockGradients(g), t.ws.X[i], t.ws.Dx)
		h.Release()
		g.Reduce()
	}
	e, ge, err := b.Embed()
	if err != nil {
		return err
	}
	copy(ge.Wte.Host(), t.tied)
	t.ws.EmbedBackward(embedGradients(ge), t.tokens, t.ws.Dx)
	e.Release()
	ge.Reduce()
	return b.End()
}

// rate warms up over ten steps and then falls along a cosine to a tenth.
func (t *trainer) rate(n int) float64 {
	const peak, warmUp = 5e-3, 10
	if n < warmUp {
		return peak * float64(n+1) / warmUp
	}
	done := float64(n-warmUp) / float64(max(t.options.steps-warmUp, 1))
	return peak * (0.1 + 0.45*(1+math.Cos(math.Pi*done)))
}

// finish measures the held-out loss, samples some text and collects the whole
// weights. Every rank gathers; rank 0 keeps.
func (t *trainer) finish(ctx context.Context, out *result) error {
	heldOut, err := t.heldOut(ctx)
	if err != nil {
		return err
	}
	all, err := t.collect(ctx)
	if err != nil {
		return err
	}
	if t.rank == 0 {
		fmt.Printf("  held-out loss %.3f nats a byte\n", heldOut)
		out.weights = all
	}
	if t.ranks == 1 && t.options.text > 0 {
		out.sample, err = t.write(ctx, t.options.text)
	}
	return err
}

func (t *trainer) heldOut(ctx context.Context) (float64, error) {
	const batches = 16
	sum := 0.0
	for i := range batches {
		if err := t.text.HeldOutBatch(i, batches, config.Context, t.tokens, t.targets); err != nil {
			return 0, err
		}
		loss, err := t.forward(t.model.Eval(ctx))
		if err != nil {
			return 0, err
		}
		sum += loss
	}
	return sum / batches, nil
}
