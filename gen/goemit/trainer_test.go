package goemit

import (
	"path/filepath"
	"testing"

	"github.com/shardgen/shardgen/gen/output"
)

// trainerMain uses a generated GPT-2 of width 8 as a trainer does, and stops
// where a tensor is not what the spec says.
const trainerMain = `package main

import (
	"context"
	"fmt"
	"os"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/optim"
	"trainer/gpt2small"
)

func main() {
	if err := shard.Run(context.Background(), shard.Local(8), train); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func train(ctx context.Context, rank *shard.Rank) error {
	m, err := gpt2small.Open(ctx, rank, gpt2small.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Init(ctx, 7); err != nil {
		return err
	}
	if err := forward(ctx, m, 1); err != nil {
		return fmt.Errorf("first forward: %w", err)
	}
	if err := backward(ctx, m); err != nil {
		return fmt.Errorf("backward: %w", err)
	}
	if _, err := m.Step(ctx, optim.AdamW{LR: 0.5}); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	return forward(ctx, m, 0.5)
}

// forward expects all of ln_1 to be close to a value.
func forward(ctx context.Context, m *gpt2small.Model, ln float32) error {
	f := m.Forward(ctx)
	e, err := f.Embed()
	if err != nil {
		return err
	}
	first := e.Wte.Host()[3]
	if shape := fmt.Sprint(e.Wpe.Shape()); shape != "[1024 8]" {
		return fmt.Errorf("wpe has shape %s", shape)
	}
	e.Release()
	for i := range gpt2small.HLen {
		h, err := f.H(i)
		if err != nil {
			return err
		}
		if want := fmt.Sprintf("h.%d.mlp.c_fc.weight", i); h.Mlp_CFc.Name() != want {
			return fmt.Errorf("tensor %s, want %s", h.Mlp_CFc.Name(), want)
		}
		for k := range h.Ln_1.Host() {
			if d := h.Ln_1.Host()[k] - ln; d > 0.01 || d < -0.01 || h.Ln_1_Bias.Host()[k] != 0 {
				return fmt.Errorf("block %d: ln_1 is %v and %v", i, h.Ln_1.Host(), h.Ln_1_Bias.Host())
			}
		}
		h.Release()
	}
	head, err := f.Head()
	if err != nil {
		return err
	}
	if head.LmHead.Host()[3] != first || head.LmHead.Numel() != 50257*8 {
		return fmt.Errorf("lm_head is not wte")
	}
	head.Release()
	return f.End()
}

// backward gives ln_1 gradients of 1, and nothing else any.
func backward(ctx context.Context, m *gpt2small.Model) error {
	b := m.Backward(ctx)
	head, headGrads, err := b.Head()
	if err != nil {
		return err
	}
	head.Release()
	headGrads.Reduce()
	for i := gpt2small.HLen - 1; i >= 0; i-- {
		h, g, err := b.H(i)
		if err != nil {
			return err
		}
		for k, x := range g.Ln_1.Host() {
			if x != 0 {
				return fmt.Errorf("block %d: a gradient is %v before use", i, x)
			}
			g.Ln_1.Host()[k] = 1
		}
		h.Release()
		g.Reduce()
	}
	e, g, err := b.Embed()
	if err != nil {
		return err
	}
	e.Release()
	g.Reduce()
	return b.End()
}
`

func TestATrainerRunsAStep(t *testing.T) {
	files := emit(t, planOf(t, "model.yaml", gpt2("gpt2-small", 8, 3)))
	dir := module(t, map[string][]output.File{"gpt2small": files, "main": {{Name: "main.go", Content: []byte(trainerMain)}}})
	program := filepath.Join(dir, "program")
	if out, err := goTool(t, dir, "build", "-o", program, "./main"); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if out, err := command(t, program).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
