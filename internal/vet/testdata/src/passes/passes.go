package passes

import (
	"context"
	"errors"
	"fmt"

	"helpers"
	"tiny"
)

func neverEnded(ctx context.Context, m *tiny.Model) error {
	f := m.Forward(ctx) // want `pass f \(tiny\.ForwardPass\), opened here, is not ended before the return at line 17: call f\.End\(\) and check its error on the way there`
	if err := helpers.Layers(f); err != nil {
		return err
	}
	return nil
}

func endedOnOnePath(ctx context.Context, m *tiny.Model, quick bool) (float64, error) {
	f := m.Eval(ctx) // want `pass f .* before the return at line 25`
	h, err := f.H(0)
	if err == nil && quick {
		h.Release()
		return 1, nil
	} else if err != nil {
		return 0, fmt.Errorf("eval: %w", err)
	}
	h.Release()
	return m.Step(ctx)
}

func micro(ctx context.Context, m *tiny.Model) {
	for range 2 {
		b := m.Backward(ctx) // want `pass b \(tiny\.BackwardPass\), opened here, is not ended before the loop comes here again`
		_ = b
	}
}

func usedAfterEnd(ctx context.Context, m *tiny.Model) error {
	f := m.Forward(ctx)
	if err := f.End(); err != nil {
		return err
	}
	_, err := f.H(0) // want `pass f \(tiny\.ForwardPass\) is used after f\.End\(\) at line 42`
	return err
}

func discarded(ctx context.Context, m *tiny.Model) {
	m.Forward(ctx) // want `pass \(tiny\.ForwardPass\) that m\.Forward returns is kept in no variable, so it is never ended`
}

func lent(ctx context.Context, m *tiny.Model) error {
	if err := helpers.Layers(m.Forward(ctx)); err != nil { // want `pass \(tiny\.ForwardPass\) that m\.Forward returns is kept in no variable, so it is never ended: keep it, call its End\(\) and check the error`
		return err
	}
	return walk(m.Eval(ctx))
}

func walk(f tiny.ForwardPass) error { return errors.Join(helpers.Layers(f), f.End()) }
