package spec

import (
	"go/token"
	"go/types"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/runtime/dtype"
	"gopkg.in/yaml.v3"
)

// maxInstances bounds a repeat.
const maxInstances = 1 << 20

var rangeForm = regexp.MustCompile(`^(0|[1-9][0-9]*)\.\.(0|[1-9][0-9]*)$`)

const (
	repeatWords    = "a map with one variable, such as `{i: 12}` or `{i: 3..60}`"
	instancesWords = "a number of instances such as `12`, or a range such as `3..60`"
)

// repeatKind is one variable with its instances.
var repeatKind = kind[*Repeat]{
	words: repeatWords,
	schema: func() schema {
		instances := anyOf(integerSchema(1, maxInstances), schema{"type": "string", "pattern": rangeForm.String()})
		return schema{"type": "object", "minProperties": 1, "maxProperties": 1,
			"propertyNames": schema{"pattern": variableForm.String()}, "additionalProperties": instances}
	},
	read: readRepeat,
}

func readRepeat(w *walker, v value) (*Repeat, bool) {
	if v.node.Kind != yaml.MappingNode {
		w.wrongKind(v, repeatWords)
		return nil, false
	}
	pairs := w.pairs(v.node)
	if len(pairs) != 1 {
		w.fault(v.node, CodeRepeatForm, "`repeat` has %d variables, it takes one", len(pairs)).fix("write %s", repeatWords)
		return nil, false
	}
	p := pairs[0]
	if !variableForm.MatchString(p.name) {
		w.at(p.at, CodeRepeatForm, "%s is no variable: letters, digits and underscores, no digit first", shown(p.name)).fix("call it `i`")
		return nil, false
	}
	r := &Repeat{Pos: v.pos(), Var: p.name}
	ends := rangeForm.FindStringSubmatch(p.node.Value)
	if p.node.Kind != yaml.ScalarNode || ends == nil {
		return r, w.readCount(value{"repeat." + p.name, p.node}, r)
	}
	return r, w.readRange(value{"repeat." + p.name, p.node}, ends[1], ends[2], r)
}

func (w *walker) readCount(v value, r *Repeat) bool {
	if v.node.Kind == yaml.ScalarNode && plain(v.node) && strings.Contains(v.node.Value, "..") {
		w.fault(v.node, CodeRepeatForm, "%s takes %s, not %s", v.subject(), instancesWords, shown(v.node.Value)).fix("write %s", instancesWords)
		return false
	}
	n, ok := integer(1, maxInstances).read(w, v)
	r.Last = n - 1
	return ok
}

func (w *walker) readRange(v value, first, last string, r *Repeat) bool {
	var ok [2]bool
	r.First, ok[0] = w.inRange(v, first, 1, 0, math.MaxInt64)
	r.Last, ok[1] = w.inRange(v, last, 1, 0, math.MaxInt64)
	if !ok[0] || !ok[1] {
		return false
	}
	if r.Last < r.First || r.Last-r.First >= maxInstances {
		w.fault(v.node, CodeOutOfRange, "%s is the range %s, which must go upwards and have at most %d instances",
			v.subject(), shown(v.node.Value), maxInstances).fix("write the smaller end first, as in `3..60`")
		return false
	}
	return true
}

// checkRoot fills in the defaults that depend on other keys and checks what
// needs them.
func checkRoot(w *walker, g given, m *Model) {
	checkPackage(w, m)
	for b := range m.Blocks {
		for p := range m.Blocks[b].Params {
			owner := &m.Blocks[b].Params[p]
			owner.inherit(m.DType)
			if owner.DType.Set || m.DType.Set || !g.has("dtype") {
				w.checkStorage(owner)
			}
		}
	}
}

func checkPackage(w *walker, m *Model) {
	if !m.Name.Set {
		return
	}
	from := m.Package
	if !from.Set {
		m.Package.V = packageFor(m.Name.V)
		from.Pos = m.Name.Pos
	}
	if why := packageProblem(m.Package.V); why != "" && (m.Package.Set || m.Package.V != "") {
		w.at(from.Pos, CodePackageName, "%s cannot name a Go package: %s", shown(m.Package.V), why).
			fix("write another name, as in `package: %s`", usablePackage(m.Package.V))
	} else if why != "" {
		w.at(from.Pos, CodePackageName, "the model's name %s has no letters or digits to name a Go package by", shown(m.Name.V)).
			fix("add `package:` with a name in lower-case letters and digits")
	}
}

