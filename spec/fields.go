package spec

import (
	"math"
	"slices"

	"github.com/shardgen/shardgen/runtime/dtype"
	"gopkg.in/yaml.v3"
)

// APIVersion is the version of the language that this package reads.
const APIVersion = "shardgen/v1alpha1"

// maxCount bounds ranks, slots and the like, far above any machine.
const maxCount = 1 << 16

// Kinds of value that several keys share.
var (
	anyType     = elementTypes(CodeUnknownDType, dtype.All(), nil)
	reduceTypes = []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16}
	reduceType  = elementTypes(CodeUnknownValue, reduceTypes, nil)
	stateType   = elementTypes(CodeUnknownValue, []dtype.DType{dtype.Float32}, otherFloats())
	count       = integer(1, maxCount)
	dimension   = integer(0, math.MaxInt64)
)

// otherFloats lists the element types that optimizer state may have one day.
func otherFloats() []dtype.DType {
	return slices.DeleteFunc(dtype.All(), func(d dtype.DType) bool { return !d.IsFloat() || d == dtype.Float32 })
}

// rootTable is the whole language; the tables below are its parts. Parser,
// JSON Schema and reference page are driven by them alone.
var rootTable = &table[Model]{
	name: "the spec", doc: "A model and how it is sharded.", holders: true,
	check: checkRoot,
	fields: []field[Model]{
		one("apiVersion", choice(CodeAPIVersion, []option[string]{{APIVersion, APIVersion}}, nil), func(m *Model) *At[string] { return &m.APIVersion }).
			must().says("Version of the language."),
		one("model", text("a name"), func(m *Model) *At[string] { return &m.Name }).
			must().known("name").says("Name of the model."),
		one("package", text("a Go package name"), func(m *Model) *At[string] { return &m.Package }).
			orWords("the model's name in lower-case letters and digits").says("Name of the generated Go package."),
		one("dtype", anyType, func(m *Model) *At[dtype.DType] { return &m.DType }).
			or("f32").known("torch_dtype", "data_type").says("Element type of parameters that do not say their own."),
		within("topology", topologyTable, func(m *Model) *Topology { return &m.Topology }).
			must().like("{world: [1, 2]}").says("Over how many ranks the model is sharded."),
		within("shard", shardTable, func(m *Model) *Shard { return &m.Shard }).
			says("How the parameters of a block are cut into shards."),
		within("gather", gatherTable, func(m *Model) *Gather { return &m.Gather }).
			says("How many blocks are gathered at once."),
		within("gradients", gradientsTable, func(m *Model) *Gradients { return &m.Gradients }).
			known("grads").says("How gradients are reduced."),
		optimizerField(),
		within("budget", budgetTable, func(m *Model) *Budget { return &m.Budget }).
			says("What Open may allocate on a rank; checked at generation for each listed world."),
		many("blocks", blockTable, 1, func(m *Model) *[]Block { return &m.Blocks }).
			must().known("layers", "modules").like("[{name: a, params: [{name: w, shape: [8]}]}]").says("The blocks of the model, in the order in which a forward pass reads them."),
		many("overrides", overrideTable, 0, func(m *Model) *[]Override { return &m.Overrides }).
			says("Rules that change keys of parameters by name. Per key the last matching rule wins; a rule that matches no owner is an error."),
		later[Model]("quantize").known("quant", "quantization").says("Quantized weights, gradients and frozen parameters."),
		later[Model]("offload").says("Shards kept in host memory or on NVMe."),
		later[Model]("schedule").says("A block order other than the spec's."),
	},
}

var topologyTable = &table[Topology]{
	name: "`topology`", doc: "Over how many ranks the model is sharded.",
	pos: func(t *Topology) *Pos { return &t.Pos },
	fields: []field[Topology]{
		whole("world", worlds, func(t *Topology) *[]At[int64] { return &t.Worlds }).
			must().known("world_size", "ranks", "num_ranks").says("World sizes that the package supports: Open picks by the communicator's size."),
		one("ranks_per_node", count, func(t *Topology) *At[int64] { return &t.RanksPerNode }).
			orWords("the world: all ranks on one node").known("gpus_per_node", "local_world_size").says("Ranks on one node, recorded in the plan."),
		later[Topology]("expert").known("experts", "expert_parallel").says("Ranks among which the experts are divided."),
	},
}

