// Package tiny has the shape of a generated package.
package tiny

import (
	"context"

	shard "github.com/shardgen/shardgen/runtime"
)

const HLen = 3

type Model struct{ core *shard.Model }

func (m *Model) Close() error                              { return nil }
func (m *Model) Step(ctx context.Context) (float64, error) { return 0, nil }
func (m *Model) Forward(ctx context.Context) ForwardPass   { return ForwardPass{m.core.Forward(ctx)} }
func (m *Model) Eval(ctx context.Context) ForwardPass      { return ForwardPass{m.core.Forward(ctx)} }
func (m *Model) Backward(ctx context.Context) BackwardPass { return BackwardPass{m.core.Backward(ctx)} }

type ForwardPass struct{ pass shard.Pass }

func (f ForwardPass) Embed() (Embed, error) {
	block, err := f.pass.Gather(0, 0)
	if err != nil {
		return Embed{}, err
	}
	return Embed{block: block}, nil
}

func (f ForwardPass) H(i int) (H, error) {
	block, err := f.pass.Gather(1, i)
	if err != nil {
		return H{}, err
	}
	return H{block: block}, nil
}

func (f ForwardPass) End() error { return f.pass.End() }

type BackwardPass struct{ pass shard.Pass }

func (b BackwardPass) H(i int) (H, HGrads, error) {
	block, grads, err := b.pass.GatherWithGrads(1, i)
	if err != nil {
		return H{}, HGrads{}, err
	}
	return H{block: block}, HGrads{grads: grads}, nil
}

func (b BackwardPass) End() error { return b.pass.End() }

type Embed struct {
	block shard.Block
	Wte   shard.Tensor[float32]
}

func (e Embed) Release() { e.block.Release() }

type Expert struct{ Up shard.Tensor[float32] }

type H struct {
	block   shard.Block
	Ln_1    shard.Tensor[float32]
	Mlp     shard.Tensor[float32]
	Experts [2]Expert
}

func (h H) Release() { h.block.Release() }

type HGrads struct {
	grads   shard.Grads
	Mlp     shard.Tensor[float32]
	Experts [2]Expert
}

func (g HGrads) Reduce()  { g.grads.Reduce() }
func (g HGrads) Discard() { g.grads.Discard() }
