package cuda

import (
	"context"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// idle is what a trainer has, over a driver that does nothing: what remains is
// the host's own cost.
type idle struct {
	gpu     *Device
	kernels *Kernels
	a, b    *Stream
	module  *Module
	own     Function
}

func openIdle(tb testing.TB) *idle {
	tb.Helper()
	gpu, err := Open(0, Options{Library: buildLibrary(tb, "../../../cudasrc/emu/idle/libcuda.c", "-O2", "-Wl,-soname,libcuda.so.1")})
	if err != nil {
		tb.Fatal(err)
	}
	must := func(err error) {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
	}
	k, err := gpu.Load(packageCode(everyKernel))
	must(err)
	i := &idle{gpu: gpu, kernels: k.(*Kernels)}
	i.a, err = gpu.OpenStream("a")
	must(err)
	i.b, err = gpu.OpenStream("b")
	must(err)
	i.module, err = gpu.LoadModule([]byte("own"))
	must(err)
	i.own, err = i.module.Function("own")
	must(err)
	tb.Cleanup(func() {
		if err := i.close(); err != nil {
			tb.Error(err)
		}
	})
	return i
}

func (i *idle) close() error {
	for _, c := range []interface{ Close() error }{i.a, i.b, i.kernels, i.module, i.gpu} {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}

// operations are the frequent ones.
func (i *idle) operations(tb testing.TB) map[string]func() {
	ctx := context.Background()
	normal := random.Distribution{Kind: random.Normal, Std: 1}
	one := [3]uint32{1, 1, 1}
	pinned, err := i.gpu.AllocPinned(64)
	if err != nil {
		tb.Fatal(err)
	}
	return map[string]func(){
		"enter": func() {
			if err := i.gpu.Enter(); err != nil {
				tb.Fatal(err)
			}
			i.gpu.Leave()
		},
		"record":                 func() { i.a.Record() },
		"record and wait":        func() { i.b.Wait(i.a.Record()) },
		"record and synchronize": func() { _ = i.a.Synchronize(ctx, i.a.Record()) },
		"copy":                   func() { i.a.Copy(at(0x1000, 64), at(0x2000, 64)) },
		"copy from the host":     func() { i.a.Copy(at(0x1000, 64), pinned) },
		"copy to the host":       func() { i.a.Copy(pinned, at(0x1000, 64)) },
		"zero":                   func() { i.kernels.Zero(i.a, at(0x1000, 64)) },
		"cast":                   func() { i.kernels.Cast(i.a, m1, dtype.BFloat16, m2, dtype.Float32, 1000) },
		"accumulate":             func() { i.kernels.Accumulate(i.a, m1, dtype.Float32, m2, dtype.BFloat16, 1000, 8, false) },
		"fill":                   func() { i.kernels.Fill(i.a, m1, dtype.Float32, &normal, random.Stream{}, 0, 1000) },
		"norm":                   func() { i.kernels.Norm(i.a, m2, m3, dtype.Float32, 1000) },
		"adamw":                  func() { i.kernels.AdamW(i.a, optim.AdamWStep{}, withCopy(state)) },
		"launch": func() {
			_ = i.a.Launch(i.own, one, one, 0, Pointer(0x1000), Int64(4), Float32(2))
		},
	}
}

// BenchmarkHostCost is what an operation costs the host, without what a real
// driver does: ns/op and no allocation.
func BenchmarkHostCost(b *testing.B) {
	i := openIdle(b)
	for name, operation := range i.operations(b) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				operation()
			}
		})
	}
}
