package emu

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// Every entry of a generated .cu, with sanitizers, on buffers that are exactly as
// long as it is told. Other tests compare results.
func TestGeneratedKernelsStayInTheirRanges(t *testing.T) {
	t.Parallel()
	Require(t)
	for _, sample := range []string{"alldtypes", "oddshapes", "tiny"} {
		t.Run(sample, func(t *testing.T) {
			t.Parallel()
			p := planOf(t, "../../spec/samples/"+sample+".yaml")
			source, beside := generated(t, p)
			if got, want := Entries(source), kernel.Needed(p.Layout); !slices.Equal(got, want) {
				t.Fatalf("entries %v, want %v", got, want)
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			program, err := Build(ctx, t.TempDir(), source, Options{Sanitize: true, Files: beside})
			if err != nil {
				t.Fatal(err)
			}
			r := start(t, program, false)
			for _, u := range kernel.Uses(p.Layout) {
				launchSizes(t, r, u)
			}
		})
	}
}

func planOf(t *testing.T, path string) *plan.Plan {
	t.Helper()
	yaml, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m, faults := spec.Parse(path, yaml)
	if m == nil {
		t.Fatal(faults)
	}
	p, faults := plan.Build(m)
	if p == nil {
		t.Fatal(faults)
	}
	return p
}

// generated returns the .cu of a plan's package, and what it includes.
func generated(t *testing.T, p *plan.Plan) (source string, beside map[string]string) {
	t.Helper()
	files, err := cuemit.Package(p)
	if err != nil {
		t.Fatal(err)
	}
	beside = map[string]string{}
	for _, f := range files {
		beside[f.Name] = string(f.Content)
	}
	return beside[cuemit.KernelsFile], beside
}

func launchSizes(t *testing.T, r *Process, u kernel.Use) {
	t.Helper()
	g := Grid{Blocks: 2, Threads: uint64(kernel.Threads(u.Name()))}
	if u.Family == kernel.FamilyNormTotal {
		g.Blocks = 1
	}
	for _, n := range []int64{0, 1, 7, 33, 997, 4097, 12289} {
		if err := r.Launch(u.Name(), g, argumentsOf(t, u, n)...); err != nil {
			t.Fatalf("%d elements: %v", n, err)
		}
	}
}

// argumentsOf returns what the runtime launches a kernel with, on n elements.
func argumentsOf(t *testing.T, u kernel.Use, n int64) []Argument {
	t.Helper()
	of := func(e dtype.DType) Argument { return Buffer(numbers(generator(n), e, n)) }
	switch u.Family {
	case kernel.FamilyZero:
		return []Argument{Buffer(room(n)), Value(n)}
	case kernel.FamilyCast:
		return []Argument{of(u.Type), of(u.From), Value(n)}
	case kernel.FamilyAccumulate:
		return []Argument{of(u.Type), of(u.From), Value(n), Value(3.0)}
	case kernel.FamilyFill:
		return []Argument{of(u.Type), Value(sampler(t, u)), Value(int64(1) << 33), Value(n)}
	case kernel.FamilyFillConstant:
		return []Argument{Buffer(room(n * u.ElementBytes)), Value(uint64(1)), Value(n)}
	case kernel.FamilyNorm:
		return []Argument{Buffer(room(optim.PartialBytes(n))), of(u.Type), Value(n)}
	case kernel.FamilyNormTotal:
		return []Argument{Buffer(room(optim.NormBytes)), Buffer(room(n * optim.NormBytes)), Value(n)}
	case kernel.FamilyScale:
		return []Argument{of(u.Type), Value(n), Value(0.1)}
	}
	return stepArguments(t, u, newShard(u.Type, u.Own, n))
}

func sampler(t *testing.T, u kernel.Use) random.Sampler {
	t.Helper()
	i := slices.IndexFunc(distributions, func(d random.Distribution) bool { return d.Kind == u.Distribution })
	if i < 0 {
		t.Fatalf("no distribution is %v", u.Distribution)
	}
	return distributions[i].Sampler(u.Type, random.NewStream(7, "w"))
}

// stepArguments are those of an optimizer, without what it does not have.
func stepArguments(t *testing.T, u kernel.Use, s *shard) []Argument {
	t.Helper()
	list := []Argument{stepOf(t, u), Buffer(s.master)}
	if u.Family == kernel.FamilyAdamW {
		list = append(list, Buffer(s.m), Buffer(s.v))
	} else if u.Momentum {
		list = append(list, Buffer(s.m))
	}
	list = append(list, Buffer(s.g))
	if u.Own != u.Type {
		list = append(list, Buffer(s.copy))
	}
	return append(list, Value(s.n))
}

func stepOf(t *testing.T, u kernel.Use) Argument {
	t.Helper()
	adamw, err := optim.AdamW{LR: 1e-3}.Prepare(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	sgd, err := optim.SGD{LR: 1e-3, Momentum: map[bool]float64{true: 0.9}[u.Momentum]}.Prepare(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	if u.Family == kernel.FamilyAdamW {
		return Value(adamw)
	}
	return Value(cStep{Step: sgd})
}
