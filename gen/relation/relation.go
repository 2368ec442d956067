// Package relation has the constants of a generated package and the rules that
// hold between them, once for all languages: what a rule asks is a sentence and
// an expression tree, which gen/goemit writes as blank constants and gen/cuemit
// as static_asserts.
//
// It takes a *plan.Plan and the names of its constants; it computes no offset.
// It imports gen/plan, gen/constname, gen/output and the runtime's leaves.
package relation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Group is constants and the rules that they keep.
type Group struct {
	Title     string // of several lines
	PerWorld  bool   // its constants and rules are there for each world size
	Untyped   bool   // its constants are for a language's own counting type
	Constants []Constant
	Rules     []Rule
}

// Constant is a number with a name.
type Constant struct {
	Name    constname.Name
	Values  []int64 // for each world size where the name is per world, else one
	What    string  // unit first: "elements of wte.weight"
	Formula Expr    // what it is made of; empty where that is not to be said
	Field   string  // of the spec, that it comes from; may be empty
}

// Note is the comment of a constant: unit, formula and field of the spec.
func (c *Constant) Note(s Syntax) string {
	note := []string{c.What}
	if text := c.Formula.Text(s); text != "" {
		note = append(note, text)
	}
	if c.Field != "" {
		note = append(note, c.Field)
	}
	return strings.Join(note, "; ")
}

// Rule is a relation between two expressions.
type Rule struct {
	Left     Expr
	AtLeast  bool // left >= right, else left == right
	Right    Expr
	Field    string // of the spec
	Sentence string // what is asked
}

// Text is the sentence with the field in front.
func (r *Rule) Text() string { return r.Field + ": " + r.Sentence }

// Define adds a constant, and as a rule with a sentence that it is what its formula
// says.
func (g *Group) Define(name constname.Name, values []int64, what string, formula Expr, field, sentence string) {
	g.Constants = append(g.Constants, Constant{name, values, what, formula, field})
	g.Equal(Of(name), formula, field, sentence)
}

// Equal adds the rule left == right.
func (g *Group) Equal(left, right Expr, field, sentence string) {
	g.Rules = append(g.Rules, Rule{Left: left, Right: right, Field: field, Sentence: sentence})
}

// AtLeast adds the rule left >= right.
func (g *Group) AtLeast(left, right Expr, field, sentence string) {
	g.Rules = append(g.Rules, Rule{Left: left, AtLeast: true, Right: right, Field: field, Sentence: sentence})
}

// builder makes the groups of a plan.
type builder struct {
	plan   *plan.Plan
	layout *layout.Model
	names  *constname.Names
}

// Groups returns what every generated package says of how a model is sharded.
func Groups(p *plan.Plan, names *constname.Names) []Group {
	b := &builder{plan: p, layout: p.Layout, names: names}
	groups := append(b.repeats(), b.model(), b.worlds())
	shards := Group{PerWorld: true, Title: "What a rank owns of each bucket: rank r the elements [r*shard, (r+1)*shard)."}
	names.EachBucket(func(_ int, bucket *layout.Bucket, n *constname.Bucket) {
		groups = append(groups, bucketGroup(bucket, n))
		shards.shard(bucket, n)
	})
	return append(groups, shards, b.memory())
}

// repeats is what trainers count blocks with.
func (b *builder) repeats() []Group {
	var groups []Group
	for k := range b.layout.Kinds {
		kind := &b.layout.Kinds[k]
		if kind.Var == "" {
			continue
		}
		name, last := output.Printable(kind.Name), kind.First+kind.Count-1
		first, count := b.names.RepeatFirst(k), b.names.RepeatLen(k)
		g := Group{Untyped: true, Title: fmt.Sprintf("The blocks %s: %s = %d..%d.", name, kind.Var, kind.First, last), Constants: []Constant{
			{Name: first, Values: []int64{kind.First}, What: "the first index", Field: "blocks.repeat"},
			{Name: count, Values: []int64{kind.Count}, What: "blocks", Field: "blocks.repeat"},
		}}
		g.Equal(Sub(Add(Of(first), Of(count)), Num(1)), Num(last), "blocks.repeat", "the last index of "+name+" is First + Len - 1")
		groups = append(groups, g)
	}
	return groups
}

