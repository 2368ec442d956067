package plan

import (
	"regexp"

	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// ruleSet holds for each key the last override that sets it, nil for none.
type ruleSet struct {
	dtype, init, trainable, decay *spec.Override
}

// maxMatches bounds rules times names, the work of matching overrides.
const maxMatches = 1 << 26

// applyOverrides finds the owners that each rule matches.
func (b *builder) applyOverrides() {
	if n := len(b.spec.Overrides); n > 0 && len(b.names) > maxMatches/n {
		b.fault(spec.Errorf(b.spec.Overrides[0].Pos, spec.CodeTooManyNames, "%d overrides for %d parameters are too many", n, len(b.names)).
			WithHint("match more names with one rule, or set the keys at the parameters"))
		return
	}
	for i := range b.spec.Overrides {
		rule := &b.spec.Overrides[i]
		matched := false
		for _, bl := range b.blocks {
			for _, p := range bl.params {
				matched = b.applyOverride(rule, p) || matched
			}
		}
		if !matched {
			b.unmatched(rule)
		}
	}
}

// applyOverride reports whether the rule matches an instance of the owner. Half
// a repeat would need a second layout of the same type, so it is refused.
func (b *builder) applyOverride(rule *spec.Override, p *param) bool {
	if p.alias() {
		return false
	}
	matches := int64(0)
	for n := range p.block.count() {
		if layout.Match(rule.Match.V, p.block.instance(p.name(), n)) {
			matches++
		}
	}
	if matches == 0 {
		return false
	}
	if matches < p.block.count() {
		if p.doubled {
			return true
		}
		b.fault(spec.Errorf(rule.Match.Pos, spec.CodeOverridePartial, "%q matches %d of the %d instances of %q",
			rule.Match.V, matches, p.block.count(), p.name()).
			WithHint("match all instances or none, or take the odd ones out of the repeat"))
		return true
	}
	p.rules.add(rule)
	return true
}

func (b *builder) unmatched(rule *spec.Override) {
	d := spec.Errorf(rule.Match.Pos, spec.CodeOverrideUnmatched, "%q matches no parameter that owns its storage", rule.Match.V)
	for _, bl := range b.blocks {
		for _, p := range bl.params {
			if p.alias() && layout.Match(rule.Match.V, bl.instance(p.name(), 0)) {
				b.fault(d.WithHint("%q is tied to %q: match the parameter that owns the storage", p.name(), p.spec.TiedTo.V))
				return
			}
		}
	}
	if free := placeholder.ReplaceAllString(rule.Match.V, "*"); free != rule.Match.V {
		b.fault(d.WithHint("write %q: names are matched with the index in place of a placeholder, and `*` stands for any characters", free))
		return
	}
	b.fault(d.WithHint("`*` stands for any characters; names are matched whole%s", b.didYouMean(rule.Match.V)))
}

// placeholder is what a pattern holds by mistake.
var placeholder = regexp.MustCompile(`\{[A-Za-z_][A-Za-z0-9_]*\}`)

func (s *ruleSet) add(rule *spec.Override) {
	if rule.DType != nil {
		s.dtype = rule
	}
	if rule.Init != nil {
		s.init = rule
	}
	if rule.Trainable != nil {
		s.trainable = rule
	}
	if rule.Decay != nil {
		s.decay = rule
	}
}

// list returns the rules that decided something, by key.
func (s *ruleSet) list() []Rule {
	var rules []Rule
	add := func(key string, rule *spec.Override) {
		if rule != nil {
			rules = append(rules, Rule{Key: key, Match: rule.Match.V, Pos: rule.Pos})
		}
	}
	add("dtype", s.dtype)
	add("init", s.init)
	add("trainable", s.trainable)
	add("decay", s.decay)
	return rules
}

// decideValues settles dtype, shape, trainable, decay and init of every owner.
func (b *builder) decideValues() {
	for _, bl := range b.blocks {
		for _, p := range bl.params {
			if !p.alias() && !p.doubled {
				b.decide(p)
			}
		}
	}
}

func (b *builder) decide(p *param) {
	f := &p.field
	f.Name, f.Owner, f.Pos, f.Own, f.Rules = p.name(), p.name(), p.spec.Name.Pos, true, p.rules.list()
	f.DType, p.decay = p.spec.DType.V, p.spec.Decay.V
	if r := p.rules.dtype; r != nil {
		f.DType = r.DType.V
	}
	if r := p.rules.decay; r != nil {
		p.decay = r.Decay.V
	}
	for _, d := range p.spec.Shape {
		f.Shape = append(f.Shape, d.V)
	}
	var err error
	if f.Numel, err = layout.Numel(f.Shape); err != nil {
		b.fault(spec.Errorf(p.spec.Name.Pos, spec.CodeOverflow, "parameter %q: %v", p.name(), err).WithHint("%s", smaller))
	}
	b.decideTrainable(p)
	b.decideInit(p)
}

// decideTrainable refuses to train what has no gradient, where the spec asks
// for it in so many words.
func (b *builder) decideTrainable(p *param) {
	said := p.spec.Trainable
	if r := p.rules.trainable; r != nil {
		said = *r.Trainable
		said.Set = true
	}
	can := p.field.DType.Trainable()
	p.trainable = can && (said.V || !said.Set)
	if said.Set && said.V && !can {
		b.fault(spec.Errorf(said.Pos, spec.CodeNotTrainable, "parameter %q has dtype %s, which cannot be trained", p.name(), p.field.DType).
			WithHint("leave trainable out, or choose f64, f32, bf16 or f16"))
	}
}

func (b *builder) decideInit(p *param) {
	init := p.spec.Init
	if r := p.rules.init; r != nil {
		init = r.Init
	}
	if init == nil {
		return
	}
	if why := init.Problem(p.field.DType); why != "" {
		b.fault(spec.Errorf(init.Pos, spec.CodeInitDType, "parameter %q has dtype %s, %s", p.name(), p.field.DType, why).
			WithHint("integers and bool take ones, zeros or a whole constant"))
	}
	p.init = &random.Distribution{
		Kind: random.Kind(init.Kind), Value: init.Value,
		Mean: init.Mean, Std: init.Std, Cut: init.Cut, Low: init.Low, High: init.High,
	}
}
