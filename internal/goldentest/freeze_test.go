package goldentest

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/shardgen/shardgen/generated/goldenmlp"
	"github.com/shardgen/shardgen/internal/goldenmodel"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/optim"
)

//go:embed testdata/freeze.json
var freezeJSON []byte

// frozenRuns is a training by torch whose parameters are frozen in some steps:
// testdata/README.md says more.
type frozenRuns struct {
	LR          float64                       `json:"lr"`
	WeightDecay float64                       `json:"weight_decay"`
	Frozen      [][]string                    `json:"frozen"` // [steps], names
	Worlds      map[int]map[string]*frozenRun `json:"worlds"`
}

// frozenRun is one run of them.
type frozenRun struct {
	Clip float64 `json:"clip"` // 0 means none
	goldenmodel.Result
}

// A parameter that is frozen has no gradient, and torch's AdamW passes over it: its
// bias correction goes on where it stopped, its moments and values stay, and the
// norm that clipping takes is that of the others.
func TestFrozenParametersTrainLikeTorch(t *testing.T) {
	var runs frozenRuns
	if err := json.Unmarshal(freezeJSON, &runs); err != nil {
		t.Fatal(err)
	}
	worlds, err := goldenmodel.LoadTrain()
	if err != nil || len(runs.Worlds) != len(worlds) {
		t.Fatalf("%d world sizes, %d have batches, error %v", len(runs.Worlds), len(worlds), err)
	}
	onEveryDevice(t, func(t *testing.T, launcher func(int) shard.Launcher) map[string][]trained {
		all := map[string][]trained{}
		for world, variants := range runs.Worlds {
			for name, want := range variants {
				title := fmt.Sprintf("%s/%d", name, world)
				all[title] = make([]trained, world)
				err := shard.Run(t.Context(), launcher(world), func(ctx context.Context, rank *shard.Rank) error {
					return all[title][rank.Rank()].trainFrozen(ctx, rank, worlds[world], &runs, want)
				})
				if err != nil {
					t.Errorf("%s: %v", title, err)
				}
			}
		}
		return all
	}, goldenmlp.Descriptor())
}

func (r *trained) trainFrozen(ctx context.Context, rank *shard.Rank, train *goldenmodel.Train, runs *frozenRuns, want *frozenRun) error {
	m, err := goldenmlp.Open(ctx, rank, goldenmlp.Options{})
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Update(ctx, fill(ctx, byName(goldenmodel.MLPNames, train.Init.Params()))); err != nil {
		return err
	}
	for step, frozen := range runs.Frozen {
		if err := errors.Join(m.Unfreeze("*"), m.Freeze(frozen...)); err != nil {
			return err
		}
		x, y := train.Batch(step, rank.Rank())
		loss, err := stepMLP(ctx, m, x, y)
		if err != nil {
			return err
		}
		res, err := m.Step(ctx, optim.AdamW{LR: runs.LR, WeightDecay: runs.WeightDecay, ClipNorm: want.Clip})
		if err != nil {
			return err
		}
		r.losses, r.norms = append(r.losses, loss), append(r.norms, res.GradNorm)
	}
	if r.final, err = readMLP(ctx, m.Eval(ctx)); err != nil {
		return err
	}
	return r.compare(want.Result, rank.Rank())
}

// compare says where a rank's training differs from torch's.
func (r *trained) compare(want goldenmodel.Result, rank int) error {
	const tolerance = 1e-6
	var all []error
	for step := range want.Losses {
		all = append(all,
			near(fmt.Sprintf("loss of step %d", step), r.losses[step], want.Losses[step][rank], tolerance),
			near(fmt.Sprintf("norm of step %d", step), r.norms[step], want.GradNorms[step], tolerance))
	}
	for i, name := range goldenmodel.MLPNames {
		all = append(all, nearAll("final "+name, r.final.Params()[i], want.Final.Params()[i], tolerance))
	}
	return errors.Join(all...)
}
