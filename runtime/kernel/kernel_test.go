package kernel

import (
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/random"
)

func TestNamesSayFamilyTypesAndChoice(t *testing.T) {
	const f32, f64, bf16 = dtype.Float32, dtype.Float64, dtype.BFloat16
	for _, c := range []struct{ got, want string }{
		{Zero(), "shardgen_zero"},
		{Cast(f32, bf16), "shardgen_cast_f32_bf16"},
		{Accumulate(bf16, f32, true), "shardgen_accumulate_bf16_f32_store"},
		{Accumulate(f64, f64, false), "shardgen_accumulate_f64_f64_add"},
		{Fill(random.TruncatedNormal, bf16), "shardgen_fill_truncated_normal_bf16"},
		{Fill(random.Ones, bf16), "shardgen_fill_constant_2"},
		{FillConstant(8), "shardgen_fill_constant_8"},
		{Norm(f64), "shardgen_norm_f64"},
		{NormTotal(), "shardgen_norm_total"},
		{Scale(f32), "shardgen_scale_f32"},
		{AdamW(f32, f32), "shardgen_adamw_f32"},
		{AdamW(f32, bf16), "shardgen_adamw_f32_bf16"},
		{SGD(f64, f64, false), "shardgen_sgd_f64"},
		{SGD(f32, bf16, true), "shardgen_sgd_momentum_f32_bf16"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

func TestOnlyTheTotalOfNormsHasABlockOfItsOwnSize(t *testing.T) {
	if Threads(NormTotal()) != TotalThreads || Threads(Norm(dtype.Float32)) != ThreadsPerBlock {
		t.Errorf("%d and %d threads, want %d and %d", Threads(NormTotal()), Threads(Norm(dtype.Float32)), TotalThreads, ThreadsPerBlock)
	}
}

func TestPacksFillAnAccessOfTheSmallestType(t *testing.T) {
	for want, types := range map[int64][]dtype.DType{
		2:  {dtype.Float64},
		8:  {dtype.Float32, dtype.BFloat16},
		16: {dtype.Float8E4M3, dtype.Float64},
	} {
		if got := PackElements(types...); got != want {
			t.Errorf("packs of %v have %d elements, want %d", types, got, want)
		}
	}
}
