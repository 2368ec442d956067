package goldenmodel

import (
	"math"
	"testing"
)

func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if !(math.Abs(got-want) <= tolerance) {
		t.Errorf("%s: got %v, want %v within %v", what, got, want, tolerance)
	}
}

func nearAll(t *testing.T, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if !(math.Abs(float64(got[i])-float64(want[i])) <= tolerance) {
			t.Fatalf("%s element %d: got %v, want %v within %v", what, i, got[i], want[i], tolerance)
		}
	}
}

// accumulate runs the micro-batches of all ranks and returns the averaged
// gradient after each.
func accumulate(t *testing.T, g *Grads) []Odd {
	t.Helper()
	after := make([]Odd, MicroBatches)
	sum := NewOdd()
	for micro := range MicroBatches {
		for rank := range g.World {
			x, y := g.Batch(micro, rank)
			near(t, "loss", float64(g.Weights.Step(sum, x, y)), g.Losses[rank][micro], 1e-6)
		}
		after[micro] = NewOdd()
		for i, p := range sum.Params() {
			for j, v := range p {
				after[micro].Params()[i][j] = v / float32(g.World*MicroBatches)
			}
		}
	}
	return after
}

func TestOddGradientsAreThoseOfTorchAndDeepSpeed(t *testing.T) {
	worlds, err := LoadGrads()
	if err != nil || len(worlds) != 3 {
		t.Fatalf("%d world sizes, error %v", len(worlds), err)
	}
	for world, g := range worlds {
		after := accumulate(t, g)
		for i, name := range OddNames {
			full := after[1].Params()[i]
			nearAll(t, name, full, g.Torch.Params()[i], 2e-7)
			nearAll(t, name, full, g.DeepSpeed.Params()[i], 2e-7)
			for rank := range world {
				for micro, got := range after {
					shard := g.ShardsByMicro[rank][micro][name]
					start := min(rank*shard.Numel, len(full))
					nearAll(t, name+" shard", got.Params()[i][start:start+shard.Valid], shard.Values, 2e-7)
				}
			}
		}
	}
}

func TestMLPLossesBeforeTheFirstStepAreTorchs(t *testing.T) {
	worlds, err := LoadTrain()
	if err != nil || len(worlds) != 2 {
		t.Fatalf("%d world sizes, error %v", len(worlds), err)
	}
	for world, train := range worlds {
		for name, v := range train.Variants {
			for rank := range world {
				x, y := train.Batch(0, rank)
				loss := float64(train.Init.Step(NewMLP(), x, y))
				near(t, name, loss, v.Losses[0][rank], 1e-6)
				near(t, name, loss, v.Torch.Losses[0][rank], 1e-6)
			}
		}
	}
}

// numeric is the slope of the loss along one element, by central difference.
func numeric(element *float32, loss func() float32) float64 {
	const h = 2e-4
	old := *element
	*element = old + h
	up := float64(loss())
	*element = old - h
	down := float64(loss())
	*element = old
	return (up - down) / (2 * h)
}

func TestMLPGradientIsTheSlopeOfTheLoss(t *testing.T) {
	worlds, err := LoadTrain()
	if err != nil {
		t.Fatal(err)
	}
	train := worlds[1]
	p, grad := train.Init, NewMLP()
	x, y := train.Batch(0, 0)
	p.Step(grad, x, y)
	scratch := NewMLP()
	for i, name := range MLPNames {
		for j := 0; j < len(p.Params()[i]); j += 3 {
			slope := numeric(&p.Params()[i][j], func() float32 { return p.Step(scratch, x, y) })
			near(t, name, float64(grad.Params()[i][j]), slope, 1e-3)
		}
	}
}
