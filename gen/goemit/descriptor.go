package goemit

import (
	"fmt"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/layout"
)

// descriptor emits what Open takes: the layout, made of the constants above.
func (e *emitter) descriptor(f *jen.File) error {
	model, err := e.layoutLiteral()
	if err != nil {
		return err
	}
	e.embedded(f)
	f.Add(comment("descriptor is what the runtime reads of the model."))
	f.Var().Id("descriptor").Op("=").Qual(shardPath, "Descriptor").Add(list([]jen.Code{
		field("Model", jen.Lit(e.plan.Spec.Name.V)),
		field("Package", jen.Lit(e.plan.Spec.Package.V)),
		field("ModelHash", jen.Lit(e.plan.Hashes.Model)),
		field("Worlds", jen.Index().Qual(shardPath, "World").Add(list(e.worldLiterals()))),
		field("Layout", model),
		field("Code", e.codeLiteral()),
	}))
	f.Line()
	f.Add(comment("Descriptor returns the model's plan as data. It is for tools, which must not change it."))
	f.Func().Id("Descriptor").Params().Op("*").Qual(shardPath, "Descriptor").Block(jen.Return(jen.Op("&").Id("descriptor")))
	return nil
}

// codeLiteral is what a device loads.
func (e *emitter) codeLiteral() jen.Code {
	items := []jen.Code{
		field("Package", jen.Lit(e.plan.Spec.Package.V)),
		field("Command", jen.Lit(e.command())),
	}
	if e.cuda != "" {
		items = append(items, field("Source", jen.Lit(e.cuda)), field("Fatbin", jen.Id("kernels")))
	}
	return jen.Qual(devicePath, "Code").Add(list(items))
}

// embedded emits the variable that holds the compiled kernels.
func (e *emitter) embedded(f *jen.File) {
	if e.cuda == "" {
		return
	}
	f.Anon("embed")
	f.Add(comment(fmt.Sprintf("kernels is %s: what nvcc made of the CUDA source, with a record of which source\nit was. Without an image in it the package runs on the CPU only.\n", fatbin.FileName)))
	f.Comment("//go:embed " + fatbin.FileName)
	f.Var().Id("kernels").String()
	f.Line()
}

func (e *emitter) worldLiterals() []jen.Code {
	var items []jen.Code
	for w, ranks := range e.layout.Worlds {
		items = append(items, list([]jen.Code{
			field("LayoutHash", jen.Lit(e.plan.Worlds[w].Layout)),
			field("PlanHash", jen.Lit(e.plan.Worlds[w].Plan)),
			field("RestBytes", jen.Id(constname.Rest().Go(ranks))),
			field("PeakBytes", jen.Id(constname.Peak().Go(ranks))),
		}))
	}
	return items
}

// optimizerKinds are the constants of package layout.
var optimizerKinds = [...]string{layout.NoOptimizer: "NoOptimizer", layout.SGD: "SGD", layout.MomentumSGD: "MomentumSGD", layout.AdamW: "AdamW"}

func (e *emitter) layoutLiteral() (jen.Code, error) {
	m := e.layout
	kinds, err := e.kindLiterals()
	if err != nil {
		return nil, err
	}
	items := []jen.Code{
		field("AlignBytes", jen.Id("alignBytes")),
		field("MaxLive", jen.Id("maxLive")),
		field("Prefetch", jen.Id("prefetch")),
		field("GradSlots", jen.Id("gradientSlots")),
		field("Reduce", dtypeValue(m.Reduce)),
		field("DivideBy", number(m.DivideBy)),
		field("Optimizer", jen.Qual(layoutPath, "Optimizer").Values(
			field("Kind", jen.Qual(layoutPath, optimizerKinds[m.Optimizer.Kind])), field("Masters", jen.Lit(m.Optimizer.Masters)))),
		field("Worlds", int64s(e.worldNames())),
		field("Kinds", jen.Index().Qual(layoutPath, "Kind").Add(list(kinds))),
	}
	if len(m.Shared) > 0 {
		shared, err := e.bucketLiterals(m.Shared, e.names.Shared)
		if err != nil {
			return nil, err
		}
		items = append(items, field("Shared", shared))
	}
	return jen.Qual(layoutPath, "Model").Add(list(items)), nil
}