var shardTable = &table[Shard]{
	name: "`shard`", doc: "How the parameters of a block are cut into shards.",
	pos: func(s *Shard) *Pos { return &s.Pos },
	fields: []field[Shard]{
		one("layout", onlyWord("flat", "even", "ragged"), func(s *Shard) *At[string] { return &s.Layout }).
			or("flat").says("`flat`: a bucket is one contiguous stretch and each rank owns an equal part of it."),
		one("align_bytes", alignment, func(s *Shard) *At[int64] { return &s.AlignBytes }).
			or("256").known("alignment").says("Every parameter and every shard starts at a multiple of this."),
		laterUnless[Shard]("resident_max_elements", "0").
			says("Parameters of at most so many elements stay gathered; 0 is none."),
		laterUnless[Shard]("resident_total_elements", "0").
			says("Bound on the elements that stay gathered; 0 is none."),
		later[Shard]("secondary").says("A second copy of the shards inside each node."),
	},
}

var gatherTable = &table[Gather]{
	name: "`gather`", doc: "How many blocks are gathered at once.",
	pos: func(g *Gather) *Pos { return &g.Pos }, check: checkGather,
	fields: []field[Gather]{
		one("max_live", count, func(g *Gather) *At[int64] { return &g.MaxLive }).
			or("2").says("Slots, each for one gathered block; at least 1 + `prefetch`."),
		one("prefetch", integer(0, maxCount-1), func(g *Gather) *At[int64] { return &g.Prefetch }).
			or("1").says("Blocks that are gathered ahead of the trainer."),
		one("mode", onlyWord("all_gather", "all_reduce", "sequential"), func(g *Gather) *At[string] { return &g.Mode }).
			or("all_gather").says("The collective that gathers."),
	},
}

var gradientsTable = &table[Gradients]{
	name: "`gradients`", doc: "How gradients are reduced.",
	pos: func(g *Gradients) *Pos { return &g.Pos },
	fields: []field[Gradients]{
		one("reduce", reduceType, func(g *Gradients) *At[dtype.DType] { return &g.Reduce }).
			or("f32").known("reduce_dtype", "dtype").says("Element type in which gradients are sent; those of f64 parameters always go in f64."),
		one("slots", count, func(g *Gradients) *At[int64] { return &g.Slots }).
			or("2").says("Full-size gradient buffers."),
		one("divide_by", integer(1, math.MaxInt64), func(g *Gradients) *At[int64] { return &g.DivideBy }).
			orWords("the world size").says("Divisor of the summed gradient."),
	},
}

var budgetTable = &table[Budget]{
	name: "`budget`", doc: "What Open may allocate on a rank. A bound of 0 is no bound.",
	pos: func(b *Budget) *Pos { return &b.Pos }, check: checkBudget,
	fields: []field[Budget]{
		one("device", size, func(b *Budget) *At[int64] { return &b.Device }).
			or("0").known("gpu").says("Memory of the rank's device; on CPU ranks its own memory."),
		one("host", size, func(b *Budget) *At[int64] { return &b.Host }).
			or("0").known("cpu").says("Memory of the host for this rank, recorded in the plan."),
		one("reserve", size, func(b *Budget) *At[int64] { return &b.Reserve }).
			or("0").known("reserved").says("Part of `device` that the driver and the activations need."),
	},
}

var blockTable = &table[Block]{
	name: "a block", doc: "Parameters that are gathered and released together, or with `repeat` a family of such blocks.",
	pos: func(b *Block) *Pos { return &b.Pos }, check: checkBlock,
	fields: []field[Block]{
		one("name", text("a name"), func(b *Block) *At[string] { return &b.Name }).
			must().says("Name of the block. With `repeat` it holds the variable in braces once: `h.{i}`. `{{` and `}}` are literal braces."),
		whole("repeat", repeatKind, func(b *Block) **Repeat { return &b.Repeat }).
			says("One variable with a number of instances, `{i: 12}` for 0 to 11, or a range with both ends, `{i: 3..60}`."),
		many("params", paramTable, 0, func(b *Block) *[]Param { return &b.Params }).
			known("parameters", "weights").says("The parameters of the block, in order. A block without `uses` needs at least one."),
		whole("uses", list(text("a parameter's name"), "a list of names", 1), func(b *Block) *[]At[string] { return &b.Uses }).
			says("Parameters of other blocks that this block reads under their own names."),
	},
}

