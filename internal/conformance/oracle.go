package conformance

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/spec"
)

// Owner is a parameter that owns its storage, as the spec describes it.
type Owner struct {
	Name             string // expanded
	Shape            []int64
	Numel            int64
	Type             dtype.DType
	Trainable, Decay bool
	Init             *spec.Init
	Blocks           int // how many blocks see it
}

// Field is a parameter as a block sees it.
type Field struct {
	Param string // the template under which the block knows it
	Owner *Owner
	Own   bool // the block declares it and it owns its storage
}

// Block is one instance of a block.
type Block struct {
	Kind     string // the template of its name
	Name     string // expanded
	Repeated bool
	Index    int // the spec's own, where Repeated
	Fields   []Field
}

// Oracle is a spec with its repeats written out, its ties followed and its
// overrides applied.
type Oracle struct {
	Spec   *spec.Model
	Owners []*Owner
	Blocks []Block
	byName map[string]*Owner
	ties   map[string]string // expanded alias: expanded target
}

// NewOracle interprets a parsed spec.
func NewOracle(m *spec.Model) (*Oracle, error) {
	o := &Oracle{Spec: m, byName: map[string]*Owner{}, ties: map[string]string{}}
	o.eachInstance(o.declare)
	if err := o.override(); err != nil {
		return nil, err
	}
	var err error
	o.eachInstance(func(b *spec.Block, i int64) {
		if fault := o.view(b, i); err == nil {
			err = fault
		}
	})
	return o, err
}

// eachInstance visits the blocks in order, repeats written out.
func (o *Oracle) eachInstance(visit func(b *spec.Block, i int64)) {
	for n := range o.Spec.Blocks {
		b := &o.Spec.Blocks[n]
		if b.Repeat == nil {
			visit(b, 0)
			continue
		}
		for i := b.Repeat.First; i <= b.Repeat.Last; i++ {
			visit(b, i)
		}
	}
}

func expand(b *spec.Block, template string, i int64) string {
	if b.Repeat == nil {
		return spec.Literal(template)
	}
	return spec.Expand(template, b.Repeat.Var, i)
}

func (o *Oracle) declare(b *spec.Block, i int64) {
	for n := range b.Params {
		p := &b.Params[n]
		name := expand(b, p.Name.V, i)
		if p.TiedTo.V != "" {
			o.ties[name] = expand(b, p.TiedTo.V, i)
			continue
		}
		owner := &Owner{Name: name, Numel: 1, Type: p.DType.V, Decay: p.Decay.V, Init: p.Init, Shape: []int64{}}
		for _, d := range p.Shape {
			owner.Shape = append(owner.Shape, d.V)
			owner.Numel *= d.V
		}
		owner.Trainable = owner.Type.Trainable() && (p.Trainable.V || !p.Trainable.Set)
		o.Owners = append(o.Owners, owner)
		o.byName[name] = owner
	}
}

// override applies the rules in order, so that the last one wins.
func (o *Oracle) override() error {
	for _, rule := range o.Spec.Overrides {
		if rule.DType != nil {
			return fmt.Errorf("override %q sets dtype, which the oracle does not follow; write the dtype at the parameter", rule.Match.V)
		}
		pattern := "(?s)^" + strings.ReplaceAll(regexp.QuoteMeta(rule.Match.V), `\*`, ".*") + "$"
		matches := regexp.MustCompile(pattern).MatchString
		for _, owner := range o.Owners {
			if matches(owner.Name) {
				owner.apply(&rule)
			}
		}
	}
	return nil
}

func (w *Owner) apply(rule *spec.Override) {
	if rule.Trainable != nil {
		w.Trainable = rule.Trainable.V && w.Type.Trainable()
	}
	if rule.Decay != nil {
		w.Decay = rule.Decay.V
	}
	if rule.Init != nil {
		w.Init = rule.Init
	}
}

// view lists what an instance of a block sees: its parameters in order, then
// those it uses.
func (o *Oracle) view(b *spec.Block, i int64) error {
	out := Block{Kind: b.Name.V, Name: expand(b, b.Name.V, i), Repeated: b.Repeat != nil, Index: int(i)}
	for n := range b.Params {
		p := &b.Params[n]
		owner, err := o.owner(expand(b, p.Name.V, i))
		if err != nil {
			return err
		}
		out.Fields = append(out.Fields, Field{Param: p.Name.V, Owner: owner, Own: p.TiedTo.V == ""})
	}
	for _, use := range b.Uses {
		owner, err := o.owner(expand(b, use.V, i))
		if err != nil {
			return err
		}
		out.Fields = append(out.Fields, Field{Param: use.V, Owner: owner})
	}
	for _, owner := range out.owners() {
		owner.Blocks++
	}
	o.Blocks = append(o.Blocks, out)
	return nil
}

// owner follows ties to the storage.
func (o *Oracle) owner(name string) (*Owner, error) {
	for range len(o.ties) + 1 {
		if owner := o.byName[name]; owner != nil {
			return owner, nil
		}
		name = o.ties[name]
	}
	return nil, fmt.Errorf("no parameter owns the storage of %q", name)
}

// owners lists the storages that a block sees, each once.
func (b *Block) owners() []*Owner {
	var list []*Owner
	seen := map[*Owner]bool{}
	for _, f := range b.Fields {
		if !seen[f.Owner] {
			seen[f.Owner] = true
			list = append(list, f.Owner)
		}
	}
	return list
}

// trainable lists the fields that have a gradient.
func (b *Block) trainable() []Field {
	var list []Field
	for _, f := range b.Fields {
		if f.Owner.Trainable {
			list = append(list, f)
		}
	}
	return list
}

// worlds lists the world sizes that are small enough to run in one process.
func (o *Oracle) worlds() []int {
	var list []int
	for _, w := range o.Spec.Topology.Worlds {
		if w.V <= 8 {
			list = append(list, int(w.V))
		}
	}
	return list
}

// valueType is what Update shows of an owner: its master where it has one.
func (o *Oracle) valueType(w *Owner) dtype.DType {
	if o.Spec.Optimizer.Kind.V != spec.OptimizerNone && w.Trainable && w.Type != dtype.Float64 {
		return dtype.Float32
	}
	return w.Type
}

// gradType is the type in which an owner's gradient is summed.
func (w *Owner) gradType() dtype.DType {
	if w.Type == dtype.Float64 {
		return dtype.Float64
	}
	return dtype.Float32
}

// wireType is the type in which an owner's gradient is sent.
func (o *Oracle) wireType(w *Owner) dtype.DType {
	if w.Type == dtype.Float64 {
		return dtype.Float64
	}
	return o.Spec.Gradients.Reduce.V
}

// divisor is what a summed gradient is divided by.
func (o *Oracle) divisor(world int) float64 {
	if by := o.Spec.Gradients.DivideBy.V; by != 0 {
		return float64(by)
	}
	return float64(world)
}
