package goemit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/abi"
	"github.com/shardgen/shardgen/runtime/layout"
)

// layoutSection emits all numbers of the model, the relations between them and
// the descriptor made of them.
func (e *emitter) layoutSection(f *jen.File) error {
	e.handshake(f)
	e.repeats(f)
	e.modelConstants(f)
	e.modelRelations(f)
	e.names.EachBucket(func(b *layout.Bucket, n *constname.Bucket, _ string) {
		e.bucketConstants(f, b, n)
		e.bucketRelations(f, b, n)
	})
	e.memoryRelations(f)
	return e.descriptor(f)
}

// handshake refers to the runtime's version.
func (e *emitter) handshake(f *jen.File) {
	f.Add(comment(fmt.Sprintf("If this constant is undefined, generator and runtime are out of step. Fix: run\n`%s`.", e.command())))
	f.Const().Id("_").Op("=").Qual(abiPath, fmt.Sprintf("RunShardgenGenerate_Version%d", abi.Version))
	f.Line()
}

// repeats emits what trainers count blocks with.
func (e *emitter) repeats(f *jen.File) {
	for k := range e.layout.Kinds {
		kind := &e.layout.Kinds[k]
		if kind.Var == "" {
			continue
		}
		name := e.plan.Kinds[k].GoName
		f.Add(comment(fmt.Sprintf("The blocks %s: %s = %d..%d.", output.Printable(kind.Name), kind.Var, kind.First, kind.First+kind.Count-1)))
		f.Const().Defs(
			jen.Id(name+"First").Op("=").Add(number(kind.First)),
			jen.Id(name+"Len").Op("=").Add(number(kind.Count)),
			relation{"the last index is First + Len - 1", equal(name+"First+"+name+"Len-1", strconv.FormatInt(kind.First+kind.Count-1, 10))}.code(),
		)
		f.Line()
	}
}

// modelConstants emits what holds for all buckets.
func (e *emitter) modelConstants(f *jen.File) {
	m := e.layout
	defs := []jen.Code{
		constant("alignBytes", m.AlignBytes, "bytes; every payload and every start in a bucket is a multiple of it"),
		constant("maxLive", m.MaxLive, "gather slots; the block at position p uses slot p mod maxLive"),
		constant("prefetch", m.Prefetch, "blocks gathered ahead of the trainer"),
		constant("gradientSlots", m.GradSlots, "full-size gradient buffers"),
	}
	for w, ranks := range m.Worlds {
		place := e.plan.Worlds[w].Placement
		defs = append(defs, jen.Line(),
			constant(constname.World(ranks), ranks, "ranks"),
			constant(constname.Rest(ranks), place.RestBytes(), "bytes of a rank between passes: shards, masters, moments, gradient shards"),
			constant(constname.Peak(ranks), place.PeakBytes(), "bytes of a rank, all that Open allocates: slots, gradient buffers and staging besides"))
	}
	f.Add(comment("What holds for all buckets."))
	f.Const().Defs(defs...)
	f.Line()
}

// bucketConstants emits the table of one bucket.
func (e *emitter) bucketConstants(f *jen.File, b *layout.Bucket, n *constname.Bucket) {
	defs := []jen.Code{constant(n.Unit(), b.Unit, fmt.Sprintf("elements; alignBytes/%d", b.DType.Bytes()))}
	for i := range b.Params {
		p := &b.Params[i]
		defs = append(defs, jen.Line(),
			constant(n.Params[i].Numel, p.Numel, fmt.Sprintf("elements of %s; %s", output.Printable(p.Name), productText(p.Shape))),
			constant(n.Params[i].Start, p.Start, "elements; "+n.StartFormula(i)))
	}
	defs = append(defs, jen.Line(), constant(n.End(), b.End, "elements; "+n.StartFormula(len(b.Params))))
	for w, ranks := range e.layout.Worlds {
		defs = append(defs, constant(n.Shard(ranks), b.ShardElements[w], fmt.Sprintf("elements of each rank; roundup(ceil(end/%d), unit)", ranks)))
	}
	f.Add(comment(bucketTitle(b) + "\nRank r of N owns the elements [r*shard, (r+1)*shard), with the shard of world N."))
	f.Const().Defs(defs...)
	f.Line()
}

func bucketTitle(b *layout.Bucket) string {
	trained := "trainable"
	if !b.Trainable {
		trained = "frozen"
	}
	return fmt.Sprintf("Bucket %s, %s: %s of %d bytes an element.",
		output.Printable(b.Name), trained, count(int64(len(b.Params)), "parameter"), b.DType.Bytes())
}

// productText is product for a comment.
func productText(shape []int64) string {
	if len(shape) == 0 {
		return "a scalar"
	}
	return product(shape)
}

// product writes the dimensions of a shape as a product. A shape with a zero is
// zero whatever the rest: their product may be too large for a constant.
func product(shape []int64) string {
	if len(shape) == 0 {
		return "1"
	}
	factors := make([]string, len(shape))
	for i, d := range shape {
		if d == 0 {
			return "0"
		}
		factors[i] = strconv.FormatInt(d, 10)
	}
	return strings.Join(factors, "*")
}

func constant(name string, value int64, note string) jen.Code {
	return jen.Id(name).Int64().Op("=").Add(number(value)).Add(comment(note))
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
