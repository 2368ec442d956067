package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
)

// eventKind is what happens to a handle at one place in the source.
type eventKind uint8

const (
	looked      eventKind = iota + 1 // a field is read, a method other than its last is called
	viewed                           // memory that was taken out of the handle earlier is used
	passed                           // passed to a function that may give it back
	escaped                          // stored, returned, aliased, or its last method taken as a value
	finished                         // given back
	deferred                         // given back when the function returns
	addressed                        // its address is taken: anything may happen to it
	overwritten                      // the variable is assigned
)

// takes reports whether somebody else may give the handle back after the event.
func (k eventKind) takes() bool {
	return k == passed || k == escaped || k == finished || k == deferred || k == addressed
}

// event is one thing that happens to a handle. The name is the variable's or,
// for finished and deferred, the method's.
type event struct {
	kind    eventKind
	pos     token.Pos
	name    string
	closure bool // in a function literal, so at a time that nobody knows
}

// uses finds what happens to one variable that holds a handle.
type uses struct {
	info    *types.Info
	lending *lending
	v       *types.Var
	kind    kind
	views   map[*types.Var]bool
}

// events returns what happens to the variable in a node, assignments last.
func (u *uses) events(node ast.Node) []event {
	var events, assigned []event
	ast.PreorderStack(node, nil, func(n ast.Node, stack []ast.Node) bool {
		id, ok := n.(*ast.Ident)
		if !ok {
			return true
		}
		e := u.classify(id, stack)
		switch {
		case e.kind == 0:
			return true
		case e.kind == overwritten:
			assigned = append(assigned, e)
		default:
			events = append(events, e)
		}
		return true
	})
	return append(events, assigned...)
}

func (u *uses) classify(id *ast.Ident, stack []ast.Node) event {
	e := event{pos: id.Pos(), name: id.Name}
	e.closure = slices.ContainsFunc(stack, func(n ast.Node) bool { _, ok := n.(*ast.FuncLit); return ok })
	v, ok := u.info.ObjectOf(id).(*types.Var)
	if !ok {
		return e
	}
	switch {
	case u.views[v] && u.info.Defs[id] == nil && !harmless(u.info, id, stack):
		e.kind = viewed
	case v == u.v:
		u.handle(&e, id, stack)
	}
	return e
}

// handle says what the syntax around the handle's own variable does to it.
func (u *uses) handle(e *event, id *ast.Ident, stack []ast.Node) {
	up := parents(stack)
	switch p := up[0].(type) {
	case *ast.SelectorExpr:
		u.selected(e, p, up[1:], stack)
	case *ast.CallExpr:
		e.kind = passed
		if n := slices.IndexFunc(p.Args, func(a ast.Expr) bool { return ast.Unparen(a) == id }); n >= 0 && u.lending.borrowed(p, n) {
			e.kind = looked
		}
	case *ast.AssignStmt:
		e.kind = assignment(p, id)
	case *ast.ValueSpec:
		e.kind = escaped
		if slices.Contains(p.Names, id) {
			e.kind = overwritten
		}
	case *ast.UnaryExpr:
		e.kind = addressed
	default:
		e.kind = escaped
	}
}

// selected classifies handle.name, with what is around it.
func (u *uses) selected(e *event, s *ast.SelectorExpr, up, stack []ast.Node) {
	if !slices.Contains(kinds[u.kind].finish, s.Sel.Name) {
		if !harmless(u.info, s, stack) {
			e.kind = looked
		}
		return
	}
	call, ok := up[0].(*ast.CallExpr)
	if !ok || ast.Unparen(call.Fun) != s {
		e.kind = escaped
		return
	}
	e.kind, e.name = finished, s.Sel.Name
	switch up[1].(type) {
	case *ast.DeferStmt:
		e.kind = deferred
	case *ast.GoStmt:
		e.kind = escaped
	}
}

// assignment classifies a variable on either side of an assignment.
func assignment(a *ast.AssignStmt, id *ast.Ident) eventKind {
	if slices.ContainsFunc(a.Lhs, func(x ast.Expr) bool { return ast.Unparen(x) == id }) {
		return overwritten
	}
	if n := slices.IndexFunc(a.Rhs, func(x ast.Expr) bool { return ast.Unparen(x) == id }); n < len(a.Lhs) && blank(a.Lhs[n]) {
		return 0
	}
	return escaped
}

func blank(x ast.Expr) bool { id, ok := x.(*ast.Ident); return ok && id.Name == "_" }

