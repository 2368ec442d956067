package emu

import (
	"fmt"
	"math"
	"testing"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/random"
)

var distributions = []random.Distribution{
	{Kind: random.Normal, Std: 0.02},
	{Kind: random.Normal, Mean: -1, Std: 3},
	{Kind: random.TruncatedNormal, Std: 0.02, Cut: 2},
	{Kind: random.TruncatedNormal, Mean: 1, Std: 2, Cut: 0.5},
	{Kind: random.Uniform, Low: -0.1, High: 0.1},
	{Kind: random.Uniform, Low: 0.25, High: 1},
}

func TestRandomFillsHaveTheBitsOfTheHost(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		for i, d := range distributions {
			types := floats
			if d.Kind == random.TruncatedNormal {
				types = floats[:3]
			}
			for _, e := range types {
				s := random.NewStream(uint64(77+i)<<40, "h.3.mlp.weight")
				for _, n := range sizes {
					for _, first := range []int64{0, 1, 1 << 33} {
						checkFill(t, r, d, e, s, first, n)
					}
				}
			}
		}
	})
}

func checkFill(t *testing.T, r *Process, d random.Distribution, e dtype.DType, s random.Stream, first, n int64) {
	t.Helper()
	got, want := room(n*e.Bytes()), room(n*e.Bytes())
	host(t, func(k device.Kernels, stream device.Stream) {
		k.Fill(stream, device.HostMemory(want), e, &d, s, first, n)
	})
	name := fmt.Sprintf("fill_%s_%s", d.Kind, e)
	launch(t, r, name, Buffer(got), Value(d.Sampler(e, s)), Value(first), Value(n))
	same(t, fmt.Sprintf("%s %+v of %d from %d", name, d, n, first), got, want)
}

// A quarter of a million numbers reach both tails of the normal distribution.
func TestNormalTailsHaveTheBitsOfTheHost(t *testing.T) {
	r := start(t, all.program(t, false), false)
	d, s := random.Distribution{Kind: random.Normal, Std: 1}, random.NewStream(5, "w")
	checkFill(t, r, d, dtype.Float64, s, 0, 1<<18)
}

// TestQuantilesHaveTheBitsOfTheHost covers probabilities that no uniform number of
// a test comes near: the bits are what package random works out.
func TestQuantilesHaveTheBitsOfTheHost(t *testing.T) {
	cases := []struct {
		probability float64
		bits        uint64
	}{
		{2.2250738585072014e-308, 0xc042c27b05bf1a0b},
		{1e-300, 0xc04286074064c26e},
		{1e-100, 0xc03546010d75521f},
		{1e-40, 0xc02a9f311603cc13},
		{1e-20, 0xc022865170b43a4b},
		{1e-12, 0xc01c234fba57a32a},
		{1.38e-11, 0xc01aa2a68f7c5bca},
		{1.4e-11, 0xc01aa07c04a264fb},
		{1e-09, 0xc017fdc11f44b5a7},
		{1e-05, 0xc0110f3f8843a3da},
		{0.01, 0xc0029c5c4630ff0e},
		{0.0749, 0xbff70b374817af50},
		{0.075, 0xbff7085226d3e523},
		{0.0751, 0xbff7056dc6686c9a},
		{0.3, 0xbfe0c7e39582c5fa},
		{0.5, 0x0},
		{0.7, 0x3fe0c7e39582c5fa},
		{0.925, 0x3ff7085226d3e524},
		{0.9251, 0x3ff70b374817af50},
		{0.999, 0x4008b8cbb7204470},
		{0.9999999999999999, 0x40206b48528cea51},
	}
	variants(t, func(t *testing.T, r *Process) {
		for _, c := range cases {
			z := make([]float64, 1)
			launch(t, r, "normal_quantile", Buffer(dtype.Bytes(z)), Value(c.probability))
			if got := math.Float64bits(z[0]); got != c.bits {
				t.Errorf("quantile of %v: %#x, want %#x", c.probability, got, c.bits)
			}
		}
	})
}

// constants have values that need every byte of an element.
var constants = []random.Distribution{
	{Kind: random.Zeros}, {Kind: random.Ones}, {Kind: random.Constant, Value: 1}, {Kind: random.Constant, Value: -2.5}, {Kind: random.Constant, Value: 0.1},
	{Kind: random.Constant, Value: -7}, {Kind: random.Constant, Value: 200},
}

func TestConstantFillsWriteAllElements(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		for _, e := range dtype.All() {
			for _, d := range constants {
				if d.Validate(e) != nil {
					continue // no value of this type
				}
				for _, n := range sizes {
					checkConstant(t, r, d, e, n)
				}
			}
		}
	})
}

func checkConstant(t *testing.T, r *Process, d random.Distribution, e dtype.DType, n int64) {
	t.Helper()
	got, want := room(n*e.Bytes()), room(n*e.Bytes())
	host(t, func(k device.Kernels, s device.Stream) {
		k.Fill(s, device.HostMemory(want), e, &d, random.Stream{}, 0, n)
	})
	bits, ok := d.ConstantBits(e)
	if !ok {
		t.Fatalf("%s is not a constant", d.Kind)
	}
	launch(t, r, fmt.Sprintf("fill_constant_%d", e.Bytes()), Buffer(got), Value(bits), Value(n))
	same(t, fmt.Sprintf("%s %v in %s, %d elements", d.Kind, d.Value, e, n), got, want)
}
