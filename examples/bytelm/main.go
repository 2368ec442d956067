// Command bytelm trains a small causal transformer on the Go distribution's own
// sources, byte by byte, first with one rank and then with four, and compares
// the two.
//
// It is what a trainer on shardgen looks like: model.yaml is the spec, package
// bytelm is generated from it, trainer.go goes through its passes, and the
// arithmetic in package transformer does not know who owns the weights.
package main

import (
	"context"
	"errors"
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
	flag.IntVar(&o.ranks, "ranks", 4, "ranks of the second run: 1, 2 or 4")
	flag.Uint64Var(&o.seed, "seed", 1, "seed of the weights and the batches")
	flag.IntVar(&o.text, "text", 240, "bytes of text to sample at the end")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "bytelm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.steps < 1 || microBatches%max(o.ranks, 1) != 0 || o.ranks < 1 {
		return fmt.Errorf("-steps %d -ranks %d: steps must be positive and ranks divide %d", o.steps, o.ranks, microBatches)
	}
	text, err := corpus.Load(ctx, 8<<20)
	if err != nil {
		return err
	}
	fmt.Printf("\nText: %.1f MB of the Go distribution's sources, %.1f MB of them held out.\n", megabytes(len(text.Train)), megabytes(len(text.HeldOut)))
	fmt.Printf("Model: %d layers of width %d, %d heads, context %d; a token is a byte.\n", config.Layers, config.Dim, config.Heads, config.Context)
	fmt.Printf("A step is %d micro-batches of %dx%d tokens.\n", microBatches, batch, config.Context)

	begin := time.Now()
	alone, err := train(ctx, 1, text, o)
	if err != nil {
		return err
	}
	together, err := train(ctx, o.ranks, text, o)
	if err != nil {
		return err
	}
	fmt.Printf("\nBoth runs took %.0f s.\n", time.Since(begin).Seconds())
	if o.text > 0 {
		fmt.Printf("\nWhat the model writes after %q (it has learnt the look of Go, not its sense):\n\n%s\n", prompt, alone.sample)
	}
	return compare(alone, together, o.ranks)
}

func megabytes(n int) float64 { return float64(n) / 1e6 }

// compare prints the largest differences of two runs. They must be zero: a
// micro-batch's gradient is the same bits whoever computes it, one rank adds the
// four gradients in the order in which four ranks' are reduced, and dividing by
// four is exact.
func compare(a, b *result, ranks int) error {
	weight, name, err := largestDifference(a.weights, b.weights)
	if err != nil {
		return err
	}
	loss := 0.0
	for i := range a.losses {
		loss = max(loss, abs(a.losses[i]-b.losses[i]))
	}
	fmt.Printf("\n1 rank against %d, after %d steps:\n", ranks, len(a.losses))
	fmt.Printf("  largest difference of any weight  %g\n", weight)
	fmt.Printf("  largest difference of any loss    %g\n", loss)
	switch {
	case ranks == 2:
		fmt.Println("Two ranks add the four micro-batches in another order, (0+2)+(1+3), so the last bits differ.")
	case weight == 0 && loss == 0:
		fmt.Println("They are zero: the same four gradients are added in the same order, whether one rank\naccumulates them or four ranks reduce them, and a quarter of a sum is exact.")
	default:
		return fmt.Errorf("1 rank and %d ranks trained different models: %s differs by %g, the loss by %g", ranks, name, weight, loss)
	}
	return nil
}

func abs(x float64) float64 { return max(x, -x) }

// largestDifference goes through the weights of two models.
func largestDifference(a, b weights) (largest float64, where string, err error) {
	if len(a) != len(b) {
		return 0, "", fmt.Errorf("the models have %d and %d parameters", len(a), len(b))
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || len(x) != len(y) {
			return 0, "", errors.New("the models disagree on " + name)
		}
		for i := range x {
			if d := abs(float64(x[i]) - float64(y[i])); !(d <= largest) {
				largest, where = d, fmt.Sprintf("%s[%d]", name, i)
			}
		}
	}
	return largest, where, nil
}
