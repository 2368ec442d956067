package goemit

import (
	"fmt"
	"strings"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// elementTypes are Go's words for the element types: the constant of package dtype, and
// the type of an element, which is that package's too where it begins in upper
// case.
var elementTypes = map[dtype.DType]struct{ constant, element string }{
	dtype.Float64:    {"Float64", "float64"},
	dtype.Float32:    {"Float32", "float32"},
	dtype.BFloat16:   {"BFloat16", "BF16"},
	dtype.Float16:    {"Float16", "F16"},
	dtype.Float8E4M3: {"Float8E4M3", "F8E4M3"},
	dtype.Float8E5M2: {"Float8E5M2", "F8E5M2"},
	dtype.Int8:       {"Int8", "int8"},
	dtype.Int16:      {"Int16", "int16"},
	dtype.Int32:      {"Int32", "int32"},
	dtype.Int64:      {"Int64", "int64"},
	dtype.Uint8:      {"Uint8", "uint8"},
	dtype.Uint16:     {"Uint16", "uint16"},
	dtype.Uint32:     {"Uint32", "uint32"},
	dtype.Uint64:     {"Uint64", "uint64"},
	dtype.Bool:       {"Bool", "bool"},
}

// blocks emits a type for the parameters of each block kind, and one for their
// gradients.
func (e *emitter) blocks(f *jen.File) error {
	for k := range e.plan.Kinds {
		e.blockType(f, k)
		e.gradsType(f, k)
	}
	return nil
}

func (e *emitter) blockType(f *jen.File, k int) {
	name := e.plan.Kinds[k].GoName
	f.Add(comment(fmt.Sprintf("%s holds the gathered parameters of %s, until Release.", name, e.blockNoun(k))))
	fields := []jen.Code{jen.Id("block").Qual(shardPath, "Block"), jen.Line()}
	for i := range e.plan.Kinds[k].Fields {
		fields = append(fields, e.tensorField(k, &e.plan.Kinds[k].Fields[i]))
	}
	f.Type().Id(name).Struct(fields...)
	f.Line()
	f.Add(comment("Release gives the block back; its tensors can't be used afterwards."))
	f.Func().Params(receiver(name)).Id("Release").Params().Block(jen.Id(receiverName(name)).Dot("block").Dot("Release").Call())
	f.Line()
	e.viewFunc(f, k, name, "block", "Param", e.plan.Kinds[k].Fields)
}

func (e *emitter) gradsType(f *jen.File, k int) {
	name := e.plan.Kinds[k].GoName + "Grads"
	trained := e.trainable(k)
	text := fmt.Sprintf("%s holds the gradients of %s. A backward pass hands it out\nzeroed: add to it, then Reduce or Discard.", name, e.blockNoun(k))
	if len(trained) == 0 {
		text = fmt.Sprintf("%s is what a backward pass hands out for %s,\nwhich has no trainable parameters.", name, e.blockNoun(k))
	}
	f.Add(comment(text))
	fields := []jen.Code{jen.Id("grads").Qual(shardPath, "Grads"), jen.Line()}
	for i := range trained {
		fields = append(fields, e.tensorField(k, &trained[i]))
	}
	f.Type().Id(name).Struct(fields...)
	f.Line()
	f.Add(comment("Reduce starts to add the gradients up over the ranks; the pass's End waits for it."))
	f.Func().Params(receiver(name)).Id("Reduce").Params().Block(jen.Id(receiverName(name)).Dot("grads").Dot("Reduce").Call())
	f.Line()
	f.Add(comment("Discard gives the gradients back without reducing them."))
	f.Func().Params(receiver(name)).Id("Discard").Params().Block(jen.Id(receiverName(name)).Dot("grads").Dot("Discard").Call())
	f.Line()
	e.viewFunc(f, k, name, "grads", "Grad", trained)
}

// trainable returns the fields of a kind that have a gradient.
func (e *emitter) trainable(k int) []plan.Field {
	var fields []plan.Field
	for _, f := range e.plan.Kinds[k].Fields {
		if e.bucketOf(k, &f).Trainable {
			fields = append(fields, f)
		}
	}
	return fields
}

// blockNoun is "block embed" or "one block h.{i}".
func (e *emitter) blockNoun(k int) string {
	kind := &e.layout.Kinds[k]
	if kind.Var == "" {
		return "block " + output.Printable(kind.Name)
	}
	return "one block " + output.Printable(kind.Name)
}

func (e *emitter) tensorField(k int, f *plan.Field) jen.Code {
	return jen.Id(f.GoName).Qual(shardPath, "Tensor").Types(elementType(f.DType)).Add(comment(e.describe(k, f)))
}

// describe is the comment of a parameter's field: original name, shape, type.
func (e *emitter) describe(k int, f *plan.Field) string {
	text := fmt.Sprintf("%s %s %s", output.Printable(f.Name), shapeText(f.Shape), f.DType)
	switch {
	case f.Name != f.Owner:
		text += ", tied to " + output.Printable(f.Owner)
	case !f.Own:
		text += ", another block's"
	}
	if !e.bucketOf(k, f).Trainable {
		text += ", frozen"
	}
	return text
}

func elementType(t dtype.DType) *jen.Statement {
	name := elementTypes[t].element
	if name != strings.ToLower(name) {
		return jen.Qual(dtypePath, name)
	}
	return jen.Id(name)
}

// viewFunc emits the function that makes a block's (or its gradients') struct
// of what the runtime hands out. accessor is Param or Grad.
func (e *emitter) viewFunc(f *jen.File, k int, name, handle, accessor string, fields []plan.Field) {
	values := []jen.Code{field(handle, jen.Id(handle))}
	for i := range fields {
		values = append(values, field(fields[i].GoName, e.view(k, &fields[i], handle, accessor)))
	}
	f.Func().Id("view" + name).Params(jen.Id(handle).Qual(shardPath, upperFirst(handle))).Id(name).Block(
		jen.Return(jen.Id(name).Add(list(values))),
	)
	f.Line()
}

// view is the call that finds a field's tensor.
func (e *emitter) view(k int, f *plan.Field, handle, accessor string) jen.Code {
	if f.At.Shared {
		accessor = "Shared" + accessor
	}
	start := e.names.Of(k, f.At).Params[f.At.Param].Start
	return jen.Qual(shardPath, accessor).Types(elementType(f.DType)).Call(
		jen.Id(handle), jen.Lit(f.At.Bucket), jen.Lit(f.At.Param), jen.Id(start.String()))
}

func receiver(typeName string) jen.Code { return jen.Id(receiverName(typeName)).Id(typeName) }

func receiverName(typeName string) string { return strings.ToLower(typeName[:1]) }

func upperFirst(name string) string { return strings.ToUpper(name[:1]) + name[1:] }
