package main

import (
	"fmt"
	"time"
)

// report prints a line of progress after step n. The losses of all ranks are
// there: the step that just ended waited for every rank.
func (t *trainer) report(n, since int, spent time.Duration) {
	sum := 0.0
	for _, losses := range t.losses[since : n+1] {
		sum += mean(losses)
	}
	tokens := (n + 1) * microBatches * batch * config.Context
	fmt.Printf("  step %4d   loss %.3f   %6.0f tokens/s\n", n+1, sum/float64(n+1-since), float64(tokens)/spent.Seconds())
}

// reportCosts prints what a rank received and what it holds.
func (t *trainer) reportCosts() {
	steps := int64(t.options.steps)
	s, m := t.model.Stats(), t.model.Memory()
	fmt.Printf("  received by a rank in a step: %s gathered, %s of gradients reduced\n", kilobytes(s.GatheredBytes/steps), kilobytes(s.ReducedBytes/steps))
	fmt.Printf("  memory of a rank: %s planned (%s of it between passes), %s allocated\n", kilobytes(m.PeakBytes), kilobytes(m.RestBytes), kilobytes(m.AllocatedBytes))
}

func kilobytes(n int64) string { return fmt.Sprintf("%.1f kB", float64(n)/1e3) }

// mean adds up in the order of the micro-batches, whoever computed them.
func mean(losses [microBatches]float64) float64 {
	sum := 0.0
	for _, l := range losses {
		sum += l
	}
	return sum / microBatches
}
