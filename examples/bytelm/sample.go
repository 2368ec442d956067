package main

import (
	"context"
	"strings"

	"github.com/shardgen/shardgen/examples/bytelm/bytelm"
	"github.com/shardgen/shardgen/examples/bytelm/transformer"
)

const (
	prompt      = "func "
	temperature = 0.7
)

// write lets the model go on from the prompt for n bytes. Each byte is a forward
// pass of its own.
func (t *trainer) write(ctx context.Context, n int) (string, error) {
	ws, err := transformer.NewWorkspace(config, 1, 1)
	if err != nil {
		return "", err
	}
	defer ws.Close()
	text := []byte(prompt)
	tokens, logits := make([]byte, config.Context), make([]float32, transformer.Vocab)
	sampler := transformer.NewSampler(t.options.seed, temperature)
	for range n {
		row := transformer.Window(text, tokens)
		if err := predict(ws, t.model.Eval(ctx), tokens, row, logits); err != nil {
			return "", err
		}
		text = append(text, sampler.Next(logits))
	}
	return printable(text), nil
}

// printable leaves ASCII, tabs and line ends: a terminal obeys some of the
// others.
func printable(text []byte) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= ' ' && r <= '~' {
			return r
		}
		return '.'
	}, string(text))
}

// predict computes the logits of the byte that follows the row-th token.
func predict(ws *transformer.Workspace, f bytelm.ForwardPass, tokens []byte, row int, logits []float32) error {
	e, err := f.Embed()
	if err != nil {
		return err
	}
	ws.Embed(embedWeights(e), tokens, ws.X[0])
	e.Release()
	for i := range bytelm.HLen {
		h, err := f.H(i)
		if err != nil {
			return err
		}
		ws.Block(blockWeights(h), ws.X[i], ws.X[i+1])
		h.Release()
	}
	head, err := f.Head()
	if err != nil {
		return err
	}
	ws.Logits(headWeights(head), ws.X[bytelm.HLen], row, logits)
	head.Release()
	return f.End()
}
