package goemit

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// model emits the package comment, Model and the passes.
func (e *emitter) model(f *jen.File) error {
	for _, line := range strings.Split(e.packageComment(), "\n") {
		f.PackageComment(commentLine(line))
	}
	e.modelType(f)
	e.modelMethods(f)
	e.step(f)
	e.pass(f, "ForwardPass", e.forwardMethod)
	e.pass(f, "BackwardPass", e.backwardMethod)
	return nil
}

// packageComment is what a reader sees first: the model in numbers.
func (e *emitter) packageComment() string {
	owners, elements, bytes := e.totals()
	return strings.Join([]string{
		fmt.Sprintf("Package %s is the sharded model %s: %s with %s,", e.plan.Spec.Package.V, output.Printable(e.plan.Spec.Name.V), count(owners, "parameter"), count(elements, "element")),
		fmt.Sprintf("%s, in %s.", count(bytes, "byte"), count(e.layout.Blocks(), "block")),
		"",
		"In the order of a forward pass, its types, blocks and their own parameters:",
		"",
		table(2, e.blockRows()),
		"",
		"Optimizer: " + e.optimizerText() + ".",
		"",
		"Bytes of one rank, by the number of ranks: what it keeps between passes, all that",
		"Open allocates, and what it receives in a step:",
		"",
		table(0, e.worldRows()),
		"",
		"To generate it again, run",
		"",
		"\t" + e.command(),
	}, "\n")
}

func (e *emitter) blockRows() [][]string {
	rows := [][]string{{"type", "block", "count", "elements"}}
	for k := range e.layout.Kinds {
		kind := &e.layout.Kinds[k]
		var elements int64
		for _, f := range e.plan.Kinds[k].Fields {
			if f.Own {
				elements += f.Numel
			}
		}
		rows = append(rows, []string{e.plan.Kinds[k].GoName, output.Printable(kind.Name), grouped(kind.Count), grouped(elements)})
	}
	return rows
}

func (e *emitter) worldRows() [][]string {
	rows := [][]string{{"ranks", "rest", "peak", "gathered", "reduced"}}
	for _, w := range e.plan.Worlds {
		rows = append(rows, []string{grouped(w.Ranks), grouped(w.Placement.RestBytes()), grouped(w.Placement.PeakBytes()),
			grouped(w.GatherBytesPerStep), grouped(w.ReduceBytesPerStep)})
	}
	return rows
}

// table aligns rows in columns as preformatted text of a comment. The first
// columns hold text, the others numbers, which go to the right.
func table(textColumns int, rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var lines []string
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			cells[i] = pad + cell
			if i < textColumns {
				cells[i] = cell + pad
			}
		}
		lines = append(lines, "\t"+strings.Join(cells, "  "))
	}
	return strings.Join(lines, "\n")
}

// totals counts what is stored, once, without padding.
func (e *emitter) totals() (owners, elements, bytes int64) {
	add := func(b *layout.Bucket, instances int64) {
		for i := range b.Params {
			owners += instances
			elements += instances * b.Params[i].Numel
			bytes += instances * b.Params[i].Numel * b.DType.Bytes()
		}
	}
	for k := range e.layout.Kinds {
		for b := range e.layout.Kinds[k].Buckets {
			add(&e.layout.Kinds[k].Buckets[b], e.layout.Kinds[k].Count)
		}
	}
	for s := range e.layout.Shared {
		add(&e.layout.Shared[s], 1)
	}
	return owners, elements, bytes
}

func (e *emitter) optimizerText() string {
	o := &e.plan.Spec.Optimizer
	switch o.Kind.V {
	case spec.OptimizerAdamW:
		return "adamw, with masters and two moments in f32 (f64 for f64 parameters)"
	case spec.OptimizerSGD:
		if o.Momentum.V {
			return "sgd, with masters and a momentum buffer in f32 (f64 for f64 parameters)"
		}
		return "sgd, with f32 masters"
	}
	return "none; a trainer's own state is not counted here"
}

func (e *emitter) modelType(f *jen.File) {
	f.Add(comment("Options are the choices of a run that the plan leaves open."))
	f.Type().Id("Options").Op("=").Qual(shardPath, "Options")
	f.Line()
	f.Add(comment("Model holds one rank's shards."))
	f.Type().Id("Model").Struct(jen.Id("core").Op("*").Qual(shardPath, "Model"))
	f.Line()
	f.Add(comment(fmt.Sprintf("Open allocates a rank's memory for the size of its communicator: %s. All\nranks open it together. The parameters have no values before Init.", e.worldsText())))
	f.Func().Id("Open").Params(contextParam(), jen.Id("rank").Op("*").Qual(shardPath, "Rank"), jen.Id("options").Id("Options")).
		Params(jen.Op("*").Id("Model"), jen.Error()).Block(
		jen.List(jen.Id("core"), jen.Err()).Op(":=").Qual(shardPath, "Open").Call(jen.Id("ctx"), jen.Id("rank"), jen.Op("&").Id("descriptor"), jen.Id("options")),
		jen.If(jen.Err().Op("!=").Nil()).Block(jen.Return(jen.Nil(), jen.Err())),
		jen.Return(jen.Op("&").Id("Model").Values(field("core", jen.Id("core"))), jen.Nil()),
	)
	f.Line()
}

