package goemit

import (
	"fmt"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/spec"
	"pgregory.net/rapid"
)

// anyFixture draws a model of a few blocks with shapes, types and worlds of any
// kind.
func anyFixture(r *rapid.T) *fixture {
	x := &fixture{
		name:   "any",
		worlds: rapid.SampledFrom([][]int64{{1}, {2, 3}, {1, 7, 64}, {1000003}}).Draw(r, "worlds"),
		kind:   rapid.SampledFrom([]spec.OptimizerKind{spec.OptimizerNone, spec.OptimizerAdamW}).Draw(r, "optimizer"),
	}
	for b := range rapid.IntRange(1, 3).Draw(r, "blocks") {
		block := fixtureBlock{name: fmt.Sprintf("b%d", b), goName: fmt.Sprintf("B%d", b), count: 1}
		if rapid.Bool().Draw(r, "repeated") {
			block.variable, block.first = "i", rapid.Int64Range(0, 9).Draw(r, "first")
			block.count = rapid.Int64Range(1, 200).Draw(r, "count")
		}
		for p := range rapid.IntRange(0, 5).Draw(r, "params") {
			block.params = append(block.params, fixtureParam{
				name: fmt.Sprintf("b%d.p%d", b, p), goName: fmt.Sprintf("P%d", p),
				shape:  rapid.SliceOfN(rapid.SampledFrom([]int64{0, 1, 31, 32, 33, 127, 128, 40961}), 0, 3).Draw(r, "shape"),
				dtype:  rapid.SampledFrom(dtype.All()).Draw(r, "dtype"),
				frozen: rapid.Bool().Draw(r, "frozen"),
				shared: block.variable == "" && rapid.Bool().Draw(r, "shared"),
			})
		}
		x.blocks = append(x.blocks, block)
	}
	return x
}

func TestTheConstantsOfAnyPlanKeepTheirRelations(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		if _, err := typeCheck(t, emit(t, anyFixture(r).plan(t)), "amd64"); err != nil {
			r.Fatal(err)
		}
	})
}
