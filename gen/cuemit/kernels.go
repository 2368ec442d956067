package cuemit

import (
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/abi"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// MaxKernels bounds the kernels of any plan: of a model with SGD and momentum
// that has every element type, trainable and frozen, with every init.
const MaxKernels = 44

// Kernel is an entry of a package's .cu.
type Kernel struct {
	Name       string // of the entry: shardgen_cast_f32_bf16; see package kernel
	Purpose    string // a sentence
	Keys       string // of the spec that ask for it
	Config     string // name of its configuration; empty where it needs none
	Fields     []Field
	Parameters string
	Call       string
	Bounds     string // what a launch keeps to
	header     string // that has its body
}

// Field is a constant of a kernel's configuration: a type or a number.
type Field struct {
	Declaration string // using Source = shardgen::F32
	name, value string
	isType      bool
}

// Kernels returns the kernels that the runtime launches for a plan, each
// configuration once, in a fixed order: by name. Package kernel says which they
// are, from the layout alone, and has the shape of a launch. Their number depends
// on the element types and the kinds of init that the plan combines, not on
// layers, world sizes or parameters; see [MaxKernels].
func Kernels(p *plan.Plan) []Kernel {
	var list []Kernel
	for _, u := range kernel.Uses(p.Layout) {
		k := describe[u.Family](u)
		k.Name = u.Name()
		list = append(list, k.complete(namespace(p.Spec.Package.V)))
	}
	return list
}

// kernelsData is what the template of the .cu arranges.
type kernelsData struct {
	common
	LayoutFile string
	Includes   []string
	Agreements []rule // between generator and headers
	Kernels    []Kernel
	Rules      []rule // that configurations keep
}

func (e *emitter) kernelsData() kernelsData {
	d := kernelsData{common: e.common, LayoutFile: LayoutFile, Kernels: Kernels(e.plan)}
	for _, k := range d.Kernels {
		d.Includes = append(d.Includes, path.Join("shardgen", k.header))
	}
	d.Includes = append(d.Includes, "shardgen/version.cuh")
	slices.Sort(d.Includes)
	d.Includes = slices.Compact(d.Includes)
	d.Agreements = e.agreements(d.Includes)
	for _, k := range d.Kernels {
		for _, f := range k.Fields {
			d.Rules = append(d.Rules, e.fieldRule(&k, f))
		}
	}
	return d
}

// agreements are the constants of the headers that the runtime knows too.
func (e *emitter) agreements(includes []string) []rule {
	type constant struct {
		name  string
		value int64
	}
	constants := []constant{
		{"kVersion", abi.Version}, {"kThreads", kernel.ThreadsPerBlock}, {"kBlocks", kernel.BlocksPerMultiprocessor},
		{"kAccessBytes", kernel.AccessBytes},
	}
	if slices.Contains(includes, "shardgen/norm.cuh") {
		constants = append(constants, constant{"kChunkElements", optim.ChunkElements}, constant{"kSumNorms", kernel.TotalThreads})
	}
	var list []rule
	for _, c := range constants {
		list = append(list, rule{fmt.Sprintf("shardgen::%s == %d", c.name, c.value), fmt.Sprintf(`"generator and CUDA headers are out of step in %s: run `, c.name) + e.common.Command + `"`})
	}
	return list
}

// fieldRule says that a configuration has what the name of its kernel says.
func (e *emitter) fieldRule(k *Kernel, f Field) rule {
	condition := fmt.Sprintf("%s::%s == %s", k.Config, f.name, f.value)
	if f.isType {
		condition = fmt.Sprintf("std::is_same<%s::%s, %s>::value", k.Config, f.name, f.value)
	}
	keys := k.Keys
	if f.name == alignField {
		keys = "shard.align_bytes"
	}
	text := literal(fmt.Sprintf("%s: %s of %s is %s; if not, run ", keys, f.name, k.Name, f.value))
	return rule{condition, text[:len(text)-1] + e.common.Command + `"`}
}

const alignField = "kAlignBytes"

// cuda is what headers call an element type.
var cuda = map[dtype.DType]string{
	dtype.Float64: "F64", dtype.Float32: "F32", dtype.BFloat16: "BF16", dtype.Float16: "F16",
	dtype.Float8E4M3: "F8E4M3", dtype.Float8E5M2: "F8E5M2",
}

// describe has what is written about the entries of each family, but their names.
// A call has %s in the place of its configuration.
var describe = [...]func(kernel.Use) Kernel{
	kernel.FamilyZero:         zero,
	kernel.FamilyCast:         cast,
	kernel.FamilyAccumulate:   accumulate,
	kernel.FamilyFill:         fill,
	kernel.FamilyFillConstant: fillConstant,
	kernel.FamilyNorm:         norm,
	kernel.FamilyNormTotal:    normTotal,
	kernel.FamilyScale:        scale,
	kernel.FamilyAdamW:        adamw,
	kernel.FamilySGD:          sgd,
}

// complete adds what all kernels have in common.
func (k Kernel) complete(namespace string) Kernel {
	if k.Config != "" {
		k.Fields = append(k.Fields, number("long long", alignField, "alignBytes"))
		k.Call = fmt.Sprintf(k.Call, namespace+"::"+k.Config)
	}
	if k.Bounds == "" {
		k.Bounds = "shardgen::kThreads, shardgen::kBlocks"
	}
	return k
}

func using(name string, t dtype.DType) Field {
	value := "shardgen::" + cuda[t]
	return Field{Declaration: fmt.Sprintf("using %s = %s", name, value), name: name, value: value, isType: true}
}

func number(typ, name, value string) Field {
	return Field{Declaration: fmt.Sprintf("static constexpr %s %s = %s", typ, name, value), name: name, value: value}
}

// pointer is a parameter of a kernel.
func pointer(t dtype.DType, name string) string { return "shardgen::" + cuda[t] + "* " + name }

func source(t dtype.DType, name string) string { return "const " + pointer(t, name) }

func zero(kernel.Use) Kernel {
	return Kernel{
		Purpose: "Zero fill.", Keys: "shard.align_bytes", header: "zero.cuh", Config: "Zero",
		Parameters: "void* target, long long bytes", Call: "shardgen::zero<%s>(target, bytes)",
	}
}

func cast(u kernel.Use) Kernel {
	return Kernel{
		Purpose: fmt.Sprintf("Conversion from %s to %s.", u.From, u.Type), Keys: "dtype, gradients.reduce, optimizer.master", header: "cast.cuh",
		Config: "Cast" + cuda[u.From] + "To" + cuda[u.Type], Fields: []Field{using("Source", u.From), using("Target", u.Type)},
		Parameters: pointer(u.Type, "target") + ", " + source(u.From, "source") + ", long long elements",
		Call:       "shardgen::cast<%s>(target, source, elements)",
	}
}

func accumulate(u kernel.Use) Kernel {
	config, purpose := "Add", "added to"
	if u.Store {
		config, purpose = "Store", "stored as"
	}
	return Kernel{
		Purpose: fmt.Sprintf("A reduced gradient in %s, divided, %s an %s shard.", u.From, purpose, u.Type), Keys: "gradients.reduce, dtype", header: "accumulate.cuh",
		Config:     config + cuda[u.From] + "In" + cuda[u.Type],
		Fields:     []Field{using("Source", u.From), using("Sum", u.Type), number("bool", "kStore", strconv.FormatBool(u.Store))},
		Parameters: pointer(u.Type, "sum") + ", " + source(u.From, "source") + ", long long elements, double divisor",
		Call:       "shardgen::accumulate<%s>(sum, source, elements, divisor)",
	}
}

func norm(u kernel.Use) Kernel {
	return Kernel{
		Purpose: fmt.Sprintf("Sum of squares and count of NaNs and infinities of each chunk of %s.", u.Type), Keys: "dtype", header: "norm.cuh",
		Config: "Norm" + cuda[u.Type], Fields: []Field{using("Float", u.Type)},
		Parameters: "shardgen::Norm* partials, " + source(u.Type, "gradient") + ", long long elements",
		Call:       "shardgen::normChunks<%s>(partials, gradient, elements)",
	}
}

func normTotal(kernel.Use) Kernel {
	return Kernel{
		Purpose: "The norms of all chunks, added to a total; one block.", Keys: "dtype", header: "norm.cuh", Bounds: "shardgen::kSumNorms",
		Parameters: "shardgen::Norm* total, const shardgen::Norm* norms, long long count",
		Call:       "shardgen::normTotal(total, norms, count)",
	}
}

func scale(u kernel.Use) Kernel {
	return Kernel{
		Purpose: fmt.Sprintf("A gradient in %s unscaled and clipped by one factor.", u.Type), Keys: "dtype", header: "scale.cuh",
		Config: "Scale" + cuda[u.Type], Fields: []Field{using("Float", u.Type)},
		Parameters: pointer(u.Type, "gradient") + ", long long elements, double factor",
		Call:       "shardgen::scale<%s>(gradient, elements, factor)",
	}
}

// update describes an optimizer kernel on masters and their parameters: with a
// copy to write where their types differ.
func update(config string, u kernel.Use) (k Kernel, parameter, argument string) {
	k = Kernel{
		Config: config + cuda[u.Type], Fields: []Field{using("Float", u.Type), using("Copy", u.Own)},
		Purpose: fmt.Sprintf("on %s parameters.", u.Type), Keys: "optimizer, dtype",
	}
	if u.Type == u.Own {
		return k, "", "nullptr"
	}
	k.Config += cuda[u.Own]
	k.Purpose = fmt.Sprintf("on %s masters and their copies in %s.", u.Type, u.Own)
	return k, ", " + pointer(u.Own, "copy"), "copy"
}

func adamw(u kernel.Use) Kernel {
	k, parameter, argument := update("AdamW", u)
	k.header, k.Purpose = "adamw.cuh", "AdamW "+k.Purpose
	k.Parameters = "shardgen::AdamWStep step, " + pointer(u.Type, "master") + ", " + pointer(u.Type, "moment1") + ", " + pointer(u.Type, "moment2") + ", " +
		source(u.Type, "gradient") + parameter + ", long long elements"
	k.Call = "shardgen::adamw<%s>(step, master, moment1, moment2, gradient, " + argument + ", elements)"
	return k
}

func sgd(u kernel.Use) Kernel {
	config, purpose, buffer, bufferArgument := "SGD", "SGD without momentum ", "", "nullptr"
	if u.Momentum {
		config, purpose, buffer, bufferArgument = "MomentumSGD", "SGD with momentum ", ", "+pointer(u.Type, "momentum"), "momentum"
	}
	k, parameter, argument := update(config, u)
	k.header, k.Purpose = "sgd.cuh", purpose+k.Purpose
	k.Fields = append(k.Fields, number("bool", "kMomentum", strconv.FormatBool(u.Momentum)))
	k.Parameters = "shardgen::SGDStep step, " + pointer(u.Type, "master") + buffer + ", " + source(u.Type, "gradient") + parameter + ", long long elements"
	k.Call = "shardgen::sgd<%s>(step, master, " + bufferArgument + ", gradient, " + argument + ", elements)"
	return k
}

// distributions are the random ones, as headers and configurations call them.
var distributions = map[random.Kind]string{
	random.Normal: "Normal", random.TruncatedNormal: "TruncatedNormal", random.Uniform: "Uniform",
}

func fillConstant(u kernel.Use) Kernel {
	bytes := u.ElementBytes
	return Kernel{
		Purpose: fmt.Sprintf("Initial values: a constant of %d bytes.", bytes), Keys: "init, dtype", header: "fill.cuh",
		Config: fmt.Sprintf("FillConstant%d", bytes), Fields: []Field{number("int", "kElementBytes", strconv.FormatInt(bytes, 10))},
		Parameters: "void* target, unsigned long long bits, long long elements",
		Call:       "shardgen::fillConstant<%s>(target, bits, elements)",
	}
}

func fill(u kernel.Use) Kernel {
	name := distributions[u.Distribution]
	return Kernel{
		Purpose: fmt.Sprintf("Initial values: %s in %s.", u.Distribution, u.Type), Keys: "init, dtype", header: "fill.cuh",
		Config:     "Fill" + name + cuda[u.Type],
		Fields:     []Field{using("Element", u.Type), number("shardgen::Distribution", "kFamily", "shardgen::Distribution::k"+name)},
		Parameters: pointer(u.Type, "target") + ", shardgen::Sampler sampler, long long first, long long elements",
		Call:       "shardgen::fillRandom<%s>(target, sampler, first, elements)",
	}
}
