package goldenmodel

import (
	_ "embed"
	"encoding/json"
	"fmt"
)

//go:embed testdata/train.json
var trainJSON []byte

//go:embed testdata/grads.json
var gradsJSON []byte

// Train is a training of the [MLP] at one world size: five steps of AdamW
// (betas 0.9 and 0.999, eps 1e-8, weight decay on all parameters).
type Train struct {
	World    int                `json:"-"`
	Steps    int                `json:"steps"`
	X        []float32          `json:"x"` // [steps, world, 4, 17]
	Y        []float32          `json:"y"` // [steps, world, 4, 5]
	Init     MLP                `json:"init"`
	Variants map[string]Variant `json:"variants"` // adamw, adamw_clip0.5, adamw_key_absent
}

// Batch returns the inputs [4, 17] and targets [4, 5] of a rank in a step
// counted from 0.
func (t *Train) Batch(step, rank int) (x, y []float32) {
	return part(t.X, MLPRows*MLPIn, step*t.World+rank), part(t.Y, MLPRows*MLPOut, step*t.World+rank)
}

// Variant is one run by DeepSpeed (stage 3), and the same by plain torch.
type Variant struct {
	LR          float64 `json:"lr"`
	WeightDecay float64 `json:"weight_decay"`
	Clip        float64 `json:"clip"` // 0 means none
	Result
	Torch Result `json:"torch"`
}

// Result is what a run measured.
type Result struct {
	Losses    [][]float64 `json:"losses"`     // [steps][world], before each step
	GradNorms []float64   `json:"grad_norms"` // [steps], of the averaged gradient before clipping
	Final     MLP         `json:"final"`
}

// Grads is a gradient accumulation of the [Odd] model at one world size: two
// micro-batches a rank, gradients divided by world size and micro-batches.
type Grads struct {
	World         int         `json:"-"`
	X             []float32   `json:"x"` // [2, world, 3, 3]
	Y             []float32   `json:"y"` // [2, world, 3, 1]
	Weights       Odd         `json:"weights"`
	Torch         Odd         `json:"torch_grads"`
	DeepSpeed     Odd         `json:"deepspeed_grads"`
	Losses        [][]float64 `json:"losses"`             // [world][2]
	ShardsByMicro [][]Shards  `json:"shards_after_micro"` // [world][2], sums so far
}

// MicroBatches is how many micro-batches a step of [Grads] accumulates.
const MicroBatches = 2

// Shards holds a rank's shard of each gradient by the parameter's name, cut as
// DeepSpeed cuts: ceil(numel/world) elements a rank.
type Shards map[string]Shard

// Shard is one rank's part of one gradient.
type Shard struct {
	Numel  int       `json:"numel"` // elements with padding
	Valid  int       `json:"valid"` // elements without
	Values []float32 `json:"v"`     // the valid ones
}

// Batch returns the inputs [3, 3] and targets [3, 1] of a rank in a
// micro-batch counted from 0.
func (g *Grads) Batch(micro, rank int) (x, y []float32) {
	return part(g.X, OddRows*OddIn, micro*g.World+rank), part(g.Y, OddRows*OddOut, micro*g.World+rank)
}

func part(x []float32, elements, index int) []float32 {
	return x[index*elements : (index+1)*elements]
}

// LoadTrain returns the vectors for each world size: 1 and 2.
func LoadTrain() (map[int]*Train, error) {
	worlds, err := load[Train](trainJSON)
	for world, t := range worlds {
		t.World = world
	}
	return worlds, err
}

// LoadGrads returns the vectors for each world size: 1, 2 and 3.
func LoadGrads() (map[int]*Grads, error) {
	worlds, err := load[Grads](gradsJSON)
	for world, g := range worlds {
		g.World = world
	}
	return worlds, err
}

func load[T any](data []byte) (map[int]*T, error) {
	var file struct {
		Worlds map[int]*T `json:"worlds"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("golden vectors: %w", err)
	}
	return file.Worlds, nil
}
