package emulated

import (
	"context"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc"
	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/fatbuild"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// AllKernels returns code with every kernel that any generated package can have,
// for ranges that start at multiples of alignBytes: for descriptors that a test
// makes by hand.
func (m *Machine) AllKernels(t testing.TB, alignBytes int64) device.Code {
	t.Helper()
	code, err := m.all(context.Background(), alignBytes)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func (m *Machine) all(ctx context.Context, alignBytes int64) (device.Code, error) {
	source, err := allSource(alignBytes)
	if err != nil {
		return device.Code{}, err
	}
	files := []output.File{{Name: cuemit.KernelsFile, Content: []byte(source)}}
	hash, err := fatbuild.SourceHash(files, cuemit.KernelsFile)
	if err != nil {
		return device.Code{}, err
	}
	code := StandIn(allPackage, hash)
	image, _, err := fatbin.Open(code.Fatbin)
	if err != nil {
		return code, err
	}
	return code, m.compile(ctx, files, []byte(image))
}

// allPackage names the package of all kernels; their calls have its namespace in
// them.
const allPackage = "allkernels"

// allSource arranges the kernels of all plans as the template of a package's
// does.
func allSource(alignBytes int64) (string, error) {
	var configs, entries, includes strings.Builder
	for _, k := range allKernels() {
		if k.Config != "" {
			fmt.Fprintf(&configs, "struct %s {\n", k.Config)
			for _, f := range k.Fields {
				fmt.Fprintf(&configs, "  %s;\n", f.Declaration)
			}
			configs.WriteString("};\n")
		}
		fmt.Fprintf(&entries, "extern \"C\" __global__ void __launch_bounds__(%s) %s(%s) { %s; }\n", k.Bounds, k.Name, k.Parameters, k.Call)
	}
	headers, err := fs.Glob(cudasrc.Headers, "shardgen/*.cuh")
	for _, h := range headers {
		fmt.Fprintf(&includes, "#include <%s>\n", h)
	}
	return fmt.Sprintf("%s\nnamespace shardgen::models::%s {\nconstexpr long long alignBytes = %d;\n%s}\n%s",
		includes.String(), allPackage, alignBytes, configs.String(), entries.String()), err
}

// KernelNames returns the names of the kernels that AllKernels has.
func KernelNames() []string {
	var names []string
	for _, k := range allKernels() {
		names = append(names, k.Name)
	}
	return names
}

// allKernels returns the kernels of all plans, each once.
func allKernels() []cuemit.Kernel {
	var list []cuemit.Kernel
	seen := map[string]bool{}
	for _, masters := range []bool{false, true} {
		for _, optimizer := range []layout.OptimizerKind{layout.NoOptimizer, layout.SGD, layout.MomentumSGD, layout.AdamW} {
			for _, reduce := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16} {
				for _, k := range cuemit.Kernels(everything(layout.Optimizer{Kind: optimizer, Masters: masters}, reduce)) {
					if !seen[k.Name] {
						seen[k.Name] = true
						list = append(list, k)
					}
				}
			}
		}
	}
	return list
}

// everything is a plan with buckets of every element type, trainable and frozen,
// with every init.
func everything(o layout.Optimizer, reduce dtype.DType) *plan.Plan {
	var kind layout.Kind
	for _, t := range dtype.All() {
		inits := []random.Kind{random.Ones}
		if t.IsFloat() {
			inits = append(inits, random.Normal, random.TruncatedNormal, random.Uniform)
		}
		b := layout.Bucket{DType: t}
		for _, init := range inits {
			b.Params = append(b.Params, layout.Param{Numel: 1, Init: &random.Distribution{Kind: init}})
		}
		kind.Buckets = append(kind.Buckets, b)
		if t.Trainable() {
			b.Trainable = true
			kind.Buckets = append(kind.Buckets, b)
		}
	}
	p := &plan.Plan{Spec: &spec.Model{}, Layout: &layout.Model{Optimizer: o, Reduce: reduce, Kinds: []layout.Kind{kind}}}
	p.Spec.Package.V = allPackage
	return p
}