// AlignBytes, MaxLive, Prefetch and GradSlots name what holds for all buckets.
var (
	AlignBytes = constname.OfModel("alignBytes")
	MaxLive    = constname.OfModel("maxLive")
	Prefetch   = constname.OfModel("prefetch")
	GradSlots  = constname.OfModel("gradientSlots")
)

func (b *builder) model() Group {
	m := b.layout
	g := Group{Title: "What holds for all buckets.", Constants: []Constant{
		{Name: AlignBytes, Values: []int64{m.AlignBytes}, What: "bytes; every payload and every start in a bucket is a multiple of it", Field: "shard.align_bytes"},
		{Name: MaxLive, Values: []int64{m.MaxLive}, What: "gather slots; the block at position p uses slot p mod maxLive", Field: "gather.max_live"},
		{Name: Prefetch, Values: []int64{m.Prefetch}, What: "blocks gathered ahead of the trainer", Field: "gather.prefetch"},
		{Name: GradSlots, Values: []int64{m.GradSlots}, What: "full-size gradient buffers", Field: "gradients.slots"},
	}}
	g.AtLeast(Of(AlignBytes), Num(16), "shard.align_bytes", "16 or more, because kernels use 16-byte accesses")
	g.Equal(Mod(Num(1<<16), Of(AlignBytes)), Num(0), "shard.align_bytes", "a power of two, 65536 at most")
	g.AtLeast(Of(MaxLive), Add(Num(1), Of(Prefetch)), "gather.max_live", "the blocks gathered ahead (gather.prefetch) need slots besides the one in use")
	g.AtLeast(Of(GradSlots), Num(1), "gradients.slots", "a backward pass needs a gradient buffer")
	return g
}

// worlds is the world sizes.
func (b *builder) worlds() Group {
	sizes := make([]string, len(b.layout.Worlds))
	for w, ranks := range b.layout.Worlds {
		sizes[w] = strconv.FormatInt(ranks, 10)
	}
	g := Group{PerWorld: true, Title: "The world sizes.", Constants: []Constant{
		{Name: constname.World(), Values: b.layout.Worlds, What: "ranks", Field: "topology.world"},
	}}
	g.Equal(Of(constname.World()), Ranks(), "topology.world", "a world size is one of "+strings.Join(sizes, ", ")+", and the one that is named")
	return g
}

// bucketGroup is the table of one bucket.
func bucketGroup(b *layout.Bucket, n *constname.Bucket) Group {
	name, bytes := output.Printable(b.Name), b.DType.Bytes()
	trained := "trainable"
	if !b.Trainable {
		trained = "frozen"
	}
	g := Group{Title: fmt.Sprintf("Bucket %s, %s: %d bytes an element.", name, trained, bytes)}
	g.Constants = append(g.Constants, Constant{n.Unit(), []int64{b.Unit}, "elements", Div(Of(AlignBytes), Num(bytes)), "shard.align_bytes"})
	g.Equal(Mul(Of(n.Unit()), Num(bytes)), Of(AlignBytes), "shard.align_bytes", fmt.Sprintf("a unit of %d-byte elements of %s is align_bytes long", bytes, name))
	for i := range b.Params {
		g.param(b, n, i)
	}
	end := "an empty bucket ends where it starts"
	if len(b.Params) > 0 {
		end = fmt.Sprintf("bucket %s ends where %s ends, rounded up to the unit", name, output.Printable(b.Params[len(b.Params)-1].Name))
	}
	g.Define(n.End(), []int64{b.End}, "elements", start(n, len(b.Params)), "blocks.params", end)
	return g
}