// worldsText lists the world sizes, "1, 4 or 8 ranks".
func (e *emitter) worldsText() string {
	var parts []string
	for _, ranks := range e.layout.Worlds {
		parts = append(parts, grouped(ranks))
	}
	last := len(parts) - 1
	if last == 0 {
		return count(e.layout.Worlds[0], "rank")
	}
	return strings.Join(parts[:last], ", ") + " or " + parts[last] + " ranks"
}

// modelMethods emits the methods that hand on to the runtime's model.
func (e *emitter) modelMethods(f *jen.File) {
	ctx, patterns := contextParam(), jen.Id("patterns").Op("...").String()
	shards := jen.Func().Params(jen.Op("*").Qual(shardPath, "Shards")).Error()
	methods := []method{
		{"Close", "Close gives the memory back.", nil, nil},
		{"Init", "Init writes the spec's initial values; a seed gives the same model at any world size.", []jen.Code{ctx, jen.Id("seed").Uint64()}, args("ctx", "seed")},
		{"ZeroGrad", "ZeroGrad drops the gradients that were reduced since the last step.", nil, nil},
		{"Update", "Update lets update write the rank's shards, and makes the change known to all that is derived from them.", []jen.Code{ctx, jen.Id("update").Add(shards)}, args("ctx", "update")},
		{"Inspect", "Inspect shows inspect the rank's shards and the gradients reduced so far; it must not write them.", []jen.Code{ctx, jen.Id("inspect").Add(shards)}, args("ctx", "inspect")},
		{"Freeze", "Freeze stops the training of the parameters that match a pattern, in which * stands for any characters.", []jen.Code{patterns}, []jen.Code{jen.Id("patterns").Op("...")}},
		{"Unfreeze", "Unfreeze lets parameters that Freeze stopped be trained again.", []jen.Code{patterns}, []jen.Code{jen.Id("patterns").Op("...")}},
	}
	for _, m := range methods {
		f.Add(comment(m.doc))
		f.Func().Params(modelReceiver()).Id(m.name).Params(m.params...).Error().Block(jen.Return(coreCall(m.name, m.args...)))
		f.Line()
	}
	f.Add(comment("Unscale divides the reduced gradients by lossScale and clips them, as Step does, for an\noptimizer in Update; 0 means not to."))
	f.Func().Params(modelReceiver()).Id("Unscale").Params(ctx, jen.List(jen.Id("lossScale"), jen.Id("clipNorm")).Float64()).
		Params(jen.Qual(shardPath, "StepResult"), jen.Error()).
		Block(jen.Return(coreCall("Unscale", args("ctx", "lossScale", "clipNorm")...)))
	f.Line()
	e.counters(f)
}

// counters emits the methods that say what a rank has and what it received.
func (e *emitter) counters(f *jen.File) {
	for _, m := range []method{
		{name: "Memory", doc: "Memory returns the rank's memory in bytes, planned and allocated."},
		{name: "Stats", doc: "Stats counts what the rank received since Open."},
	} {
		f.Add(comment(m.doc))
		f.Func().Params(modelReceiver()).Id(m.name).Params().Qual(shardPath, m.name).Block(jen.Return(coreCall(m.name)))
		f.Line()
	}
}

// method is a method that only calls its namesake of the runtime's model.
type method struct {
	name, doc    string
	params, args []jen.Code
}

func args(names ...string) []jen.Code {
	list := make([]jen.Code, len(names))
	for i, n := range names {
		list[i] = jen.Id(n)
	}
	return list
}

func modelReceiver() jen.Code { return jen.Id("m").Op("*").Id("Model") }

func coreCall(name string, args ...jen.Code) *jen.Statement {
	return jen.Id("m").Dot("core").Dot(name).Call(args...)
}

func contextParam() jen.Code { return jen.Id("ctx").Qual(contextPath, "Context") }

// step emits Step for the optimizer whose state is in the plan.
func (e *emitter) step(f *jen.File) {
	names := map[spec.OptimizerKind]string{spec.OptimizerAdamW: "AdamW", spec.OptimizerSGD: "SGD"}
	name, ok := names[e.plan.Spec.Optimizer.Kind.V]
	if !ok {
		return
	}
	f.Add(comment("Step agrees with the other ranks on the gradients and applies them."))
	f.Func().Params(modelReceiver()).Id("Step").Params(contextParam(), jen.Id("optimizer").Qual(optimPath, name)).
		Params(jen.Qual(shardPath, "StepResult"), jen.Error()).
		Block(jen.Return(coreCall("Step"+name, jen.Id("ctx"), jen.Id("optimizer"))))
	f.Line()
}

// count writes a number with its noun, "1 block" or "12 blocks".
func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return grouped(n) + " " + noun + "s"
}

// grouped writes an integer with commas between groups of three digits.
func grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return digits
}
