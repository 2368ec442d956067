// Package shard has the part of the runtime's API that the analyzers look at.
package shard

import "context"

type Model struct{}

func (m *Model) Forward(ctx context.Context) Pass  { return Pass{m} }
func (m *Model) Backward(ctx context.Context) Pass { return Pass{m} }

type Pass struct{ m *Model }

func (p Pass) Gather(kind, index int) (Block, error) { return Block{p.m}, nil }
func (p Pass) GatherWithGrads(kind, index int) (Block, Grads, error) {
	return Block{p.m}, Grads{p.m}, nil
}
func (p Pass) End() error { return nil }

type Block struct{ m *Model }

func (b Block) Release() {}

type Grads struct{ m *Model }

func (g Grads) Reduce()  {}
func (g Grads) Discard() {}

type Tensor[T any] struct{ memory []T }

func (t Tensor[T]) Host() []T    { return t.memory }
func (t Tensor[T]) Name() string { return "" }
func (t Tensor[T]) Numel() int64 { return int64(len(t.memory)) }

func (t Tensor[T]) CopyTo(ctx context.Context, dst []T) error   { copy(dst, t.memory); return nil }
func (t Tensor[T]) CopyFrom(ctx context.Context, src []T) error { copy(t.memory, src); return nil }
