package vet

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// sorters are functions of the standard library that reorder their first
// argument in place.
var sorters = map[string][]string{
	"slices": {"Reverse", "Sort", "SortFunc", "SortStableFunc"},
	"sort":   {"Float64s", "Slice", "SliceStable"},
}

// checkWrites reports what a package writes to gathered parameters.
func checkWrites(p *analysis.Pass) {
	w := writes{p, newOrigins(p.TypesInfo, p.Files)}
	for _, file := range p.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			w.node(n)
			return true
		})
	}
}

type writes struct {
	pass    *analysis.Pass
	origins *origins
}

func (w writes) node(n ast.Node) {
	switch n := n.(type) {
	case *ast.AssignStmt:
		w.elements(n.Lhs...)
	case *ast.IncDecStmt:
		w.elements(n.X)
	case *ast.RangeStmt:
		w.elements(n.Key, n.Value)
	case *ast.CallExpr:
		w.call(n)
	}
}

// elements reports those of a statement's targets that are elements of
// parameters, one of each parameter.
func (w writes) elements(targets ...ast.Expr) {
	reported := map[string]bool{}
	for _, x := range targets {
		e, ok := ast.Unparen(x).(*ast.IndexExpr)
		if !ok {
			continue
		}
		g, ok := w.origins.memoryOf(e.X)
		if !ok || reported[types.ExprString(g.expr)] {
			continue
		}
		reported[types.ExprString(g.expr)] = true
		w.report(e, g)
	}
}

// call reports a call that writes to a parameter.
func (w writes) call(call *ast.CallExpr) {
	info := w.pass.TypesInfo
	if tensor := tensorOf(info, call, "CopyFrom"); tensor != nil {
		if g, ok := w.origins.parameterOf(tensor); ok {
			w.report(tensor, g)
		}
		return
	}
	target := 0
	switch {
	case tensorOf(info, call, "CopyTo") != nil:
		target = 1
	case !writesFirst(typeutil.Callee(info, call)):
		return
	}
	if target >= len(call.Args) { // the arguments are another call's results
		return
	}
	if g, ok := w.origins.memoryOf(call.Args[target]); ok {
		w.report(call.Args[target], g)
	}
}

// writesFirst reports whether a function is known to write to the slice that is
// its first argument.
func writesFirst(callee types.Object) bool {
	switch f := callee.(type) {
	case *types.Builtin:
		return f.Name() == "copy" || f.Name() == "clear"
	case *types.Func:
		return f.Pkg() != nil && receiver(f) == nil && slices.Contains(sorters[f.Pkg().Path()], f.Name())
	}
	return false
}

func (w writes) report(target ast.Expr, g gathered) {
	w.pass.Reportf(target.Pos(), "write to %s changes only the gathered copy of parameter %s (%s), not the shards, and is lost: set parameters in the model's Update; what a backward pass writes is the gradients",
		types.ExprString(target), types.ExprString(g.expr), typeName(g.block))
}
