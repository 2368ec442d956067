package cuemit

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// launches are the kernels that package shard puts on streams, worked out from
// what it reads: the layout. Each function stands for one of its files.
type launches struct {
	model *layout.Model
	names map[string]bool
}

func (l *launches) add(names ...string) {
	for _, n := range names {
		l.names[n] = true
	}
}

func launchesOf(m *layout.Model) []string {
	l := &launches{m, map[string]bool{}}
	l.add(kernel.Zero()) // arenas in Open and Init, gradient buffers in a backward pass
	buckets := slices.Clone(m.Shared)
	for k := range m.Kinds {
		buckets = append(buckets, m.Kinds[k].Buckets...)
	}
	for i := range buckets {
		l.init(&buckets[i])
		if buckets[i].Trainable {
			l.reduce(&buckets[i])
			l.step(&buckets[i])
		}
	}
	var list []string
	for name := range l.names {
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// init: parameters are filled in their master where they have one, and the
// low-precision shard is cast from it, as after Update.
func (l *launches) init(b *layout.Bucket) {
	filled := b.DType
	if l.model.HasMaster(b) {
		filled = dtype.Float32
		l.add(kernel.Cast(dtype.Float32, b.DType))
	}
	for i := range b.Params {
		p := &b.Params[i]
		switch {
		case p.Init == nil || p.Numel == 0:
		case slices.Contains([]random.Kind{random.Zeros, random.Ones, random.Constant}, p.Init.Kind):
			l.add(kernel.FillConstant(filled.Bytes()))
		default:
			l.add(kernel.Fill(p.Init.Kind, filled))
		}
	}
}

// reduce: a gradient is cast to the type that it is sent in, reduced, divided and
// stored, or added to one before it.
func (l *launches) reduce(b *layout.Bucket) {
	wire, sum := l.model.Reduce, dtype.Float32
	if b.DType == dtype.Float64 {
		wire, sum = dtype.Float64, dtype.Float64
	}
	if wire != b.DType {
		l.add(kernel.Cast(b.DType, wire))
	}
	l.add(kernel.Accumulate(wire, sum, true), kernel.Accumulate(wire, sum, false))
}

// step: the norm, then the optimizer that the plan has state for, with a copy to
// write where the parameter is not its own master. Unscale multiplies.
func (l *launches) step(b *layout.Bucket) {
	sum := b.GradType()
	l.add(kernel.Norm(sum), kernel.NormTotal(), kernel.Scale(sum))
	if !l.model.Optimizer.Masters {
		return // no optimizer
	}
	switch l.model.Optimizer.Moments {
	case 0:
		l.add(kernel.SGD(sum, b.DType, false))
	case 1: // momentum 0 is a choice of the step
		l.add(kernel.SGD(sum, b.DType, false), kernel.SGD(sum, b.DType, true))
	case 2:
		l.add(kernel.AdamW(sum, b.DType))
	}
}

// eachSpec visits all specs of the repository, as they are and with every kind of
// optimizer.
func eachSpec(t *testing.T, visit func(name string, p *plan.Plan)) {
	t.Helper()
	optimizerLine := regexp.MustCompile(`(?m)^optimizer:.*\n`)
	count := 0
	for _, pattern := range []string{"../../spec/models/*.yaml", "../../spec/samples/*.yaml", "../../bench/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			yaml, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			visit(path, planOf(t, path, string(yaml)))
			count++
			for _, o := range []string{"none", "adamw", "sgd", "sgd, momentum: f32"} {
				without := optimizerLine.ReplaceAllString(string(yaml), "")
				visit(path+" with "+o, planOf(t, path, strings.Replace(without, "\nblocks:", "\noptimizer: {kind: "+o+"}\nblocks:", 1)))
			}
		}
	}
	if count < 15 {
		t.Fatalf("only %d specs found", count)
	}
}

func TestEveryLaunchOfTheRuntimeHasAKernelAndNoOther(t *testing.T) {
	eachSpec(t, func(name string, p *plan.Plan) {
		var got []string
		for _, k := range Kernels(p) {
			got = append(got, k.Name)
		}
		if want := launchesOf(p.Layout); !slices.Equal(got, want) {
			t.Errorf("%s: kernels\n%s, want\n%s", name, strings.Join(got, " "), strings.Join(want, " "))
		}
	})
}

// The step of a generated package is that of the optimizer whose state the layout
// has, so that kernels can follow from the layout alone.
func TestTheLayoutTellsTheOptimizer(t *testing.T) {
	eachSpec(t, func(name string, p *plan.Plan) {
		o := p.Layout.Optimizer
		told := map[layout.Optimizer]spec.OptimizerKind{
			{}: spec.OptimizerNone, {Masters: true}: spec.OptimizerSGD, {Masters: true, Moments: 1}: spec.OptimizerSGD, {Masters: true, Moments: 2}: spec.OptimizerAdamW,
		}
		if kind, found := told[o]; !found || kind != p.Spec.Optimizer.Kind.V {
			t.Errorf("%s: the layout's %+v tells %v, the spec says %v", name, o, kind, p.Spec.Optimizer.Kind.V)
		}
	})
}
