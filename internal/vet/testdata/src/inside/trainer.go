// Package inside is a trainer that shares a package with the generated code.
package inside

func halve(h H) {
	w := h.Mlp.Host()
	for i := range w {
		w[i] /= 2 // want `write to w\[i\] changes only the gathered copy of parameter h\.Mlp \(inside\.H\)`
	}
}
