package gpucheck

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/internal/emulated"
	"github.com/shardgen/shardgen/runtime/device/cuda"
)

// onSome runs the section on the first GPUs of the machine.
func onSome(t *testing.T, count int) (*checker, string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c := &checker{options: options{quick: true}, out: &stdout, progress: &stderr}
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	c.count = count
	c.collectives(t.Context())
	if err := c.close(); err != nil || stderr.Len() > 0 {
		t.Errorf("%v\n%s", err, &stderr)
	}
	return c, stdout.String()
}

func TestCollectivesAreCheckedBetweenAllGPUs(t *testing.T) {
	for count := 1; count <= 4; count++ {
		for _, schedule := range emulated.Schedules()[:3] {
			t.Run(fmt.Sprintf("%d/%s", count, schedule), func(t *testing.T) {
				m := emulated.Require(t)
				m.Schedule(t, schedule)
				c, table := onSome(t, count)
				if c.report.Failed > 0 || len(c.report.Checks) != 7 {
					t.Errorf("%d failed of %d\n%s", c.report.Failed, len(c.report.Checks), table)
				}
				measured := c.report.Checks[5]
				if count == 1 {
					if measured.Status != Skipped || len(c.report.Buses) > 0 || !strings.Contains(table, oneRank) {
						t.Errorf("one GPU\n%s", table)
					}
				} else if measured.Status != OK || len(c.report.Buses) != 2 {
					t.Errorf("%+v\n%s", c.report.Buses, table)
				}
				for _, b := range c.report.Buses {
					if b.GPUs != count || b.Bytes <= 0 || b.Bytes > quickBytes[0] || b.BusBytesPerSec <= 0 {
						t.Errorf("%+v", b)
					}
				}
				m.Clean(t)
			})
		}
	}
}

// A rank that fails ends the others, which would wait for it for a minute.
func TestACollectiveThatFailsEndsTheSection(t *testing.T) {
	m := emulated.Require(t)
	m.Fault(t, "ncclReduceScatter:3:after=6") // behind those that connect the ranks
	begin := time.Now()
	c, table := onSome(t, 3)
	if c.report.Failed == 0 || !strings.Contains(table, "FAILED   nccl     reduce-scatter") || !strings.Contains(table, "ncclReduceScatter") {
		t.Errorf("%d failed\n%s", c.report.Failed, table)
	}
	if took := time.Since(begin); took > collectiveTimeout/2 {
		t.Errorf("it took %v", took)
	}
}

// filled leaves a GPU this many free bytes until the test ends.
func filled(t *testing.T, ordinal int, left int64) {
	t.Helper()
	gpu, err := cuda.Open(ordinal, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
	})
	free, _, err := gpu.MemoryBytes()
	if err == nil {
		_, err = gpu.Alloc(free - left)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAFullGPULeavesOutWhatDoesNotFit(t *testing.T) {
	m, list := emulatedPackages(t, "tiny")
	m.Memory(t, 32<<20)
	filled(t, 0, 500<<10)
	o := runQuick(t, list, "-sections", "model,nccl,rates,costs")
	skipped := map[string]bool{}
	for _, k := range o.report.Checks {
		skipped[k.Section+" "+k.Name] = k.Status == Skipped
	}
	for _, name := range []string{"model tiny", "model tiny on 8", "nccl start", "rates bandwidth", "costs gather"} {
		if !skipped[name] {
			t.Errorf("%s is not skipped", name)
		}
	}
	for _, words := range []string{"NCCL needs up to 1 GiB for itself, GPU 0 has", "it needs 1.063 MiB, the GPU has"} {
		if o.status != exitOK || !strings.Contains(o.stdout, words) {
			t.Errorf("status %d, %q expected\n%s", o.status, words, o.stdout)
		}
	}
}

func TestMeasurementsThatOneGPUHasNoRoomForAreLeftOut(t *testing.T) {
	emulated.Require(t).Memory(t, 32<<20)
	g, err := onGPUs(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	filled(t, 1, 100<<10)
	var table bytes.Buffer
	c := &checker{options: options{quick: true}, out: &table}
	c.check("nccl", "bandwidth", func(k *Check) error { return c.busBandwidth(t.Context(), k, g) })
	if k := c.report.Checks[0]; k.Status != Skipped || !strings.Contains(k.Detail, "512 KiB left out: it needs 768 KiB, the GPU has ") {
		t.Errorf("%s: %s", k.Status, k.Detail)
	}
	if err := g.end(); err != nil {
		t.Error(err)
	}
}

func TestWithoutNCCLCollectivesAreSkipped(t *testing.T) {
	_, list := emulatedPackages(t, "tiny")
	t.Setenv("SHARDGEN_LIBNCCL", "/nowhere/libnccl.so.2")
	o := runQuick(t, list, "-sections", "nccl")
	if o.status != exitOK || o.report.Checks[0].Status != Skipped || !strings.Contains(o.report.Machine.NCCL, "/nowhere/libnccl.so.2") {
		t.Errorf("status %d\n%s", o.status, o.stdout)
	}
}

func TestTheDeadlineEndsCollectives(t *testing.T) {
	emulated.Require(t)
	g, err := onGPUs(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, fmt.Errorf("not done in time"))
	defer cancel()
	err = g.each(ctx, func(ctx context.Context, p *peer) error {
		if p.rank == 0 {
			p.comm.Barrier("a barrier to which rank 1 does not come")
		}
		return p.comm.Synchronize(ctx, p.comm.GatherStream().Record())
	})
	if err == nil || !strings.Contains(err.Error(), "not done in time") {
		t.Error(err)
	}
	_ = g.end() // says the same
}
