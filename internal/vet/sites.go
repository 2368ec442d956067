package vet

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// function is a declared or literal function under analysis.
type function struct {
	body  *ast.BlockStmt
	graph *cfg.CFG
}

// site is a place where a function gets a handle.
type site struct {
	node  ast.Node // the statement, as the control-flow graph has it
	call  *ast.CallExpr
	kind  kind
	typ   types.Type
	v     *types.Var // nil where the handle is discarded
	err   *types.Var // the error that came with it, nil where there is none or nobody looks
	place token.Pos
}

// check follows every handle of one kind in all functions of a package.
func check(p *analysis.Pass, k kind) error {
	graphs := p.ResultOf[ctrlflow.Analyzer].(*ctrlflow.CFGs)
	lending := p.ResultOf[borrowAnalyzer].(*lending)
	for _, file := range p.Files {
		ast.Inspect(file, func(n ast.Node) bool {
			var f function
			switch n := n.(type) {
			case *ast.FuncDecl:
				f = function{n.Body, graphs.FuncDecl(n)}
			case *ast.FuncLit:
				f = function{n.Body, graphs.FuncLit(n)}
			}
			if f.graph != nil {
				checkFunction(p, lending, f, k)
			}
			return true
		})
	}
	return nil
}

func checkFunction(p *analysis.Pass, lending *lending, f function, k kind) {
	for _, s := range f.sites(p.TypesInfo, lending) {
		if s.kind != k {
			continue
		}
		u := uses{info: p.TypesInfo, lending: lending, v: s.v, kind: k}
		if s.v != nil {
			if u.unclear(f.body, s.node) {
				continue
			}
			u.findViews(f.body)
		}
		newWalk(p, f, s, u).run()
	}
}

// unclear reports whether a variable's fate can't be followed: its address is
// taken, a function literal sets it or may give it back, or a condition in a
// loop decides in which iteration it is given back.
func (u *uses) unclear(body *ast.BlockStmt, site ast.Node) bool {
	for _, e := range u.events(body) {
		switch {
		case e.kind == addressed, e.closure && (e.kind.takes() || e.kind == overwritten):
			return true
		case e.kind == finished && inIteration(body, site, e.pos):
			return true
		}
	}
	return false
}

// inIteration reports whether a place is under a condition in a loop that the
// site is not in.
func inIteration(body *ast.BlockStmt, site ast.Node, place token.Pos) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		loop := loopBody(n)
		if loop == nil || !encloses(loop, place) || encloses(loop, site.Pos()) {
			return true
		}
		found = found || !slices.ContainsFunc(loop.List, func(s ast.Stmt) bool {
			_, plain := s.(*ast.ExprStmt)
			return plain && encloses(s, place)
		})
		return true
	})
	return found
}

func loopBody(n ast.Node) *ast.BlockStmt {
	switch n := n.(type) {
	case *ast.ForStmt:
		return n.Body
	case *ast.RangeStmt:
		return n.Body
	}
	return nil
}

func encloses(n ast.Node, pos token.Pos) bool { return n.Pos() <= pos && pos < n.End() }

// sites returns the handles that a function gets from generated code and keeps
// in variables of its own, or discards.
func (f function) sites(info *types.Info, lending *lending) []site {
	var out []site
	for _, b := range f.graph.Blocks {
		for _, n := range b.Nodes {
			if b.Live {
				out = append(out, f.sitesOf(info, n)...)
				out = append(out, lent(info, lending, n)...)
			}
		}
	}
	return out
}

// lent returns the handles that a node only lends to a function, as in
// "walk(m.Forward(ctx))": where the function returns, nobody has them.
func lent(info *types.Info, lending *lending, n ast.Node) []site {
	var out []site
	ast.Inspect(n, func(inner ast.Node) bool {
		outer, ok := inner.(*ast.CallExpr)
		if !ok {
			_, literal := inner.(*ast.FuncLit)
			return !literal // it is a function of its own
		}
		for i, x := range outer.Args {
			call, ok := ast.Unparen(x).(*ast.CallExpr)
			if !ok || !lending.borrowed(outer, i) {
				continue
			}
			if callee := typeutil.StaticCallee(info, call); callee != nil && handsOut(callee) {
				t := info.TypeOf(call)
				out = append(out, site{node: n, call: call, kind: kindOf(t), typ: t, place: call.Pos()})
			}
		}
		return true
	})
	return out
}

func (f function) sitesOf(info *types.Info, n ast.Node) []site {
	call, names := callOf(n)
	if call == nil {
		return nil
	}
	callee := typeutil.StaticCallee(info, call)
	if callee == nil || !handsOut(callee) {
		return nil
	}
	results := callee.Signature().Results()
	var err *types.Var
	if last := results.Len() - 1; last >= 0 && last < len(names) && isError(results.At(last).Type()) {
		err, _ = variable(info, names[last])
	}
	var out []site
	for i := range results.Len() {
		s := site{node: n, call: call, kind: kindOf(results.At(i).Type()), typ: results.At(i).Type(), err: err, place: call.Pos()}
		if s.kind == none {
			continue
		}
		if i < len(names) {
			s.place = names[i].Pos()
			var known bool
			if s.v, known = variable(info, names[i]); !known || s.v != nil && !f.owns(s.v) {
				continue
			}
		}
		out = append(out, s)
	}
	return out
}

// owns reports whether a variable is declared in the function's body.
func (f function) owns(v *types.Var) bool { return encloses(f.body, v.Pos()) }

// callOf returns the call of a statement and where its results go; no names for
// a statement that is only a call.
func callOf(n ast.Node) (*ast.CallExpr, []ast.Expr) {
	var value ast.Expr
	var names []ast.Expr
	switch n := n.(type) {
	case *ast.ExprStmt:
		value = n.X
	case *ast.AssignStmt:
		if len(n.Rhs) == 1 {
			value, names = n.Rhs[0], n.Lhs
		}
	case *ast.ValueSpec:
		if len(n.Values) == 1 {
			value = n.Values[0]
			for _, name := range n.Names {
				names = append(names, name)
			}
		}
	}
	if value == nil {
		return nil, nil
	}
	call, _ := ast.Unparen(value).(*ast.CallExpr)
	return call, names
}

// handsOut reports whether a method is one through which generated code hands
// out handles: a pass's or a model's.
func handsOut(f *types.Func) bool {
	r := receiver(f)
	return r != nil && (kindOf(r) == pass || opener(f))
}

// variable returns the variable that an expression names: nil for the blank
// identifier, false for what is no plain variable.
func variable(info *types.Info, x ast.Expr) (*types.Var, bool) {
	id, ok := ast.Unparen(x).(*ast.Ident)
	if !ok {
		return nil, false
	}
	if id.Name == "_" {
		return nil, true
	}
	v, ok := info.ObjectOf(id).(*types.Var)
	return v, ok
}
