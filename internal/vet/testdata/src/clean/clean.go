// Package clean uses generated code correctly, in ways that could be mistaken
// for a fault.
package clean

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"helpers"
	"tiny"

	shard "github.com/shardgen/shardgen/runtime"
)

var errStop = errors.New("stop")

func step(ctx context.Context, m *tiny.Model) error {
	f := m.Forward(ctx)
	e, err := f.Embed()
	if err != nil {
		return err
	}
	first := e.Wte.Host()[0]
	e.Release()
	for i := range tiny.HLen {
		h, err := f.H(i)
		if err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
		if first != 0 && h.Mlp.Host()[0] != first {
			return wrong(i)
		}
		h.Release()
	}
	if err := f.End(); err != nil {
		return err
	}
	b := m.Backward(ctx)
	for i := tiny.HLen - 1; i >= 0; i-- {
		h, g, err := b.H(i)
		if err != nil {
			return err
		}
		helpers.Accumulate(h, g)
		h.Release()
		if i == 0 {
			g.Discard()
		} else {
			g.Reduce()
		}
	}
	if err := b.End(); err != nil {
		return err
	}
	_, err = m.Step(ctx)
	return err
}

func wrong(i int) error { return fmt.Errorf("block %d", i) }

func deferred(ctx context.Context, m *tiny.Model) (sum float32, err error) {
	f := m.Eval(ctx)
	defer func() { err = errors.Join(err, f.End()) }()
	h, err := f.H(0)
	if err != nil {
		return 0, err
	}
	defer h.Release()
	return helpers.Sum(h), nil
}

func endedTwice(ctx context.Context, m *tiny.Model) error {
	f := m.Eval(ctx)
	defer f.End()
	if err := helpers.Layers(f); err != nil {
		return err
	}
	return f.End()
}

func returned(f tiny.ForwardPass) (tiny.H, error) {
	h, err := f.H(0)
	if err != nil {
		return tiny.H{}, err
	}
	return h, nil
}

func stored(f tiny.ForwardPass, all []tiny.H) ([]tiny.H, error) {
	for i := range tiny.HLen {
		h, err := f.H(i)
		if err != nil {
			return all, err
		}
		all = append(all, h)
	}
	return all, nil
}

func released(f tiny.ForwardPass) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	helpers.Finish(h)
	return nil
}

// doubleBuffered keeps the block before the current one.
func doubleBuffered(f tiny.ForwardPass) error {
	var previous tiny.H
	have := false
	for i := range tiny.HLen {
		h, err := f.H(i)
		if err != nil {
			return err
		}
		if have {
			previous.Release()
		}
		previous, have = h, true
	}
	if have {
		previous.Release()
	}
	return nil
}

func correlated(f tiny.ForwardPass, train bool) error {
	var h tiny.H
	var err error
	if train {
		if h, err = f.H(0); err != nil {
			return err
		}
	}
	if !train {
		return nil
	}
	h.Release()
	return nil
}

func flagged(f tiny.ForwardPass, n int) error {
	var h tiny.H
	live := false
	if n > 3 {
		var err error
		h, err = f.H(0)
		if err != nil {
			return err
		}
		live = true
	}
	if live && n < 10 {
		fmt.Println(h.Mlp.Host())
	}
	if live {
		h.Release()
	}
	return nil
}

func releasedEarlyOrLate(f tiny.ForwardPass, early bool) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	if early {
		h.Release()
	}
	if !early {
		fmt.Println(h.Mlp.Host())
		h.Release()
	}
	return nil
}

func switched(f tiny.ForwardPass, mode string) error {
	h, err := f.H(0)
	switch err {
	case nil:
	default:
		return err
	}
	switch mode {
	case "early":
		h.Release()
	}
	if mode != "early" {
		h.Release()
	}
	return nil
}

func sentinel(ctx context.Context, f tiny.ForwardPass) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	if h.Mlp.Host()[0] > 1 {
		return errStop
	}
	if h.Mlp.Host()[0] < 0 {
		err = errors.New("negative")
		return err
	}
	h.Release()
	return nil
}

func whenThereIsOne(f tiny.ForwardPass) error {
	h, err := f.H(0)
	if err == nil {
		fmt.Println(h.Mlp.Host())
		h.Release()
	}
	return err
}

func inCallbacks(f tiny.ForwardPass, each func(func())) error {
	var h tiny.H
	free := func() { h.Release() }
	h, err := f.H(0)
	if err != nil {
		return err
	}
	each(func() { fmt.Println(h.Mlp.Host()) })
	free()
	return nil
}

func cleanup(t *testing.T, f tiny.ForwardPass) {
	h, err := f.H(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Release)
	e, err := f.Embed()
	if err != nil {
		t.Fatal(err)
	}
	if e.Wte.Numel() != 3 {
		t.Errorf("wte has %d elements", e.Wte.Numel())
		return
	}
	e.Release()
}

func refused(t *testing.T, f tiny.ForwardPass) {
	if _, err := f.H(99); err == nil {
		t.Fatal("no error")
	}
	var state interface{ error }
	if _, err := f.H(-1); !errors.As(err, &state) {
		t.Fatalf("error %v", err)
	}
	_, err := f.H(98)
	mustFail(t, err)
	if err := last(f); err == nil {
		t.Fatal("no error")
	}
}

func last(f tiny.ForwardPass) error {
	_, err := f.H(tiny.HLen)
	return err
}

func mustFail(t *testing.T, err error) {
	if err == nil {
		t.Fatal("no error")
	}
}

func forever(f tiny.ForwardPass, index <-chan int) {
	for i := range index {
		h, err := f.H(i)
		if failed(err) {
			continue
		}
		h.Release()
		panics(func() { h.Mlp.Host() })
		panics(h.Release)
	}
}

func failed(err error) bool { return err != nil }

func panics(f func()) {}

func chained(ctx context.Context, m *tiny.Model) error { return m.Forward(ctx).End() }

// watcher holds a model as generated packages do, but its methods hand out
// nothing.
type watcher struct{ core *shard.Model }

func (w *watcher) note() {}

func watches(w *watcher) { w.note() }
