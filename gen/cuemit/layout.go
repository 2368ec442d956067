package cuemit

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/runtime/layout"
)

// layoutData is what the header's template arranges.
type layoutData struct {
	common
	Groups []group
}

// group is constants and the rules that they keep.
type group struct {
	Title     []string
	Constants []constant
	Functions []string
	Rules     []rule
}

type constant struct {
	Name  string
	Value int64
	Note  string // unit, formula, and the field of the spec that it comes from
}

// rule is a static_assert.
type rule struct{ Condition, Message string }

func (e *emitter) layoutData() (layoutData, error) {
	d := layoutData{common: e.common, Groups: e.repeats()}
	d.Groups = append(d.Groups, e.modelGroup(), e.positions())
	e.names.EachBucket(func(b *layout.Bucket, n *constname.Bucket, _ string) {
		d.Groups = append(d.Groups, e.bucketGroup(b, n))
	})
	d.Groups = append(d.Groups, e.memoryGroup())
	for w := range e.layout.Worlds {
		groups, err := e.placement(w)
		if err != nil {
			return d, fmt.Errorf("world %d: %w", e.layout.Worlds[w], err)
		}
		d.Groups = append(d.Groups, groups...)
	}
	return d, nil
}

// positions is the order of blocks.
func (e *emitter) positions() group {
	g := group{Title: []string{"The positions of blocks, those of a repeat one after another."}}
	at, end := int64(0), "0"
	for k := range e.layout.Kinds {
		kind, name := &e.layout.Kinds[k], e.names.Kinds[k].Position()
		printable := output.Printable(kind.Name)
		g.Constants = append(g.Constants, constant{name, at, fmt.Sprintf("position of the first block %s; %s; blocks", printable, end)})
		g.Rules = append(g.Rules, e.rule(name+" == "+end, "blocks", "block "+printable+" stands behind those before it"))
		at += kind.Count
		if end = name + " + 1"; kind.Var != "" {
			end = name + " + " + e.instances(k)
		}
	}
	return g
}

// rule makes a static_assert of a field, what it asks, and the fix.
func (e *emitter) rule(condition, field, what string) rule {
	text := literal(fmt.Sprintf("%s: %s; if not, run ", field, what))
	return rule{condition, text[:len(text)-1] + e.common.Command + `"`}
}

func (e *emitter) repeats() []group {
	var groups []group
	for k := range e.layout.Kinds {
		kind := &e.layout.Kinds[k]
		if kind.Var == "" {
			continue
		}
		name, last := e.plan.Kinds[k].GoName, kind.First+kind.Count-1
		groups = append(groups, group{
			Title: []string{fmt.Sprintf("The blocks %s: %s = %d..%d.", output.Printable(kind.Name), kind.Var, kind.First, last)},
			Constants: []constant{
				{name + "First", kind.First, "the first index; blocks.repeat"},
				{name + "Len", kind.Count, "blocks; blocks.repeat"},
			},
			Rules: []rule{e.rule(fmt.Sprintf("%sFirst + %sLen - 1 == %d", name, name, last), "blocks.repeat of "+output.Printable(kind.Name), "the last index is First + Len - 1")},
		})
	}
	return groups
}

