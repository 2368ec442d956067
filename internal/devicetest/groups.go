package devicetest

import (
	"fmt"
	"slices"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// copyName stands for a stream's copy, which no kernel does.
const copyName = "copy"

// group is the variants of one kernel: contents and arguments.
type group struct {
	kernel   string
	variants []variant
}

// variant is one way to run a kernel.
type variant struct {
	name     string // "all codes, divided by 3"
	operands []operand
	do       func(s *side, n int64)
}

// codes are those of two bytes.
const codes = 1 << 16

// lengths returns the lengths that a kernel is tested with: those of the options,
// and one that has room for all codes where it reads a type of one or two bytes.
func (g *group) lengths(sizes []int64) []int64 {
	for _, v := range g.variants {
		for _, o := range v.operands {
			if o.use == reads && o.t.Bytes() <= 2 && !slices.Contains(sizes, codes) {
				return append(slices.Clone(sizes), codes)
			}
		}
	}
	return sizes
}

// groups returns the tests of all kernels that a generated package can have.
func groups() []group {
	list := []group{copies(), zero()}
	for _, from := range floats() {
		for _, to := range floats() {
			if from != to {
				list = append(list, cast(from, to))
			}
		}
	}
	for _, sum := range wideFloats() {
		list = append(list, norm(sum), scale(sum))
		for _, own := range floats() {
			if own.Trainable() {
				list = append(list, accumulate(own, sum, true), accumulate(own, sum, false))
			}
			list = append(list, adamW(sum, own), sgd(sum, own, true), sgd(sum, own, false))
		}
	}
	return append(list, fills()...)
}

func floats() []dtype.DType {
	return slices.DeleteFunc(dtype.All(), func(t dtype.DType) bool { return !t.IsFloat() })
}

// wideFloats are the types of sums and masters.
func wideFloats() []dtype.DType { return []dtype.DType{dtype.Float32, dtype.Float64} }

// contents are what kernels of arithmetic are given.
var contents = []struct {
	name    string
	content content
}{{"ordinary numbers", ordinary}, {"all codes", every}}

func copies() group {
	return group{copyName, []variant{{
		name:     "bytes",
		operands: []operand{{name: "target", t: dtype.Uint8, use: writes}, {name: "source", t: dtype.Uint8}},
		do:       func(s *side, _ int64) { s.stream.Copy(s.ranges[0], s.ranges[1]) },
	}}}
}

func zero() group {
	return group{kernel.Zero(), []variant{{
		name:     "bytes",
		operands: []operand{{name: "target", t: dtype.Uint8, use: writes}},
		do:       func(s *side, _ int64) { s.kernels.Zero(s.stream, s.ranges[0]) },
	}}}
}

func cast(from, to dtype.DType) group {
	g := group{kernel: kernel.Cast(from, to)}
	for _, c := range contents {
		g.variants = append(g.variants, variant{
			name:     c.name,
			operands: []operand{{name: "target", t: to, use: writes}, {name: "source", t: from, content: c.content}},
			do:       func(s *side, n int64) { s.kernels.Cast(s.stream, s.ranges[0], to, s.ranges[1], from, n) },
		})
	}
	return g
}

func accumulate(wire, sum dtype.DType, store bool) group {
	g := group{kernel: kernel.Accumulate(wire, sum, store)}
	for _, c := range contents {
		for _, divisor := range []float64{1, 3, 8} {
			g.variants = append(g.variants, variant{
				name:     fmt.Sprintf("%s, divided by %v", c.name, divisor),
				operands: []operand{{name: "sum", t: sum, content: c.content, use: computes}, {name: "source", t: wire, content: c.content}},
				do: func(s *side, n int64) {
					s.kernels.Accumulate(s.stream, s.ranges[0], sum, s.ranges[1], wire, n, divisor, store)
				},
			})
		}
	}
	return g
}

// norm tests both kernels of a norm: the second is in all packages that have one
// of the first.
func norm(t dtype.DType) group {
	g := group{kernel: kernel.Norm(t)}
	for _, c := range contents {
		for _, before := range []content{numbers(0), numbers(2.5, 3)} {
			g.variants = append(g.variants, variant{
				name: c.name,
				operands: []operand{
					{name: "total", t: dtype.Float64, content: before, use: computes, bytes: func(int64) int64 { return optim.NormBytes }},
					{name: "room for partial norms", t: dtype.Float64, use: scratch, bytes: optim.PartialBytes},
					{name: "gradient", t: t, content: c.content},
				},
				do: func(s *side, n int64) {
					s.kernels.Norm(s.stream, s.ranges[1], s.ranges[2], t, n)
					s.kernels.NormTotal(s.stream, s.ranges[0], s.ranges[1].Slice(0, optim.PartialBytes(n)))
				},
			})
		}
	}
	return g
}

func scale(t dtype.DType) group {
	g := group{kernel: kernel.Scale(t)}
	for _, c := range contents {
		for _, factor := range []float64{0.3, 0x1p-10} {
			g.variants = append(g.variants, variant{
				name:     fmt.Sprintf("%s, times %v", c.name, factor),
				operands: []operand{{name: "gradient", t: t, content: c.content, use: computes}},
				do:       func(s *side, n int64) { s.kernels.Scale(s.stream, s.ranges[0], t, n, factor) },
			})
		}
	}
	return g
}

// state returns the operands of an optimizer: master, gradient, moments, copy.
func state(t, own dtype.DType, moments int, c content) []operand {
	list := []operand{{name: "master", t: t, content: c, use: computes}, {name: "gradient", t: t, content: c}}
	for i := range moments {
		m := operand{name: fmt.Sprintf("moment %d", i+1), t: t, content: ordinary, use: computes}
		if i == 1 {
			m.content = squares
		}
		list = append(list, m)
	}
	if own != t {
		list = append(list, operand{name: "copy", t: own, use: computes})
	}
	return list
}

// state returns what the operands of function state are of, in a case.
func (s *side) state(t, own dtype.DType, moments int, n int64) device.State {
	st := device.State{N: n, Type: t, Master: s.ranges[0], Grad: s.ranges[1]}
	copy(st.Moments[:], s.ranges[2:2+moments])
	if own != t {
		st.Copy, st.CopyType = s.ranges[2+moments], own
	}
	return st
}

func adamW(t, own dtype.DType) group {
	g := group{kernel: kernel.AdamW(t, own)}
	for _, step := range adamWSteps() {
		for _, c := range contents {
			g.variants = append(g.variants, variant{
				name:     c.name + ", " + step.name,
				operands: state(t, own, 2, c.content),
				do:       func(s *side, n int64) { s.kernels.AdamW(s.stream, step.scalars, s.state(t, own, 2, n)) },
			})
		}
	}
	return g
}

// named is the scalars of a step and what is special about it.
type named[S any] struct {
	name    string
	scalars S
}

// adamWSteps are a step of common hyperparameters, and the first one of a model
// that forgets its first moments fast and decays nothing.
func adamWSteps() []named[optim.AdamWStep] {
	return []named[optim.AdamWStep]{
		{"step 3", mustPrepare(optim.AdamW{LR: 1e-3, WeightDecay: 0.1}.Prepare(3, 0.5))},
		{"step 1, beta1 0.3", mustPrepare(optim.AdamW{LR: 0.1, Beta1: 0.3}.Prepare(1, 1))},
	}
}

// mustPrepare returns the scalars of hyperparameters that are constants here, and
// valid.
func mustPrepare[S any](step S, err error) S {
	if err != nil {
		panic(err)
	}
	return step
}

func sgd(t, own dtype.DType, momentum bool) group {
	moments := 0
	if momentum {
		moments = 1
	}
	g := group{kernel: kernel.SGD(t, own, momentum)}
	for _, step := range sgdSteps(momentum) {
		for _, c := range contents {
			g.variants = append(g.variants, variant{
				name:     c.name + ", " + step.name,
				operands: state(t, own, moments, c.content),
				do:       func(s *side, n int64) { s.kernels.SGD(s.stream, step.scalars, s.state(t, own, moments, n)) },
			})
		}
	}
	return g
}

func sgdSteps(momentum bool) []named[optim.SGDStep] {
	if !momentum {
		return []named[optim.SGDStep]{
			{"plain", mustPrepare(optim.SGD{LR: 0.1}.Prepare(1, 1))},
			{"decays", mustPrepare(optim.SGD{LR: 1e-3, WeightDecay: 0.1}.Prepare(3, 0.5))},
		}
	}
	return []named[optim.SGDStep]{
		{"first step", mustPrepare(optim.SGD{LR: 0.1, Momentum: 0.9, Dampening: 0.3}.Prepare(1, 1))},
		{"dampens", mustPrepare(optim.SGD{LR: 0.1, Momentum: 0.9, Dampening: 0.3, WeightDecay: 0.1}.Prepare(3, 0.5))},
		{"nesterov", mustPrepare(optim.SGD{LR: 0.1, Momentum: 0.9, Nesterov: true}.Prepare(3, 0.5))},
	}
}

// fills returns the tests of initial values: a kernel for each size of constants,
// one for each random distribution and type.
func fills() []group {
	list := constants()
	for _, d := range []random.Distribution{
		{Kind: random.Normal, Mean: 0.1, Std: 0.02},
		{Kind: random.TruncatedNormal, Std: 0.5, Cut: 2},
		{Kind: random.Uniform, Low: -0.1, High: 0.3},
	} {
		for _, t := range floats() {
			g := group{kernel: kernel.Fill(d.Kind, t)}
			for _, first := range []int64{0, 5, 1<<33 + 1} {
				g.variants = append(g.variants, fill(d, t, first))
			}
			list = append(list, g)
		}
	}
	return list
}

func fill(d random.Distribution, t dtype.DType, first int64) variant {
	return variant{
		name:     fmt.Sprintf("%s from element %d", d.Kind, first),
		operands: []operand{{name: "target", t: t, use: writes}},
		do: func(s *side, n int64) {
			s.kernels.Fill(s.stream, s.ranges[0], t, &d, random.NewStream(7, "w"), first, n)
		},
	}
}

func constants() []group {
	var list []group
	for _, bytes := range []int64{1, 2, 4, 8} {
		g := group{kernel: kernel.FillConstant(bytes)}
		for _, t := range dtype.All() {
			if t.Bytes() != bytes {
				continue
			}
			for _, d := range []random.Distribution{{Kind: random.Zeros}, {Kind: random.Ones}, constant(t)} {
				v := fill(d, t, 0)
				v.name = fmt.Sprintf("%s in %s", d.Kind, t)
				g.variants = append(g.variants, v)
			}
		}
		list = append(list, g)
	}
	return list
}

// constant is a number that the type has, with a sign where it has one.
func constant(t dtype.DType) random.Distribution {
	d := random.Distribution{Kind: random.Constant, Value: 1}
	switch {
	case t.IsFloat():
		d.Value = -1.5
	case t >= dtype.Int8 && t <= dtype.Int64:
		d.Value = -7
	case t != dtype.Bool:
		d.Value = 200
	}
	return d
}
