package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/types/typeutil"
)

// mayFail says whether an outcome of a condition means, or may mean, that an
// error is not nil: own for the error of the handle itself, other for any other.
func mayFail(info *types.Info, x ast.Expr, outcome bool, err *types.Var) (own, other bool) {
	switch e := ast.Unparen(x).(type) {
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			return mayFail(info, e.X, !outcome, err)
		}
	case *ast.BinaryExpr:
		switch e.Op {
		case token.LAND, token.LOR:
			ownX, otherX := mayFail(info, e.X, outcome, err)
			ownY, otherY := mayFail(info, e.Y, outcome, err)
			return ownX || ownY, otherX || otherY
		case token.EQL, token.NEQ:
			if fails, ok := compares(info, e); ok && fails != outcome {
				return false, false
			}
		}
	case *ast.CallExpr:
		if isCall(info, e, "errors", "Is", "As", "AsType") && !outcome {
			return false, false
		}
	}
	return mentions(info, x, err)
}

// compares reports the outcome of a comparison that means an error; false for
// comparisons of other things.
func compares(info *types.Info, e *ast.BinaryExpr) (outcome, ok bool) {
	x, y := e.X, e.Y
	if info.Types[x].IsNil() {
		x, y = y, x
	}
	if !isError(info.TypeOf(x)) {
		return false, false
	}
	return info.Types[y].IsNil() == (e.Op == token.NEQ), true
}

// mentions reports whether an expression reads the handle's error or, or else,
// any other.
func mentions(info *types.Info, x ast.Expr, err *types.Var) (own, other bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		x, ok := n.(ast.Expr)
		if !ok || info.Types[x].IsNil() || !isError(info.TypeOf(x)) {
			return true
		}
		if v, ok := variable(info, x); ok && v != nil && v == err {
			own = true
		} else {
			other = true
		}
		return true
	})
	return own, other
}

func isCall(info *types.Info, call *ast.CallExpr, path string, names ...string) bool {
	f := typeutil.StaticCallee(info, call)
	return f != nil && f.Pkg() != nil && f.Pkg().Path() == path && slices.Contains(names, f.Name())
}

// failing reports whether a node says that something went wrong: it sets an
// error variable to a new error, or a test reports a failure and goes on.
func failing(info *types.Info, n ast.Node) bool {
	if s, ok := n.(*ast.ExprStmt); ok {
		call, ok := s.X.(*ast.CallExpr)
		return ok && isCall(info, call, "testing", "Error", "Errorf", "Fail")
	}
	return slices.ContainsFunc(assignments(n), func(a assigned) bool {
		return a.value != nil && isError(info.TypeOf(a.value)) && newError(info, a.value)
	})
}

// newError reports whether an expression is an error for sure.
func newError(info *types.Info, x ast.Expr) bool {
	switch e := ast.Unparen(x).(type) {
	case *ast.CallExpr:
		return isCall(info, e, "errors", "New") || isCall(info, e, "fmt", "Errorf")
	case *ast.CompositeLit:
		return true
	case *ast.UnaryExpr:
		return e.Op == token.AND
	case *ast.Ident, *ast.SelectorExpr:
		return isSentinel(info, e)
	}
	return false
}

// isSentinel reports whether an expression is an error variable of a package.
func isSentinel(info *types.Info, x ast.Expr) bool {
	id, ok := x.(*ast.Ident)
	if s, isSelector := x.(*ast.SelectorExpr); isSelector {
		id, ok = s.Sel, true
	}
	if !ok {
		return false
	}
	v, ok := info.Uses[id].(*types.Var)
	return ok && v.Pkg() != nil && v.Parent() == v.Pkg().Scope()
}

// returnsError reports whether a return is one with an error. A call's error
// counts as one, except where the call is the function's normal end: of
// generated code, or in the return statement that every path leads to.
func returnsError(info *types.Info, f function, r *ast.ReturnStmt) bool {
	for _, x := range r.Results {
		call, isCall := ast.Unparen(x).(*ast.CallExpr)
		switch {
		case isCall && lastIsError(info.TypeOf(x)):
			if newError(info, x) {
				return true
			}
			callee := typeutil.StaticCallee(info, call)
			if !slices.Contains(f.body.List, ast.Stmt(r)) && (callee == nil || !generated(callee)) {
				return true
			}
		case !info.Types[x].IsNil() && isError(info.TypeOf(x)) && newError(info, x):
			return true
		}
	}
	return false
}

func lastIsError(t types.Type) bool {
	if tuple, ok := t.(*types.Tuple); ok {
		return tuple.Len() > 0 && isError(tuple.At(tuple.Len()-1).Type())
	}
	return isError(t)
}
