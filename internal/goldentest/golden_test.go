package goldentest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/shardgen/shardgen/generated/goldenmlp"
	"github.com/shardgen/shardgen/generated/goldenodd"
	"github.com/shardgen/shardgen/internal/emulated"
	"github.com/shardgen/shardgen/internal/goldenmodel"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/optim"
)

// ranks launches ranks whose memory is full of garbage.
func ranks(n int) shard.Launcher {
	return shard.LocalRanks{Ranks: n, Timeout: 10 * time.Second, Device: func(int) (device.Device, error) { return cpu.Poisoned(), nil }}
}

// schedules are the orders of work of the emulated GPUs.
var schedules = []string{"random:7", "starve:0", "starve:1", "starve:2"}

// onEveryDevice runs f with ranks on the CPU, then on emulated GPUs with the
// kernels of the generated packages, under each schedule. f returns bits that must
// be the same on all.
func onEveryDevice[T any](t *testing.T, f func(t *testing.T, launcher func(n int) shard.Launcher) T, descriptors ...*shard.Descriptor) {
	t.Helper()
	var want T
	t.Run("cpu", func(t *testing.T) { want = f(t, ranks) })
	t.Run("emulated", func(t *testing.T) {
		m := emulated.Require(t)
		for _, d := range descriptors {
			d.Code = m.AddPackage(t, filepath.Join("../../generated", d.Package), d.Code)
		}
		for _, schedule := range schedules {
			t.Run(schedule, func(t *testing.T) {
				m := emulated.Require(t)
				m.Schedule(t, schedule)
				if got := f(t, m.Launcher); !reflect.DeepEqual(got, want) {
					t.Error("the results are near, but do not have the bits of the CPU's")
				}
				m.Clean(t)
			})
		}
	})
}

// host copies a tensor to the host. A copy that fails ends the rank.
func host(ctx context.Context, x shard.Tensor[float32]) []float32 {
	list := make([]float32, x.Numel())
	if err := x.CopyTo(ctx, list); err != nil {
		panic(err)
	}
	return list
}

// fill gives the rank's shards the values of whole parameters.
func fill(ctx context.Context, whole map[string][]float32) func(*shard.Shards) error {
	return func(s *shard.Shards) error {
		for sh := range s.All() {
			values := whole[sh.Name][sh.Offset:]
			if int64(len(values)) < sh.Len {
				return fmt.Errorf("%s has too few values", sh.Name)
			}
			if err := shard.WriteValues(ctx, sh, values[:sh.Len]); err != nil {
				return err
			}
		}
		return nil
	}
}

func byName(names []string, params [][]float32) map[string][]float32 {
	m := map[string][]float32{}
	for i, n := range names {
		m[n] = params[i]
	}
	return m
}

func near(what string, got, want, tolerance float64) error {
	if math.Abs(got-want) <= tolerance {
		return nil
	}
	return fmt.Errorf("%s: got %v, want %v within %v", what, got, want, tolerance)
}

func nearAll(what string, got, want []float32, tolerance float64) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d elements, want %d", what, len(got), len(want))
	}
	for i := range got {
		if err := near(fmt.Sprintf("%s[%d]", what, i), float64(got[i]), float64(want[i]), tolerance); err != nil {
			return err
		}
	}
	return nil
}

func TestGeneratedMLPTrainsLikeDeepSpeedAndTorch(t *testing.T) {
	worlds, err := goldenmodel.LoadTrain()
	if err != nil || len(worlds) != 2 {
		t.Fatalf("%d world sizes, error %v", len(worlds), err)
	}
	onEveryDevice(t, func(t *testing.T, launcher func(int) shard.Launcher) map[string][]trained {
		all := map[string][]trained{}
		for world, train := range worlds {
			for name, v := range train.Variants {
				title := fmt.Sprintf("%s/%d", name, world)
				all[title] = make([]trained, world)
				err := shard.Run(t.Context(), launcher(world), func(ctx context.Context, rank *shard.Rank) error {
					return all[title][rank.Rank()].trainMLP(ctx, rank, train, v)
				})
				if err != nil {
					t.Errorf("%s: %v", title, err)
				}
			}
		}
		return all
	}, goldenmlp.Descriptor())
}

// trained is what a rank saw of a training.
type trained struct {
	losses, norms []float64
	final         goldenmodel.MLP
}

