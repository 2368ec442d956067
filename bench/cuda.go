package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu/idle"
	"github.com/shardgen/shardgen/generated/llama38bhost"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/comm/nccl"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
)

// gatherHostCUDA is gatherHost for a GPU: over a driver and an NCCL that do nothing.
// It needs gcc to build them; without, there is no row, but the reason.
func gatherHostCUDA() ([]Result, error) {
	const name, world, gathers = "gather_host_cuda_ns", 8, 50_000
	if err := idle.Available(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %s is left out: %v\n", name, err)
		return nil, nil
	}
	dir, err := os.MkdirTemp("", "shardgen-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	d, err := openIdle(dir, world)
	if err != nil {
		return nil, err
	}
	var ns, allocations []float64
	for range rounds {
		each, allocated, err := d.gathers(gathers)
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		ns, allocations = append(ns, each), append(allocations, allocated)
	}
	note := fmt.Sprintf("gather and release of a block of 9 parameters, W=%d, through CUDA and NCCL that do nothing", world)
	goalNanoseconds, goalAllocations := 3000.0, 0.0
	return []Result{
		{Name: name, Ours: median(ns), Goal: &goalNanoseconds, Unit: "ns", Note: note},
		{Name: "gather_host_cuda_allocations", Ours: median(allocations), Goal: &goalAllocations, Unit: "a block", Note: "what it allocates"},
	}, d.close()
}

// idleRank is a rank on a GPU that does nothing, with an open model.
type idleRank struct {
	gpu   *cuda.Device
	comm  *nccl.Communicator
	rank  *shard.Rank
	model *shard.Model
	start []int64 // of the block's parameters in its bucket, in elements
}

func openIdle(dir string, world int) (*idleRank, error) {
	libraries, err := idle.Build(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("SHARDGEN_LIBNCCL", libraries.NCCL); err != nil {
		return nil, err
	}
	d := &idleRank{}
	if err := d.open(libraries.CUDA, world); err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

func (d *idleRank) open(driver string, world int) error {
	descriptor := hostDescriptor()
	for _, p := range descriptor.Layout.Kinds[0].Buckets[0].Params {
		d.start = append(d.start, p.Start)
	}
	id, err := nccl.NewID()
	if err != nil {
		return err
	}
	ctx := context.Background()
	if d.gpu, err = cuda.Open(0, cuda.Options{Library: driver}); err != nil {
		return err
	}
	if d.comm, err = nccl.New(ctx, nccl.Options{Device: d.gpu, Size: world, ID: id}); err != nil {
		return err
	}
	if d.rank, err = shard.NewRank(d.comm, d.gpu); err != nil {
		return err
	}
	if d.model, err = shard.Open(ctx, d.rank, descriptor, shard.Options{}); err != nil {
		return err
	}
	return d.model.Init(ctx, 1)
}

// hostDescriptor describes the model of gatherHost, with code and inits that only
// a driver that does nothing can do something with: the generated package has
// kernels where nvcc was there.
func hostDescriptor() *shard.Descriptor {
	const image, source = "\x50\xed\x55\xba\x01\x00\x10\x00\x04\x00\x00\x00\x00\x00\x00\x00none", "00"
	d := *llama38bhost.Descriptor()
	d.Code = device.Code{Package: d.Package, Source: source, Fatbin: string(fatbin.Seal([]byte(image), fatbin.Record{Source: source}))}
	kind := d.Layout.Kinds[0]
	kind.Buckets = slices.Clone(kind.Buckets)
	params := slices.Clone(kind.Buckets[0].Params)
	for i := range params {
		params[i].Init = &random.Distribution{Kind: random.Ones}
	}
	kind.Buckets[0].Params = params
	d.Layout.Kinds = []layout.Kind{kind}
	return &d
}

// gathers returns the mean time of a gather and release, with views of all
// parameters as generated code makes them, and how often one allocates.
func (d *idleRank) gathers(n int) (ns, allocations float64, err error) {
	f := d.model.Forward(context.Background())
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begin := time.Now()
	for range n {
		b, err := f.Gather(0, 0)
		if err != nil {
			return 0, 0, err
		}
		for i, start := range d.start {
			if x := shard.Param[dtype.BF16](b, 0, i, start); !x.Planned() {
				return 0, 0, fmt.Errorf("parameter %d is not there", i)
			}
		}
		b.Release()
	}
	spent := time.Since(begin)
	runtime.ReadMemStats(&after)
	return float64(spent.Nanoseconds()) / float64(n), float64((after.Mallocs - before.Mallocs) / uint64(n)), f.End()
}

func (d *idleRank) close() error {
	var all []error
	if d.model != nil {
		all = append(all, d.model.Close())
	}
	if d.rank != nil {
		all = append(all, d.rank.Close())
	}
	if d.comm != nil {
		all = append(all, d.comm.Close())
	}
	if d.gpu != nil {
		all = append(all, d.gpu.Close())
	}
	return errors.Join(all...)
}
