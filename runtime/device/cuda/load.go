package cuda

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/random"
)

// Load implements device.Device. The code must be compiled, from the CUDA source
// that the package was generated with.
func (d *Device) Load(c device.Code) (device.Kernels, error) {
	k, err := d.loadKernels(c)
	if err != nil {
		return nil, fmt.Errorf("%s: kernels of package %s: %w", d.label(), c.Package, err)
	}
	return k, nil
}

func (d *Device) loadKernels(c device.Code) (*Kernels, error) {
	image, err := imageOf(c)
	if err != nil {
		return nil, err
	}
	m, err := d.LoadModule([]byte(image))
	if d.mismatch(err) != "" {
		return nil, fmt.Errorf("%w, which is: remove %s and run `%s --cuda require` with this release of shardgen", err, fatbin.FileName, c.Command)
	}
	if err != nil {
		return nil, err
	}
	k := &Kernels{device: d, module: m, code: c}
	k.code.Fatbin = "" // the driver has its own copy
	if err := k.resolve(); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return k, nil
}

// imageOf returns the compiled kernels, or says how to get them.
func imageOf(c device.Code) (string, error) {
	if c.Source == "" {
		return "", fmt.Errorf("the package was generated without CUDA: run `%s --cuda require` in the spec's folder, where nvcc is installed", c.Command)
	}
	image, record, err := fatbin.Open(c.Fatbin)
	if err != nil {
		return "", fmt.Errorf("%s: %w; run `%s --cuda require` in the spec's folder", fatbin.FileName, err, c.Command)
	}
	if record.Source != c.Source {
		return "", fmt.Errorf("%s is stale: it is made from CUDA source %.12s, the package has %.12s; run `%s --cuda require` in the spec's folder",
			fatbin.FileName, record.Source, c.Source, c.Command)
	}
	if image == "" {
		return "", fmt.Errorf("they are not compiled, because nvcc was not found at that time: install CUDA, then run `%s --cuda require` in the spec's folder", c.Command)
	}
	return image, nil
}

// Kernels are a generated package's kernels on a GPU.
type Kernels struct {
	device *Device
	module *Module
	code   device.Code

	zero, normTotal Function
	cast            [dtype.Count][dtype.Count]Function // from, to
	accumulate      [dtype.Count][dtype.Count][2]Function
	constant        [9]Function // by bytes of an element
	normal          [dtype.Count]Function
	truncated       [dtype.Count]Function
	uniform         [dtype.Count]Function
	norm, scale     [dtype.Count]Function
	adamw           [dtype.Count][dtype.Count]Function // master, parameter
	sgd             [dtype.Count][dtype.Count][2]Function

	misused atomic.Pointer[error] // of the first call with a stream that can't be told
}

// resolve looks up all kernels that a package can have. One that it was generated
// without keeps its name and no handle.
func (k *Kernels) resolve() error {
	r := resolver{module: k.module}
	r.find(&k.zero, kernel.Zero())
	r.find(&k.normTotal, kernel.NormTotal())
	for _, bytes := range []int64{1, 2, 4, 8} {
		r.find(&k.constant[bytes], kernel.FillConstant(bytes))
	}
	for _, t := range dtype.All() {
		if t.IsFloat() {
			k.resolveType(&r, t)
		}
	}
	return r.err
}

// resolveType looks up what is made for a float type and each other.
func (k *Kernels) resolveType(r *resolver, t dtype.DType) {
	r.find(&k.normal[t], kernel.Fill(random.Normal, t))
	r.find(&k.truncated[t], kernel.Fill(random.TruncatedNormal, t))
	r.find(&k.uniform[t], kernel.Fill(random.Uniform, t))
	for _, from := range dtype.All() {
		if from.IsFloat() && from != t {
			r.find(&k.cast[from][t], kernel.Cast(from, t))
		}
	}
	if checkFloat("", t) == nil {
		k.resolveMaster(r, t)
	}
}

// resolveMaster looks up what is made for the type of sums and masters.
func (k *Kernels) resolveMaster(r *resolver, t dtype.DType) {
	r.find(&k.norm[t], kernel.Norm(t))
	r.find(&k.scale[t], kernel.Scale(t))
	for _, own := range dtype.All() {
		if !own.IsFloat() {
			continue
		}
		r.find(&k.accumulate[own][t][0], kernel.Accumulate(own, t, false))
		r.find(&k.accumulate[own][t][1], kernel.Accumulate(own, t, true))
		r.find(&k.adamw[t][own], kernel.AdamW(t, own))
		r.find(&k.sgd[t][own][0], kernel.SGD(t, own, false))
		r.find(&k.sgd[t][own][1], kernel.SGD(t, own, true))
	}
}

// resolver looks up names and keeps the first error that is not their absence.
type resolver struct {
	module *Module
	err    error
}

func (r *resolver) find(to *Function, name string) {
	if r.err != nil {
		return
	}
	f, err := r.module.lookUp(name)
	if err != nil && codeOf(err) != errNotFound {
		r.err = fmt.Errorf("kernel %s: %w", name, err)
		return
	}
	*to = f
}

// Close implements device.Kernels. It also returns the first call that was made
// with a stream that has no place for an error.
func (k *Kernels) Close() error {
	err := k.module.Close()
	if misused := k.misused.Load(); misused != nil {
		return errors.Join(*misused, err)
	}
	return err
}
