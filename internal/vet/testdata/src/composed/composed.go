// Package composed keeps gradients in the type of a block, and adds to them.
package composed

import "tiny"

func accumulate(h tiny.H, g tiny.HGrads) {
	add(tiny.H{Mlp: g.Mlp, Experts: g.Experts}, h)
	var e tiny.Embed
	e.Wte = g.Mlp
	e.Wte.Host()[0] = 1
}

func add(dst, src tiny.H) {
	dst.Mlp.Host()[0] += src.Mlp.Host()[0]
	dst.Experts[0].Up.Host()[0] += 1
}
