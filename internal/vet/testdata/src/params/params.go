// Package params writes to gathered parameters, and to what is none.
package params

import (
	"context"
	"slices"
	"sort"

	"tiny"

	shard "github.com/shardgen/shardgen/runtime"
)

func direct(h tiny.H, x float32) {
	h.Mlp.Host()[0] = x                           // want `write to h\.Mlp\.Host\(\)\[0\] changes only the gathered copy of parameter h\.Mlp \(tiny\.H\), not the shards, and is lost: set parameters in the model's Update; what a backward pass writes is the gradients`
	h.Mlp.Host()[1] += x                          // want `write to h\.Mlp\.Host\(\)\[1\] changes only`
	h.Mlp.Host()[2]++                             // want `write to h\.Mlp\.Host\(\)\[2\] changes only`
	(h.Mlp.Host())[3], x = x, 1                   // want `write to \(h\.Mlp\.Host\(\)\)\[3\] changes only`
	h.Mlp.Host()[2:5][0] = x                      // want `write to h\.Mlp\.Host\(\)\[2:5\]\[0\] changes only`
	for _, h.Mlp.Host()[0] = range []float32{1} { // want `write to h\.Mlp\.Host\(\)\[0\] changes only`
	}
}

func swapped(h tiny.H, i, j int) {
	w, v := h.Mlp.Host(), h.Ln_1.Host()
	w[i], w[j] = w[j], w[i] // want `write to w\[i\] changes only the gathered copy of parameter h\.Mlp`
	w[i], v[j] = v[j], w[i] // want `write to w\[i\] changes only` `write to v\[j\] changes only the gathered copy of parameter h\.Ln_1`
}

func throughVariables(f tiny.ForwardPass) error {
	h, err := f.H(0)
	if err != nil {
		return err
	}
	defer h.Release()
	mlp := h.Mlp
	w := mlp.Host()
	for i := range w {
		w[i] *= 2 // want `write to w\[i\] changes only the gathered copy of parameter h\.Mlp \(tiny\.H\)`
	}
	part := w[2:5]
	part[0] = 1     // want `write to part\[0\] changes only the gathered copy of parameter h\.Mlp`
	part[1:][0] = 1 // want `write to part\[1:\]\[0\] changes only`
	each(func() {
		part[1] = 2 // want `write to part\[1\] changes only`
	})
	return nil
}

func each(f func()) { f() }

func setLater(h tiny.H, first bool) {
	var w []float32
	if first {
		w = h.Mlp.Host()
	} else {
		w = h.Ln_1.Host()
	}
	for len(w) > 0 {
		w[0] = 1 // want `write to w\[0\] changes only the gathered copy of parameter h\.Mlp`
		w = w[1:]
	}
}

func byBuiltins(h *tiny.H, src []float32) {
	w := h.Mlp.Host()
	copy(h.Mlp.Host(), src)   // want `write to h\.Mlp\.Host\(\) changes only the gathered copy of parameter h\.Mlp \(tiny\.H\)`
	copy(w[2:5], src)         // want `write to w\[2:5\] changes only`
	if copy(w[:], src) == 0 { // want `write to w\[:\] changes only`
		clear(w) // want `write to w changes only`
	}
}

func bySorting(e tiny.Embed) {
	w := e.Wte.Host()
	slices.Sort(w)                                              // want `write to w changes only the gathered copy of parameter e\.Wte \(tiny\.Embed\)`
	slices.SortFunc(w[1:], func(a, b float32) int { return 0 }) // want `write to w\[1:\] changes only`
	slices.Reverse(e.Wte.Host())                                // want `write to e\.Wte\.Host\(\) changes only`
	sort.Slice(w, func(i, j int) bool { return w[i] < w[j] })   // want `write to w changes only`
}

func byTensors(ctx context.Context, b tiny.BackwardPass, src []float32) error {
	h, g, err := b.H(1)
	if err != nil {
		return err
	}
	defer h.Release()
	defer g.Reduce()
	if err := h.Mlp.CopyFrom(ctx, src); err != nil { // want `write to h\.Mlp changes only the gathered copy of parameter h\.Mlp \(tiny\.H\)`
		return err
	}
	t := h.Ln_1
	t.CopyFrom(ctx, src)                   // want `write to t changes only the gathered copy of parameter h\.Ln_1`
	return g.Mlp.CopyTo(ctx, h.Mlp.Host()) // want `write to h\.Mlp\.Host\(\) changes only`
}

