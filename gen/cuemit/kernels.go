package cuemit

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// MaxKernels bounds the kernels of any plan: of a model with SGD and momentum
// that has every element type, trainable and frozen, with every init.
const MaxKernels = 44

// Kernel is an entry of a package's .cu.
type Kernel struct {
	Name       string // of the entry: shardgen_cast_f32_bf16
	Purpose    string // a sentence
	Keys       string // of the spec that ask for it
	Config     string // name of its configuration; empty where it needs none
	Fields     []string
	Parameters string
	Call       string
	Bounds     string // what a launch keeps to
	header     string // that has its body
}

// Kernels returns the kernels that a plan needs, each configuration once, in a
// fixed order: by name. Their number depends on the element types and the kinds of
// init that the plan combines, not on layers, world sizes or parameters; see
// [MaxKernels]. A launch has any number of blocks of shardgen::kThreads (256)
// threads, but for norm_total: one block of 32.
func Kernels(p *plan.Plan) []Kernel {
	s := &kernelSet{seen: map[string]bool{}, layout: p.Layout, namespace: namespace(p.Spec.Package.V), optimizer: p.Spec.Optimizer.Kind.V}
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
	Kernels    []Kernel
}

func (e *emitter) kernelsData() kernelsData {
	d := kernelsData{common: e.common, LayoutFile: LayoutFile, Kernels: Kernels(e.plan)}
	for _, k := range d.Kernels {
		d.Includes = append(d.Includes, path.Join("shardgen", k.header))
	}
	d.Includes = append(d.Includes, "shardgen/version.cuh")
	slices.Sort(d.Includes)
	d.Includes = slices.Compact(d.Includes)
	return d
}

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
	optimizer spec.OptimizerKind
}

// add completes a kernel whose call has %s in the place of its configuration.
func (s *kernelSet) add(k Kernel) {
	k.Name = "shardgen_" + k.Name
	if s.seen[k.Name] {
		return
	}
	s.seen[k.Name] = true
	if k.Config != "" {
		k.Fields = append(k.Fields, "static constexpr long long kAlignBytes = alignBytes")
		k.Call = fmt.Sprintf(k.Call, s.namespace+"::"+k.Config)
	}
	if k.Bounds == "" {
		k.Bounds = "shardgen::kThreads, shardgen::kBlocks"
	}
	s.kernels = append(s.kernels, k)
}

func using(name string, t dtype.DType) string {
	return fmt.Sprintf("using %s = shardgen::%s", name, cuda[t])
}

// pointer is a parameter of a kernel.
func pointer(t dtype.DType, name string) string { return "shardgen::" + cuda[t] + "* " + name }

func source(t dtype.DType, name string) string { return "const " + pointer(t, name) }

// bucket adds what a bucket needs in Init, in a backward pass and in a step.
func (s *kernelSet) bucket(b *layout.Bucket) {
	value := b.DType
	if s.layout.HasMaster(b) {
		value = b.GradType()
		s.cast(value, b.DType)
	}
	for i := range b.Params {
		s.fill(value, b.Params[i].Init)
	}
	if !b.Trainable {
		return
	}
	wire := s.layout.WireType(b)
	s.cast(b.DType, wire)
	s.accumulate(wire, b.GradType())
	s.norm(b.GradType())
	s.scale(b.GradType())
	switch s.optimizer {
	case spec.OptimizerAdamW:
		s.adamw(b.GradType(), b.DType)
	case spec.OptimizerSGD:
		s.sgd(b.GradType(), b.DType, false)
		if s.layout.Optimizer.Moments > 0 {
			s.sgd(b.GradType(), b.DType, true)
		}
	}
}

func (s *kernelSet) zero() {
	s.add(Kernel{
		Name: "zero", Purpose: "Zero fill.", Keys: "shard.align_bytes", header: "zero.cuh", Config: "Zero",
		Parameters: "void* target, long long bytes", Call: "shardgen::zero<%s>(target, bytes)",
	})
}

func (s *kernelSet) cast(from, to dtype.DType) {
	if from == to {
		return
	}
	s.add(Kernel{
		Name: fmt.Sprintf("cast_%s_%s", from, to), Purpose: fmt.Sprintf("Conversion from %s to %s.", from, to), Keys: "dtype, gradients.reduce, optimizer.master", header: "cast.cuh",
		Config: "Cast" + cuda[from] + "To" + cuda[to], Fields: []string{using("Source", from), using("Target", to)},
		Parameters: pointer(to, "target") + ", " + source(from, "source") + ", long long elements",
		Call:       "shardgen::cast<%s>(target, source, elements)",
	})
}

// accumulate adds both ways of taking a reduced gradient in.
func (s *kernelSet) accumulate(wire, sum dtype.DType) {
	for _, mode := range []struct{ name, store, config, purpose string }{
		{"store", "true", "Store", "stored as"}, {"add", "false", "Add", "added to"},
	} {
		s.add(Kernel{
			Name: fmt.Sprintf("accumulate_%s_%s_%s", wire, sum, mode.name), header: "accumulate.cuh", Keys: "gradients.reduce, dtype",
			Purpose:    fmt.Sprintf("A reduced gradient in %s, divided, %s an %s shard.", wire, mode.purpose, sum),
			Config:     mode.config + cuda[wire] + "In" + cuda[sum],
			Fields:     []string{using("Source", wire), using("Sum", sum), "static constexpr bool kStore = " + mode.store},
			Parameters: pointer(sum, "sum") + ", " + source(wire, "source") + ", long long elements, double divisor",
			Call:       "shardgen::accumulate<%s>(sum, source, elements, divisor)",
		})
	}
}