var paramTable = &table[Param]{
	name: "a parameter", doc: "A parameter owns its storage and has a shape, or is tied to one that does.",
	pos: func(p *Param) *Pos { return &p.Pos }, check: checkParam,
	fields: []field[Param]{
		one("name", text("a name"), func(p *Param) *At[string] { return &p.Name }).
			must().says("Name in checkpoints, kept as written. In a repeated block it holds the variable in braces."),
		whole("shape", list(dimension, "a list of dimensions such as `[768, 3072]`", 0), func(p *Param) *[]At[int64] { return &p.Shape }).
			known("size", "dims").says("Dimensions, each 0 or more; `[]` is a scalar. Required unless `tied_to` is given."),
		one("dtype", anyType, func(p *Param) *At[dtype.DType] { return &p.DType }).
			orWords("the model's").says("Element type."),
		whole("init", initKind, func(p *Param) **Init { return &p.Init }).
			says("Distribution of the initial values."),
		one("trainable", boolean, func(p *Param) *At[bool] { return &p.Trainable }).
			orWords("`true` for f64, f32, bf16 and f16").known("requires_grad", "frozen").says("Whether the parameter has a gradient."),
		one("decay", boolean, func(p *Param) *At[bool] { return &p.Decay }).
			or("true").known("weight_decay").says("Whether weight decay applies."),
		one("tied_to", text("a parameter's name"), func(p *Param) *At[string] { return &p.TiedTo }).
			known("alias_of", "tie").says("The parameter whose storage this name shares; then only `name` is given besides."),
		later[Param]("repeat").says("A group of parameters, such as experts."),
		later[Param]("shard_over").says("The process group over which a group is divided."),
		later[Param]("params").says("The parameters of a group."),
	},
}

var overrideTable = &table[Override]{
	name: "an override", doc: "A rule for every owner whose name matches.",
	pos: func(o *Override) *Pos { return &o.Pos }, check: checkOverride,
	fields: []field[Override]{
		one("match", text("a name, in which `*` stands for any characters"), func(o *Override) *At[string] { return &o.Match }).
			must().known("pattern", "name").says("Name to match. `*` stands for any characters, dots included."),
		maybe("dtype", anyType, func(o *Override) **At[dtype.DType] { return &o.DType }).says("Element type."),
		whole("init", initKind, func(o *Override) **Init { return &o.Init }).says("Distribution of the initial values."),
		maybe("trainable", boolean, func(o *Override) **At[bool] { return &o.Trainable }).
			known("requires_grad").says("Whether the parameters have gradients."),
		maybe("decay", boolean, func(o *Override) **At[bool] { return &o.Decay }).
			known("weight_decay").says("Whether weight decay applies."),
		later[Override]("resident").says("Parameters that stay gathered."),
		later[Override]("quantize").says("Quantization of these parameters."),
		later[Override]("offload").says("Offload of these parameters."),
	},
}

// onlyWord is a choice of which one word is built yet.
func onlyWord(built string, later ...string) kind[string] {
	return choice(CodeUnknownValue, []option[string]{{built, built}}, later)
}

const worldWords = "an integer from 1 to 65536, or an ascending list of them"

// worlds is one world size or several.
var worlds = kind[[]At[int64]]{
	words: worldWords,
	schema: func() schema {
		several := listSchema(count.schema(), 1)
		several["uniqueItems"] = true
		return anyOf(count.schema(), several)
	},
	read: func(w *walker, v value) ([]At[int64], bool) {
		if v.node.Kind == yaml.ScalarNode {
			n, ok := count.read(w, v)
			return []At[int64]{{V: n, Pos: v.pos(), Set: true}}, ok
		}
		all, ok := list(count, worldWords, 1).read(w, v)
		for i := 1; i < len(all); i++ {
			if all[i].V <= all[i-1].V {
				w.at(all[i].Pos, CodeNotAscending, "world size %d stands after %d", all[i].V, all[i-1].V).
					fix("list each world size once, in ascending order")
				return nil, false
			}
		}
		return all, ok
	},
}

// alignment is a power of two.
var alignment = kind[int64]{
	words: "a power of two from 16 to 65536",
	schema: func() schema {
		var all []int64
		for n := int64(16); n <= maxCount; n *= 2 {
			all = append(all, n)
		}
		return schema{"enum": all}
	},
	read: func(w *walker, v value) (int64, bool) {
		n, ok := integer(16, maxCount).read(w, v)
		if ok && n&(n-1) != 0 {
			w.fault(v.node, CodeOutOfRange, "%s is %d, it takes a power of two from 16 to 65536", v.subject(), n).
				fix("write a power of two, such as 256")
			return 0, false
		}
		return n, ok
	},
}

