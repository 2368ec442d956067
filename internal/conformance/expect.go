package conformance

import (
	"fmt"
	"math"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// The hyperparameters of every run. None is a power of two, so that all the
// products are rounded.
var (
	adamW = optim.AdamW{LR: 0.03, WeightDecay: 0.1}
	sgd   = optim.SGD{LR: 0.03, WeightDecay: 0.1, Dampening: 0.3}
)

// The rounds of backward passes: two that accumulate, then one for each step.
// Odd rounds visit every other block only.
const (
	firstRound  = 0
	secondRound = 1
	firstStep   = 2
	steps       = 2
)

// initSeed is the seed of every Init.
const initSeed = 12345

// snapshot holds whole tensors of all owners, or of those that are trainable.
type snapshot map[*Owner][]byte

// expectation is what a run at one world size must show, in order.
type expectation struct {
	wild      snapshot // own types, after the first Update
	gradients snapshot // after two rounds
	tame      snapshot // value types, what the second Update writes
	gathered  snapshot // the same as a gather shows it
	steps     []stepExpectation
	init      snapshot // own types
	lacksInit int      // owners without init; if there are any, Init fails and init is nil
}

type stepExpectation struct {
	values, gathered snapshot
	norm             float64
}

// expect works the run out on whole tensors.
func (o *Oracle) expect(world int) (*expectation, error) {
	e := &expectation{wild: snapshot{}, gradients: snapshot{}, tame: snapshot{}}
	wholes := map[*Owner]whole{}
	for _, w := range o.Owners {
		e.wild[w] = wild(w)
		e.tame[w] = wild(w)
		if w.Type.IsFloat() {
			e.tame[w] = encode(tame(key(w.Name), w.Numel), o.valueType(w))
		}
		if w.Trainable {
			wholes[w] = newWhole(w)
			wholes[w].set(tame(key(w.Name), w.Numel))
		}
	}
	e.gathered = o.gatheredFrom(e.tame)
	o.accumulate(wholes, world, firstRound)
	o.accumulate(wholes, world, secondRound)
	for w, x := range wholes {
		e.gradients[w] = x.gradient()
		x.forget()
	}
	if err := o.expectSteps(e, wholes, world); err != nil {
		return nil, err
	}
	return e, o.expectInit(e)
}

// visits returns the positions of the blocks that a backward round goes through.
func (o *Oracle) visits(round int) []int {
	var list []int
	for p := len(o.Blocks) - 1; p >= 0; p-- {
		if round%2 == 0 || p%2 == 0 {
			list = append(list, p)
		}
	}
	return list
}

// accumulate adds the gradients of one backward round.
func (o *Oracle) accumulate(wholes map[*Owner]whole, world, round int) {
	for _, p := range o.visits(round) {
		for _, w := range o.Blocks[p].owners() {
			if !w.Trainable {
				continue
			}
			parts := make([][]byte, world)
			for rank := range parts {
				parts[rank] = contribution(w, round, p, rank)
			}
			wholes[w].add(parts, o.wireType(w), o.divisor(world))
		}
	}
}

// gatheredFrom rounds values, masters among them, to the owners' types.
func (o *Oracle) gatheredFrom(values snapshot) snapshot {
	out := snapshot{}
	for w, b := range values {
		out[w] = b
		if t := o.valueType(w); t != w.Type {
			out[w] = convert(b, t, w.Type)
		}
	}
	return out
}

func (o *Oracle) expectSteps(e *expectation, wholes map[*Owner]whole, world int) error {
	if o.Spec.Optimizer.Kind.V == spec.OptimizerNone {
		return nil
	}
	for n := range steps {
		o.accumulate(wholes, world, firstStep+n)
		squares := 0.0
		for _, w := range o.Owners {
			if w.Trainable {
				squares += wholes[w].squares()
			}
		}
		if err := o.step(wholes, n+1); err != nil {
			return err
		}
		s := stepExpectation{values: snapshot{}, norm: math.Sqrt(squares)}
		for _, w := range o.Owners {
			s.values[w] = e.tame[w]
			if w.Trainable {
				s.values[w] = wholes[w].master()
				wholes[w].forget()
			}
		}
		s.gathered = o.gatheredFrom(s.values)
		e.steps = append(e.steps, s)
	}
	return nil
}

// step updates the whole tensors by the spec's optimizer.
func (o *Oracle) step(wholes map[*Owner]whole, number int) error {
	if o.Spec.Optimizer.Kind.V == spec.OptimizerAdamW {
		s, err := adamW.Prepare(int64(number), 1)
		for _, x := range wholes {
			x.adamW(s)
		}
		return err
	}
	s, err := o.sgd().Prepare(int64(number), 1)
	for _, x := range wholes {
		x.sgd(s)
	}
	return err
}

// sgd returns the hyperparameters, with momentum where the spec keeps it.
func (o *Oracle) sgd() optim.SGD {
	s := sgd
	if o.Spec.Optimizer.Momentum.V {
		s.Momentum = 0.9
	}
	return s
}

// expectInit fills whole tensors by the spec's distributions.
func (o *Oracle) expectInit(e *expectation) error {
	all := snapshot{}
	for _, w := range o.Owners {
		if w.Init == nil && w.Numel > 0 {
			e.lacksInit++
		}
		if w.Init == nil {
			continue
		}
		d := random.Distribution{Kind: random.Kind(w.Init.Kind), Value: w.Init.Value, Mean: w.Init.Mean, Std: w.Init.Std, Cut: w.Init.Cut, Low: w.Init.Low, High: w.Init.High}
		t := o.valueType(w)
		if err := d.Validate(t); err != nil {
			return fmt.Errorf("init of %s: %w", w.Name, err)
		}
		aligned := make([]uint64, (w.Numel*t.Bytes()+7)/8)
		all[w] = dtype.Bytes(aligned)[:w.Numel*t.Bytes()]
		d.Fill(all[w], t, random.NewStream(initSeed, w.Name), 0)
	}
	e.init = o.gatheredFrom(all)
	return nil
}
