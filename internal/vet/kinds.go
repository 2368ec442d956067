package vet

import (
	"go/types"
	"slices"
)

// runtimePath is the import path of the package whose types mark generated ones.
const runtimePath = "github.com/shardgen/shardgen/runtime"

// kind is a kind of handle that generated code hands out.
type kind uint8

const (
	none kind = iota
	block
	grads
	pass
)

// traits says how a kind of handle is recognised and given back, and how
// messages speak of it.
type traits struct {
	field    string   // the runtime's type that a struct of this kind holds
	finish   []string // the methods that give the handle back
	noun     string
	be       string // the verb that goes with the noun
	acquired string // how it came to be
	omitted  string // what was not done
	fix      string // the call that is missing, %[1]s is the variable
	lost     string // the message for a handle that is kept nowhere: its type, the call
}

var kinds = [...]traits{
	block: {
		field: "Block", finish: []string{"Release"}, noun: "block", be: "is", acquired: "gathered", omitted: "not released", fix: "call %[1]s.Release()",
		lost: "block (%s) that %s returns is kept in no variable, so it is never released: keep it and call its Release()",
	},
	grads: {
		field: "Grads", finish: []string{"Reduce", "Discard"}, noun: "gradients", be: "are", acquired: "handed out", omitted: "neither reduced nor discarded", fix: "call %[1]s.Reduce() or %[1]s.Discard()",
		lost: "gradients (%s) that %s returns are kept in no variable, so they are neither reduced nor discarded: keep them and call their Reduce() or Discard()",
	},
	pass: {
		field: "Pass", finish: []string{"End"}, noun: "pass", be: "is", acquired: "opened", omitted: "not ended", fix: "call %[1]s.End() and check its error",
		lost: "pass (%s) that %s returns is kept in no variable, so it is never ended: keep it, call its End() and check the error",
	},
}

// kindOf returns which kind of handle a type is, none for all other types.
func kindOf(t types.Type) kind {
	named, ok := types.Unalias(t).(*types.Named)
	if !ok {
		return none
	}
	s, ok := named.Underlying().(*types.Struct)
	if !ok {
		return none
	}
	for f := range s.Fields() {
		for k := block; int(k) < len(kinds); k++ {
			if isRuntimeType(f.Type(), kinds[k].field) && hasMethods(named, kinds[k].finish) {
				return k
			}
		}
	}
	return none
}

func isRuntimeType(t types.Type, name string) bool {
	named, ok := types.Unalias(t).(*types.Named)
	return ok && named.Obj().Name() == name && inRuntime(named.Obj())
}

func inRuntime(o types.Object) bool { return o.Pkg() != nil && o.Pkg().Path() == runtimePath }

func hasMethods(t *types.Named, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		o, _, _ := types.LookupFieldOrMethod(t, false, t.Obj().Pkg(), name)
		_, ok := o.(*types.Func)
		return !ok
	})
}

// opener reports whether a method opens passes: its receiver is a generated
// model, a struct that holds the runtime's.
func opener(f *types.Func) bool {
	p, ok := receiver(f).(*types.Pointer)
	if !ok {
		return false
	}
	s, ok := p.Elem().Underlying().(*types.Struct)
	if !ok {
		return false
	}
	for f := range s.Fields() {
		if p, ok := f.Type().(*types.Pointer); ok && isRuntimeType(p.Elem(), "Model") {
			return true
		}
	}
	return false
}

// receiver returns the type of a method's receiver, nil for a function.
func receiver(f *types.Func) types.Type {
	if r := f.Signature().Recv(); r != nil {
		return types.Unalias(r.Type())
	}
	return nil
}

// generated reports whether a function is one of the runtime's or of a generated
// model or pass, so that an error that it returns is as likely nil as not.
func generated(f *types.Func) bool {
	if inRuntime(f) || opener(f) {
		return true
	}
	r := receiver(f)
	return r != nil && kindOf(r) != none
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)

func isError(t types.Type) bool { return t != nil && types.Implements(t, errorType) }
