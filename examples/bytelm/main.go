// Command bytelm trains a small causal transformer on the Go distribution's own
// sources, byte by byte, first with one rank and then with four, and proves that
// both end with the same weights.
//
// It is what a trainer on shardgen looks like. model.yaml is the spec and package
// bytelm is generated from it. The files:
//
//	trainer.go   goes through the passes: gather, compute, release; backward with
//	             recomputation, reduce; step
//	weights.go   shows the arithmetic what the passes hand out
//	evaluate.go  measures the held-out loss
//	sample.go    lets the model write
//	result.go    keeps what a run leaves behind
//	compare.go   compares two runs
//	report.go    prints progress, bytes and memory
//
// Package transformer is arithmetic on slices that does not know who owns the
// weights, package corpus gives the batches.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/shardgen/shardgen/examples/bytelm/corpus"
	"github.com/shardgen/shardgen/examples/bytelm/transformer"
)

//go:generate go -C ../.. run ./cmd/shardgen generate examples/bytelm/model.yaml --out examples/bytelm/bytelm

// config has the sizes of model.yaml.
var config = transformer.Config{Layers: 2, Dim: 64, Heads: 4, Context: 64, Hidden: 256}

const (
	corpusBytes = 8 << 20
	maxSteps    = 1_000_000
)

// options are the command's flags.
type options struct {
	steps int
	ranks int // of the second run
	seed  uint64
	text  int // bytes of text to sample
}

func main() {
	var o options
	flag.IntVar(&o.steps, "steps", 450, "optimizer steps of each run")
	flag.IntVar(&o.ranks, "ranks", 4, "ranks of the second run: 2 or 4")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the weights and the batches")
	flag.IntVar(&o.text, "text", 240, "bytes of text to sample at the end, 0 for none")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "bytelm:", err)
		os.Exit(1)
	}
}

// check refuses what the runs can't do.
func (o options) check() error {
	switch {
	case o.steps < 1 || o.steps > maxSteps:
		return fmt.Errorf("-steps %d: want 1 to %d", o.steps, maxSteps)
	case o.ranks != 2 && o.ranks != 4:
		return fmt.Errorf("-ranks %d: want 2 or 4, which divide the %d micro-batches of a step and are in topology.world of model.yaml", o.ranks, microBatches)
	case o.text < 0:
		return fmt.Errorf("-text %d: want the number of bytes to sample, 0 for none", o.text)
	}
	return nil
}

func run(ctx context.Context, o options, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q: bytelm takes flags only, see -help", args[0])
	}
	if err := o.check(); err != nil {
		return err
	}
	text, err := corpus.Load(ctx, corpusBytes)
	if err != nil {
		return err
	}
	introduce(text)

	begin := time.Now()
	fmt.Printf("\n1 rank: it takes the %d micro-batches of a step one after another and adds their gradients up.\n", microBatches)
	alone, err := train(ctx, 1, text, o)
	if err != nil {
		return err
	}
	fmt.Printf("\n%d ranks: each holds 1/%d of the weights, gradients and moments, and takes %d of the %d micro-batches.\n", o.ranks, o.ranks, microBatches/o.ranks, microBatches)
	together, err := train(ctx, o.ranks, text, o)
	if err != nil {
		return err
	}
	fmt.Printf("\nBoth runs took %.0f s.\n", time.Since(begin).Seconds())

	if o.text > 0 {
		fmt.Printf("\nWhat the model writes after %q. A model of this size learns the look of Go's sources at most, not their sense:\n\n%s\n", prompt, alone.sample)
	}
	return prove(alone, together, o.ranks)
}
