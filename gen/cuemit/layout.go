package cuemit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/constname"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/relation"
	"github.com/shardgen/shardgen/runtime/layout"
)

// layoutData is what the header's template arranges.
type layoutData struct {
	common
	Fix    string   // ends the message of each static_assert
	Worlds []int64  // world sizes
	Fixed  []*group // what does not depend on the world size
	World  []*group // members of World<N>
}

// group is constants and functions, and the rules that they keep.
type group struct {
	relation.Group
	Functions []string
}

// rule is a static_assert.
type rule struct{ Condition, Message string }

func (e *emitter) layoutData() (*layoutData, error) {
	d := &layoutData{common: e.common, Fix: `"; if not, run ` + e.common.Command + `"`, Worlds: e.layout.Worlds}
	for _, g := range relation.Groups(e.plan, e.names) {
		if g.PerWorld {
			d.World = append(d.World, &group{Group: g})
		} else {
			d.Fixed = append(d.Fixed, &group{Group: g})
		}
	}
	d.Fixed = append(d.Fixed, e.positions(), e.scratch())
	places, err := e.places()
	d.World = append(d.World, places...)
	return d, err
}

// syntax is that of C++ in a line, ruleSyntax in a static_assert.
var (
	syntax     = relation.Syntax{Name: constname.Name.String, Ranks: "N"}
	ruleSyntax = relation.Syntax{Name: constname.Name.String, Ranks: "N", Wide: "LL", Break: "\n                    "}
)

// Titles are the lines of a group's title.
func (g *group) Titles() []string { return strings.Split(g.Title, "\n") }

// Lines are the definitions of a group's constants.
func (g *group) Lines() []string {
	static := ""
	if g.PerWorld {
		static = "static "
	}
	var lines []string
	for i := range g.Constants {
		c := &g.Constants[i]
		lines = append(lines, fmt.Sprintf("%sconstexpr long long %s = %s;  // %s", static, c.Name, values(c.Values), c.Note(syntax)))
	}
	return lines
}

// values chooses by the world size where that makes a difference.
func values(list []int64) string {
	if !slices.ContainsFunc(list, func(v int64) bool { return v != list[0] }) {
		return strconv.FormatInt(list[0], 10)
	}
	texts := make([]string, len(list))
	for w, v := range list {
		texts[w] = strconv.FormatInt(v, 10)
	}
	return "at<N>(" + strings.Join(texts, ", ") + ")"
}

// Asserts are the rules of a group.
func (g *group) Asserts() []rule {
	rules := make([]rule, len(g.Rules))
	for i := range g.Rules {
		r := &g.Rules[i]
		compare := " == "
		if r.AtLeast {
			compare = " >= "
		}
		rules[i] = rule{r.Left.Text(ruleSyntax) + compare + r.Right.Text(ruleSyntax), literal(r.Text())}
	}
	return rules
}

// function adds a function of World<N>.
func (g *group) function(name constname.Name, parameter string, value relation.Expr) {
	g.Functions = append(g.Functions, fmt.Sprintf("SHARDGEN_FUNCTION static long long %s(%s) { return %s; }", name, parameter, value.Text(syntax)))
}

// positions is the order of blocks.
func (e *emitter) positions() *group {
	g := &group{Group: relation.Group{Title: "The positions of blocks, those of a repeat one after another."}}
	at, end := int64(0), relation.Num(0)
	for k := range e.layout.Kinds {
		kind, name := &e.layout.Kinds[k], e.names.Kinds[k].Position()
		printable := output.Printable(kind.Name)
		g.Define(name, []int64{at}, "position of the first block "+printable, end, "blocks", "block "+printable+" stands behind those before it")
		at += kind.Count
		end = relation.Add(relation.Of(name), e.instances(k))
	}
	return g
}

// instances is the number of blocks of a kind.
func (e *emitter) instances(k int) relation.Expr {
	if e.layout.Kinds[k].Var == "" {
		return relation.Num(1)
	}
	return relation.Of(e.names.RepeatLen(k))
}

// partialsStart names where partial sums start in the arena of scratch.
var partialsStart = constname.OfModel("partialsStart")

func (e *emitter) scratch() *group {
	g := &group{Group: relation.Group{Title: "Sums of a step."}}
	g.Define(partialsStart, []int64{e.layout.PartialsStart()}, "bytes into the arena of scratch, of partial sums",
		relation.RoundUp(relation.Num(layout.SumsBytes), relation.Of(relation.AlignBytes)), "shard.align_bytes",
		fmt.Sprintf("partial sums follow the %d bytes of a step's sums, aligned", layout.SumsBytes))
	return g
}
