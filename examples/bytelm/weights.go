package main

import (
	"context"
	"errors"
	"slices"

	"github.com/shardgen/shardgen/examples/bytelm/bytelm"
	"github.com/shardgen/shardgen/examples/bytelm/transformer"
	shard "github.com/shardgen/shardgen/runtime"
)

// The functions below show the arithmetic what the passes hand out: views of
// gathered parameters and of gradient buffers, without a copy.

func embedWeights(e bytelm.Embed) transformer.EmbedWeights {
	return transformer.EmbedWeights{Wte: e.Wte.Host(), Wpe: e.Wpe.Host()}
}

func embedGradients(g bytelm.EmbedGrads) transformer.EmbedWeights {
	return transformer.EmbedWeights{Wte: g.Wte.Host(), Wpe: g.Wpe.Host()}
}

func blockWeights(h bytelm.H) transformer.BlockWeights {
	return transformer.BlockWeights{
		Ln1: h.Ln1.Host(), Ln1Bias: h.Ln1_Bias.Host(),
		Qkv: h.Qkv.Host(), QkvBias: h.Qkv_Bias.Host(),
		Proj: h.Proj.Host(), ProjBias: h.Proj_Bias.Host(),
		Ln2: h.Ln2.Host(), Ln2Bias: h.Ln2_Bias.Host(),
		Up: h.Up.Host(), UpBias: h.Up_Bias.Host(),
		Down: h.Down.Host(), DownBias: h.Down_Bias.Host(),
	}
}

func blockGradients(g bytelm.HGrads) transformer.BlockWeights {
	return transformer.BlockWeights{
		Ln1: g.Ln1.Host(), Ln1Bias: g.Ln1_Bias.Host(),
		Qkv: g.Qkv.Host(), QkvBias: g.Qkv_Bias.Host(),
		Proj: g.Proj.Host(), ProjBias: g.Proj_Bias.Host(),
		Ln2: g.Ln2.Host(), Ln2Bias: g.Ln2_Bias.Host(),
		Up: g.Up.Host(), UpBias: g.Up_Bias.Host(),
		Down: g.Down.Host(), DownBias: g.Down_Bias.Host(),
	}
}

func headWeights(h bytelm.Head) transformer.HeadWeights {
	return transformer.HeadWeights{LnF: h.LnF.Host(), LnFBias: h.LnF_Bias.Host(), LmHead: h.LmHead.Host()}
}

func headGradients(g bytelm.HeadGrads, tied []float32) transformer.HeadWeights {
	return transformer.HeadWeights{LnF: g.LnF.Host(), LnFBias: g.LnF_Bias.Host(), LmHead: tied}
}

// checkSizes goes through the model once and returns an error unless model.yaml
// and the arithmetic agree on the sizes.
func (t *trainer) checkSizes(ctx context.Context) error {
	return t.visit(ctx,
		func(e bytelm.Embed) error { return embedWeights(e).Check(config) },
		func(h bytelm.H) error { return blockWeights(h).Check(config) },
		func(h bytelm.Head) error { return headWeights(h).Check(config) })
}

// collect copies the whole weights.
func (t *trainer) collect(ctx context.Context) (weights, error) {
	all := weights{}
	keep := func(tensors ...shard.Tensor[float32]) error {
		for _, x := range tensors {
			all[x.Name()] = slices.Clone(x.Host())
		}
		return nil
	}
	err := t.visit(ctx,
		func(e bytelm.Embed) error { return keep(e.Wte, e.Wpe) },
		func(h bytelm.H) error {
			return keep(h.Ln1, h.Ln1_Bias, h.Qkv, h.Qkv_Bias, h.Proj, h.Proj_Bias, h.Ln2, h.Ln2_Bias, h.Up, h.Up_Bias, h.Down, h.Down_Bias)
		},
		func(h bytelm.Head) error { return keep(h.LnF, h.LnF_Bias) })
	return all, err
}

// visit shows every block of the model, gathered one after the other.
func (t *trainer) visit(ctx context.Context, embed func(bytelm.Embed) error, block func(bytelm.H) error, head func(bytelm.Head) error) error {
	f := t.model.Eval(ctx)
	e, err := f.Embed()
	if err != nil {
		return err
	}
	err = embed(e)
	e.Release()
	for i := 0; i < bytelm.HLen && err == nil; i++ {
		h, failed := f.H(i)
		if failed != nil {
			return failed
		}
		err = block(h)
		h.Release()
	}
	if err != nil {
		return err
	}
	h, err := f.Head()
	if err != nil {
		return err
	}
	err = head(h)
	h.Release()
	return errors.Join(err, f.End())
}
