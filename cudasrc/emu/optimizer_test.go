package emu

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// copyTypes are the types of parameters whose masters have type f; f itself
// stands for a parameter that is its own master.
func copyTypes(f dtype.DType) []dtype.DType {
	if f == dtype.Float64 {
		return []dtype.DType{dtype.Float64}
	}
	return []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16}
}

// shard is the memory of an optimizer step.
type shard struct {
	n                     int64
	float, copyType       dtype.DType
	master, m, v, g, copy []byte
}

func newShard(f, c dtype.DType, n int64) *shard {
	random := generator(n)
	s := &shard{n: n, float: f, copyType: c, master: numbers(random, f, n), m: numbers(random, f, n), v: numbers(random, f, n), g: numbers(random, f, n)}
	magnitudes(s.v, f)
	if f != c {
		s.copy = room(n * c.Bytes())
	}
	return s
}

// magnitudes clears signs: a second moment is never negative.
func magnitudes(b []byte, f dtype.DType) {
	for i := f.Bytes() - 1; i < int64(len(b)); i += f.Bytes() {
		b[i] &= 0x7f
	}
}

func (s *shard) clone() *shard {
	c := *s
	c.master, c.m, c.v, c.copy = clone(s.master), clone(s.m), clone(s.v), clone(s.copy)
	return &c
}

func (s *shard) state() device.State {
	state := device.State{
		N: s.n, Type: s.float, Master: device.HostMemory(s.master), Grad: device.HostMemory(s.g),
		Moments: [2]device.Memory{device.HostMemory(s.m), device.HostMemory(s.v)},
	}
	if s.copy != nil {
		state.Copy, state.CopyType = device.HostMemory(s.copy), s.copyType
	}
	return state
}

func (s *shard) copyArgument() Argument {
	if s.copy == nil {
		return Null()
	}
	return Buffer(s.copy)
}

func (s *shard) compare(t *testing.T, what string, want *shard) {
	t.Helper()
	what = fmt.Sprintf("%s %s/%s of %d: ", what, s.float, s.copyType, s.n)
	same(t, what+"master", s.master, want.master)
	same(t, what+"first moment", s.m, want.m)
	same(t, what+"second moment", s.v, want.v)
	same(t, what+"copy", s.copy, want.copy)
}

func eachShard(visit func(f, c dtype.DType, n int64)) {
	for _, f := range states {
		for _, c := range copyTypes(f) {
			for _, n := range sizes {
				visit(f, c, n)
			}
		}
	}
}

func TestAdamWHasTheBitsOfTheHost(t *testing.T) {
	hyper := []optim.AdamW{
		{LR: 3e-4, WeightDecay: 0.1},
		{LR: 1e-2, Beta1: 0.3, Beta2: 0.95, Eps: 1e-6},
		{LR: 1e-2, Beta1: optim.Zero, Eps: optim.Zero},
	}
	variants(t, func(t *testing.T, r *Process) {
		for i, h := range hyper {
			step, err := h.Prepare(int64(1+4*i), 0.37)
			if err != nil {
				t.Fatal(err)
			}
			eachShard(func(f, c dtype.DType, n int64) {
				got := newShard(f, c, n)
				want := got.clone()
				host(t, func(k device.Kernels, s device.Stream) { k.AdamW(s, step, want.state()) })
				launch(t, r, fmt.Sprintf("adamw_%s_%s", f, c), Value(step), Buffer(got.master), Buffer(got.m), Buffer(got.v), Buffer(clone(got.g)), got.copyArgument(), Value(n))
				got.compare(t, fmt.Sprintf("AdamW %d", i), want)
			})
		}
	})
}

// cStep is an optim.SGDStep with the padding that C++ gives it.
type cStep struct {
	Step    optim.SGDStep
	Padding [7]byte
}

func TestSGDHasTheBitsOfTheHost(t *testing.T) {
	hyper := []optim.SGD{
		{LR: 0.1, WeightDecay: 1e-2},
		{LR: 0.1, Momentum: 0.9, Dampening: 0.1, WeightDecay: 1e-3},
		{LR: 0.1, Momentum: 0.9, Nesterov: true},
	}
	variants(t, func(t *testing.T, r *Process) {
		for _, h := range hyper {
			step, err := h.Prepare(3, 0.37)
			if err != nil {
				t.Fatal(err)
			}
			eachShard(func(f, c dtype.DType, n int64) { checkSGD(t, r, step, f, c, n) })
		}
	})
}

