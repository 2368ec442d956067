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

// trainer is one rank at work.
type trainer struct {
	rank, ranks int
	options     options
	text        *corpus.Corpus
	model       *bytelm.Model
	ws          *transformer.Workspace
	tokens      []byte
	targets     []byte
	tied        []float32 // the head's part of the tied matrix's gradient
	result      *result   // the ranks' common one; each writes the losses of its own batches
}

// train runs a model on so many ranks of this process from its first step to
// its last.
func train(ctx context.Context, ranks int, text *corpus.Corpus, o options) (*result, error) {
	r := &result{losses: make([]microLosses, o.steps)}
	err := shard.Run(ctx, shard.Local(ranks), func(ctx context.Context, rank *shard.Rank) error {
		t, err := newTrainer(ctx, rank, text, o, r)
		if err != nil {
			return err
		}
		defer t.close()
		if err := t.train(ctx); err != nil {
			return err
		}
		return t.finish(ctx)
	})
	if err != nil {
		return nil, err
	}
	fmt.Printf("  loss on the held-out text    %.3f\n", r.heldOutLoss())
	return r, nil
}

func newTrainer(ctx context.Context, rank *shard.Rank, text *corpus.Corpus, o options, r *result) (*trainer, error) {
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
		tied: make([]float32, transformer.Vocab*config.Dim), result: r,
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

// train takes the steps. Rank 0 says how it goes: a step waits for all ranks, so
// the losses of all are there.
func (t *trainer) train(ctx context.Context) error {
	before := t.model.Stats()
	p := progress{steps: t.options.steps, since: time.Now()}
	for n := range t.options.steps {
		if err := t.step(ctx, n); err != nil {
			return fmt.Errorf("step %d: %w", n+1, err)
		}
		if t.rank == 0 && p.due(n) {
			p.print(n, t.result.losses)
		}
	}
	if t.rank == 0 {
		printCosts(received(before, t.model.Stats()), t.model.Memory(), int64(t.options.steps))
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
		t.result.losses[n][micro] = loss
		if err := t.backward(ctx); err != nil {
			return err
		}
	}
	r, err := t.model.Step(ctx, optim.AdamW{LR: t.rate(n), Beta1: 0.9, Beta2: 0.99, WeightDecay: 0.01})
	if err == nil && r.Skipped {
		err = fmt.Errorf("%d elements of the gradients are NaN or infinite", r.NonFinite)
	}
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