// The optimizers that have settings, by kind.
var optimizerTables = []struct {
	kind  OptimizerKind
	table *table[Optimizer]
}{
	{OptimizerAdamW, &table[Optimizer]{
		name: "`optimizer` of kind adamw", doc: "AdamW: two moments a parameter.", pos: optimizerPos,
		fields: []field[Optimizer]{optimizerKindField(OptimizerAdamW), masterField(),
			one("moments", stateType, func(o *Optimizer) *At[dtype.DType] { return &o.Moments }).
				or("f32").says("Element type of both moments."),
		},
	}},
	{OptimizerSGD, &table[Optimizer]{
		name: "`optimizer` of kind sgd", doc: "Stochastic gradient descent.", pos: optimizerPos,
		fields: []field[Optimizer]{optimizerKindField(OptimizerSGD), masterField(),
			one("momentum", choice(CodeUnknownValue, []option[bool]{{"none", false}, {"f32", true}}, []string{"f64", "bf16", "f16"}),
				func(o *Optimizer) *At[bool] { return &o.Momentum }).
				or("none").says("Element type of the momentum buffer, or none."),
		},
	}},
	{OptimizerNone, &table[Optimizer]{
		name: "`optimizer` of kind none", doc: "The trainer keeps its own state, outside the plan.", pos: optimizerPos,
		fields: []field[Optimizer]{optimizerKindField(OptimizerNone)},
	}},
}

func optimizerPos(o *Optimizer) *Pos { return &o.Pos }

func optimizerKindField(k OptimizerKind) field[Optimizer] {
	return one("kind", choice(CodeUnknownValue, []option[OptimizerKind]{{string(k), k}}, nil),
		func(o *Optimizer) *At[OptimizerKind] { return &o.Kind }).must().says("Which optimizer.")
}

func masterField() field[Optimizer] {
	return one("master", stateType, func(o *Optimizer) *At[dtype.DType] { return &o.Master }).
		or("f32").says("Element type of the master copies of low-precision parameters.")
}

var optimizerKinds = choice(CodeUnknownValue,
	[]option[OptimizerKind]{{"none", OptimizerNone}, {"adamw", OptimizerAdamW}, {"sgd", OptimizerSGD}}, nil)

func optimizerField() field[Model] {
	return field[Model]{
		key: "optimizer", kind: "`none`, or a map with `kind`", fallback: "none",
		doc: "Which optimizer state is sharded beside the parameters. With `none` a trainer's own state is outside the plan.",
		schema: func() schema {
			forms := []schema{{"const": "none"}}
			for _, o := range optimizerTables {
				forms = append(forms, o.table.schema())
			}
			return anyOf(forms...)
		},
		load: func(w *walker, v value, m *Model) { readOptimizer(w, v, &m.Optimizer) },
		preset: func(m *Model, pos Pos, _ string) {
			m.Optimizer = Optimizer{Pos: pos, Kind: At[OptimizerKind]{V: OptimizerNone, Pos: pos}}
		},
	}
}

func readOptimizer(w *walker, v value, o *Optimizer) {
	if v.node.Kind != yaml.MappingNode {
		readOptimizerWord(w, v, o)
		return
	}
	pairs := w.pairs(v.node)
	at := slices.IndexFunc(pairs, func(p pair) bool { return p.name == "kind" })
	if at < 0 {
		w.fault(v.node, CodeMissingKey, "`optimizer` lacks the key `kind`").fix("add `kind: adamw` or `kind: sgd`")
		return
	}
	k, ok := optimizerKinds.read(w, value{"optimizer.kind", pairs[at].node})
	if !ok {
		return
	}
	for _, form := range optimizerTables {
		if form.kind == k {
			form.table.read(w, v, o)
		}
	}
}

func readOptimizerWord(w *walker, v value, o *Optimizer) {
	switch {
	case v.node.Kind == yaml.ScalarNode && v.node.Value == "none":
		o.Pos = v.pos()
		o.Kind = At[OptimizerKind]{V: OptimizerNone, Pos: v.pos(), Set: true}
	default:
		w.wrongKind(v, "`none`, or a map such as `{kind: adamw}`")
	}
}

// vocabulary lists all keys of the language, for suggestions.
func vocabulary() []word {
	all := slices.Concat(rootTable.words(), topologyTable.words(), shardTable.words(), gatherTable.words(),
		gradientsTable.words(), budgetTable.words(), blockTable.words(), paramTable.words(), overrideTable.words(),
		initTable.words(), truncatedTable.words(), uniformTable.words())
	for _, o := range optimizerTables {
		all = append(all, o.table.words()...)
	}
	return all
}

func (t *table[M]) words() []word {
	words := make([]word, len(t.fields))
	for i, f := range t.fields {
		words[i] = word{f.key, t.name, f.also}
	}
	return words
}
