package gpucheck

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// crooked is a transport that does something else than it was asked for.
type crooked struct {
	comm.Communicator
	after func(dst device.Memory) // on the last rank, when its stream has passed
	dst   device.Memory
}

func (c *crooked) AllGather(subject string, dst, src device.Memory) {
	c.Communicator.AllGather(subject, dst, src)
	c.dst = dst
}

func (c *crooked) ReduceScatter(subject string, dst, src device.Memory, t dtype.DType) {
	c.Communicator.ReduceScatter(subject, dst, src, t)
	c.dst = dst
}

func (c *crooked) AllReduce(subject string, buf device.Memory, t dtype.DType) {
	c.Communicator.AllReduce(subject, buf, t)
	c.dst = buf
}

func (c *crooked) Broadcast(subject string, buf device.Memory, _ int) {
	c.Communicator.Broadcast(subject, buf, 0)
	c.dst = buf
}

func (c *crooked) Synchronize(ctx context.Context, e device.Event) error {
	err := c.Communicator.Synchronize(ctx, e)
	if c.after != nil && c.dst.Bytes() > 0 {
		c.after(c.dst)
		c.dst = device.Memory{}
	}
	return err
}

func TestWrongCollectivesAreFound(t *testing.T) {
	const ranks = 3
	for name, c := range map[string]struct {
		operation comm.Operation
		after     func(dst []byte) // nil: another root
		want      string
	}{
		"part in a wrong place": {comm.AllGather, func(b []byte) { slices.Reverse(b) }, "all-gather of 33 elements of u8 (integers)"},
		"last byte":             {comm.AllGather, func(b []byte) { b[len(b)-1]++ }, "differs in 1 of"},
		"wrong sign":            {comm.ReduceScatter, func(b []byte) { b[len(b)-1] ^= 0x80 }, "reduce-scatter of 33 elements of f32 (fractions)"},
		"lost bits":             {comm.AllReduce, func(b []byte) { b[0], b[1] = 0, 0 }, "all-reduce of 33 elements of f32 (fractions)"},
		"too much":              {comm.AllReduce, func(b []byte) { b[:len(b)+1][len(b)]++ }, "all-reduce of 33 elements"},
		"another root":          {comm.Broadcast, nil, "broadcast of 33 elements"},
	} {
		t.Run(name, func(t *testing.T) {
			all := exchanges(c.operation, true)
			all = all[len(all)/2:] // of 33 elements
			all = slices.DeleteFunc(all, func(e exchange) bool { return e.t.IsFloat() && (e.t != f32 || e.exact) })
			want := traceOnCPU(t, ranks, all, nil)
			got := traceOnCPU(t, ranks, all, func(p *peer) {
				spoiled := &crooked{Communicator: p.comm}
				if p.rank == ranks-1 && c.after != nil {
					spoiled.after = func(dst device.Memory) { c.after(withBehind(p.memory, dst)) }
				}
				p.comm = spoiled
			})
			var err error
			for r := range ranks {
				err = errors.Join(err, compareTraces(got[r], want[r], ranks))
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v does not mention %q", err, c.want)
			}
		})
	}
}

// withBehind returns a range as the host sees it, with room behind it.
func withBehind(all, part device.Memory) []byte {
	from := int64(part.Addr() - all.Addr())
	return all.Host()[from : from+part.Bytes() : from+part.Bytes()+1]
}

func traceOnCPU(t *testing.T, ranks int, all []exchange, spoil func(*peer)) [][]record {
	t.Helper()
	g, err := onCPU(ranks)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range g {
		if spoil != nil {
			spoil(p)
		}
	}
	traces, err := g.trace(t.Context(), all)
	if err = errors.Join(err, g.end()); err != nil {
		t.Fatal(err)
	}
	return traces
}

// 8 GPUs that gather 1 GB in 10 ms: 100 GB/s, of which each receives 7/8.
func TestBusBandwidthIsThatOfNCCLTests(t *testing.T) {
	b := busOf(comm.AllGather, 8, 1e9, 0.01)
	if math.Abs(b.AlgorithmBytesPerSec-100e9) > 1 || math.Abs(b.BusBytesPerSec-87.5e9) > 1 || b.GPUs != 8 || b.Operation != "all-gather" {
		t.Errorf("%+v", b)
	}
}

func TestTheDriversVersionIsFound(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version: 12.2.0\n":                      "535.129.03",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep 23 10:11:16 UTC 2025\n": "580.95.05",
		"NVRM version: something else\n": "",
		"":                               "",
	} {
		line, version := driverText(text)
		if version != want || strings.Contains(line, "GCC") || (text != "" && line == "") {
			t.Errorf("%q: line %q, version %q, want %q", text, line, version, want)
		}
	}
}
