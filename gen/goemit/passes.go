package goemit

import (
	"fmt"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/output"
)

// opener is a method of Model that begins a pass.
type opener struct{ name, doc string }

// openers lists them by the type of the pass.
var openers = map[string][]opener{
	"ForwardPass": {
		{"Forward", "Forward begins a forward pass of training."},
		{"Eval", "Eval begins a forward pass that no backward pass follows."},
	},
	"BackwardPass": {
		{"Backward", "Backward begins a backward pass. Its blocks come in the opposite order."},
	},
}

var passDocs = map[string]string{
	"ForwardPass":  "ForwardPass hands out blocks in the order of the spec and gathers the next ones\nahead. End it before another pass begins.",
	"BackwardPass": "BackwardPass hands out blocks from the last to the first, each with gradients.\nEnd it before another pass begins.",
}

// pass emits the type of a pass, what begins and ends it, and a method for each
// block kind.
func (e *emitter) pass(f *jen.File, name string, emit func(*jen.File, int)) {
	for _, o := range openers[name] {
		f.Add(comment(o.doc))
		f.Func().Params(modelReceiver()).Id(o.name).Params(contextParam()).Id(name).Block(
			jen.Return(jen.Id(name).Values(field("pass", coreCall(o.name, jen.Id("ctx"))))),
		)
		f.Line()
	}
	f.Add(comment(passDocs[name]))
	f.Type().Id(name).Struct(jen.Id("pass").Qual(shardPath, "Pass"))
	f.Line()
	for k := range e.plan.Kinds {
		emit(f, k)
	}
	f.Add(comment("End waits for what is under way and returns the pass's first error."))
	f.Func().Params(receiver(name)).Id("End").Params().Error().Block(
		jen.Return(jen.Id(receiverName(name)).Dot("pass").Dot("End").Call()),
	)
	f.Line()
}

func (e *emitter) forwardMethod(f *jen.File, k int) {
	name := e.plan.Kinds[k].GoName
	params, index := e.indexParam(k)
	f.Add(comment(name + " gathers " + e.passNoun(k)))
	f.Func().Params(receiver("ForwardPass")).Id(name).Params(params...).Params(jen.Id(name), jen.Error()).Block(
		jen.List(jen.Id("block"), jen.Err()).Op(":=").Id("f").Dot("pass").Dot("Gather").Call(jen.Lit(k), index),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Id(name).Values(), jen.Err())),
		jen.Return(jen.Id("view"+name).Call(jen.Id("block")), jen.Nil()),
	)
	f.Line()
}

func (e *emitter) backwardMethod(f *jen.File, k int) {
	name := e.plan.Kinds[k].GoName
	grads := name + "Grads"
	params, index := e.indexParam(k)
	f.Add(comment(name + " gathers, with zeroed gradients, " + e.passNoun(k)))
	f.Func().Params(receiver("BackwardPass")).Id(name).Params(params...).Params(jen.Id(name), jen.Id(grads), jen.Error()).Block(
		jen.List(jen.Id("block"), jen.Id("grads"), jen.Err()).Op(":=").Id("b").Dot("pass").Dot("GatherWithGrads").Call(jen.Lit(k), index),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Id(name).Values(), jen.Id(grads).Values(), jen.Err())),
		jen.Return(jen.Id("view"+name).Call(jen.Id("block")), jen.Id("view"+grads).Call(jen.Id("grads")), jen.Nil()),
	)
	f.Line()
}

// indexParam returns a method's parameters and the index it hands on.
func (e *emitter) indexParam(k int) ([]jen.Code, jen.Code) {
	if e.layout.Kinds[k].Var == "" {
		return nil, number(e.layout.Kinds[k].First)
	}
	return []jen.Code{jen.Id("i").Int()}, jen.Id("i")
}

// passNoun names the block that a method gathers, with its range of indices.
func (e *emitter) passNoun(k int) string {
	kind := &e.layout.Kinds[k]
	if kind.Var == "" {
		return "block " + output.Printable(kind.Name) + "."
	}
	variable := kind.Var
	return fmt.Sprintf("block %s, %s = %d..%d.", output.Printable(kind.Name), variable, kind.First, kind.First+kind.Count-1)
}
