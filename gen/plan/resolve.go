package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/spec"
)

// bound refuses models whose expanded names would not fit in memory.
func (b *builder) bound() {
	limit := int64(min(maxInstances, maxPlaced/len(b.worlds)))
	left := limit
	for i := range b.spec.Blocks {
		bl := &block{spec: &b.spec.Blocks[i]}
		each := int64(max(1, len(bl.spec.Params)+len(bl.spec.Uses)))
		if bl.count() > left/each {
			b.fault(spec.Errorf(bl.spec.Pos, spec.CodeTooManyNames,
				"block %q brings the model to more than %d names, repeats expanded, which is the most for %d world sizes",
				bl.spec.Name.V, limit, len(b.worlds)).
				WithHint("use fewer instances or list fewer world sizes"))
			return
		}
		left -= bl.count() * each
		b.blocks = append(b.blocks, bl)
	}
}

// declare lists the parameters and checks that expanded names are unique.
func (b *builder) declare() {
	b.names = map[string]*param{}
	blocks := map[string]spec.Pos{}
	for _, bl := range b.blocks {
		bl.byName = map[string]*param{}
		for i := range bl.spec.Params {
			p := &param{spec: &bl.spec.Params[i], block: bl}
			bl.params = append(bl.params, p)
			bl.byName[p.name()] = p
			b.declareParam(p)
		}
		b.declareBlock(bl, blocks)
	}
}

func (b *builder) declareBlock(bl *block, seen map[string]spec.Pos) {
	for n := range bl.count() {
		name := bl.instance(bl.spec.Name.V, n)
		if first, found := seen[name]; found {
			b.fault(spec.Errorf(bl.spec.Name.Pos, spec.CodeDuplicateName, "block %q is already declared in line %d", name, first.Line).
				WithHint("give one of the two another name"))
			return
		}
		seen[name] = bl.spec.Name.Pos
	}
}

func (b *builder) declareParam(p *param) {
	for n := range p.block.count() {
		name := p.block.instance(p.name(), n)
		first, found := b.names[name]
		if found {
			first.doubled, p.doubled = true, true
		}
		if first == p {
			b.fault(spec.Errorf(p.spec.Name.Pos, spec.CodeDuplicateName, "every instance of block %q would declare %q", p.block.spec.Name.V, name).
				WithHint("put `{%s}` into the name, or read the owner under its own name with `uses`", p.block.variable()))
			return
		}
		if found {
			b.fault(spec.Errorf(p.spec.Name.Pos, spec.CodeDuplicateName, "parameter %q is already declared in line %d", name, first.spec.Name.Pos.Line).
				WithHint("give one of the two another name"))
			return
		}
		b.names[name] = p
	}
}

// resolveTies binds every name to the parameter that owns its storage. A tie
// inside one block is only another name; one across blocks makes the owner
// shared.
func (b *builder) resolveTies() {
	for _, bl := range b.blocks {
		for _, p := range bl.params {
			if p.alias() {
				p.target = b.lookUp(p)
			} else {
				p.owner, p.local = p, true
			}
		}
	}
	for _, bl := range b.blocks {
		for _, p := range bl.params {
			b.followTies(p)
		}
	}
}

// lookUp finds what tied_to names: a parameter of the same block, in the same
// instance, or one of any block by its expanded name.
func (b *builder) lookUp(p *param) *param {
	name := p.spec.TiedTo.V
	if found := p.block.byName[name]; found != nil {
		return found
	}
	if found := b.names[spec.Literal(name)]; found != nil {
		return found
	}
	for _, bl := range b.blocks {
		if found := bl.byName[name]; found != nil {
			return found
		}
	}
	b.fault(spec.Errorf(p.spec.TiedTo.Pos, spec.CodeTieMissing, "%q is tied to %q, which no block declares", p.name(), name).
		WithHint("name the parameter that owns the storage, or declare it%s", b.didYouMean(name)))
	return nil
}

// maxCompared bounds the names that suggestions are looked for among, so that a
// spec of very many faults does not take minutes to refuse.
const maxCompared = 1 << 16

// didYouMean suggests the owner whose name is most like a name that was not
// found, as the end of a hint; it may be the name behind its block's.
func (b *builder) didYouMean(name string) string {
	var names []string
	for _, bl := range b.blocks {
		if b.compared += len(bl.params); b.compared > maxCompared {
			return ""
		}
		for _, p := range bl.params {
			if p.alias() {
				continue
			}
			if name == bl.spec.Name.V+"."+p.name() {
				return fmt.Sprintf("; did you mean %q? A block's name is no part of its parameters' names", p.name())
			}
			names = append(names, p.name())
		}
	}
	if nearest := spec.Nearest(name, names); nearest != "" {
		return fmt.Sprintf("; did you mean %q?", nearest)
	}
	return ""
}