func (e *emitter) modelGroup() group {
	m := e.layout
	g := group{
		Title: []string{"What holds for all buckets."},
		Constants: []constant{
			{"alignBytes", m.AlignBytes, "bytes; every payload and every start in a bucket is a multiple of it; shard.align_bytes"},
			{"maxLive", m.MaxLive, "gather slots; the block at position p uses slot p mod maxLive; gather.max_live"},
			{"prefetch", m.Prefetch, "blocks gathered ahead of the trainer; gather.prefetch"},
			{"gradientSlots", m.GradSlots, "full-size gradient buffers; gradients.slots"},
			{"partialsStart", m.PartialsStart(), fmt.Sprintf("bytes into the arena of scratch, of partial sums; roundup(%d, alignBytes); shard.align_bytes", layout.SumsBytes)},
		},
		Rules: []rule{
			e.rule("alignBytes >= 16 && (alignBytes & (alignBytes - 1)) == 0", "shard.align_bytes", "a power of two, 16 or more, because kernels use 16-byte accesses"),
			e.rule("maxLive >= 1 + prefetch", "gather.max_live", "the blocks gathered ahead (gather.prefetch) need slots besides the one in use"),
			e.rule("gradientSlots >= 1", "gradients.slots", "a backward pass needs a gradient buffer"),
			e.rule(fmt.Sprintf("partialsStart == roundUp(%d, alignBytes)", layout.SumsBytes), "shard.align_bytes", fmt.Sprintf("partial sums follow the %d bytes of a step's sums, aligned", layout.SumsBytes)),
		},
	}
	for w, ranks := range m.Worlds {
		place := e.plan.Worlds[w].Placement
		g.Constants = append(g.Constants,
			constant{constname.World(ranks), ranks, "ranks; topology.world"},
			constant{constname.Rest(ranks), place.RestBytes(), "bytes of a rank between passes: shards, masters, moments, gradient shards"},
			constant{constname.Peak(ranks), place.PeakBytes(), "bytes of a rank, all that Open allocates: slots, gradient buffers and staging besides"})
		g.Rules = append(g.Rules,
			e.rule(fmt.Sprintf("%s == %d", constname.World(ranks), ranks), "topology.world", "the constant's name says its world size"),
			e.rule(fmt.Sprintf("%s >= %s", constname.Peak(ranks), constname.Rest(ranks)), "topology.world", "what stays between passes is part of all that is allocated"))
	}
	return g
}

// bucketGroup is the table of one bucket.
func (e *emitter) bucketGroup(b *layout.Bucket, n *constname.Bucket) group {
	g := group{Title: []string{
		bucketTitle(b),
		"Rank r of N owns the elements [r*shard, (r+1)*shard), with the shard of world N.",
	}}
	g.Constants = append(g.Constants, constant{n.Unit(), b.Unit, fmt.Sprintf("elements; alignBytes/%d; shard.align_bytes", b.DType.Bytes())})
	g.Rules = append(g.Rules, e.rule(fmt.Sprintf("%s * %d == alignBytes", n.Unit(), b.DType.Bytes()), "shard.align_bytes",
		fmt.Sprintf("a unit of %d-byte elements of %s is align_bytes long", b.DType.Bytes(), output.Printable(b.Name))))
	for i := range b.Params {
		g.param(e, b, n, i)
	}
	g.Constants = append(g.Constants, constant{n.End(), b.End, "elements; " + n.StartFormula(len(b.Params))})
	g.Rules = append(g.Rules, e.rule(n.End()+" == "+startExpression(n, len(b.Params)), "blocks.params", endRule(b)))
	for w, ranks := range e.layout.Worlds {
		g.Constants = append(g.Constants, constant{n.Shard(ranks), b.ShardElements[w], fmt.Sprintf("elements of each rank; roundup(ceil(end/%d), unit); topology.world", ranks)})
		g.Rules = append(g.Rules, e.shardRule(b, n, ranks))
	}
	return g
}

func bucketTitle(b *layout.Bucket) string {
	trained := "trainable"
	if !b.Trainable {
		trained = "frozen"
	}
	return fmt.Sprintf("Bucket %s, %s: %d bytes an element.", output.Printable(b.Name), trained, b.DType.Bytes())
}