func checkSGD(t *testing.T, r *Process, step optim.SGDStep, f, c dtype.DType, n int64) {
	t.Helper()
	got := newShard(f, c, n)
	want := got.clone()
	host(t, func(k device.Kernels, s device.Stream) { k.SGD(s, step, want.state()) })
	mode, buffer := "momentum", Buffer(got.m)
	if step.Momentum == 0 {
		mode, buffer = "plain", Null()
	}
	launch(t, r, fmt.Sprintf("sgd_%s_%s_%s", f, c, mode), Value(cStep{Step: step}), Buffer(got.master), buffer, Buffer(clone(got.g)), got.copyArgument(), Value(n))
	got.compare(t, "SGD "+mode, want)
}

// The kernels read structs of Go as C++ structs.
func TestStructsAreLaidOutAsTheKernelsReadThem(t *testing.T) {
	r := start(t, all.program(t, false), false)
	for kernel, c := range map[string]struct {
		of    any
		bytes int64
	}{
		"fields_of_adamw":   {optim.AdamWStep{}, 72},
		"fields_of_sgd":     {optim.SGDStep{}, 48},
		"fields_of_sampler": {random.Sampler{}, 80},
	} {
		want := append(fieldOffsets(reflect.TypeOf(c.of), 0), c.bytes)
		got := make([]int64, len(want))
		if err := r.Launch(kernel, Grid{1, 1}, Buffer(dtype.Bytes(got))); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) || reflect.TypeOf(c.of).Size() != uintptr(c.bytes) {
			t.Errorf("%s: offsets and size %v in C++, %v in Go", kernel, got, want)
		}
	}
}

// fieldOffsets returns the offsets of the numbers in a struct.
func fieldOffsets(typ reflect.Type, at uintptr) []int64 {
	var list []int64
	for i := range typ.NumField() {
		switch f := typ.Field(i); {
		case f.Type.Kind() == reflect.Struct:
			list = append(list, fieldOffsets(f.Type, at+f.Offset)...)
		case f.Name != "_":
			list = append(list, int64(at+f.Offset))
		}
	}
	return list
}

// A norm is written as Go's package optim puts it into memory.
func TestNormsAreTwoNumbersOnDevices(t *testing.T) {
	r := start(t, all.program(t, false), false)
	got := make([]int64, 3)
	if err := r.Launch("fields_of_norm", Grid{1, 1}, Buffer(dtype.Bytes(got))); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, optim.NormBytes)
	optim.Norm{SumSquares: 2.5, NonFinite: 3}.Put(b)
	values := []float64{math.Float64frombits(binary.LittleEndian.Uint64(b[got[0]:])), math.Float64frombits(binary.LittleEndian.Uint64(b[got[1]:]))}
	if got[2] != optim.NormBytes || values[0] != 2.5 || values[1] != 3 {
		t.Errorf("in C++ a norm has %d bytes, and what Go writes reads as %v", got[2], values)
	}
}

func TestClippingBeforeAStepIsTheSameAsInIt(t *testing.T) {
	const n, factor = 1001, 0.37
	r := start(t, all.program(t, false), false)
	step, err := optim.AdamW{LR: 1e-3}.Prepare(2, factor)
	if err != nil {
		t.Fatal(err)
	}
	inside := newShard(dtype.Float32, dtype.BFloat16, n)
	before := inside.clone()
	run := func(s *shard, step optim.AdamWStep) {
		launch(t, r, "adamw_f32_bf16", Value(step), Buffer(s.master), Buffer(s.m), Buffer(s.v), Buffer(s.g), Buffer(s.copy), Value(int64(n)))
	}
	run(inside, step)
	before.g = clone(before.g)
	launch(t, r, "scale_f32", Buffer(before.g), Value(int64(n)), Value(factor))
	step.GradScale = 1
	run(before, step)
	inside.compare(t, "AdamW", before)
	if math.Float32frombits(0) == dtype.Slice[float32](inside.master)[0] {
		t.Error("nothing was updated")
	}
}
