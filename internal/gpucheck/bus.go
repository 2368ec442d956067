package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// How long a measurement between GPUs lasts, and how many collectives it has at
// most.
const (
	aimedBusTime       = 50 * time.Millisecond
	mostBusCollectives = 100
)

// busWork is a collective that is measured.
type busWork struct {
	operation comm.Operation
	do        func(p *peer, bytes int64) // bytes of what is gathered or summed
}

// busWorks are the two that a training step consists of.
var busWorks = []busWork{
	{comm.AllGather, func(p *peer, bytes int64) {
		part := bytes / int64(p.comm.Size())
		p.comm.AllGather("the measurement", p.memory.Slice(0, bytes), p.memory.Slice(bytes, part))
	}},
	{comm.ReduceScatter, func(p *peer, bytes int64) {
		part := bytes / int64(p.comm.Size())
		p.comm.ReduceScatter("the measurement", p.memory.Slice(bytes, part), p.memory.Slice(0, bytes), dtype.Float32)
	}},
}

// busBandwidth measures the collectives between all GPUs.
func (c *checker) busBandwidth(ctx context.Context, k *Check, g group) error {
	if len(g) == 1 {
		return k.skip("there is one GPU, so nothing goes between GPUs")
	}
	sizes, count := measuredBytes, rounds
	if c.quick {
		sizes, count = quickBytes, quickRounds
	}
	var notes []string
	for _, bytes := range sizes {
		part := bytes / int64(len(g)) / behindBytes * behindBytes
		bytes, need := part*int64(len(g)), part*int64(len(g)+1)
		free, err := g.freeBytes()
		if err != nil {
			return err
		}
		if lacks := noRoom(need, free); lacks != "" {
			notes = append(notes, fmt.Sprintf("%s left out: %s", size(bytes), lacks))
			continue
		}
		if err := c.measureBus(ctx, g, bytes, need, count); err != nil {
			return err
		}
	}
	if len(c.report.Buses) == 0 {
		return k.skip("%s", strings.Join(notes, "; "))
	}
	k.Detail = strings.Join(append([]string{fmt.Sprintf("%d measured between %d GPUs", len(c.report.Buses), len(g))}, notes...), "; ")
	return nil
}

// freeBytes is how much memory the fullest GPU has.
func (g group) freeBytes() (least int64, err error) {
	least = math.MaxInt64
	for _, p := range g {
		free, _, fault := p.device.(*cuda.Device).MemoryBytes()
		least, err = min(least, free), errors.Join(err, fault)
	}
	return least, err
}

// measureBus measures each collective on buffers of one size.
func (c *checker) measureBus(ctx context.Context, g group, bytes, need int64, count int) error {
	err := g.reserve(ctx, need)
	for _, w := range busWorks {
		if err != nil {
			break
		}
		var seconds float64
		if seconds, err = g.seconds(ctx, w, bytes, count); err == nil {
			b := busOf(w.operation, len(g), bytes, seconds)
			b.print(c.out)
			c.report.Buses = append(c.report.Buses, b)
		}
	}
	return errors.Join(err, g.release())
}

// busOf says how fast a collective is, as nccl-tests do (doc/PERFORMANCE.md
// there): the algorithm's bandwidth is the bytes of the gathered or summed buffer
// over the time, the bus's (n-1)/n of that, which is what each GPU has to send and
// receive whatever the algorithm.
func busOf(o comm.Operation, gpus int, bytes int64, seconds float64) Bus {
	rate := float64(bytes) / seconds
	return Bus{Operation: o.String(), GPUs: gpus, Bytes: bytes, AlgorithmBytesPerSec: rate, BusBytesPerSec: rate * float64(gpus-1) / float64(gpus)}
}

// seconds returns the median time of a collective, of several measurements of as
// many as take some time.
func (g group) seconds(ctx context.Context, w busWork, bytes int64, count int) (float64, error) {
	_, err := g.time(ctx, w, bytes, 1) // warms up
	one, again := g.time(ctx, w, bytes, 1)
	times := max(1, min(mostBusCollectives, int(aimedBusTime/one)))
	var all []float64
	err = errors.Join(err, again)
	for i := 0; err == nil && i < count; i++ {
		var took time.Duration
		took, err = g.time(ctx, w, bytes, times)
		all = append(all, took.Seconds()/float64(times))
	}
	if err != nil {
		return 0, fmt.Errorf("%s of %s: %w", w.operation, size(bytes), err)
	}
	return median(all), nil
}

// time returns how long all ranks take for some collectives, until the last is
// done on the last rank.
func (g group) time(ctx context.Context, w busWork, bytes int64, times int) (time.Duration, error) {
	begin := time.Now()
	err := g.each(ctx, func(ctx context.Context, p *peer) error {
		for range times {
			w.do(p, bytes)
		}
		return errors.Join(p.comm.Synchronize(ctx, p.comm.GatherStream().Record()), p.comm.Synchronize(ctx, p.comm.ReduceStream().Record()))
	})
	return max(1, time.Since(begin)), err
}