// followTies walks a chain of ties to its owner, or to a link whose owner is
// known, and binds all links on the way.
func (b *builder) followTies(p *param) {
	var chain []*param
	place := map[*param]int{}
	at := p
	for at.owner == nil {
		if i, found := place[at]; found {
			b.reportCycle(chain[i:])
			return
		}
		if at.target == nil || at.broken {
			return
		}
		place[at] = len(chain)
		chain = append(chain, at)
		at = at.target
	}
	for _, link := range slices.Backward(chain) {
		b.bind(link)
	}
}

// bind gives an alias the owner of its target.
func (b *builder) bind(p *param) {
	owner := p.target.owner
	p.owner = owner
	p.local = p.target.local && p.target == p.block.byName[p.spec.TiedTo.V]
	if owner.block.repeated() && !p.local {
		b.fault(spec.Errorf(p.spec.TiedTo.Pos, spec.CodeTieRepeated,
			"%q is tied to %q, which is stored in the repeated block %q: only parameters of blocks without repeat can be shared",
			p.name(), p.spec.TiedTo.V, owner.block.spec.Name.V).
			WithHint("let a block without repeat own the storage, and tie both names to it"))
	}
	owner.shared = owner.shared || p.block != owner.block
}

// reportCycle reports a ring of ties once, at its first name.
func (b *builder) reportCycle(ring []*param) {
	var names []string
	for _, p := range ring {
		p.broken = true
		names = append(names, p.name())
	}
	names = append(names, ring[0].name())
	b.fault(spec.Errorf(ring[0].spec.TiedTo.Pos, spec.CodeTieCycle, "ties go round in a circle: %s", strings.Join(names, " -> ")).
		WithHint("give one of them a shape in place of tied_to"))
}

// resolveUses binds what blocks read of other blocks under the owner's name.
func (b *builder) resolveUses() {
	for _, bl := range b.blocks {
		for _, use := range bl.spec.Uses {
			owner := b.names[spec.Literal(use.V)]
			if problem, fix := b.useProblem(bl, use.V, owner); problem != "" {
				b.fault(spec.Errorf(use.Pos, spec.CodeUsesInvalid, "block %q uses %q, %s", bl.spec.Name.V, use.V, problem).WithHint("%s", fix))
				continue
			}
			bl.uses = append(bl.uses, owner)
			owner.shared = true
		}
	}
}

// useProblem says why a block cannot use a parameter, and what to do.
func (b *builder) useProblem(bl *block, name string, owner *param) (problem, fix string) {
	if owner == nil {
		owner = bl.byName[name] // its own, in another instance or in this one
	}
	switch {
	case owner == nil:
		return "which no block declares", "name a parameter of another block" + b.didYouMean(name)
	case owner.block == bl:
		return "which is its own", "a block reads its own parameters without saying so: leave it out"
	case owner.alias():
		return "which is tied to " + owner.spec.TiedTo.V, "use the parameter that owns the storage"
	case owner.block.repeated():
		return "whose block is repeated", "only parameters of blocks without repeat can be shared"
	case slices.Contains(bl.uses, owner):
		return "and says so twice", "leave one of the two out"
	}
	return "", ""
}

// nameKinds gives blocks and their fields Go names and refuses two that meet.
func (b *builder) nameKinds() {
	kinds := map[string]string{}
	for _, bl := range b.blocks {
		goName := KindName(bl.spec.Name.V)
		b.claim(kinds, goName, bl.spec.Name, "block")
		fields := map[string]string{}
		for _, p := range bl.params {
			p.goName = FieldName(bl.spec.Name.V, p.name())
			if !p.doubled {
				b.claim(fields, p.goName, p.spec.Name, "parameter")
			}
		}
		for _, use := range bl.spec.Uses {
			b.claim(fields, FieldName(bl.spec.Name.V, use.V), use, "parameter")
		}
		b.plan.Kinds = append(b.plan.Kinds, Kind{Block: bl.spec, GoName: goName})
	}
}

// claim takes a Go name for a name of the spec.
func (b *builder) claim(taken map[string]string, goName string, name spec.At[string], what string) {
	other, found := taken[goName]
	if !found {
		taken[goName] = name.V
		return
	}
	if other == name.V {
		return // the same name twice is a fault of its own
	}
	b.fault(spec.Errorf(name.Pos, spec.CodeGoNameCollision, "%s %q and %q both become the Go name %s", what, other, name.V, goName).
		WithHint("rename one: the block's name in front, a final .weight and placeholders do not tell names apart"))
}
