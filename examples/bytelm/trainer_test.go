package main

import (
	"context"
	"testing"
	"time"

	"github.com/shardgen/shardgen/examples/bytelm/corpus"
)

func TestFourRanksTrainWhatOneRankTrains(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	text, err := corpus.Load(ctx, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	o := options{steps: 25, ranks: 4, seed: 3}
	alone, err := train(ctx, 1, text, o)
	if err != nil {
		t.Fatal(err)
	}
	together, err := train(ctx, o.ranks, text, o)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := compare(alone, together); err != nil || !d.zero() {
		t.Errorf("they differ: %+v, %v", d, err)
	}
	if len(alone.losses) != o.steps || alone.weights.count() != 120_576 {
		t.Errorf("compared %d losses and %d weights, want %d and the spec's 120576", len(alone.losses), alone.weights.count(), o.steps)
	}
	if first, last := alone.loss(0), alone.loss(o.steps-1); !(last < first-1) {
		t.Errorf("the loss fell from %.3f to %.3f only", first, last)
	}
}
