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
	if d, where, err := largestDifference(alone.weights, together.weights); err != nil || d != 0 {
		t.Errorf("the weights differ by %g at %s, %v", d, where, err)
	}
	for i := range alone.losses {
		if alone.losses[i] != together.losses[i] {
			t.Fatalf("step %d: losses %v and %v", i, alone.losses[i], together.losses[i])
		}
	}
	if first, last := alone.losses[0], alone.losses[len(alone.losses)-1]; !(last < first-1) {
		t.Errorf("the loss fell from %.3f to %.3f only", first, last)
	}
}

func TestDifferencesOfModelsAreFound(t *testing.T) {
	a, b := weights{"w": {1, 2, 3}}, weights{"w": {1, 2.5, 3}}
	if d, where, err := largestDifference(a, b); err != nil || d != 0.5 || where != "w[1]" {
		t.Errorf("largestDifference = %v at %q, %v", d, where, err)
	}
	for _, other := range []weights{{}, {"v": {1, 2, 3}}, {"w": {1}}} {
		if _, _, err := largestDifference(a, other); err == nil {
			t.Errorf("%v and %v were compared", a, other)
		}
	}
}