func (s *kernelSet) norm(t dtype.DType) {
	s.add(Kernel{
		Name: "norm_" + t.String(), Purpose: fmt.Sprintf("Sum of squares and count of NaNs and infinities of each chunk of %s.", t), Keys: "dtype", header: "norm.cuh",
		Config: "Norm" + cuda[t], Fields: []string{using("Float", t)},
		Parameters: "shardgen::Norm* partials, " + source(t, "gradient") + ", long long elements",
		Call:       "shardgen::normChunks<%s>(partials, gradient, elements)",
	})
	s.add(Kernel{
		Name: "norm_total", Purpose: "The norms of chunks, in order, added to a total; one block.", Keys: "dtype", header: "norm.cuh", Bounds: "shardgen::kWarp",
		Parameters: "shardgen::Norm* total, const shardgen::Norm* partials, long long chunks",
		Call:       "shardgen::normTotal(total, partials, chunks)",
	})
}

func (s *kernelSet) scale(t dtype.DType) {
	s.add(Kernel{
		Name: "scale_" + t.String(), Purpose: fmt.Sprintf("A gradient in %s unscaled and clipped by one factor.", t), Keys: "dtype", header: "scale.cuh",
		Config: "Scale" + cuda[t], Fields: []string{using("Float", t)},
		Parameters: pointer(t, "gradient") + ", long long elements, double factor",
		Call:       "shardgen::scale<%s>(gradient, elements, factor)",
	})
}

// update describes an optimizer kernel on masters of type t and parameters of
// type own: with a copy to write where the two differ.
func update(name, config string, t, own dtype.DType) (Kernel, string, string) {
	k := Kernel{
		Name: name + "_" + t.String(), Config: config + cuda[t], Fields: []string{using("Float", t), using("Copy", own)},
		Purpose: fmt.Sprintf("on %s parameters.", t), Keys: "optimizer, dtype",
	}
	if t == own {
		return k, "", "nullptr"
	}
	k.Name += "_" + own.String()
	k.Config += cuda[own]
	k.Purpose = fmt.Sprintf("on %s masters and their copies in %s.", t, own)
	return k, ", " + pointer(own, "copy"), "copy"
}

func (s *kernelSet) adamw(t, own dtype.DType) {
	k, parameter, argument := update("adamw", "AdamW", t, own)
	k.header, k.Purpose = "adamw.cuh", "AdamW "+k.Purpose
	k.Parameters = "shardgen::AdamWStep step, " + pointer(t, "master") + ", " + pointer(t, "moment1") + ", " + pointer(t, "moment2") + ", " +
		source(t, "gradient") + parameter + ", long long elements"
	k.Call = "shardgen::adamw<%s>(step, master, moment1, moment2, gradient, " + argument + ", elements)"
	s.add(k)
}

func (s *kernelSet) sgd(t, own dtype.DType, momentum bool) {
	k, parameter, argument := update("sgd", "SGD", t, own)
	k.header, k.Purpose = "sgd.cuh", "SGD without momentum "+k.Purpose
	buffer, bufferArgument := "", "nullptr"
	if momentum {
		k.Name, k.Config = strings.Replace(k.Name, "sgd", "sgd_momentum", 1), "Momentum"+k.Config
		k.Purpose = strings.Replace(k.Purpose, "without", "with", 1)
		buffer, bufferArgument = ", "+pointer(t, "momentum"), "momentum"
	}
	k.Fields = append(k.Fields, fmt.Sprintf("static constexpr bool kMomentum = %t", momentum))
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
			Name: fmt.Sprintf("fill_constant_%d", t.Bytes()), Purpose: fmt.Sprintf("Initial values: a constant of %d bytes.", t.Bytes()), Keys: "init, dtype", header: "fill.cuh",
			Config: fmt.Sprintf("FillConstant%d", t.Bytes()), Fields: []string{fmt.Sprintf("static constexpr int kElementBytes = %d", t.Bytes())},
			Parameters: "void* target, unsigned long long bits, long long elements",
			Call:       "shardgen::fillConstant<%s>(target, bits, elements)",
		})
		return
	}
	s.add(Kernel{
		Name: fmt.Sprintf("fill_%s_%s", init.Kind, t), Purpose: fmt.Sprintf("Initial values: %s in %s.", init.Kind, t), Keys: "init, dtype", header: "fill.cuh",
		Config:     "Fill" + family + cuda[t],
		Fields:     []string{using("Element", t), "static constexpr shardgen::Distribution kFamily = shardgen::Distribution::k" + family},
		Parameters: pointer(t, "target") + ", shardgen::Sampler sampler, long long first, long long elements",
		Call:       "shardgen::fillRandom<%s>(target, sampler, first, elements)",
	})
}
