package goemit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/layout"
)

// relation is a rule between constants: a blank constant that the compiler
// refuses where the rule does not hold.
type relation struct{ rule, expression string }

func (r relation) code() jen.Code {
	return comment(r.rule + "; if not, generate again").Line().Id("_").Op("=").Add(source(r.expression))
}

// equal is a constant only where left == right: a negative difference does not
// fit a uint64, and neither does the negative of a positive one.
func equal(left, right string) string { return "-" + atLeast(left, right) }

// atLeast is a constant only where left >= right.
func atLeast(left, right string) string { return fmt.Sprintf("uint64(%s - %s)", left, right) }

// sum is an expression that may be subtracted.
func sum(terms ...string) string { return "(" + strings.Join(terms, " + ") + ")" }

// roundUp is the least multiple of unit that is at least n.
func roundUp(n, unit string) string { return fmt.Sprintf("(%s+%s-1)/%s*%s", n, unit, unit, unit) }

// relations emits a group of relations under a title.
func relations(f *jen.File, title string, list []relation) {
	defs := make([]jen.Code, len(list))
	for i, r := range list {
		defs[i] = r.code()
	}
	f.Add(comment(title))
	f.Const().Defs(defs...)
	f.Line()
}

func (e *emitter) modelRelations(f *jen.File) {
	list := []relation{
		{"max_live >= 1 + prefetch: the blocks gathered ahead need slots besides the one in use", atLeast("maxLive", sum("1", "prefetch"))},
		{"a backward pass needs a gradient buffer", atLeast("gradientSlots", "1")},
	}
	for _, ranks := range e.layout.Worlds {
		list = append(list,
			relation{"the constant's name says its world size", equal(constname.World(ranks), strconv.FormatInt(ranks, 10))},
			relation{"what stays between passes is part of all that is allocated", atLeast(constname.Peak(ranks), constname.Rest(ranks))})
	}
	relations(f, e.relationTitle("What the compiler checks. uint64(x - y) is a constant only where x >= y, and\n-uint64(x - y) only where x == y. A line that does not compile is a rule that\nthe constants break: they were edited by hand, or merged from two versions. Fix:"), list)
}

// relationTitle ends a text with the command to run.
func (e *emitter) relationTitle(text string) string { return text + "\nrun `" + e.command() + "`." }

// bucketRelations emits the arithmetic of one bucket for the compiler to redo.
func (e *emitter) bucketRelations(f *jen.File, b *layout.Bucket, n *constname.Bucket) {
	list := []relation{{
		fmt.Sprintf("a unit of %d-byte elements is alignBytes long", b.DType.Bytes()),
		equal(fmt.Sprintf("%s*%d", n.Unit(), b.DType.Bytes()), "alignBytes"),
	}}
	for i := range b.Params {
		list = append(list, numelRelation(n, b, i), startRelation(n, b, i))
	}
	list = append(list, endRelation(n, b))
	for _, ranks := range e.layout.Worlds {
		list = append(list, shardRelation(n, ranks))
	}
	relations(f, fmt.Sprintf("What the compiler checks of bucket %s.", output.Printable(b.Name)), list)
}

func numelRelation(n *constname.Bucket, b *layout.Bucket, i int) relation {
	p := &b.Params[i]
	return relation{
		fmt.Sprintf("numel of %s is the product of its shape, %s", output.Printable(p.Name), shapeText(p.Shape)),
		equal(n.Params[i].Numel, product(p.Shape)),
	}
}

func startRelation(n *constname.Bucket, b *layout.Bucket, i int) relation {
	if i == 0 {
		return relation{output.Printable(b.Params[0].Name) + " starts the bucket", equal(n.Params[0].Start, "0")}
	}
	rule := fmt.Sprintf("%s starts where %s ends, rounded up to the unit", output.Printable(b.Params[i].Name), output.Printable(b.Params[i-1].Name))
	return relation{rule, equal(n.Params[i].Start, nextStart(n, i))}
}

func endRelation(n *constname.Bucket, b *layout.Bucket) relation {
	if len(b.Params) == 0 {
		return relation{"an empty bucket ends where it starts", equal(n.End(), "0")}
	}
	last := len(b.Params) - 1
	rule := fmt.Sprintf("the bucket ends where %s ends, rounded up to the unit", output.Printable(b.Params[last].Name))
	return relation{rule, equal(n.End(), nextStart(n, last+1))}
}

// nextStart is where the parameter before index i ends, rounded up.
func nextStart(n *constname.Bucket, i int) string {
	before := n.Params[i-1]
	return roundUp(before.Start+"+"+before.Numel, n.Unit())
}

// shardRelation divides end, which is a multiple of the unit, so that nothing
// overflows.
func shardRelation(n *constname.Bucket, ranks int64) relation {
	world := constname.World(ranks)
	rule := fmt.Sprintf("a shard is the least multiple of the unit with %d * shard >= end", ranks)
	return relation{rule, equal(n.Shard(ranks), fmt.Sprintf("(%s/%s+%s-1)/%s*%s", n.End(), n.Unit(), world, world, n.Unit()))}
}

// memoryRelations emits, for each world size, the sum of what a rank keeps.
func (e *emitter) memoryRelations(f *jen.File) {
	var list []relation
	for _, ranks := range e.layout.Worlds {
		rule := fmt.Sprintf("a rank of %d keeps the shards of all blocks, and where trainable masters, moments and gradients", ranks)
		list = append(list, relation{rule, equal(constname.Rest(ranks), e.restSum(ranks))})
	}
	relations(f, "What the compiler checks of the memory: shard elements times the bytes that a rank\nkeeps for one (parameter + gradient + master + moments), for each bucket of each block.", list)
}

// restSum is the expression for the bytes that a rank keeps between passes.
func (e *emitter) restSum(ranks int64) string {
	var terms []string
	e.names.EachBucket(func(b *layout.Bucket, n *constname.Bucket, instances string) {
		term := fmt.Sprintf("%s*%s", n.Shard(ranks), e.stateBytes(b))
		if instances != "" {
			term = instances + "*" + term
		}
		terms = append(terms, term)
	})
	if len(terms) == 0 {
		return "0"
	}
	return "(" + strings.Join(terms, " +\n") + ")"
}

// stateBytes is what a rank keeps for one element of a bucket.
func (e *emitter) stateBytes(b *layout.Bucket) string {
	own := strconv.FormatInt(b.DType.Bytes(), 10)
	if !b.Trainable {
		return own
	}
	gradient := b.GradType().Bytes()
	master := int64(0)
	if e.layout.HasMaster(b) {
		master = gradient
	}
	return fmt.Sprintf("(%s+%d+%d+%d*%d)", own, gradient, master, e.layout.Optimizer.Moments, gradient)
}
