package plan

import (
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/spec"
)

// at wraps a value as the parser does, at a line of its own choosing.
func at[T any](v T) spec.At[T] { return spec.At[T]{V: v, Pos: spec.Pos{Line: 1, Col: 1}} }

func said[T any](v T) spec.At[T] {
	return spec.At[T]{V: v, Pos: spec.Pos{Line: 1, Col: 1}, Set: true}
}

// newModel returns a model with the language's defaults.
func newModel(worlds []int64, blocks ...spec.Block) *spec.Model {
	m := &spec.Model{
		Path: "model.yaml", Name: at("test"), Package: at("test"), DType: at(dtype.Float32),
		Shard:     spec.Shard{Layout: at("flat"), AlignBytes: at[int64](256)},
		Gather:    spec.Gather{MaxLive: at[int64](2), Prefetch: at[int64](1), Mode: at("all_gather")},
		Gradients: spec.Gradients{Reduce: at(dtype.Float32), Slots: at[int64](2)},
		Optimizer: spec.Optimizer{Kind: at(spec.OptimizerNone)},
		Blocks:    blocks,
	}
	for _, w := range worlds {
		m.Topology.Worlds = append(m.Topology.Worlds, said(w))
	}
	return m
}

func blockOf(name string, params ...spec.Param) spec.Block {
	return spec.Block{Name: said(name), Params: params}
}

func repeated(name string, last int64, params ...spec.Param) spec.Block {
	b := blockOf(name, params...)
	b.Repeat = &spec.Repeat{Var: "i", Last: last}
	return b
}

func paramOf(name string, t dtype.DType, shape ...int64) spec.Param {
	p := spec.Param{Name: said(name), DType: at(t), Trainable: at(t.Trainable()), Decay: at(true)}
	for _, d := range shape {
		p.Shape = append(p.Shape, said(d))
	}
	return p
}

func tiedParam(name, owner string) spec.Param {
	return spec.Param{Name: said(name), TiedTo: said(owner)}
}

// mustBuild plans a model that has to be sound.
func mustBuild(t interface {
	Helper()
	Fatalf(string, ...any)
}, m *spec.Model, worlds ...int64) *Plan {
	t.Helper()
	p, faults := Build(m, worlds...)
	if len(faults) > 0 {
		t.Fatalf("plan of a sound model: %v", faults)
	}
	return p
}

func TestDenseModelIsPlannedEndToEnd(t *testing.T) {
	m := newModel([]int64{1, 8},
		blockOf("embed", paramOf("wte.weight", dtype.BFloat16, 50257, 768), paramOf("wpe.weight", dtype.BFloat16, 1024, 768)),
		repeated("h.{i}", 11, paramOf("h.{i}.ln_1.weight", dtype.Float32, 768), paramOf("h.{i}.mlp.weight", dtype.BFloat16, 768, 3072)),
		blockOf("head", paramOf("ln_f.weight", dtype.BFloat16, 768), tiedParam("lm_head.weight", "wte.weight")))
	m.Optimizer.Kind = said(spec.OptimizerAdamW)
	p := mustBuild(t, m)
	if len(p.Params) != 2+24+2 || len(p.Worlds) != 2 || len(p.Layout.Shared) != 1 {
		t.Fatalf("%d names, %d worlds, %d shared", len(p.Params), len(p.Worlds), len(p.Layout.Shared))
	}
}