// packageFor returns the lower-case letters and digits of a model's name.
func packageFor(model string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || '0' <= r && r <= '9' {
			return r
		}
		return -1
	}, strings.ToLower(model))
}

// usablePackage returns a package name that is close to one that is no good.
func usablePackage(name string) string {
	short := packageFor(name)
	for _, candidate := range []string{short, short + "model", "model" + short} {
		if packageProblem(candidate) == "" {
			return candidate
		}
	}
	return "model"
}

var (
	packageForm    = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	reservedFolder = []string{"internal", "vendor", "testdata"}
)

// packageProblem says why a name is no good for a Go package, or nothing.
func packageProblem(name string) string {
	switch {
	case !packageForm.MatchString(name):
		return "it takes lower-case letters, digits and underscores, a letter first"
	case token.IsKeyword(name):
		return "it is a keyword"
	case types.Universe.Lookup(name) != nil:
		return "it is a predeclared name"
	case name == "main" || name == "init":
		return "a package of that name cannot be imported"
	case slices.Contains(reservedFolder, name):
		return "the go tool treats a folder of that name differently"
	case strings.HasSuffix(name, "_test"):
		return "names that end in _test are for tests"
	}
	return ""
}

// inherit gives an owner the model's dtype, and what follows from its own.
func (p *Param) inherit(model At[dtype.DType]) {
	if p.TiedTo.V != "" {
		return
	}
	if !p.DType.Set {
		p.DType.V = model.V
	}
	if !p.Trainable.Set {
		p.Trainable.V = p.DType.V.Trainable()
	}
}

// checkStorage checks what depends on a parameter's dtype.
func (w *walker) checkStorage(p *Param) {
	if p.DType.V.Bytes() == 0 {
		return
	}
	if !fitsInt64(p.Shape, p.DType.V.Bytes()) {
		w.at(p.Name.Pos, CodeOverflow, "parameter %s has more than 2^63 bytes", shown(p.Name.V)).
			fix("the dimensions times the element size must stay below 9223372036854775808")
	}
	if p.Init == nil {
		return
	}
	if why := p.Init.Problem(p.DType.V); why != "" {
		w.at(p.Init.Pos, CodeInitDType, "parameter %s has dtype %s, %s", shown(p.Name.V), p.DType.V, why).
			fix("integers and bool take `ones`, `zeros` or a constant that fits exactly, floats take finite values")
	}
}

// fitsInt64 reports whether the product of dimensions and unit fits. Zero
// dimensions are left out, so that the strides of an empty tensor fit too.
func fitsInt64(shape []At[int64], unit int64) bool {
	product := uint64(unit)
	for _, dim := range shape {
		if dim.V == 0 {
			continue
		}
		high, low := bits.Mul64(product, uint64(dim.V))
		if high != 0 || low > math.MaxInt64 {
			return false
		}
		product = low
	}
	return true
}

func checkGather(w *walker, g given, v *Gather) {
	live, ahead := v.MaxLive, v.Prefetch
	unread := g.has("max_live") && !live.Set || g.has("prefetch") && !ahead.Set
	if unread || live.V >= 1+ahead.V {
		return
	}
	pos := live.Pos
	if !live.Set {
		pos = ahead.Pos
	}
	w.at(pos, CodeTooFewSlots, "`max_live` is %d and `prefetch` is %d: max_live must be at least 1 + prefetch", live.V, ahead.V).
		fix("write `max_live: %d`, or a smaller `prefetch`", ahead.V+1)
}

func checkBudget(w *walker, g given, b *Budget) {
	if b.Device.V > 0 && b.Reserve.V >= b.Device.V {
		w.at(b.Reserve.Pos, CodeOutOfRange, "`reserve` is %d bytes, which leaves nothing of the %d bytes of `device`", b.Reserve.V, b.Device.V).
			fix("write a `reserve` below `device`")
	}
}

