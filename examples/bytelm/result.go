package main

// heldOutBatches is how many batches the held-out loss is the mean of.
const heldOutBatches = 32

// microLosses are the losses of a step, by micro-batch.
type microLosses [microBatches]float64

// result is what a run leaves behind. A loss is the mean of losses that are
// kept apart here, by batch, because the order of a sum must not depend on who
// computed what.
type result struct {
	losses  []microLosses // by step
	heldOut [heldOutBatches]float64
	weights weights
	sample  string
}

// weights are whole parameters by name.
type weights map[string][]float32

// count returns the number of elements.
func (w weights) count() int64 {
	n := int64(0)
	for _, x := range w {
		n += int64(len(x))
	}
	return n
}

// loss is the mean loss of a step.
func (r *result) loss(step int) float64 { return mean(r.losses[step][:]) }

// heldOutLoss is the mean loss on text that the model was not trained on.
func (r *result) heldOutLoss() float64 { return mean(r.heldOut[:]) }

func mean(losses []float64) float64 {
	sum := 0.0
	for _, l := range losses {
		sum += l
	}
	return sum / float64(len(losses))
}
