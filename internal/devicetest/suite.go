package devicetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

// Target is what is tested.
type Target struct {
	Device     device.Device
	Code       device.Code
	AlignBytes int64                  // the package's align_bytes: ranges start at its multiples
	Has        func(name string) bool // whether the code has the kernel of a name of package kernel
}

// Options say how much is tested.
type Options struct {
	Sizes    []int64      // lengths of ranges in elements; nil: [Sizes]
	Progress func(Result) // called behind each kernel; may be nil
}

// Result is what became of one kernel.
type Result struct {
	Kernel   string `json:"kernel"`
	Cases    int    `json:"cases"`           // lengths, contents and arguments
	Elements int64  `json:"elements"`        // in all cases
	Error    string `json:"error,omitempty"` // what differs first; empty where nothing does
}

// Sizes returns the lengths that are tested: around a warp, a block of threads and
// a chunk of a norm, and a prime.
func Sizes() []int64 {
	return []int64{0, 1, 31, 32, 33, 255, 256, 257, 8191, 8192, 8193, 99991}
}

// QuickSizes returns a few of [Sizes].
func QuickSizes() []int64 { return []int64{0, 1, 33, 257, 8193} }

// Run tests all kernels that a target has, and the device's own copy. Differences
// are in the results. An error is returned where the test can't go on: the code
// can't be loaded, memory is short, ctx ended, or the device is broken.
func Run(ctx context.Context, t Target, o Options) (results []Result, err error) {
	b, err := newBench(t)
	if err != nil {
		return nil, fmt.Errorf("testing the kernels of package %s: %w", t.Code.Package, err)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	sizes := o.Sizes
	if sizes == nil {
		sizes = Sizes()
	}
	for _, g := range groups() {
		if g.kernel != copyName && !t.Has(g.kernel) {
			continue
		}
		r, err := b.run(ctx, g, sizes)
		results = append(results, r)
		if o.Progress != nil {
			o.Progress(r)
		}
		if err != nil {
			return results, fmt.Errorf("testing kernel %s of package %s: %w", g.kernel, t.Code.Package, err)
		}
	}
	return results, nil
}

// Kernels returns the names of all kernels that there are tests for.
func Kernels() []string {
	var names []string
	for _, g := range groups() {
		if g.kernel != copyName {
			names = append(names, g.kernel)
		}
	}
	return names
}

// bench is the two devices that are compared.
type bench struct {
	align        int64
	tested, host *side
}

func newBench(t Target) (*bench, error) {
	if t.Device == nil || t.Has == nil || t.AlignBytes <= 0 {
		return nil, fmt.Errorf("the target has device %v, align_bytes %d: neither a device nor the kernels may be missing", t.Device, t.AlignBytes)
	}
	host, err := newSide(cpu.New(), t.Code)
	if err != nil {
		return nil, err
	}
	tested, err := newSide(t.Device, t.Code)
	if err != nil {
		return nil, errors.Join(err, host.close())
	}
	return &bench{align: t.AlignBytes, tested: tested, host: host}, nil
}

func (b *bench) close() error { return errors.Join(b.tested.close(), b.host.close()) }

// run runs all cases of a kernel until one differs. A device that only refused
// the work can go on with the next kernel.
func (b *bench) run(ctx context.Context, g group, sizes []int64) (Result, error) {
	r := Result{Kernel: g.kernel}
	for i := range g.variants {
		for _, n := range g.lengths(sizes) {
			r.Cases++
			r.Elements += n
			broken, err := b.compare(ctx, &g.variants[i], n)
			if err == nil {
				continue
			}
			r.Error = fmt.Sprintf("%s, %d elements: %v", g.variants[i].name, n, err)
			if broken {
				return r, b.tested.renew(err)
			}
			return r, nil
		}
	}
	return r, nil
}

// compare runs a variant on both devices. broken says that the tested device's
// stream failed.
func (b *bench) compare(ctx context.Context, v *variant, n int64) (broken bool, err error) {
	l := newLayout(v.operands, n, b.align)
	initial := l.initial(v.operands, n)
	want, err := b.host.do(ctx, v, l, initial, n)
	if err != nil {
		return false, fmt.Errorf("on the CPU: %w", err)
	}
	got, err := b.tested.do(ctx, v, l, initial, n)
	if err != nil {
		return true, err
	}
	return false, l.compare(v.operands, n, got, want, initial)
}
