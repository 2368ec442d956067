package blocks

import (
	"context"
	"errors"
	"fmt"
	"os"

	"helpers"
	"tiny"
)

func neverReleased(f tiny.ForwardPass) error {
	e, err := f.Embed() // want `block e \(tiny\.Embed\), gathered here, is not released before the return at line 19: call e\.Release\(\) on the way there`
	if err != nil {
		return err
	}
	fmt.Println(e.Wte.Host()[0])
	return f.End()
}

func notReleasedInALoop(f tiny.ForwardPass) error {
	for i := range tiny.HLen {
		h, err := f.H(i) // want `block h \(tiny\.H\), gathered here, is not released before the loop comes here again: call h\.Release\(\) before the iteration ends`
		if err != nil {
			return err
		}
		fmt.Println(helpers.Sum(h))
	}
	return nil
}

func skippedByContinue(f tiny.ForwardPass, skip map[int]bool) error {
	for i := 0; i < tiny.HLen; i++ {
		h, err := f.H(i) // want `block h .* before the loop comes here again`
		if err != nil {
			return err
		}
		if skip[i] {
			continue
		}
		h.Release()
	}
	return nil
}

func earlyReturn(f tiny.ForwardPass, enough bool) (float32, error) {
	h, err := f.H(0) // want `block h .* before the return at line 53`
	if err != nil {
		return 0, err
	}
	if enough {
		return 0, nil
	}
	defer h.Release()
	return h.Mlp.Host()[0], nil
}

func borrowedByAHelper(f tiny.ForwardPass) {
	h, err := f.H(0) // want `block h .* before the function ends at line 66`
	if err != nil {
		return
	}
	look(h)
	func() { fmt.Println(h.Mlp.Name()) }()
}

func look(h tiny.H) { fmt.Println(h.Mlp.Host()) }

func overwritten(f tiny.ForwardPass) error {
	h, err := f.H(0) // want `block h .* before line 75 sets the variable anew`
	if err != nil {
		return err
	}
	h, err = f.H(1)
	if err != nil {
		return err
	}
	h.Release()
	return nil
}

func discarded(f tiny.ForwardPass) error {
	if _, err := f.H(0); err != nil { // want `block \(tiny\.H\) that f\.H returns is kept in no variable, so it is never released: keep it and call its Release\(\)`
		return err
	}
	f.Embed() // want `block \(tiny\.Embed\) that f\.Embed returns is kept in no variable`
	return nil
}

func errorMayBeNil(f tiny.ForwardPass) error {
	h, err := f.H(0) // want `block h .* before the return at line 97`
	if err != nil {
		return err
	}
	err = compute(h.Mlp.Host())
	return err
}

func compute(x []float32) error { return nil }

func usedAfterRelease(f tiny.ForwardPass) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	w := h.Mlp.Host()
	part := w[1:]
	up := h.Experts[1].Up
	h.Release()
	fmt.Println(h.Ln_1.Host()) // want `block h \(tiny\.H\) is used after h\.Release\(\) at line 110: move the use before that call`
	fmt.Println(w[0])          // want `w, memory of block h \(tiny\.H\), is used after h\.Release\(\) at line 110`
	part[0] = 1                // want `part, memory of block h` `write to part\[0\] changes only`
	fmt.Println(up.Host())     // want `up, memory of block h`
	look(h)                    // want `block h \(tiny\.H\) is used after`
	fmt.Println(len(w), h.Mlp.Numel(), up.Name(), len(part))
	return nil
}

func usedInTheNextIteration(f tiny.ForwardPass) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	for {
		fmt.Println(h.Mlp.Host()) // want `block h \(tiny\.H\) is used after h\.Release\(\) at line 127`
		h.Release()               // want `h\.Release\(\) comes after h\.Release\(\) at line 127, but block h \(tiny\.H\) is given back once: keep one of the two calls`
	}
}

func releasedTwice(f tiny.ForwardPass, early bool) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	if early {
		h.Release()
	}
	h.Release() // want `h\.Release\(\) comes after h\.Release\(\) at line 137, but`
	return nil
}

func releasedByDeferToo(f tiny.ForwardPass) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	defer h.Release()
	h.Release() // want `h\.Release\(\) comes after h\.Release\(\) by the defer at line 148, but`
	return nil
}

func switches(f tiny.ForwardPass, mode string) error {
	h, err := f.H(0) // want `block h .* before the return at line 163`
	switch {
	case err != nil:
		return err
	case mode == "panic":
		panic(mode)
	case mode == "exit":
		os.Exit(1)
	case mode == "quick":
		return nil
	}
	h.Release()
	return nil
}

func inALiteral(ctx context.Context, m *tiny.Model) func() error {
	return func() error {
		f := m.Forward(ctx)
		h, err := f.H(0) // want `block h .* before the return at line 177`
		if errors.Is(err, context.Canceled) || err != nil {
			return errors.Join(err, f.End())
		}
		fmt.Println(h.Mlp.Host())
		return f.End()
	}
}

// manyPaths has a path for each combination of outcomes, since the conditions come
// twice: few enough to follow them all.
func manyPaths(f tiny.ForwardPass, a, b int) error {
	h, err := f.H(0) // want `block h .* before the return at line 205`
	if err != nil {
		return err
	}
	fmt.Println(h.Mlp.Host())
	switch a {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(a)
	}
	switch b {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(b)
	}
	switch a {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(a)
	}
	switch b {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(b)
	}
	return nil
}

// tooManyPaths is manyPaths with more combinations than are followed.
func tooManyPaths(f tiny.ForwardPass, a, b, c, d, e int) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	fmt.Println(h.Mlp.Host())
	switch a {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(a)
	}
	switch b {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(b)
	}
	switch c {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(c)
	}
	switch d {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(d)
	}
	switch e {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(e)
	}
	switch a {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(a)
	}
	switch b {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(b)
	}
	switch c {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(c)
	}
	switch d {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(d)
	}
	switch e {
	case 0, 1, 2, 3, 4, 5, 6:
		fmt.Println(e)
	}
	return nil
}