func (r *trained) trainMLP(ctx context.Context, rank *shard.Rank, train *goldenmodel.Train, v goldenmodel.Variant) error {
	const tolerance = 1e-6
	m, err := goldenmlp.Open(ctx, rank, goldenmlp.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Update(ctx, fill(ctx, byName(goldenmodel.MLPNames, train.Init.Params()))); err != nil {
		return err
	}
	for step := range train.Steps {
		x, y := train.Batch(step, rank.Rank())
		loss, err := stepMLP(ctx, m, x, y)
		if err != nil {
			return err
		}
		res, err := m.Step(ctx, optim.AdamW{LR: v.LR, WeightDecay: v.WeightDecay, ClipNorm: v.Clip})
		if err != nil {
			return err
		}
		r.losses, r.norms = append(r.losses, loss), append(r.norms, res.GradNorm)
		for _, check := range []struct {
			what      string
			got, want float64
		}{
			{"DeepSpeed's loss", loss, v.Losses[step][rank.Rank()]}, {"torch's loss", loss, v.Torch.Losses[step][rank.Rank()]},
			{"DeepSpeed's norm", res.GradNorm, v.GradNorms[step]}, {"torch's norm", res.GradNorm, v.Torch.GradNorms[step]},
		} {
			if err := near(fmt.Sprintf("%s of step %d", check.what, step), check.got, check.want, tolerance); err != nil {
				return err
			}
		}
	}
	if r.final, err = readMLP(ctx, m.Eval(ctx)); err != nil {
		return err
	}
	for i, name := range goldenmodel.MLPNames {
		if err := nearAll("DeepSpeed's final "+name, r.final.Params()[i], v.Final.Params()[i], tolerance); err != nil {
			return err
		}
		if err := nearAll("torch's final "+name, r.final.Params()[i], v.Torch.Final.Params()[i], tolerance); err != nil {
			return err
		}
	}
	return nil
}

// stepMLP goes forward and backward through the two blocks and returns the loss.
func stepMLP(ctx context.Context, m *goldenmlp.Model, x, y []float32) (float64, error) {
	const rows = goldenmodel.MLPRows
	hidden, out := make([]float32, rows*goldenmodel.MLPHidden), make([]float32, rows*goldenmodel.MLPOut)
	f := m.Forward(ctx)
	one, err := f.Fc1()
	if err != nil {
		return 0, err
	}
	goldenmodel.Linear(hidden, x, host(ctx, one.Weight), host(ctx, one.Bias), rows)
	goldenmodel.ReLU(hidden, hidden)
	one.Release()
	two, err := f.Fc2()
	if err != nil {
		return 0, err
	}
	goldenmodel.Linear(out, hidden, host(ctx, two.Weight), host(ctx, two.Bias), rows)
	two.Release()
	if err := f.End(); err != nil {
		return 0, err
	}
	dOut, dHidden := make([]float32, len(out)), make([]float32, len(hidden))
	loss := goldenmodel.MSE(dOut, out, y)
	b := m.Backward(ctx)
	two, g2, err := b.Fc2()
	if err != nil {
		return 0, err
	}
	err = add(ctx, g2.Weight, g2.Bias, func(weight, bias []float32) {
		goldenmodel.LinearBackward(dHidden, weight, bias, dOut, hidden, host(ctx, two.Weight), rows)
	})
	if err != nil {
		return 0, err
	}
	goldenmodel.ReLUBackward(dHidden, dHidden, hidden)
	two.Release()
	g2.Reduce()
	one, g1, err := b.Fc1()
	if err != nil {
		return 0, err
	}
	err = add(ctx, g1.Weight, g1.Bias, func(weight, bias []float32) {
		goldenmodel.LinearBackward(nil, weight, bias, dHidden, x, host(ctx, one.Weight), rows)
	})
	if err != nil {
		return 0, err
	}
	one.Release()
	g1.Reduce()
	return float64(loss), b.End()
}

// add lets do add to the gradients of a layer on the host.
func add(ctx context.Context, weight, bias shard.Tensor[float32], do func(weight, bias []float32)) error {
	w, b := host(ctx, weight), host(ctx, bias)
	do(w, b)
	return errors.Join(weight.CopyFrom(ctx, w), bias.CopyFrom(ctx, b))
}

func readMLP(ctx context.Context, f goldenmlp.ForwardPass) (goldenmodel.MLP, error) {
	var p goldenmodel.MLP
	one, err := f.Fc1()
	if err != nil {
		return p, err
	}
	p.FC1Weight, p.FC1Bias = host(ctx, one.Weight), host(ctx, one.Bias)
	one.Release()
	two, err := f.Fc2()
	if err != nil {
		return p, err
	}
	p.FC2Weight, p.FC2Bias = host(ctx, two.Weight), host(ctx, two.Bias)
	two.Release()
	return p, f.End()
}

func TestGeneratedGradientsAreThoseOfDeepSpeedAndTorch(t *testing.T) {
	worlds, err := goldenmodel.LoadGrads()
	if err != nil || len(worlds) != 3 {
		t.Fatalf("%d world sizes, error %v", len(worlds), err)
	}
	onEveryDevice(t, func(t *testing.T, launcher func(int) shard.Launcher) map[int][]map[string][]float32 {
		all := map[int][]map[string][]float32{}
		for world, g := range worlds {
			whole := make([]map[string][]float32, goldenmodel.MicroBatches)
			for i := range whole {
				whole[i] = byName(goldenmodel.OddNames, goldenmodel.NewOdd().Params())
			}
			all[world] = whole
			err := shard.Run(t.Context(), launcher(world), func(ctx context.Context, rank *shard.Rank) error {
				return accumulateOdd(ctx, rank, g, whole)
			})
			if err != nil {
				t.Errorf("%d ranks: %v", world, err)
			}
			compareOdd(t, g, whole)
		}
		return all
	}, goldenodd.Descriptor())
}

// accumulateOdd runs the micro-batches and copies the rank's part of the
// gradient after each into whole; the ranks' parts do not overlap.
func accumulateOdd(ctx context.Context, rank *shard.Rank, g *goldenmodel.Grads, whole []map[string][]float32) error {
	m, err := goldenodd.Open(ctx, rank, goldenodd.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Update(ctx, fill(ctx, byName(goldenmodel.OddNames, g.Weights.Params()))); err != nil {
		return err
	}
	for micro := range goldenmodel.MicroBatches {
		x, y := g.Batch(micro, rank.Rank())
		b := m.Backward(ctx)
		p, grad, err := b.All()
		if err != nil {
			return err
		}
		weights := goldenmodel.Odd{AWeight: host(ctx, p.A), ABias: host(ctx, p.A_Bias), BWeight: host(ctx, p.B), CWeight: host(ctx, p.C), CBias: host(ctx, p.C_Bias)}
		gradients := goldenmodel.Odd{AWeight: host(ctx, grad.A), ABias: host(ctx, grad.A_Bias), BWeight: host(ctx, grad.B), CWeight: host(ctx, grad.C), CBias: host(ctx, grad.C_Bias)}
		loss := weights.Step(gradients, x, y)
		for i, to := range []shard.Tensor[float32]{grad.A, grad.A_Bias, grad.B, grad.C, grad.C_Bias} {
			err = errors.Join(err, to.CopyFrom(ctx, gradients.Params()[i]))
		}
		if err != nil {
			return err
		}
		p.Release()
		grad.Reduce()
		if err := b.End(); err != nil {
			return err
		}
		if err := near("loss", float64(loss), g.Losses[rank.Rank()][micro], 1e-6); err != nil {
			return err
		}
		err = m.Inspect(ctx, func(s *shard.Shards) error {
			for sh := range s.All() {
				part := make([]float32, sh.Len)
				if err := shard.ReadGradient(ctx, sh, part); err != nil {
					return err
				}
				for i, v := range part { // the mean over the micro-batches is the trainer's to take
					whole[micro][sh.Name][sh.Offset+int64(i)] = v / goldenmodel.MicroBatches
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func compareOdd(t *testing.T, g *goldenmodel.Grads, whole []map[string][]float32) {
	t.Helper()
	const tolerance = 2e-7
	last := whole[goldenmodel.MicroBatches-1]
	for i, name := range goldenmodel.OddNames {
		if err := nearAll("torch's "+name, last[name], g.Torch.Params()[i], tolerance); err != nil {
			t.Error(err)
		}
		if err := nearAll("DeepSpeed's "+name, last[name], g.DeepSpeed.Params()[i], tolerance); err != nil {
			t.Error(err)
		}
		for rank := range g.World {
			for micro, got := range whole {
				part := g.ShardsByMicro[rank][micro][name]
				start := min(rank*part.Numel, len(got[name]))
				if err := nearAll(fmt.Sprintf("DeepSpeed's shard of %s on rank %d after micro-batch %d", name, rank, micro), got[name][start:start+part.Valid], part.Values, tolerance); err != nil {
					t.Error(err)
				}
			}
		}
	}
}