// param adds the parameter at index i of a bucket.
func (g *Group) param(b *layout.Bucket, n *constname.Bucket, i int) {
	p := &b.Params[i]
	name := output.Printable(p.Name)
	g.Define(n.Params[i].Numel, []int64{p.Numel}, "elements of "+name, product(p.Shape), "blocks.params.shape", "numel of "+name+" is the product of the dimensions")
	order := name + " starts the bucket"
	if i > 0 {
		order = fmt.Sprintf("%s starts where %s ends, rounded up to the unit", name, output.Printable(b.Params[i-1].Name))
	}
	g.Define(n.Params[i].Start, []int64{p.Start}, "elements", start(n, i), "blocks.params", order)
}

// start is where the parameter at index i starts; at the number of parameters,
// where the bucket ends.
func start(n *constname.Bucket, i int) Expr {
	if i == 0 {
		return Num(0)
	}
	before := n.Params[i-1]
	return RoundUp(Add(Of(before.Start), Of(before.Numel)), Of(n.Unit()))
}

// product multiplies the dimensions of a shape. A shape with a zero is zero
// whatever the rest: their product may be too large for a constant.
func product(shape []int64) Expr {
	factors := make([]Expr, len(shape))
	for i, d := range shape {
		factors[i] = Num(d)
	}
	switch {
	case slices.Contains(shape, 0):
		return Num(0)
	case len(shape) == 0:
		return Num(1)
	case len(shape) == 1:
		return factors[0]
	}
	return Mul(factors...)
}

// shard adds what each rank owns of a bucket. The formula divides end, which is a
// multiple of the unit, so that nothing overflows.
func (g *Group) shard(b *layout.Bucket, n *constname.Bucket) {
	unit, world := Of(n.Unit()), Of(constname.World())
	g.Define(n.Shard(), b.ShardElements, "elements", Mul(CeilDiv(Div(Of(n.End()), unit), world), unit), "topology.world",
		fmt.Sprintf("a shard of %s is the least multiple of the unit with world * shard >= end", output.Printable(b.Name)))
}

// memory is what a rank keeps and allocates.
func (b *builder) memory() Group {
	rest, peak := make([]int64, len(b.plan.Worlds)), make([]int64, len(b.plan.Worlds))
	for w := range b.plan.Worlds {
		rest[w], peak[w] = b.plan.Worlds[w].Placement.RestBytes(), b.plan.Worlds[w].Placement.PeakBytes()
	}
	g := Group{
		PerWorld: true,
		Title:    "The memory of a rank. What it keeps is shard elements times the bytes for one\n(parameter, gradient, master, moments), for each bucket of each block.",
		Constants: []Constant{
			{Name: constname.Rest(), Values: rest, What: "bytes of a rank between passes: shards, masters, moments, gradient shards"},
			{Name: constname.Peak(), Values: peak, What: "bytes of a rank, all that Open allocates: slots, gradient buffers and staging besides"},
		},
	}
	g.Equal(Of(constname.Rest()), b.restSum(), "optimizer", "a rank keeps the shards of all blocks, and where trainable masters, moments and gradients")
	g.AtLeast(Of(constname.Peak()), Of(constname.Rest()), "topology.world", "what stays between passes is part of all that is allocated")
	return g
}

// restSum is the bytes that a rank keeps between passes.
func (b *builder) restSum() Expr {
	var terms []Expr
	b.names.EachBucket(func(kind int, bucket *layout.Bucket, n *constname.Bucket) {
		factors := []Expr{Of(n.Shard()), b.stateBytes(bucket)}
		if kind != constname.Shared && b.layout.Kinds[kind].Var != "" {
			factors = append([]Expr{Of(b.names.RepeatLen(kind))}, factors...)
		}
		terms = append(terms, Mul(factors...))
	})
	if len(terms) == 0 {
		return Num(0)
	}
	return Add(terms...)
}

// stateBytes is what a rank keeps for one element of a bucket.
func (b *builder) stateBytes(bucket *layout.Bucket) Expr {
	own := Num(bucket.DType.Bytes())
	if !bucket.Trainable {
		return own
	}
	state := Num(bucket.GradType().Bytes())
	terms := []Expr{own, state}
	if b.layout.HasMaster(bucket) {
		terms = append(terms, state)
	}
	for range b.layout.Optimizer.Kind.Moments() {
		terms = append(terms, state)
	}
	return Add(terms...)
}
