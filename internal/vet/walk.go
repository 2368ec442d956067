package vet

import (
	"go/ast"
	"go/token"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/cfg"
)

// maxSteps bounds the walk over one handle's paths. A function with more is left
// alone.
const maxSteps = 20_000

// phase is where a handle is in its life.
type phase uint8

const (
	absent  phase = iota // not handed out yet, failed to be, or replaced
	held                 // to be given back
	pending              // given back by a defer
	gone                 // given back
)

// state is what one path knows at one place.
type state struct {
	phase    phase
	escaped  bool // somebody else may give it back
	failing  bool // the path has met an error
	linked   bool // the error variable still tells whether there is a handle
	finished token.Pos
	method   string // that gave it back
	facts    facts
}

// step is a state at the start of a basic block.
type step struct {
	block *cfg.Block
	state state
}

// walk follows one handle along all paths of a function.
type walk struct {
	pass       *analysis.Pass
	function   function
	site       site
	uses       uses
	conditions *conditions
	events     map[ast.Node][]event
	seen       map[step]bool
	todo       []step
	leak       *leak
	misuses    map[token.Pos]string
}

func newWalk(p *analysis.Pass, f function, s site, u uses) *walk {
	return &walk{
		pass: p, function: f, site: s, uses: u, conditions: newConditions(p.TypesInfo, f),
		events: map[ast.Node][]event{}, seen: map[step]bool{}, misuses: map[token.Pos]string{},
	}
}

// run walks and reports what it finds.
func (w *walk) run() {
	w.visit(step{block: w.function.graph.Blocks[0]})
	for len(w.todo) > 0 {
		if len(w.seen) > maxSteps {
			return
		}
		next := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		w.through(next.block, next.state)
	}
	w.report()
}

func (w *walk) visit(s step) {
	if !w.seen[s] {
		w.seen[s] = true
		w.todo = append(w.todo, s)
	}
}

// through takes a path through a block and on to its successors.
func (w *walk) through(b *cfg.Block, s state) {
	if b.Kind == cfg.KindRangeLoop {
		s.facts = w.conditions.after(b.Stmt, s.facts)
	}
	for _, n := range b.Nodes {
		s = w.node(n, s)
	}
	if r := b.Return(); r != nil {
		w.returned(r, s)
		return
	}
	x := w.conditions.of(b)
	for i, next := range b.Succs {
		if out := s; x == nil || w.branch(x, i == 0, &out) {
			w.visit(step{next, out})
		}
	}
}

// branch applies an outcome of a condition; false where the path can't have it.
func (w *walk) branch(x ast.Expr, outcome bool, s *state) bool {
	if value, known := w.conditions.evaluate(x, s.facts); known && value != outcome {
		return false
	}
	s.facts = w.conditions.learn(x, outcome, s.facts)
	if s.phase == absent {
		return true
	}
	own, other := mayFail(w.pass.TypesInfo, x, outcome, w.site.err)
	if own && s.linked && s.phase == held {
		*s = state{facts: s.facts}
	}
	s.failing = s.failing || own || other
	return true
}

// node applies what a statement or expression does.
func (w *walk) node(n ast.Node, s state) state {
	if w.site.v != nil {
		for _, e := range w.eventsOf(n) {
			s = w.apply(e, n, s)
		}
	}
	if w.site.v == nil && s.linked && w.judged(n) {
		s = state{facts: s.facts}
	}
	for _, a := range assignments(n) {
		if w.site.err != nil && w.pass.TypesInfo.ObjectOf(a.name) == w.site.err {
			s.linked = false
		}
	}
	s.facts = w.conditions.after(n, s.facts)
	s.failing = s.failing || failing(w.pass.TypesInfo, n)
	if n == w.site.node {
		if s.phase == held && !s.escaped {
			w.leaks(n, leakAgain)
		}
		s = state{phase: held, linked: w.site.err != nil, facts: s.facts}
	}
	return s
}

// judged reports whether a node hands the handle's error to a call or returns
// it. Who discards a handle and does so is likely to expect an error.
func (w *walk) judged(n ast.Node) bool {
	found := false
	ast.Inspect(n, func(n ast.Node) bool {
		var values []ast.Expr
		switch n := n.(type) {
		case *ast.CallExpr:
			values = n.Args
		case *ast.ReturnStmt:
			values = n.Results
		}
		for _, x := range values {
			own, _ := mentions(w.pass.TypesInfo, x, w.site.err)
			found = found || own
		}
		return !found
	})
	return found
}

func (w *walk) eventsOf(n ast.Node) []event {
	events, ok := w.events[n]
	if !ok {
		events = w.uses.events(n)
		w.events[n] = events
	}
	return events
}

// apply is the handle's life: what an event does in each phase.
func (w *walk) apply(e event, n ast.Node, s state) state {
	if e.closure || s.phase == absent {
		return s
	}
	switch e.kind {
	case looked, viewed, passed:
		if s.phase == gone {
			w.misused(e, s)
		}
		s.escaped = s.escaped || e.kind == passed
	case escaped:
		s.escaped = true
	case finished, deferred:
		return w.finish(e, s)
	case overwritten:
		if n == w.site.node {
			return s
		}
		if s.phase == held && !s.escaped {
			w.leaks(n, leakOverwritten)
		}
		return state{failing: s.failing, facts: s.facts}
	}
	return s
}

func (w *walk) finish(e event, s state) state {
	if s.phase != held && w.site.kind != pass { // a second End is an error that is returned, no fault
		w.finishedTwice(e, s)
	}
	s.finished, s.method, s.phase = e.pos, e.name, gone
	if e.kind == deferred {
		s.phase = pending
	}
	return s
}

// returned checks what a path holds where it leaves the function.
func (w *walk) returned(r *ast.ReturnStmt, s state) {
	if s.phase == held && !s.escaped && !s.failing && !returnsError(w.pass.TypesInfo, w.function, r) {
		w.leaks(r, leakReturn)
	}
}
