package optim

import (
	"fmt"
	"math"
	"testing"

	"github.com/shardgen/shardgen/internal/goldenmodel"
)

// replica is one copy of the model that all simulated ranks share.
type replica struct {
	model, m, v, grad goldenmodel.MLP
}

func newReplica(init goldenmodel.MLP) *replica {
	r := &replica{goldenmodel.NewMLP(), goldenmodel.NewMLP(), goldenmodel.NewMLP(), goldenmodel.NewMLP()}
	for i, p := range init.Params() {
		copy(r.model.Params()[i], p)
	}
	return r
}

// backward fills grad with the mean of the ranks' gradients and returns their losses.
func (r *replica) backward(train *goldenmodel.Train, step int) []float64 {
	for _, g := range r.grad.Params() {
		clear(g)
	}
	losses := make([]float64, train.World)
	for rank := range train.World {
		x, y := train.Batch(step, rank)
		losses[rank] = float64(r.model.Step(r.grad, x, y))
	}
	for _, g := range r.grad.Params() {
		for i := range g {
			g[i] /= float32(train.World)
		}
	}
	return losses
}

// apply clips and steps, and returns the norm before clipping.
func (r *replica) apply(t *testing.T, o AdamW, step int64) float64 {
	t.Helper()
	var partials []byte
	for _, g := range r.grad.Params() {
		own := make([]byte, PartialBytes(int64(len(g))))
		PutNorms(own, g)
		partials = append(partials, own...)
	}
	var n Norm
	n.AddAll(partials)
	scale, norm := o.GradScale(n)
	s, err := o.Prepare(step, scale)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range r.model.Params() {
		s.Update(p, r.m.Params()[i], r.v.Params()[i], r.grad.Params()[i])
	}
	return norm
}

const goldenTolerance = 1e-6

func checkNear(t *testing.T, what string, got, want float64) {
	t.Helper()
	if !(math.Abs(got-want) <= goldenTolerance) {
		t.Fatalf("%s: got %v, want %v within %v", what, got, want, goldenTolerance)
	}
}

func checkFinal(t *testing.T, by string, got, want goldenmodel.MLP) {
	t.Helper()
	for i, name := range goldenmodel.MLPNames {
		for j, x := range want.Params()[i] {
			checkNear(t, fmt.Sprintf("%s: final %s[%d]", by, name, j), float64(got.Params()[i][j]), float64(x))
		}
	}
}

func TestAdamWTrainsLikeDeepSpeedAndTorch(t *testing.T) {
	worlds, err := goldenmodel.LoadTrain()
	if err != nil || len(worlds) != 2 {
		t.Fatalf("%d world sizes, error %v", len(worlds), err)
	}
	for world, train := range worlds {
		for name, v := range train.Variants {
			t.Run(fmt.Sprintf("%s/%d", name, world), func(t *testing.T) { trainLike(t, train, v) })
		}
	}
}

func trainLike(t *testing.T, train *goldenmodel.Train, v goldenmodel.Variant) {
	r := newReplica(train.Init)
	o := AdamW{LR: v.LR, WeightDecay: v.WeightDecay, ClipNorm: v.Clip}
	for step := range train.Steps {
		for rank, loss := range r.backward(train, step) {
			checkNear(t, fmt.Sprintf("DeepSpeed: loss of step %d", step), loss, v.Losses[step][rank])
			checkNear(t, fmt.Sprintf("torch: loss of step %d", step), loss, v.Torch.Losses[step][rank])
		}
		norm := r.apply(t, o, int64(step)+1)
		checkNear(t, fmt.Sprintf("DeepSpeed: norm of step %d", step), norm, v.GradNorms[step])
		checkNear(t, fmt.Sprintf("torch: norm of step %d", step), norm, v.Torch.GradNorms[step])
	}
	checkFinal(t, "DeepSpeed", r.model, v.Final)
	checkFinal(t, "torch", r.model, v.Torch.Final)
}