func (e *emitter) worldNames() []jen.Code {
	var items []jen.Code
	for _, ranks := range e.layout.Worlds {
		items = append(items, jen.Id(constname.World().Go(ranks)))
	}
	return items
}

func (e *emitter) kindLiterals() ([]jen.Code, error) {
	var kinds []jen.Code
	for k := range e.layout.Kinds {
		kind := &e.layout.Kinds[k]
		items := []jen.Code{field("Name", jen.Lit(kind.Name))}
		if kind.Var != "" {
			items = append(items, field("Var", jen.Lit(kind.Var)),
				field("First", jen.Id(e.names.RepeatFirst(k).String())), field("Count", jen.Id(e.names.RepeatLen(k).String())))
		} else {
			items = append(items, field("Count", number(kind.Count)))
		}
		if len(kind.Buckets) > 0 {
			buckets, err := e.bucketLiterals(kind.Buckets, e.names.Own[k])
			if err != nil {
				return nil, err
			}
			items = append(items, field("Buckets", buckets))
		}
		if len(kind.Uses) > 0 {
			items = append(items, field("Uses", jen.Index().Int().ValuesFunc(func(g *jen.Group) {
				for _, s := range kind.Uses {
					g.Lit(s)
				}
			})))
		}
		kinds = append(kinds, list(items))
	}
	return kinds, nil
}

func (e *emitter) bucketLiterals(buckets []layout.Bucket, n []constname.Bucket) (jen.Code, error) {
	var items []jen.Code
	for b := range buckets {
		item, err := e.bucketLiteral(&buckets[b], &n[b])
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return jen.Index().Qual(layoutPath, "Bucket").Add(list(items)), nil
}

func (e *emitter) bucketLiteral(b *layout.Bucket, n *constname.Bucket) (jen.Code, error) {
	var shards []jen.Code
	for _, ranks := range e.layout.Worlds {
		shards = append(shards, jen.Id(n.Shard().Go(ranks)))
	}
	items := []jen.Code{
		field("Name", jen.Lit(b.Name)),
		field("DType", dtypeValue(b.DType)),
		field("Trainable", jen.Lit(b.Trainable)),
		field("Unit", jen.Id(n.Unit().String())),
	}
	if len(b.Params) > 0 {
		params, err := paramLiterals(b, n)
		if err != nil {
			return nil, err
		}
		items = append(items, field("Params", jen.Index().Qual(layoutPath, "Param").Add(list(params))))
	}
	return list(append(items, field("End", jen.Id(n.End().String())), field("ShardElements", int64s(shards)))), nil
}

func paramLiterals(b *layout.Bucket, n *constname.Bucket) ([]jen.Code, error) {
	var items []jen.Code
	for i := range b.Params {
		p := &b.Params[i]
		var dims []jen.Code
		for _, d := range p.Shape {
			dims = append(dims, number(d))
		}
		values := []jen.Code{
			field("Name", jen.Lit(p.Name)),
			field("Shape", int64s(dims)),
			field("Numel", jen.Id(n.Params[i].Numel.String())),
			field("Start", jen.Id(n.Params[i].Start.String())),
			field("Decay", jen.Lit(p.Decay)),
		}
		if p.Init != nil {
			init, err := distribution(p.Init)
			if err != nil {
				return nil, fmt.Errorf("init of parameter %s: %w", output.Printable(p.Name), err)
			}
			values = append(values, field("Init", init))
		}
		items = append(items, list(values))
	}
	return items, nil
}

func int64s(items []jen.Code) *jen.Statement { return jen.Index().Int64().Values(items...) }

func dtypeValue(t dtype.DType) *jen.Statement { return jen.Qual(dtypePath, elementTypes[t].constant) }
