package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/shardgen/shardgen/gen/cuemit"
	"github.com/shardgen/shardgen/gen/output"
	"github.com/shardgen/shardgen/gen/plan"
)

// runPlan prints the plan of a spec at one world size.
func runPlan(c *call) error {
	if len(c.options.worlds) > 1 {
		return c.withUsage(usageErrorf("plan shows one world size at a time, got %d", len(c.options.worlds)))
	}
	m, err := c.parsed(c.args[0])
	if err != nil {
		return err
	}
	world := m.Topology.Worlds[0].V
	if len(c.options.worlds) == 1 {
		world = c.options.worlds[0]
	}
	if rank := c.options.rank; rank != nil && *rank >= world {
		return c.withUsage(usageErrorf("flag --rank: rank %d is not below the world size, which is %d: ask for a larger one with --world", *rank, world))
	}
	return c.long("planning "+c.args[0], func() error {
		p, faults := plan.Build(m, world)
		if err := faults.Err(); err != nil {
			return err
		}
		return c.printPlan(p, world)
	})
}

func (c *call) printPlan(p *plan.Plan, world int64) error {
	rank := c.options.rank
	if c.options.format != "json" {
		if err := printTable(c.stdout, p, world); err != nil || rank == nil {
			return err
		}
	}
	text, err := p.JSON(world, rank)
	if err != nil {
		return fmt.Errorf("%s: %w", c.args[0], err)
	}
	if c.options.format == "json" {
		c.stdout.Write(text)
		return nil
	}
	return printSegments(c.stdout, text, *rank)
}

// printTable adds the number of CUDA kernels to a plan's table.
func printTable(w io.Writer, p *plan.Plan, world int64) error {
	if err := p.Table(w, world); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nCUDA kernels  %d\n", len(cuemit.Kernels(p)))
	return err
}

// printSegments writes the segments of a plan's JSON as a table, offsets and
// lengths in elements.
func printSegments(w io.Writer, planned []byte, rank int64) error {
	var p struct {
		Segments []struct {
			Bucket, Param string
			ParamOffset   int64 `json:"param_offset"`
			ShardOffset   int64 `json:"shard_offset"`
			Len           int64
		}
	}
	if err := json.Unmarshal(planned, &p); err != nil {
		return fmt.Errorf("internal error: the plan's JSON: %w", err)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\nowned by rank %d\tparameter\tfrom\tplace in shard\telements\n", rank)
	for _, s := range p.Segments {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\n", output.Printable(s.Bucket), output.Printable(s.Param), s.ParamOffset, s.ShardOffset, s.Len)
	}
	return table.Flush()
}
