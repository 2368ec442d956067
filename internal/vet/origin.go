package vet

import (
	"go/ast"
	"go/token"
	"go/types"
)

// gathered is a parameter of a block, or a part of the block that holds
// parameters.
type gathered struct {
	expr  ast.Expr // that takes it out of the block, such as h.Mlp
	block types.Type
}

// origins tells which tensors and slices of a package are parameters of blocks.
type origins struct {
	info      *types.Info
	variables map[*types.Var]*variableOrigin
	composed  map[*types.TypeName]bool // blocks that the package itself puts together, maybe of gradients
}

// variableOrigin is all that a variable may hold.
type variableOrigin struct {
	declared bool       // by a statement: it is no function's parameter or result
	unclear  bool       // a value comes from elsewhere, or its address is taken
	values   []ast.Expr // for a range's element, what is ranged over
}

func newOrigins(info *types.Info, files []*ast.File) *origins {
	o := &origins{info: info, variables: map[*types.Var]*variableOrigin{}, composed: map[*types.TypeName]bool{}}
	for _, file := range files {
		generated := ast.IsGenerated(file)
		ast.Inspect(file, func(n ast.Node) bool {
			o.assign(n)
			if !generated {
				o.compose(n)
			}
			return true
		})
	}
	return o
}

// assign notes what a node does to variables.
func (o *origins) assign(n ast.Node) {
	if u, ok := n.(*ast.UnaryExpr); ok && u.Op == token.AND {
		if id := root(u.X); id != nil {
			o.set(assigned{id, nil, ast.Unparen(u.X) == id})
		}
	}
	for _, a := range assignments(n) {
		if r, ok := n.(*ast.RangeStmt); ok && r.Value == a.name {
			a.value = r.X
		}
		if s, ok := n.(*ast.ValueSpec); ok && len(s.Values) == 0 {
			o.declare(a.name) // as nil, which can't be written to
			continue
		}
		o.set(a)
	}
}

func (o *origins) set(a assigned) {
	v := o.declare(a.name)
	switch {
	case v == nil || !a.whole && ofNumbers(o.info.TypeOf(a.name)):
	case a.whole && a.value != nil:
		v.values = append(v.values, a.value)
	default:
		v.unclear = true
	}
}

// declare returns a variable's origin, nil where the name is of something else.
func (o *origins) declare(name *ast.Ident) *variableOrigin {
	v, ok := o.info.ObjectOf(name).(*types.Var)
	if !ok {
		return nil
	}
	if o.variables[v] == nil {
		o.variables[v] = &variableOrigin{unclear: v.Pkg() != nil && v.Parent() == v.Pkg().Scope()}
	}
	if o.info.Defs[name] == v {
		o.variables[v].declared = true
	}
	return o.variables[v]
}

// ofNumbers reports whether a type is a slice such as Host returns: setting an
// element of a variable of that type leaves the variable as it is.
func ofNumbers(t types.Type) bool {
	s, ok := t.Underlying().(*types.Slice)
	if !ok {
		return false
	}
	_, basic := s.Elem().Underlying().(*types.Basic)
	_, parameter := types.Unalias(s.Elem()).(*types.TypeParam)
	return basic || parameter
}

// compose notes a block that is made of tensors of the trainer's choice.
func (o *origins) compose(n ast.Node) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		if b := o.blockOf(n); b != nil && len(n.Elts) > 0 {
			o.composed[b.Obj()] = true
		}
	case *ast.AssignStmt:
		for _, x := range n.Lhs {
			o.composeField(x)
		}
	case *ast.UnaryExpr:
		if n.Op == token.AND {
			o.composeField(n.X)
		}
	}
}

func (o *origins) composeField(x ast.Expr) {
	for {
		switch e := ast.Unparen(x).(type) {
		case *ast.SelectorExpr:
			if b := o.blockOf(e.X); b != nil {
				o.composed[b.Obj()] = true
			}
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		default:
			return
		}
	}
}

// blockOf returns the type of a block or of a pointer to one, nil for all other
// expressions.
func (o *origins) blockOf(x ast.Expr) *types.Named {
	t := o.info.TypeOf(x)
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	if t == nil || kindOf(t) != block {
		return nil
	}
	return types.Unalias(t).(*types.Named)
}

// parameterOf returns the parameter that a tensor is for sure.
func (o *origins) parameterOf(x ast.Expr) (gathered, bool) {
	s := search{o, map[*types.Var]bool{}}
	g, ok := s.parameter(x)
	return g, ok && g.expr != nil
}

// memoryOf returns the parameter whose memory a slice is for sure.
func (o *origins) memoryOf(x ast.Expr) (gathered, bool) {
	s := search{o, map[*types.Var]bool{}}
	g, ok := s.memory(x)
	return g, ok && g.expr != nil
}

// search follows an expression back to a block. Each variable is looked at
// once; where it is met again the answer is true without a parameter, since one
// source that is no parameter ends the search.
type search struct {
	*origins
	seen map[*types.Var]bool
}

func (s search) parameter(x ast.Expr) (gathered, bool) {
	switch e := ast.Unparen(x).(type) {
	case *ast.SelectorExpr:
		return s.field(e)
	case *ast.IndexExpr:
		return s.part(e, e.X)
	case *ast.SliceExpr:
		return s.part(e, e.X)
	case *ast.Ident:
		return s.variable(e, s.parameter)
	}
	return gathered{}, false
}

func (s search) field(e *ast.SelectorExpr) (gathered, bool) {
	if selection := s.info.Selections[e]; selection == nil || selection.Kind() != types.FieldVal {
		return gathered{}, false
	}
	if b := s.blockOf(e.X); b != nil {
		return gathered{e, b}, !s.composed[b.Obj()]
	}
	return s.part(e, e.X)
}

// part returns a part of what holds parameters, as an array of experts does.
func (s search) part(part, whole ast.Expr) (gathered, bool) {
	g, ok := s.parameter(whole)
	if g.expr != nil {
		g.expr = part
	}
	return g, ok
}

func (s search) memory(x ast.Expr) (gathered, bool) {
	switch e := ast.Unparen(x).(type) {
	case *ast.SliceExpr:
		return s.memory(e.X)
	case *ast.CallExpr:
		if tensor := tensorOf(s.info, e, "Host"); tensor != nil {
			return s.parameter(tensor)
		}
	case *ast.Ident:
		return s.variable(e, s.memory)
	}
	return gathered{}, false
}

// variable returns the first parameter of those that a variable may hold, where
// it holds nothing else.
func (s search) variable(id *ast.Ident, of func(ast.Expr) (gathered, bool)) (first gathered, ok bool) {
	v, ok := s.info.ObjectOf(id).(*types.Var)
	if !ok || s.variables[v] == nil || !s.variables[v].declared || s.variables[v].unclear {
		return gathered{}, false
	}
	if s.seen[v] {
		return gathered{}, true
	}
	s.seen[v] = true
	for _, x := range s.variables[v].values {
		g, ok := of(x)
		if !ok {
			return gathered{}, false
		}
		if first.expr == nil {
			first = g
		}
	}
	return first, true
}

// tensorOf returns the tensor whose method of that name a call calls, else nil.
func tensorOf(info *types.Info, call *ast.CallExpr, method string) ast.Expr {
	s, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok || s.Sel.Name != method || !isTensor(info.TypeOf(s.X)) {
		return nil
	}
	return s.X
}
