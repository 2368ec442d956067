package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/shardgen/shardgen/internal/devicetest"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/kernel"
)

// module is a package's code on the GPU, and which of the kernels with tests it
// has.
type module struct {
	descriptor *shard.Descriptor
	kernels    device.Kernels
	there      func(name string) bool
}

func (c *checker) open(d *shard.Descriptor) (*module, error) {
	k, err := c.gpu.Load(d.Code)
	if err != nil {
		return nil, err
	}
	there, err := c.names(d.Code)
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return &module{d, k, there}, nil
}

// names loads code as a module, which says what kernels there are.
func (c *checker) names(code device.Code) (there func(name string) bool, err error) {
	image, _, err := fatbin.Open(code.Fatbin)
	if err != nil {
		return nil, err
	}
	m, err := c.gpu.LoadModule([]byte(image))
	if err != nil {
		return nil, err
	}
	there, err = devicetest.In(m)
	return there, errors.Join(err, m.Close())
}

func (m *module) close() error { return m.kernels.Close() }

// has reports whether the module has all of these kernels.
func (m *module) has(names ...string) bool {
	for _, name := range names {
		if !m.there(name) {
			return false
		}
	}
	return true
}

// with returns the first module that has all of these kernels, nil where none has.
func (c *checker) with(names ...string) *module {
	for _, m := range c.modules {
		if m.has(names...) {
			return m
		}
	}
	return nil
}

// load loads all packages. One that can't be is a check that failed.
func (c *checker) load() {
	for _, d := range c.packages {
		m, err := c.open(d)
		if err != nil {
			c.check("load", d.Package, func(*Check) error { return err })
			continue
		}
		c.modules = append(c.modules, m)
	}
}

// kernels compares the kernels of all packages with the CPU's.
func (c *checker) kernels(ctx context.Context) {
	for _, m := range c.modules {
		c.check("kernels", m.descriptor.Package, func(k *Check) error { return c.compare(ctx, m, k) })
	}
}

// untested says which kernels of a package nothing compares.
func untested(needed, tested []string) error {
	missing := slices.DeleteFunc(slices.Clone(needed), func(name string) bool { return slices.Contains(tested, name) })
	if len(missing) > 0 {
		return fmt.Errorf("there is no test of %s, which the package needs; this program is older than the package", strings.Join(missing, ", "))
	}
	return nil
}

// compare tests a package's kernels.
func (c *checker) compare(ctx context.Context, m *module, k *Check) error {
	needed := kernel.Needed(&m.descriptor.Layout)
	if err := untested(needed, devicetest.Tested()); err != nil {
		return err
	}
	if missing := slices.DeleteFunc(needed, m.there); len(missing) > 0 {
		return fmt.Errorf("the code lacks %s; run `%s --cuda require`", strings.Join(missing, ", "), m.descriptor.Code.Command)
	}
	var o devicetest.Options
	if c.quick {
		o.Sizes = devicetest.QuickSizes()
	}
	target := devicetest.Target{
		Device: c.gpu, Code: m.descriptor.Code, AlignBytes: m.descriptor.Layout.AlignBytes,
		Has: m.there,
	}
	var err error
	k.Kernels, err = devicetest.Run(ctx, target, o)
	var wrong []error
	cases := 0
	for _, r := range k.Kernels {
		cases += r.Cases
		if r.Error != "" {
			wrong = append(wrong, fmt.Errorf("%s: %s", r.Kernel, r.Error))
		}
	}
	k.Detail = fmt.Sprintf("%d kernels have the CPU's bits in %d cases", len(k.Kernels), cases)
	return errors.Join(append(wrong, err)...)
}
