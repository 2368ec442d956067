package goemit

import (
	"fmt"
	"strconv"

	"github.com/dave/jennifer/jen"
	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/relation"
	"github.com/shardgen/shardgen/runtime/abi"
)

// layoutSection emits all numbers of the model, the relations between them and
// the descriptor made of them.
func (e *emitter) layoutSection(f *jen.File) error {
	e.handshake(f)
	f.Add(comment("Behind constants stand rules that the compiler checks: uint64(x - y) is a constant\nonly where x >= y, and -uint64(x - y) only where x == y. A line that does not\ncompile is a rule that the constants break: they were edited by hand, or merged\nfrom two versions. Fix: run `" + e.command() + "`."))
	f.Line()
	for _, g := range relation.Groups(e.plan, e.names) {
		e.group(f, &g)
	}
	return e.descriptor(f)
}

// handshake refers to the runtime's version.
func (e *emitter) handshake(f *jen.File) {
	f.Add(comment(fmt.Sprintf("If this constant is undefined, generator and runtime are out of step. Fix: run\n`%s`.", e.command())))
	f.Const().Id("_").Op("=").Qual(abiPath, fmt.Sprintf("RunShardgenGenerate_Version%d", abi.Version))
	f.Line()
}

// group emits constants, then the rules that they keep, each for all world sizes
// where they depend on it.
func (e *emitter) group(f *jen.File, g *relation.Group) {
	worlds := []int64{0}
	if g.PerWorld {
		worlds = e.layout.Worlds
	}
	var defs []jen.Code
	for i := range g.Constants {
		for w, ranks := range worlds {
			defs = append(defs, constant(g, i, w, ranks))
		}
	}
	if len(defs) == 0 {
		return
	}
	f.Add(comment(g.Title))
	defs = append(defs, jen.Line())
	for i := range g.Rules {
		for _, ranks := range worlds {
			defs = append(defs, rule(&g.Rules[i], ranks))
		}
	}
	f.Const().Defs(defs...)
	f.Line()
}

// constant is a group's constant i at world size w.
func constant(g *relation.Group, i, w int, ranks int64) jen.Code {
	c := &g.Constants[i]
	name := jen.Id(c.Name.Go(ranks))
	if !g.Untyped {
		name = name.Int64()
	}
	s := syntax(ranks)
	s.Infix, s.Break = false, ""
	return name.Op("=").Add(number(c.Values[w])).Add(comment(c.Note(s)))
}

// rule is a blank constant that the compiler refuses where the rule does not hold:
// a negative difference does not fit a uint64, and neither does the negative of a
// positive one.
func rule(r *relation.Rule, ranks int64) jen.Code {
	sign := "-"
	if r.AtLeast {
		sign = ""
	}
	difference := relation.Sub(r.Left, r.Right).Text(syntax(ranks))
	return comment(r.Text() + "; if not, generate again").Line().Id("_").Op("=").Id(sign + "uint64(" + difference + ")")
}

// syntax is Go's, for constants at a world size.
func syntax(ranks int64) relation.Syntax {
	return relation.Syntax{
		Name:  func(n constname.Name) string { return n.Go(ranks) },
		Ranks: strconv.FormatInt(ranks, 10),
		Infix: true,
		Break: "\n",
	}
}
