package vet

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/cfg"
)

// maxConditions is how many conditions of a function a path remembers.
const maxConditions = 64

// facts are the conditions whose outcome a path knows, a bit each. A condition
// that a function tests twice, without a change of its variables between, has
// one outcome: without that, "if train { gather }" and "if train { release }"
// would look like a path that gathers and does not release.
type facts struct{ known, value uint64 }

// conditions are those of one function that it tests more than once.
type conditions struct {
	info *types.Info
	tags map[ast.Stmt]*ast.SwitchStmt // of case clauses
	ids  map[string]int
	vars []map[types.Object]bool // by id: what the condition depends on
}

func newConditions(info *types.Info, f function) *conditions {
	c := &conditions{info: info, tags: map[ast.Stmt]*ast.SwitchStmt{}, ids: map[string]int{}}
	ast.Inspect(f.body, func(n ast.Node) bool {
		if s, ok := n.(*ast.SwitchStmt); ok {
			for _, clause := range s.Body.List {
				c.tags[clause] = s
			}
		}
		return true
	})
	count := map[string]int{}
	c.each(f.graph, func(x ast.Expr) {
		key, _ := normal(x)
		count[key]++
	})
	c.each(f.graph, func(x ast.Expr) {
		if key, _ := normal(x); count[key] > 1 {
			c.add(key, x)
		}
	})
	return c
}

// each calls see for all conditions, and for variables that are set to true or
// false.
func (c *conditions) each(g *cfg.CFG, see func(ast.Expr)) {
	for _, b := range g.Blocks {
		for _, n := range b.Nodes {
			for _, a := range assignments(n) {
				if _, ok := c.constant(a); ok {
					see(a.name)
				}
			}
		}
		if x := c.of(b); x != nil && (b.Kind != cfg.KindForLoop || !calls(x)) {
			atoms(x, see)
		}
	}
}

// calls reports whether a condition calls anything: at the head of a loop, such
// as "for rows.Next()", its outcome is then meant to change.
func calls(x ast.Expr) bool {
	found := false
	ast.Inspect(x, func(n ast.Node) bool {
		_, ok := n.(*ast.CallExpr)
		found = found || ok
		return !found
	})
	return found
}

// constant returns the value that an assignment gives to a boolean variable.
func (c *conditions) constant(a assigned) (value, ok bool) {
	if a.value == nil || !a.whole {
		return false, false
	}
	v := c.info.Types[a.value].Value
	if v == nil || v.Kind() != constant.Bool {
		return false, false
	}
	return constant.BoolVal(v), true
}

func (c *conditions) add(key string, x ast.Expr) {
	id, ok := c.ids[key]
	if !ok {
		if len(c.vars) == maxConditions {
			return
		}
		id = len(c.vars)
		c.ids[key] = id
		c.vars = append(c.vars, map[types.Object]bool{})
	}
	ast.Inspect(x, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			if o := c.info.ObjectOf(name); o != nil {
				c.vars[id][o] = true
			}
		}
		return true
	})
}

// of returns the condition at the end of a block, nil where there is none.
func (c *conditions) of(b *cfg.Block) ast.Expr {
	if len(b.Succs) != 2 || len(b.Nodes) == 0 {
		return nil
	}
	x, ok := b.Nodes[len(b.Nodes)-1].(ast.Expr)
	if !ok || b.Kind == cfg.KindRangeLoop {
		return nil
	}
	if b.Succs[0].Kind != cfg.KindSwitchCaseBody {
		return x
	}
	s := c.tags[b.Succs[0].Stmt]
	switch {
	case s == nil:
		return nil // of a type switch
	case s.Tag == nil:
		return x
	}
	return &ast.BinaryExpr{X: s.Tag, Op: token.EQL, Y: x}
}

// atoms calls see for the parts of a condition that and, or and not join.
func atoms(x ast.Expr, see func(ast.Expr)) {
	switch e := ast.Unparen(x).(type) {
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			atoms(e.X, see)
			return
		}
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			atoms(e.X, see)
			atoms(e.Y, see)
			return
		}
	}
	see(x)
}

// opposites are the comparisons that are written as another one's negation.
var opposites = map[token.Token]token.Token{token.NEQ: token.EQL, token.GEQ: token.LSS, token.LEQ: token.GTR}

// normal returns the text of an atom, and whether it stands for its negation.
func normal(x ast.Expr) (key string, negated bool) {
	x = ast.Unparen(x)
	if e, ok := x.(*ast.BinaryExpr); ok {
		if op, ok := opposites[e.Op]; ok {
			return types.ExprString(&ast.BinaryExpr{X: e.X, Op: op, Y: e.Y}), true
		}
	}
	return types.ExprString(x), false
}

// evaluate returns the outcome of a condition, where the facts decide it.
func (c *conditions) evaluate(x ast.Expr, f facts) (value, known bool) {
	switch e := ast.Unparen(x).(type) {
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			value, known = c.evaluate(e.X, f)
			return !value, known
		}
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			return c.joined(e, f)
		}
	}
	key, negated := normal(x)
	id, ok := c.ids[key]
	if !ok || f.known&(1<<id) == 0 {
		return false, false
	}
	return f.value&(1<<id) != 0 != negated, true
}

func (c *conditions) joined(e *ast.BinaryExpr, f facts) (value, known bool) {
	decisive := e.Op == token.LOR // true decides an or, false an and
	x, knowX := c.evaluate(e.X, f)
	y, knowY := c.evaluate(e.Y, f)
	if knowX && x == decisive || knowY && y == decisive {
		return decisive, true
	}
	return !decisive, knowX && knowY
}

// learn adds what a condition's outcome says.
func (c *conditions) learn(x ast.Expr, outcome bool, f facts) facts {
	switch e := ast.Unparen(x).(type) {
	case *ast.UnaryExpr:
		if e.Op == token.NOT {
			return c.learn(e.X, !outcome, f)
		}
	case *ast.BinaryExpr:
		if e.Op == token.LAND || e.Op == token.LOR {
			if outcome == (e.Op == token.LOR) {
				return f // either part may be the reason
			}
			return c.learn(e.Y, outcome, c.learn(e.X, outcome, f))
		}
	}
	key, negated := normal(x)
	if id, ok := c.ids[key]; ok {
		f = f.set(id, outcome != negated)
	}
	return f
}

func (f facts) set(id int, value bool) facts {
	f.known |= 1 << id
	f.value &^= 1 << id
	if value {
		f.value |= 1 << id
	}
	return f
}

// after returns the facts that still hold behind a node that sets variables.
func (c *conditions) after(n ast.Node, f facts) facts {
	for _, a := range assignments(n) {
		o := c.info.ObjectOf(a.name)
		for id, vars := range c.vars {
			if vars[o] {
				f.known &^= 1 << id
				f.value &^= 1 << id
			}
		}
		if value, ok := c.constant(a); ok {
			f = c.learn(a.name, value, f)
		}
	}
	return f
}
