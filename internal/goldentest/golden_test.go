package goldentest

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/shardgen/shardgen/generated/goldenmlp"
	"github.com/shardgen/shardgen/generated/goldenodd"
	"github.com/shardgen/shardgen/internal/goldenmodel"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/optim"
)

// ranks launches ranks whose memory is full of garbage.
func ranks(n int) shard.LocalRanks {
	return shard.LocalRanks{Ranks: n, Timeout: 10 * time.Second, Device: func(int) (device.Device, error) { return cpu.Poisoned(), nil }}
}

// fill gives the rank's shards the values of whole parameters.
func fill(whole map[string][]float32) func(*shard.Shards) error {
	return func(s *shard.Shards) error {
		for sh := range s.All() {
			values, err := shard.Values[float32](sh)
			if err != nil {
				return err
			}
			if copy(values, whole[sh.Name][sh.Offset:]) != len(values) {
				return fmt.Errorf("%s has too few values", sh.Name)
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
	for world, train := range worlds {
		for name, v := range train.Variants {
			t.Run(fmt.Sprintf("%s/%d", name, world), func(t *testing.T) {
				err := shard.Run(t.Context(), ranks(world), func(ctx context.Context, rank *shard.Rank) error {
					return trainMLP(ctx, rank, train, v)
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func trainMLP(ctx context.Context, rank *shard.Rank, train *goldenmodel.Train, v goldenmodel.Variant) error {
	const tolerance = 1e-6
	m, err := goldenmlp.Open(ctx, rank, goldenmlp.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Update(ctx, fill(byName(goldenmodel.MLPNames, train.Init.Params()))); err != nil {
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
	final, err := readMLP(m.Eval(ctx))
	if err != nil {
		return err
	}
	for i, name := range goldenmodel.MLPNames {
		if err := nearAll("DeepSpeed's final "+name, final.Params()[i], v.Final.Params()[i], tolerance); err != nil {
			return err
		}
		if err := nearAll("torch's final "+name, final.Params()[i], v.Torch.Final.Params()[i], tolerance); err != nil {
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
	goldenmodel.Linear(hidden, x, one.Weight.Host(), one.Bias.Host(), rows)
	goldenmodel.ReLU(hidden, hidden)
	one.Release()
	two, err := f.Fc2()
	if err != nil {
		return 0, err
	}
	goldenmodel.Linear(out, hidden, two.Weight.Host(), two.Bias.Host(), rows)
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
	goldenmodel.LinearBackward(dHidden, g2.Weight.Host(), g2.Bias.Host(), dOut, hidden, two.Weight.Host(), rows)
	goldenmodel.ReLUBackward(dHidden, dHidden, hidden)
	two.Release()
	g2.Reduce()
	one, g1, err := b.Fc1()
	if err != nil {
		return 0, err
	}
	goldenmodel.LinearBackward(nil, g1.Weight.Host(), g1.Bias.Host(), dHidden, x, one.Weight.Host(), rows)
	one.Release()
	g1.Reduce()
	return float64(loss), b.End()
}

func readMLP(f goldenmlp.ForwardPass) (goldenmodel.MLP, error) {
	p := goldenmodel.NewMLP()
	one, err := f.Fc1()
	if err != nil {
		return p, err
	}
	copy(p.FC1Weight, one.Weight.Host())
	copy(p.FC1Bias, one.Bias.Host())
	one.Release()
	two, err := f.Fc2()
	if err != nil {
		return p, err
	}
	copy(p.FC2Weight, two.Weight.Host())
	copy(p.FC2Bias, two.Bias.Host())
	two.Release()
	return p, f.End()
}

func TestGeneratedGradientsAreThoseOfDeepSpeedAndTorch(t *testing.T) {
	worlds, err := goldenmodel.LoadGrads()
	if err != nil || len(worlds) != 3 {
		t.Fatalf("%d world sizes, error %v", len(worlds), err)
	}
	for world, g := range worlds {
		t.Run(fmt.Sprint(world), func(t *testing.T) {
			whole := make([]map[string][]float32, goldenmodel.MicroBatches)
			for i := range whole {
				whole[i] = byName(goldenmodel.OddNames, goldenmodel.NewOdd().Params())
			}
			err := shard.Run(t.Context(), ranks(world), func(ctx context.Context, rank *shard.Rank) error {
				return accumulateOdd(ctx, rank, g, whole)
			})
			if err != nil {
				t.Fatal(err)
			}
			compareOdd(t, g, whole)
		})
	}
}

// accumulateOdd runs the micro-batches and copies the rank's part of the
// gradient after each into whole; the ranks' parts do not overlap.
func accumulateOdd(ctx context.Context, rank *shard.Rank, g *goldenmodel.Grads, whole []map[string][]float32) error {
	m, err := goldenodd.Open(ctx, rank, goldenodd.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Update(ctx, fill(byName(goldenmodel.OddNames, g.Weights.Params()))); err != nil {
		return err
	}
	for micro := range goldenmodel.MicroBatches {
		x, y := g.Batch(micro, rank.Rank())
		b := m.Backward(ctx)
		p, grad, err := b.All()
		if err != nil {
			return err
		}
		weights := goldenmodel.Odd{AWeight: p.A.Host(), ABias: p.A_Bias.Host(), BWeight: p.B.Host(), CWeight: p.C.Host(), CBias: p.C_Bias.Host()}
		gradients := goldenmodel.Odd{AWeight: grad.A.Host(), ABias: grad.A_Bias.Host(), BWeight: grad.B.Host(), CWeight: grad.C.Host(), CBias: grad.C_Bias.Host()}
		loss := weights.Step(gradients, x, y)
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
				part, err := shard.Gradient[float32](sh)
				if err != nil {
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