func checkOverride(w *walker, g given, o *Override) {
	if g.complete && len(g.pairs) == 1 && g.has("match") {
		w.fault(g.node, CodeMissingKey, "an override says what to change, this one only has `match`").
			fix("add one of `dtype`, `init`, `trainable` or `decay`")
	}
	if o.DType == nil || o.Init == nil {
		return
	}
	if why := o.Init.Problem(o.DType.V); why != "" {
		w.at(o.Init.Pos, CodeInitDType, "override %s sets dtype %s, %s", shown(o.Match.V), o.DType.V, why).
			fix("choose an init that fits the dtype")
	}
}

func checkParam(w *walker, g given, p *Param) {
	if g.has("dtype") && !p.DType.Set {
		p.Shape, p.Init = nil, nil // they cannot be judged without the dtype
	}
	if !g.has("tied_to") {
		w.require(g, "shape", "`shape:` with a list of dimensions, or `tied_to:` with a parameter's name")
		return
	}
	for _, key := range []string{"shape", "dtype", "init", "trainable", "decay"} {
		if extra, ok := g.pairs[key]; ok {
			w.at(extra.at, CodeTiedKeys, "a tied parameter has no `%s` of its own", key).
				fix("remove it: shape, dtype and the rest are those of the parameter that owns the storage")
		}
	}
}

func checkBlock(w *walker, g given, b *Block) {
	if p, given := g.pairs["params"]; !g.has("uses") {
		if !given {
			w.require(g, "params", "`params:` with a list of parameters, or `uses:` with a list of names")
		} else if p.node.Kind == yaml.SequenceNode && len(p.node.Content) == 0 {
			w.fault(p.node, CodeEmptyList, "the block has no parameters and uses none").fix("add a parameter, or remove the block")
		}
	}
	if g.has("repeat") && b.Repeat == nil {
		return // its variable is not known
	}
	c := templates{w, b.Repeat}
	c.check(b.Name, true)
	for _, p := range b.Params {
		c.check(p.Name, p.TiedTo.V == "")
		c.check(p.TiedTo, false)
	}
	for _, use := range b.Uses {
		c.check(use, false)
	}
	if b.Repeat != nil {
		c.once(b.Name)
	}
}

// templates checks the names of a block.
type templates struct {
	w      *walker
	repeat *Repeat
}

// check refuses stray braces and unknown variables, and asks for the variable
// where names of instances must differ.
func (c templates) check(name At[string], vary bool) {
	if name.V == "" {
		return
	}
	if _, err := split(name.V); err != nil {
		c.w.at(name.Pos, CodeBadPlaceholder, "%s has %v", shown(name.V), err).
			fix("write `{{` and `}}` for literal braces")
		return
	}
	found := Placeholders(name.V)
	for _, variable := range found {
		if c.repeat == nil || variable != c.repeat.Var {
			c.unknown(name, variable)
		}
	}
	if vary && c.repeat != nil && !slices.Contains(found, c.repeat.Var) {
		c.w.at(name.Pos, CodeMissingPlaceholder, "%s lacks `{%s}`, so that every instance would have the same name", shown(name.V), c.repeat.Var).
			fix("put `{%s}` where the number of the instance goes", c.repeat.Var)
	}
}

func (c templates) unknown(name At[string], variable string) {
	d := c.w.at(name.Pos, CodeUnknownPlaceholder, "%s has the placeholder `{%s}`, which no `repeat` of this block defines", shown(name.V), variable)
	if c.repeat != nil {
		d.fix("write `{%s}`, or `{{%s}}` for literal braces", c.repeat.Var, variable)
	} else {
		d.fix("add `repeat: {%s: 12}` to the block, or write `{{%s}}` for literal braces", variable, variable)
	}
}

// once refuses a block name that holds its variable twice.
func (c templates) once(name At[string]) {
	if n := len(Placeholders(name.V)); n > 1 {
		c.w.at(name.Pos, CodeBadPlaceholder, "block name %s has %d placeholders, it takes one", shown(name.V), n).
			fix("write `{%s}` once", c.repeat.Var)
	}
}
