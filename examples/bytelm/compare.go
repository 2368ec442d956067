package main

import (
	"fmt"
	"math"
)

// difference is how far two runs are apart.
type difference struct {
	weight  float64 // largest of any weight
	where   string  // that weight
	loss    float64 // largest of any step's loss
	heldOut float64
}

func (d difference) zero() bool { return d.weight == 0 && d.loss == 0 && d.heldOut == 0 }

// compare returns the largest differences of two runs. A NaN in either is one.
func compare(a, b *result) (difference, error) {
	if len(a.losses) != len(b.losses) {
		return difference{}, fmt.Errorf("runs of %d and %d steps can't be compared", len(a.losses), len(b.losses))
	}
	d := difference{heldOut: math.Abs(a.heldOutLoss() - b.heldOutLoss())}
	for i := range a.losses {
		d.loss = max(d.loss, math.Abs(a.loss(i)-b.loss(i)))
	}
	var err error
	d.weight, d.where, err = largestDifference(a.weights, b.weights)
	return d, err
}

// largestDifference goes through the weights of two models.
func largestDifference(a, b weights) (largest float64, where string, err error) {
	if len(a) != len(b) {
		return 0, "", fmt.Errorf("the models have %d and %d parameters", len(a), len(b))
	}
	for name, x := range a {
		y, ok := b[name]
		if !ok || len(x) != len(y) {
			return 0, "", fmt.Errorf("%s has %d elements in one model and %d in the other", name, len(x), len(y))
		}
		for i := range x {
			d := math.Abs(float64(x[i]) - float64(y[i]))
			if math.IsNaN(d) {
				return d, fmt.Sprintf("%s[%d]", name, i), nil
			}
			if d > largest {
				largest, where = d, fmt.Sprintf("%s[%d]", name, i)
			}
		}
	}
	return largest, where, nil
}

// twoRanksLoss is how far the losses of two ranks may be from those of one. They
// differ by rounding alone, 1e-7 after 450 steps; the rest is room for longer
// runs, which drift apart. Their weights have no such bound: attention does not
// depend on the bias of its keys, so that bias has a gradient of rounding errors
// only, and AdamW makes steps of ordinary size out of them.
const twoRanksLoss = 1e-3

// prove prints how far the runs are apart and returns an error if that is
// further than it may be: not at all with four ranks, by rounding with two.
//
// Four are exact because every sum is the same: a micro-batch's gradient has the
// same bits whoever computes it, one rank adds the four up in the order in which
// four ranks' are reduced, dividing by four is exact before that sum or after
// it, and AdamW works on each element alone.
func prove(alone, together *result, ranks int) error {
	d, err := compare(alone, together)
	if err != nil {
		return err
	}
	fmt.Printf("\nProof: 1 rank against %d, largest absolute differences\n", ranks)
	fmt.Printf("  %-36s %g\n", "of any of the "+grouped(alone.weights.count())+" weights", d.weight)
	fmt.Printf("  %-36s %g\n", "of the loss of any of the "+grouped(int64(len(alone.losses)))+" steps", d.loss)
	fmt.Printf("  %-36s %g\n", "of the loss on the held-out text", d.heldOut)
	switch {
	case d.zero():
		fmt.Println("They are the same model, bit for bit: the same four gradients are added in the same order, whether\none rank accumulates them or four ranks reduce them, and dividing by four loses nothing.")
	case ranks == 2 && d.loss <= twoRanksLoss && d.heldOut <= twoRanksLoss:
		fmt.Printf("Two ranks add the four micro-batches up in another order, (0+2)+(1+3), so the last bits differ. The\nweight that differs most is %s. Attention's key biases, qkv.bias[%d..%d], have no gradient but\nrounding errors, and AdamW makes steps of ordinary size out of them.\n", d.where, config.Dim, 2*config.Dim-1)
	default:
		return fmt.Errorf("1 rank and %d ranks trained different models; the weight that differs most is %s", ranks, d.where)
	}
	return nil
}
