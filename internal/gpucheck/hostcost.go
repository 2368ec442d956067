package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"time"

	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/gpu"
	"github.com/shardgen/shardgen/runtime/kernel"
)

// How often an operation is done for a measurement, and how many measurements
// there are.
const (
	costRounds      = 9
	costOperations  = 200
	quickOperations = 5
)

// hostCost measures what operations cost the host. They are so few at a time that
// the host never waits for room in the GPU's queue.
func (c *checker) hostCost(ctx context.Context) {
	operations := costOperations
	if c.quick {
		operations = quickOperations
	}
	c.check("costs", "launch", func(k *Check) error { return c.launchCost(ctx, k, operations) })
	c.check("costs", "gather", func(k *Check) error {
		if lacks, err := c.withoutNCCL(1); lacks != "" || err != nil {
			return errors.Join(err, k.skip("%s", lacks))
		}
		for _, d := range c.packages {
			if runnable(&d.Layout) && d.Layout.WorldIndex(1) >= 0 {
				return c.gatherCost(ctx, k, d, operations)
			}
		}
		return k.skip("no small package is among those that are checked")
	})
}

func (c *checker) cost(operation string, microseconds []float64) {
	x := Cost{operation, median(microseconds)}
	x.print(c.out)
	c.report.Costs = append(c.report.Costs, x)
}

// launchCost measures a kernel's launch and a point's record.
func (c *checker) launchCost(ctx context.Context, k *Check, operations int) error {
	m := c.with(kernel.Zero())
	if m == nil {
		return k.skip("no package was loaded")
	}
	stream, err := c.gpu.NewStream("cost", false)
	if err != nil {
		return err
	}
	mem, err := c.gpu.Alloc(64)
	if err != nil {
		return errors.Join(err, stream.Close())
	}
	for _, o := range []struct {
		name string
		do   func()
	}{
		{"launch of a kernel", func() { m.kernels.Zero(stream, mem) }},
		{"record of an event", func() { stream.Record() }},
	} {
		var all []float64
		for range costRounds {
			begin := time.Now()
			for range operations {
				o.do()
			}
			all = append(all, float64(time.Since(begin).Nanoseconds())/1e3/float64(operations))
			err = errors.Join(err, stream.Synchronize(ctx, stream.Record()))
		}
		c.cost(o.name, all)
	}
	k.Detail = fmt.Sprintf("median of %d times %d", costRounds, operations)
	return errors.Join(err, stream.Close(), c.gpu.Free(mem))
}

// gatherCost measures gather and release of the blocks of a small model on one
// rank; the end of a pass is not counted.
func (c *checker) gatherCost(ctx context.Context, k *Check, d *shard.Descriptor, operations int) error {
	passes := max(1, operations/int(d.Layout.Blocks()))
	var all []float64
	err := shard.Run(ctx, gpu.Local(1, gpu.Options{Timeout: collectiveTimeout}), func(ctx context.Context, rank *shard.Rank) error {
		m, err := shard.Open(ctx, rank, d, shard.Options{})
		if err != nil {
			return err
		}
		err = m.Init(ctx, 1)
		for i := 0; err == nil && i < 1+costRounds; i++ { // the first warms up
			var took time.Duration
			if took, err = timePasses(ctx, m, d, passes); i > 0 {
				all = append(all, float64(took.Nanoseconds())/1e3/float64(int64(passes)*d.Layout.Blocks()))
			}
		}
		return errors.Join(err, m.Close())
	})
	if err != nil {
		return err
	}
	c.cost("gather and release of a block of "+d.Package, all)
	k.Detail = fmt.Sprintf("median of %d times %d passes through %d blocks", costRounds, passes, d.Layout.Blocks())
	return nil
}

// timePasses returns the host's time for the gathers and releases of some passes.
func timePasses(ctx context.Context, m *shard.Model, d *shard.Descriptor, passes int) (took time.Duration, err error) {
	for range passes {
		pass := m.Eval(ctx)
		begin := time.Now()
		for k := range d.Layout.Kinds {
			for i := range d.Layout.Kinds[k].Count {
				block, err := pass.Gather(k, int(d.Layout.Kinds[k].First+i))
				if err != nil {
					return took, errors.Join(err, pass.End())
				}
				block.Release()
			}
		}
		took += time.Since(begin)
		if err := pass.End(); err != nil {
			return took, err
		}
	}
	return took, nil
}