func experts(ctx context.Context, blocks map[int]tiny.H, src []float32) {
	blocks[0].Experts[1].Up.Host()[0] = 1 // want `write to .* changes only the gathered copy of parameter blocks\[0\]\.Experts\[1\]\.Up \(tiny\.H\)`
	for _, e := range blocks[1].Experts {
		e.Up.CopyFrom(ctx, src) // want `write to e\.Up changes only the gathered copy of parameter e\.Up \(tiny\.H\)`
	}
	some := blocks[2].Experts
	last := some[1:][0].Up.Host()
	clear(last) // want `write to last changes only the gathered copy of parameter some\[1:\]\[0\]\.Up`
}

func gradients(ctx context.Context, h tiny.H, g tiny.HGrads, src []float32) error {
	g.Mlp.Host()[0] += h.Mlp.Host()[0]
	dw, w := g.Mlp.Host(), h.Mlp.Host()
	for i := range w {
		dw[i] += 2 * w[i]
	}
	copy(dw, w)
	copy(dw[1:], h.Mlp.Host())
	clear(g.Mlp.Host())
	for i, e := range g.Experts {
		e.Up.Host()[0] = h.Experts[i].Up.Host()[0]
	}
	if err := h.Mlp.CopyTo(ctx, dw); err != nil {
		return err
	}
	return g.Mlp.CopyFrom(ctx, src)
}

func copies(h tiny.H) []float32 {
	w := slices.Clone(h.Mlp.Host())
	w[0] = 1
	slices.Sort(w)
	v := append([]float32(nil), h.Mlp.Host()...)
	clear(v)
	u := append(h.Mlp.Host()[:0:0], v...)
	u[0] = 1
	x := h.Mlp.Host()[0]
	x++
	all := [][]float32{h.Mlp.Host(), w}
	all[1] = w
	all[1][0] = x
	table := map[string][]float32{}
	table[h.Mlp.Name()] = h.Mlp.Host()
	return v
}

// either holds a parameter or a buffer, and knows which.
func either(h tiny.H, own bool) {
	w := h.Mlp.Host()
	if own {
		w = make([]float32, len(w))
	}
	w[0] = 1
	v := w[1:]
	v[0] = 1
	var t []float32
	if own {
		t = v
	} else {
		t = h.Mlp.Host()
	}
	clear(t)
}

func swappedBuffers(h tiny.H, g tiny.HGrads) {
	from, to := h.Mlp.Host(), g.Mlp.Host()
	for range 2 {
		to[0] = from[0]
		from, to = to, from
	}
}

func setElsewhere(h tiny.H, get func() ([]float32, error), c chan []float32) error {
	w := h.Mlp.Host()
	w, err := get()
	if err != nil {
		return err
	}
	w[0] = 1
	u := h.Mlp.Host()
	fill(&u)
	u[0] = 1
	v := h.Mlp.Host()
	each(func() { v = <-c })
	v[0] = 1
	x := h.Mlp.Host()
	for _, x = range [][]float32{w} {
		x[0] = 1
	}
	return nil
}

func fill(w *[]float32) { *w = make([]float32, 3) }

func handed(w []float32, t shard.Tensor[float32], own bool) (out []float32) {
	w[0] = 1
	t.Host()[0] = 1
	out = w
	out[0] = 1
	return out
}

func reused(h tiny.H, w []float32) {
	w[0] = 1
	w = h.Mlp.Host()
	scale(w)
	scale(h.Mlp.Host())
}

func scale(w []float32) {
	for i := range w {
		w[i] *= 2
	}
}

var kept []float32

func keeps(e tiny.Embed) {
	kept = e.Wte.Host()
	kept[0] = 1
}

func replaced(h tiny.H, g tiny.HGrads, up tiny.Expert) {
	experts := h.Experts
	experts[0] = up
	experts[0].Up.Host()[0] = 1
	tensors := h.Experts
	tensors[1].Up = g.Mlp
	tensors[1].Up.Host()[0] = 1
	mlp := h.Mlp
	mlp = g.Mlp
	mlp.Host()[0] = 1
	for _, t := range []shard.Tensor[float32]{g.Mlp, up.Up} {
		clear(t.Host())
	}
}

func values(ctx context.Context, h tiny.H) func(context.Context, []float32) error {
	copy := func(dst, src []float32) {}
	copy(h.Mlp.Host(), nil)
	shard.Tensor[float32].CopyTo(h.Ln_1, ctx, make([]float32, 3))
	return h.Mlp.CopyFrom
}