// param adds the parameter at index i.
func (g *group) param(e *emitter, b *layout.Bucket, n *constname.Bucket, i int) {
	p := &b.Params[i]
	name := output.Printable(p.Name)
	g.Constants = append(g.Constants,
		constant{n.Params[i].Numel, p.Numel, fmt.Sprintf("elements; %s; shape of %s in blocks.params", strings.ReplaceAll(product(p.Shape), "LL", ""), name)},
		constant{n.Params[i].Start, p.Start, "elements; " + n.StartFormula(i)})
	order := name + " starts the bucket"
	if i > 0 {
		order = fmt.Sprintf("%s starts where %s ends, rounded up to the unit", name, output.Printable(b.Params[i-1].Name))
	}
	g.Rules = append(g.Rules,
		e.rule(n.Params[i].Numel+" == "+product(p.Shape), "shape of "+name, "numel is the product of the dimensions"),
		e.rule(n.Params[i].Start+" == "+startExpression(n, i), "blocks.params", order))
}

func endRule(b *layout.Bucket) string {
	if len(b.Params) == 0 {
		return "an empty bucket ends where it starts"
	}
	return fmt.Sprintf("bucket %s ends where %s ends, rounded up to the unit", output.Printable(b.Name), output.Printable(b.Params[len(b.Params)-1].Name))
}

// startExpression is n.StartFormula for the compiler.
func startExpression(n *constname.Bucket, i int) string {
	if i == 0 {
		return "0"
	}
	return fmt.Sprintf("(%s + %s + %s - 1) / %s * %s", n.Params[i-1].Start, n.Params[i-1].Numel, n.Unit(), n.Unit(), n.Unit())
}

// shardRule divides end, which is a multiple of the unit, so that nothing
// overflows.
func (e *emitter) shardRule(b *layout.Bucket, n *constname.Bucket, ranks int64) rule {
	world := constname.World(ranks)
	return e.rule(fmt.Sprintf("%s == (%s / %s + %s - 1) / %s * %s", n.Shard(ranks), n.End(), n.Unit(), world, world, n.Unit()), "topology.world",
		fmt.Sprintf("a shard of %s is the least multiple of the unit with %d * shard >= end", output.Printable(b.Name), ranks))
}

// product writes the dimensions of a shape as a product of 64-bit factors. A
// shape with a zero is zero whatever the rest: their product may be too large.
func product(shape []int64) string {
	if len(shape) == 0 {
		return "1"
	}
	factors := make([]string, len(shape))
	for i, d := range shape {
		if d == 0 {
			return "0"
		}
		factors[i] = strconv.FormatInt(d, 10) + "LL"
	}
	return strings.Join(factors, "*")
}

// memoryGroup has, for each world size, the sum of what a rank keeps.
func (e *emitter) memoryGroup() group {
	g := group{Title: []string{
		"The memory of a rank: shard elements times the bytes that it keeps for one",
		"(parameter + gradient + master + moments), for each bucket of each block.",
	}}
	for _, ranks := range e.layout.Worlds {
		g.Rules = append(g.Rules, e.rule(constname.Rest(ranks)+" == "+e.restSum(ranks), "optimizer",
			fmt.Sprintf("a rank of %d keeps the shards of all blocks, and where trainable masters, moments and gradients", ranks)))
	}
	return g
}

func (e *emitter) restSum(ranks int64) string {
	var terms []string
	e.names.EachBucket(func(b *layout.Bucket, n *constname.Bucket, instances string) {
		term := fmt.Sprintf("%s * %s", n.Shard(ranks), e.stateBytes(b))
		if instances != "" {
			term = instances + " * " + term
		}
		terms = append(terms, term)
	})
	if len(terms) == 0 {
		return "0"
	}
	return strings.Join(terms, " +\n                  ")
}

// stateBytes is what a rank keeps for one element of a bucket.
func (e *emitter) stateBytes(b *layout.Bucket) string {
	if !b.Trainable {
		return strconv.FormatInt(b.DType.Bytes(), 10)
	}
	gradient, master := b.GradType().Bytes(), int64(0)
	if e.layout.HasMaster(b) {
		master = gradient
	}
	return fmt.Sprintf("(%d + %d + %d + %d * %d)", b.DType.Bytes(), gradient, master, e.layout.Optimizer.Moments, gradient)
}
