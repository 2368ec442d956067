package kernel

import (
	"slices"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
)

// filled returns parameters of one element with the given inits.
func filled(kinds ...random.Kind) []layout.Param {
	var list []layout.Param
	for _, k := range kinds {
		list = append(list, layout.Param{Numel: 1, Init: &random.Distribution{Kind: k}})
	}
	return list
}

func TestAModelUsesEachEntryOnceByName(t *testing.T) {
	m := layout.Model{
		Reduce: dtype.BFloat16, Optimizer: layout.Optimizer{Kind: layout.MomentumSGD, Masters: true},
		Kinds: []layout.Kind{{Buckets: []layout.Bucket{
			{DType: dtype.BFloat16, Trainable: true, Params: filled(random.Uniform, random.Ones)},
			{DType: dtype.Int32, Params: filled(random.Constant, random.Ones)},
		}}},
		Shared: []layout.Bucket{{DType: dtype.BFloat16, Trainable: true, Params: filled(random.Uniform)}},
	}
	f32, bf16 := dtype.Float32, dtype.BFloat16
	want := []string{
		Accumulate(bf16, f32, false), Accumulate(bf16, f32, true), Cast(f32, bf16), FillConstant(4), Fill(random.Uniform, f32),
		Norm(f32), NormTotal(), Scale(f32), SGD(f32, bf16, false), SGD(f32, bf16, true), Zero(),
	}
	if got := Needed(&m); !slices.Equal(got, want) {
		t.Errorf("needed\n%v, want\n%v", got, want)
	}
}

func TestAParameterWithoutElementsOrInitIsNotFilled(t *testing.T) {
	params := filled(random.Normal)
	params[0].Numel = 0
	m := layout.Model{Shared: []layout.Bucket{{DType: dtype.Float32, Params: append(params, layout.Param{Numel: 3})}}}
	if got, want := Uses(&m), []Use{{Family: FamilyZero}}; !slices.Equal(got, want) {
		t.Errorf("uses %v, want %v", got, want)
	}
}
