package vet

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"slices"
)

// leakKind is how a handle gets lost, the clearest first.
type leakKind uint8

const (
	leakAgain leakKind = iota
	leakOverwritten
	leakReturn
)

// leak is a path on which nobody gives a handle back.
type leak struct {
	kind leakKind
	at   ast.Node
}

// leaks keeps the clearest leak, and of those alike the first in the source.
func (w *walk) leaks(at ast.Node, k leakKind) {
	if w.leak == nil || k < w.leak.kind || k == w.leak.kind && at.Pos() < w.leak.at.Pos() {
		w.leak = &leak{k, at}
	}
}

// report says what the walk found. The place of a leak is the gather's, that of
// a misuse its own.
func (w *walk) report() {
	if w.leak != nil {
		w.pass.Reportf(w.site.place, "%s", w.leakMessage())
	}
	for _, pos := range slices.Sorted(maps.Keys(w.misuses)) {
		w.pass.Reportf(pos, "%s", w.misuses[pos])
	}
}

// subject names the handle, with its type as a trainer writes it.
func (w *walk) subject() string {
	return fmt.Sprintf("%s %s (%s)", kinds[w.site.kind].noun, w.site.v.Name(), w.typeName())
}

// typeName is the handle's type, such as gpt2.H.
func (w *walk) typeName() string { return typeName(w.site.typ) }

func typeName(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string { return p.Name() })
}

func (w *walk) leakMessage() string {
	t := kinds[w.site.kind]
	if w.site.v == nil {
		return fmt.Sprintf(t.lost, w.typeName(), types.ExprString(w.site.call.Fun))
	}
	end, place := w.leakPlace()
	fix := fmt.Sprintf(t.fix, w.site.v.Name())
	return fmt.Sprintf("%s, %s here, %s %s before %s: %s %s", w.subject(), t.acquired, t.be, t.omitted, end, fix, place)
}

// leakPlace says where the handle gets lost, and where to give it back.
func (w *walk) leakPlace() (end, fix string) {
	line := w.line(w.leak.at.Pos())
	switch {
	case w.leak.kind == leakAgain:
		return "the loop comes here again", "before the iteration ends"
	case w.leak.kind == leakOverwritten:
		return fmt.Sprintf("line %d sets the variable anew", line), "before that line"
	case w.leak.at.Pos() == w.function.body.Rbrace:
		return fmt.Sprintf("the function ends at line %d", line), "before that line"
	}
	return fmt.Sprintf("the return at line %d", line), "on the way there"
}

func (w *walk) misused(e event, s state) {
	subject, be := w.subject(), kinds[w.site.kind].be
	if e.kind == viewed {
		subject, be = fmt.Sprintf("%s, memory of %s,", e.name, subject), "is"
	}
	w.misuses[e.pos] = fmt.Sprintf("%s %s used after %s.%s() at line %d: move the use before that call", subject, be, w.site.v.Name(), s.method, w.line(s.finished))
}

func (w *walk) finishedTwice(e event, s state) {
	by := "at"
	if s.phase == pending {
		by = "by the defer at"
	}
	w.misuses[e.pos] = fmt.Sprintf("%s.%s() comes after %s.%s() %s line %d, but %s %s given back once: keep one of the two calls",
		w.site.v.Name(), e.name, w.site.v.Name(), s.method, by, w.line(s.finished), w.subject(), kinds[w.site.kind].be)
}

func (w *walk) line(pos token.Pos) int { return w.pass.Fset.Position(pos).Line }
