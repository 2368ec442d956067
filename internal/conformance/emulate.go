package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
)

// largestEmulated is the largest world size that runs on the machine.
const largestEmulated = 4

// Main is a program that checks packages, on the machine that is built in a
// folder too unless that is empty. It returns the exit status.
func Main(folder string, out io.Writer, packages []Package) int {
	ctx := context.Background()
	var m *emulated.Machine
	var err error
	if folder != "" {
		m, err = emulated.Open(ctx, folder)
	}
	if err == nil {
		err = CheckAll(ctx, packages, m)
	}
	if err != nil {
		fmt.Fprintln(out, err)
		return 1
	}
	return 0
}

// compile makes the kernels of all packages known to the machine. A package
// whose own are not compiled gets a stand-in for them.
func compile(ctx context.Context, packages []Package, m *emulated.Machine) error {
	if m == nil {
		return nil
	}
	var wait sync.WaitGroup
	errs := make([]error, len(packages))
	for i, p := range packages {
		if p.CUDA == "" {
			continue
		}
		wait.Go(func() { errs[i] = Compile(ctx, m, p.CUDA, p.Descriptor()) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// Compile makes the machine's kernels of a package those that its descriptor
// loads; folder has its CUDA source.
func Compile(ctx context.Context, m *emulated.Machine, folder string, d *shard.Descriptor) error {
	code, err := m.Add(ctx, folder, d.Code)
	if err == nil {
		d.Code = code
	}
	return err
}

// Schedules are the orders of work under which a run at a world size is repeated:
// at all world sizes together each of a rank's streams comes last once. In the
// order in which they are made these are the one of transfers, gathers, reductions
// and computation.
func Schedules(world int) []string {
	return []string{fmt.Sprintf("random:%d", world), fmt.Sprintf("starve:%d", (world+2)%4)}
}

// schedules returns those under which a package runs on the machine at a world
// size: all, but one for a rank alone; or for a package that is not checked
// thoroughly one, at the first size at which ranks talk.
func (o *Oracle) schedules(p Package, world int) []string {
	worlds := o.worlds()
	first := max(0, slices.IndexFunc(worlds, func(w int) bool { return w > 1 }))
	switch {
	case p.CUDA == "" || world > largestEmulated || !p.Thorough && world != worlds[first]:
		return nil
	case p.Thorough && world > 1:
		return Schedules(world)
	}
	return Schedules(world)[1:]
}

// emulate runs a package on the machine, under each schedule, and wants the bits
// that the ranks had on the CPU.
func (o *Oracle) emulate(ctx context.Context, p Package, world int, m *emulated.Machine, schedules []string, want []*Record) error {
	for _, schedule := range schedules {
		err := m.Use(schedule)
		if err == nil {
			err = o.emulateOnce(ctx, p, world, m, want)
		}
		if err != nil {
			return fmt.Errorf("on emulated GPUs, schedule %s: %w", schedule, err)
		}
	}
	return nil
}

func (o *Oracle) emulateOnce(ctx context.Context, p Package, world int, m *emulated.Machine, want []*Record) error {
	got, err := o.Check(ctx, p, world, m.Launcher(world))
	if err != nil {
		return err
	}
	for rank := range want {
		if err := got[rank].Differs(want[rank]); err != nil {
			return fmt.Errorf("rank %d: %w", rank, err)
		}
	}
	return m.Findings()
}
