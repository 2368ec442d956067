package gradients

import (
	"fmt"

	"helpers"
	"tiny"
)

func forgotten(b tiny.BackwardPass) error {
	for i := tiny.HLen - 1; i >= 0; i-- {
		h, g, err := b.H(i) // want `gradients g \(tiny\.HGrads\), handed out here, are neither reduced nor discarded before the loop comes here again: call g\.Reduce\(\) or g\.Discard\(\)`
		if err != nil {
			return err
		}
		helpers.Accumulate(h, g)
		h.Release()
	}
	return b.End()
}

func discarded(b tiny.BackwardPass) error {
	h, _, err := b.H(0) // want `gradients \(tiny\.HGrads\) that b\.H returns are kept in no variable, so they are neither reduced nor discarded: keep them and call their`
	if err != nil {
		return err
	}
	h.Release()
	return nil
}

func usedAfterReduce(b tiny.BackwardPass) error {
	h, g, err := b.H(0)
	if err != nil {
		return err
	}
	dw := g.Mlp.Host()
	h.Release()
	g.Reduce()
	dw[0] = 1                 // want `dw, memory of gradients g \(tiny\.HGrads\), is used after g\.Reduce\(\) at line 38`
	fmt.Println(g.Mlp.Host()) // want `gradients g \(tiny\.HGrads\) are used after g\.Reduce\(\) at line 38`
	g.Discard()               // want `g\.Discard\(\) comes after g\.Reduce\(\) at line 38, but gradients g \(tiny\.HGrads\) are given back once`
	return nil
}

func handedOn(b tiny.BackwardPass, queue chan<- tiny.HGrads) error {
	h, g, err := b.H(0)
	if err != nil {
		return err
	}
	h.Release()
	helpers.Later(g, queue)
	return b.End()
}

// byIteration reduces in the last iteration only, which is not followed.
func byIteration(b tiny.BackwardPass, batches int) error {
	h, g, err := b.H(0)
	if err != nil {
		return err
	}
	for i := range batches {
		helpers.Accumulate(h, g)
		if i == batches-1 {
			h.Release()
			g.Reduce()
		}
	}
	return nil
}
