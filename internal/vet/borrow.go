package vet

import (
	"go/ast"
	"go/types"
	"reflect"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// borrowAnalyzer finds the functions that only look at a handle which they are
// passed, so that their caller still has to give it back. Other packages learn
// it through facts.
var borrowAnalyzer = &analysis.Analyzer{
	Name:       "shardborrow",
	Doc:        "find functions that use handles of generated packages without giving them back",
	ResultType: reflect.TypeFor[*lending](),
	FactTypes:  []analysis.Fact{new(borrows)},
	Run:        findBorrowers,
}

// borrows says which parameters of a function are handles that it only looks at.
type borrows struct{ Params []int }

// AFact marks borrows as a fact.
func (*borrows) AFact() {}

// lending knows all functions that borrow, of this package and of those that it
// imports.
type lending struct {
	info *types.Info
	own  map[*types.Func]map[int]bool
	fact func(types.Object, analysis.Fact) bool
}

func findBorrowers(p *analysis.Pass) (any, error) {
	l := &lending{info: p.TypesInfo, own: map[*types.Func]map[int]bool{}, fact: p.ImportObjectFact}
	decls := l.candidates(p.Files)
	for changed := true; changed; {
		changed = false
		for f, decl := range decls {
			changed = l.refute(f, decl) || changed
		}
	}
	for f, params := range l.own {
		var fact borrows
		for i := range f.Signature().Params().Len() {
			if params[i] {
				fact.Params = append(fact.Params, i)
			}
		}
		if len(fact.Params) > 0 {
			p.ExportObjectFact(f, &fact)
		}
	}
	return l, nil
}

// candidates assumes that every handle parameter is borrowed.
func (l *lending) candidates(files []*ast.File) map[*types.Func]*ast.FuncDecl {
	decls := map[*types.Func]*ast.FuncDecl{}
	for _, file := range files {
		for _, d := range file.Decls {
			decl, ok := d.(*ast.FuncDecl)
			if !ok || decl.Body == nil {
				continue
			}
			f, ok := l.info.Defs[decl.Name].(*types.Func)
			if !ok {
				continue
			}
			for i := range f.Signature().Params().Len() {
				if kindOf(f.Signature().Params().At(i).Type()) != none {
					if l.own[f] == nil {
						l.own[f] = map[int]bool{}
					}
					l.own[f][i], decls[f] = true, decl
				}
			}
		}
	}
	return decls
}

// refute takes the assumption back for the parameters that a function may give
// back or hand on, and reports whether there were any.
func (l *lending) refute(f *types.Func, decl *ast.FuncDecl) bool {
	changed := false
	for i, borrowed := range l.own[f] {
		if !borrowed {
			continue
		}
		v := f.Signature().Params().At(i)
		u := uses{info: l.info, lending: l, v: v, kind: kindOf(v.Type())}
		for _, e := range u.events(decl.Body) {
			if e.kind.takes() {
				l.own[f][i], changed = false, true
			}
		}
	}
	return changed
}

// borrowed reports whether a call leaves its n-th argument to the caller.
func (l *lending) borrowed(call *ast.CallExpr, n int) bool {
	f := typeutil.StaticCallee(l.info, call)
	if f == nil || f.Signature().Params().Len() != len(call.Args) { // a method expression has its receiver among the arguments
		return false
	}
	if own, ok := l.own[f.Origin()]; ok {
		return own[n]
	}
	var fact borrows
	if !l.fact(f.Origin(), &fact) {
		return false
	}
	return slices.Contains(fact.Params, n)
}
