package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/local"
	"github.com/shardgen/shardgen/runtime/comm/nccl"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/device/cuda"
)

// peer is a rank of a group and its device.
type peer struct {
	rank   int
	comm   comm.Communicator
	device device.Device
	memory device.Memory
	close  []func() error // what is open, in the order in which it was opened
}

// group is a process group all of whose ranks are in this process, in their order.
type group []*peer

func newGroup(ranks int) group {
	g := make(group, ranks)
	for r := range g {
		g[r] = &peer{rank: r}
	}
	return g
}

// each lets all ranks do something at once and waits for them. The first that
// fails ends the others.
func (g group) each(ctx context.Context, do func(context.Context, *peer) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	for _, p := range g {
		wait.Go(func() {
			if err := do(ctx, p); err != nil {
				cancel(fmt.Errorf("rank %d: %w", p.rank, err))
			}
		})
	}
	wait.Wait()
	err := context.Cause(ctx)
	for _, p := range g {
		if err != nil && p.comm != nil {
			p.comm.Abort(err)
		}
	}
	return err
}

// onCPU returns a group of ranks on the CPU.
func onCPU(ranks int) (group, error) {
	all, err := local.New(ranks, local.Options{Timeout: collectiveTimeout})
	if err != nil {
		return nil, err
	}
	g := newGroup(ranks)
	for r, p := range g {
		p.comm, p.device = all.Communicator(r), cpu.New()
		p.close = append(p.close, p.comm.Close)
	}
	return g, nil
}

// onGPUs returns a group whose rank r is on GPU r.
func onGPUs(ctx context.Context, ranks int) (group, error) {
	id, err := nccl.NewID()
	if err != nil {
		return nil, err
	}
	g := newGroup(ranks)
	err = g.each(ctx, func(ctx context.Context, p *peer) error { return p.join(ctx, id, ranks) })
	if err != nil {
		return nil, errors.Join(err, g.end())
	}
	return g, nil
}

func (p *peer) join(ctx context.Context, id nccl.ID, ranks int) error {
	gpu, err := cuda.Open(p.rank, cuda.Options{})
	if err != nil {
		return err
	}
	p.device, p.close = gpu, append(p.close, gpu.Close)
	c, err := nccl.New(ctx, nccl.Options{Device: gpu, Rank: p.rank, Size: ranks, ID: id, Timeout: collectiveTimeout})
	if err != nil {
		return err
	}
	p.comm, p.close = c, append(p.close, c.Close)
	return nil
}

// reserve gives each rank this much memory. Nobody allocates or frees while
// another is in a collective: on a GPU that may wait for all work of all GPUs.
func (g group) reserve(ctx context.Context, bytes int64) error {
	return g.each(ctx, func(_ context.Context, p *peer) (err error) {
		p.memory, err = p.device.Alloc(bytes)
		return err
	})
}

// release gives it back.
func (g group) release() error {
	var all []error
	for _, p := range g {
		if p.memory.Bytes() > 0 {
			all = append(all, p.device.Free(p.memory))
		}
		p.memory = device.Memory{}
	}
	return errors.Join(all...)
}

// end closes what is open. Communicators close together.
func (g group) end() error {
	errs := make([]error, len(g))
	var wait sync.WaitGroup
	for r, p := range g {
		wait.Go(func() {
			for i := len(p.close) - 1; i >= 0; i-- {
				errs[r] = errors.Join(errs[r], p.close[i]())
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}