// parents returns the nodes around an expression from the inside out, without
// parentheses, and at least three.
func parents(stack []ast.Node) []ast.Node {
	var up []ast.Node
	for _, n := range slices.Backward(stack) {
		if _, ok := n.(*ast.ParenExpr); !ok {
			up = append(up, n)
		}
	}
	return append(up, nil, nil, nil)
}

// metadata are the tensor methods that work after release, too.
var metadata = []string{"Name", "Shape", "Numel", "Planned"}

// harmless reports whether an expression is only asked for what stays valid
// after release: the length of a slice, the shape of a tensor.
func harmless(info *types.Info, x ast.Expr, stack []ast.Node) bool {
	for _, n := range parents(stack) {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if slices.Contains(metadata, n.Sel.Name) && isTensor(info.TypeOf(n.X)) {
				return true
			}
		case *ast.CallExpr:
			id, ok := ast.Unparen(n.Fun).(*ast.Ident)
			if !ok || len(n.Args) == 0 || ast.Unparen(n.Args[0]) != x {
				return false
			}
			_, builtin := info.Uses[id].(*types.Builtin)
			return builtin && (id.Name == "len" || id.Name == "cap")
		case *ast.IndexExpr:
		default:
			return false
		}
	}
	return false
}

func isTensor(t types.Type) bool { return t != nil && isRuntimeType(t, "Tensor") }

// findViews finds the variables that are declared as, and stay, a tensor of the
// handle or a tensor's memory.
func (u *uses) findViews(body *ast.BlockStmt) {
	u.views = map[*types.Var]bool{}
	ast.Inspect(body, func(n ast.Node) bool {
		for _, a := range assignments(n) {
			if v, ok := u.info.Defs[a.name].(*types.Var); ok && a.value != nil && u.isView(a.value) {
				u.views[v] = true
			}
		}
		return true
	})
	ast.Inspect(body, func(n ast.Node) bool {
		for _, a := range assignments(n) {
			if v, ok := u.info.Uses[a.name].(*types.Var); ok && a.whole {
				delete(u.views, v)
			}
		}
		return true
	})
}

// isView reports whether an expression is a tensor or slice that refers to the
// handle's memory.
func (u *uses) isView(x ast.Expr) bool {
	if _, ok := types.Unalias(u.info.TypeOf(x)).(*types.Slice); !ok && !isTensor(u.info.TypeOf(x)) {
		return false
	}
	for {
		switch e := ast.Unparen(x).(type) {
		case *ast.SelectorExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.SliceExpr:
			x = e.X
		case *ast.CallExpr:
			s, ok := e.Fun.(*ast.SelectorExpr)
			if !ok || s.Sel.Name != "Host" || !isTensor(u.info.TypeOf(s.X)) {
				return false
			}
			x = s.X
		case *ast.Ident:
			v, ok := u.info.ObjectOf(e).(*types.Var)
			return ok && (v == u.v || u.views[v])
		default:
			return false
		}
	}
}

// assigned is a variable that a statement sets, wholly or a part of it; value is
// nil where there is no expression of its own.
type assigned struct {
	name  *ast.Ident
	value ast.Expr
	whole bool
}

// assignments returns the variables that a node itself sets.
func assignments(n ast.Node) []assigned {
	var out []assigned
	add := func(x, value ast.Expr) {
		if x == nil {
			return
		}
		if id := root(x); id != nil {
			out = append(out, assigned{id, value, ast.Unparen(x) == id})
		}
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, x := range n.Lhs {
			add(x, valueAt(n.Rhs, len(n.Lhs), i))
		}
	case *ast.ValueSpec:
		for i, x := range n.Names {
			add(x, valueAt(n.Values, len(n.Names), i))
		}
	case *ast.IncDecStmt:
		add(n.X, nil)
	case *ast.RangeStmt:
		add(n.Key, nil)
		add(n.Value, nil)
	}
	return out
}

func valueAt(values []ast.Expr, names, i int) ast.Expr {
	if len(values) != names {
		return nil
	}
	return values[i]
}

// root returns the variable at the start of x.y[i].z, nil where there is none.
func root(x ast.Expr) *ast.Ident {
	for {
		switch e := ast.Unparen(x).(type) {
		case *ast.Ident:
			return e
		case *ast.SelectorExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.StarExpr:
			x = e.X
		default:
			return nil
		}
	}
}
