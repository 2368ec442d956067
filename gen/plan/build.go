package plan

import (
	"slices"

	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// Limits on the expanded parameters of a model, so that a repeat of millions is
// a fault and not a machine out of memory. The largest public models have some
// 92,000.
const (
	maxInstances = 1 << 18
	maxPlaced    = 1 << 21 // instances times world sizes
)

// pass is one step from spec to plan.
type pass func(*builder)

// stages in order. All passes of a stage run, so that all its faults are
// reported; a stage runs only on a model that the ones before it found sound.
// Resolving ends with every name bound to storage and every value decided; what
// follows is arithmetic on that.
var stages = [][]pass{
	{(*builder).chooseWorlds},
	{(*builder).bound},
	{
		(*builder).declare, (*builder).resolveTies, (*builder).resolveUses,
		(*builder).applyOverrides, (*builder).decideValues, (*builder).nameKinds,
	},
	{(*builder).bucket},
	{(*builder).layOut},
	{(*builder).place},
	{(*builder).measureTraffic},
	{(*builder).hash},
	{(*builder).verify},
}

// Build plans a model at the given world sizes; at those of the spec where none
// is given. Of the two results one is nil. A budget binds the world sizes that
// the spec lists, others are planned without it.
func Build(m *spec.Model, worlds ...int64) (*Plan, spec.Diagnostics) {
	b := &builder{spec: m, worlds: worlds, plan: &Plan{Spec: m, Layout: &layout.Model{}}}
	for _, stage := range stages {
		for _, run := range stage {
			run(b)
		}
		if len(b.faults) > 0 {
			return nil, b.faults.Locate(m.Path, m.Source)
		}
	}
	return b.plan, nil
}

// builder is the state that the passes hand on.
type builder struct {
	spec   *spec.Model
	worlds []int64
	faults spec.Diagnostics
	blocks []*block
	names  map[string]*param // by expanded name
	shared []*param          // owners used by more than one block, by first appearance
	plan   *Plan

	compared int // names that suggestions were looked for among
}

// block is a block of the spec with its parameters resolved.
type block struct {
	spec   *spec.Block
	params []*param
	byName map[string]*param // by template
	uses   []*param          // owners in other blocks
}

// param is a parameter of a block, in all its instances.
type param struct {
	spec   *spec.Param
	block  *block
	target *param // what tied_to names; nil for an owner
	local  bool   // the storage is in the same instance of the block
	broken bool   // part of a cycle of ties
	// An instance has the name of another parameter's: overrides and Go names
	// that fit only one of the two are no faults of their own.
	doubled bool
	owner   *param // where the storage is; itself for an owner
	shared  bool   // of an owner: used by more than one block
	goName  string
	rules   ruleSet
	field   Field // of an owner

	trainable, decay bool // of an owner
	init             *random.Distribution
}

// fault records a diagnostic.
func (b *builder) fault(d spec.Diagnostic) { b.faults = append(b.faults, d) }

func (bl *block) first() int64 {
	if bl.spec.Repeat == nil {
		return 0
	}
	return bl.spec.Repeat.First
}

func (bl *block) count() int64 {
	if bl.spec.Repeat == nil {
		return 1
	}
	return bl.spec.Repeat.Len()
}

func (bl *block) variable() string {
	if bl.spec.Repeat == nil {
		return ""
	}
	return bl.spec.Repeat.Var
}

// instance expands a template of the block for its instance n, counted from 0.
func (bl *block) instance(template string, n int64) string {
	return spec.Expand(template, bl.variable(), bl.first()+n)
}

func (bl *block) repeated() bool { return bl.spec.Repeat != nil }

func (p *param) name() string { return p.spec.Name.V }

func (p *param) alias() bool { return p.spec.TiedTo.V != "" }

// chooseWorlds takes the world sizes that were asked for, or the spec's.
func (b *builder) chooseWorlds() {
	if len(b.worlds) == 0 {
		for _, w := range b.spec.Topology.Worlds {
			b.worlds = append(b.worlds, w.V)
		}
	}
	b.worlds = slices.Clone(b.worlds)
	slices.Sort(b.worlds)
	b.worlds = slices.Compact(b.worlds)
	if len(b.worlds) == 0 || b.worlds[0] < 1 {
		b.fault(spec.Errorf(b.spec.Topology.Pos, spec.CodeWorldSize, "a plan needs world sizes of at least 1, got %v", b.worlds).
			WithHint("ask for 1 rank or more"))
	}
}
