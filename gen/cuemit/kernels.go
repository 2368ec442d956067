package cuemit

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/abi"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/layout"
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
// configuration once, in a fixed order: by name. They follow from the layout
// alone. Their number depends on the element types and the kinds of init that it
// combines, not on layers, world sizes or parameters; see [MaxKernels]. Package
// kernel has the shape of a launch.
func Kernels(p *plan.Plan) []Kernel {
	s := &kernelSet{seen: map[string]bool{}, layout: p.Layout, namespace: namespace(p.Spec.Package.V)}
	s.zero()
	for k := range p.Layout.Kinds {
		for b := range p.Layout.Kinds[k].Buckets {
			s.bucket(&p.Layout.Kinds[k].Buckets[b])
		}
	}
	for i := range p.Layout.Shared {
		s.bucket(&p.Layout.Shared[i])
	}
	slices.SortFunc(s.kernels, func(a, b Kernel) int { return strings.Compare(a.Name, b.Name) })
	return s.kernels
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
	constants := []struct {
		name  string
		value int64
	}{
		{"kVersion", abi.Version}, {"kThreads", kernel.ThreadsPerBlock}, {"kBlocks", kernel.BlocksPerMultiprocessor},
		{"kWarp", kernel.TotalThreads}, {"kAccessBytes", kernel.AccessBytes},
	}
	if slices.Contains(includes, "shardgen/norm.cuh") {
		constants = append(constants, struct {
			name  string
			value int64
		}{"kChunkElements", optim.ChunkElements})
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
	return e.rule(condition, keys, fmt.Sprintf("%s of %s is %s", f.name, k.Name, f.value))
}

const alignField = "kAlignBytes"

// cuda is what headers call an element type.
var cuda = map[dtype.DType]string{
	dtype.Float64: "F64", dtype.Float32: "F32", dtype.BFloat16: "BF16", dtype.Float16: "F16",
	dtype.Float8E4M3: "F8E4M3", dtype.Float8E5M2: "F8E5M2",
}

// kernelSet collects kernels, each name once.
type kernelSet struct {
	kernels   []Kernel
	seen      map[string]bool
	layout    *layout.Model
	namespace string
}

// add completes a kernel whose call has %s in the place of its configuration.
func (s *kernelSet) add(k Kernel) {
	if s.seen[k.Name] {
		return
	}
	s.seen[k.Name] = true
	if k.Config != "" {
		k.Fields = append(k.Fields, number("long long", alignField, "alignBytes"))
		k.Call = fmt.Sprintf(k.Call, s.namespace+"::"+k.Config)
	}
	if k.Bounds == "" {
		k.Bounds = "shardgen::kThreads, shardgen::kBlocks"
	}
	s.kernels = append(s.kernels, k)
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

// bucket adds what the runtime launches for a bucket: in Init, in a backward pass
// and in a step.
func (s *kernelSet) bucket(b *layout.Bucket) {
	value := b.DType
	if s.layout.HasMaster(b) {
		value = b.GradType()
		s.cast(value, b.DType)
	}
	for i := range b.Params {
		if b.Params[i].Numel > 0 {
			s.fill(value, b.Params[i].Init)
		}
	}
	if !b.Trainable {
		return
	}
	wire := s.layout.WireType(b)
	s.cast(b.DType, wire)
	s.accumulate(wire, b.GradType())
	s.norm(b.GradType())
	s.scale(b.GradType())
	s.step(b)
}

// step adds the optimizer whose state the plan has.
func (s *kernelSet) step(b *layout.Bucket) {
	switch o := s.layout.Optimizer; {
	case o.Moments == 2:
		s.adamw(b.GradType(), b.DType)
	case o.Moments == 1:
		s.sgd(b.GradType(), b.DType, true)
		s.sgd(b.GradType(), b.DType, false)
	case o.Masters:
		s.sgd(b.GradType(), b.DType, false)
	}
}

func (s *kernelSet) zero() {
	s.add(Kernel{
		Name: kernel.Zero(), Purpose: "Zero fill.", Keys: "shard.align_bytes", header: "zero.cuh", Config: "Zero",
		Parameters: "void* target, long long bytes", Call: "shardgen::zero<%s>(target, bytes)",
	})
}

func (s *kernelSet) cast(from, to dtype.DType) {
	if from == to {
		return
	}
	s.add(Kernel{
		Name: kernel.Cast(from, to), Purpose: fmt.Sprintf("Conversion from %s to %s.", from, to), Keys: "dtype, gradients.reduce, optimizer.master", header: "cast.cuh",
		Config: "Cast" + cuda[from] + "To" + cuda[to], Fields: []Field{using("Source", from), using("Target", to)},
		Parameters: pointer(to, "target") + ", " + source(from, "source") + ", long long elements",
		Call:       "shardgen::cast<%s>(target, source, elements)",
	})
}

// accumulate adds both ways of taking a reduced gradient in.
func (s *kernelSet) accumulate(wire, sum dtype.DType) {
	for _, mode := range []struct {
		store           bool
		config, purpose string
	}{{true, "Store", "stored as"}, {false, "Add", "added to"}} {
		s.add(Kernel{
			Name: kernel.Accumulate(wire, sum, mode.store), header: "accumulate.cuh", Keys: "gradients.reduce, dtype",
			Purpose:    fmt.Sprintf("A reduced gradient in %s, divided, %s an %s shard.", wire, mode.purpose, sum),
			Config:     mode.config + cuda[wire] + "In" + cuda[sum],
			Fields:     []Field{using("Source", wire), using("Sum", sum), number("bool", "kStore", strconv.FormatBool(mode.store))},
			Parameters: pointer(sum, "sum") + ", " + source(wire, "source") + ", long long elements, double divisor",
			Call:       "shardgen::accumulate<%s>(sum, source, elements, divisor)",
		})
	}
}

func (s *kernelSet) norm(t dtype.DType) {
	s.add(Kernel{
		Name: kernel.Norm(t), Purpose: fmt.Sprintf("Sum of squares and count of NaNs and infinities of each chunk of %s.", t), Keys: "dtype", header: "norm.cuh",
		Config: "Norm" + cuda[t], Fields: []Field{using("Float", t)},
		Parameters: "shardgen::Norm* partials, " + source(t, "gradient") + ", long long elements",
		Call:       "shardgen::normChunks<%s>(partials, gradient, elements)",
	})
	s.add(Kernel{
		Name: kernel.NormTotal(), Purpose: "The norms of chunks, in order, added to a total; one block.", Keys: "dtype", header: "norm.cuh", Bounds: "shardgen::kWarp",
		Parameters: "shardgen::Norm* total, const shardgen::Norm* partials, long long chunks",
		Call:       "shardgen::normTotal(total, partials, chunks)",
	})
}

func (s *kernelSet) scale(t dtype.DType) {
	s.add(Kernel{
		Name: kernel.Scale(t), Purpose: fmt.Sprintf("A gradient in %s unscaled and clipped by one factor.", t), Keys: "dtype", header: "scale.cuh",
		Config: "Scale" + cuda[t], Fields: []Field{using("Float", t)},
		Parameters: pointer(t, "gradient") + ", long long elements, double factor",
		Call:       "shardgen::scale<%s>(gradient, elements, factor)",
	})
}

// update describes an optimizer kernel on masters of type t and parameters of
// type own: with a copy to write where the two differ.
func update(config string, t, own dtype.DType) (k Kernel, parameter, argument string) {
	k = Kernel{
		Config: config + cuda[t], Fields: []Field{using("Float", t), using("Copy", own)},
		Purpose: fmt.Sprintf("on %s parameters.", t), Keys: "optimizer, dtype",
	}
	if t == own {
		return k, "", "nullptr"
	}
	k.Config += cuda[own]
	k.Purpose = fmt.Sprintf("on %s masters and their copies in %s.", t, own)
	return k, ", " + pointer(own, "copy"), "copy"
}

func (s *kernelSet) adamw(t, own dtype.DType) {
	k, parameter, argument := update("AdamW", t, own)
	k.Name, k.header, k.Purpose = kernel.AdamW(t, own), "adamw.cuh", "AdamW "+k.Purpose
	k.Parameters = "shardgen::AdamWStep step, " + pointer(t, "master") + ", " + pointer(t, "moment1") + ", " + pointer(t, "moment2") + ", " +
		source(t, "gradient") + parameter + ", long long elements"
	k.Call = "shardgen::adamw<%s>(step, master, moment1, moment2, gradient, " + argument + ", elements)"
	s.add(k)
}

func (s *kernelSet) sgd(t, own dtype.DType, momentum bool) {
	config, purpose, buffer, bufferArgument := "SGD", "SGD without momentum ", "", "nullptr"
	if momentum {
		config, purpose, buffer, bufferArgument = "MomentumSGD", "SGD with momentum ", ", "+pointer(t, "momentum"), "momentum"
	}
	k, parameter, argument := update(config, t, own)
	k.Name, k.header, k.Purpose = kernel.SGD(t, own, momentum), "sgd.cuh", purpose+k.Purpose
	k.Fields = append(k.Fields, number("bool", "kMomentum", strconv.FormatBool(momentum)))
	k.Parameters = "shardgen::SGDStep step, " + pointer(t, "master") + buffer + ", " + source(t, "gradient") + parameter + ", long long elements"
	k.Call = "shardgen::sgd<%s>(step, master, " + bufferArgument + ", gradient, " + argument + ", elements)"
	s.add(k)
}

// families are the random distributions, as headers and configurations call
// them.
var families = map[random.Kind]string{
	random.Normal: "Normal", random.TruncatedNormal: "TruncatedNormal", random.Uniform: "Uniform",
}

// fill adds what the initial values of a parameter need; constants differ by the
// size of an element only.
func (s *kernelSet) fill(t dtype.DType, init *random.Distribution) {
	if init == nil {
		return
	}
	family, drawn := families[init.Kind]
	if !drawn {
		s.add(Kernel{
			Name: kernel.FillConstant(t.Bytes()), Purpose: fmt.Sprintf("Initial values: a constant of %d bytes.", t.Bytes()), Keys: "init, dtype", header: "fill.cuh",
			Config: fmt.Sprintf("FillConstant%d", t.Bytes()), Fields: []Field{number("int", "kElementBytes", strconv.FormatInt(t.Bytes(), 10))},
			Parameters: "void* target, unsigned long long bits, long long elements",
			Call:       "shardgen::fillConstant<%s>(target, bits, elements)",
		})
		return
	}
	s.add(Kernel{
		Name: kernel.Fill(init.Kind, t), Purpose: fmt.Sprintf("Initial values: %s in %s.", init.Kind, t), Keys: "init, dtype", header: "fill.cuh",
		Config:     "Fill" + family + cuda[t],
		Fields:     []Field{using("Element", t), number("shardgen::Distribution", "kFamily", "shardgen::Distribution::k"+family)},
		Parameters: pointer(t, "target") + ", shardgen::Sampler sampler, long long first, long long elements",
		Call:       "shardgen::fillRandom<%s>(target, sampler, first, elements)",
	})
}
