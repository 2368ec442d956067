// Package helpers is another package of a trainer, with functions that take
// handles.
package helpers

import "tiny"

// Sum only looks at the block.
func Sum(h tiny.H) float32 { return even(h, 4) }

func even(h tiny.H, n int) float32 {
	if n == 0 {
		return h.Mlp.Host()[0]
	}
	return odd(h, n-1)
}

func odd(h tiny.H, n int) float32 {
	_ = h
	return even(h, n-1)
}

// Finish releases the block.
func Finish(h tiny.H) { done(h) }

func done(h tiny.H) { h.Release() }

// Accumulate only looks at both.
func Accumulate(h tiny.H, g tiny.HGrads) { g.Mlp.Host()[0] = h.Mlp.Host()[0] }

// Later gives the gradients to somebody else.
func Later(g tiny.HGrads, queue chan<- tiny.HGrads) { queue <- g }

// Layers goes through the pass and leaves its end to the caller.
func Layers(f tiny.ForwardPass) error {
	for i := range tiny.HLen {
		h, err := f.H(i)
		if err != nil {
			return err
		}
		h.Release()
	}
	return nil
}
