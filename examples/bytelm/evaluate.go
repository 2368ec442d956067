package main

import "context"

// finish measures the held-out loss, collects the whole weights and samples some
// text. Every rank gathers; rank 0 keeps.
func (t *trainer) finish(ctx context.Context) error {
	if err := t.evaluate(ctx); err != nil {
		return err
	}
	all, err := t.collect(ctx)
	if err != nil {
		return err
	}
	if t.rank == 0 {
		t.result.weights = all
	}
	if t.ranks == 1 && t.options.text > 0 {
		t.result.sample, err = t.write(ctx, t.options.text)
	}
	return err
}

// evaluate computes the losses of the rank's held-out batches.
func (t *trainer) evaluate(ctx context.Context) error {
	for i := t.rank; i < heldOutBatches; i += t.ranks {
		if err := t.text.HeldOutBatch(i, heldOutBatches, config.Context, t.tokens, t.targets); err != nil {
			return err
		}
		loss, err := t.forward(t.model.Eval(ctx))
		if err != nil {
			return err
		}
		t.result.heldOut[i] = loss
	}
	return nil
}
