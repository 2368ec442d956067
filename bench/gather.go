package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/shardgen/shardgen/generated/llama38bhost"
	"github.com/shardgen/shardgen/generated/llama38blayer"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/comm/fake"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

// keep leaves shards as they are and marks them as having values.
func keep(*shard.Shards) error { return nil }

// crew is ranks that wait for the next thing to do, so that one coordinator can
// time what they do together.
type crew struct {
	start []chan func(rank int) error
	done  chan error
}

func newCrew(n int) *crew {
	c := &crew{done: make(chan error, n)}
	for range n {
		c.start = append(c.start, make(chan func(int) error))
	}
	return c
}

// follow does what the coordinator says until it says no more.
func (c *crew) follow(rank int) {
	for do := range c.start[rank] {
		c.done <- do(rank)
	}
}

// time lets all ranks do something and returns how long it took.
func (c *crew) time(do func(rank int) error) (time.Duration, error) {
	begin := time.Now()
	for _, start := range c.start {
		start <- do
	}
	var failed error
	for range c.start {
		if err := <-c.done; err != nil {
			failed = err
		}
	}
	return time.Since(begin), failed
}

func (c *crew) dismiss() {
	for _, start := range c.start {
		close(start)
	}
}

// gatherVersusCopy compares the gather of a Llama-3-8B layer by two ranks with
// two goroutines that copy the same bytes from and to memory of their own.
func gatherVersusCopy() ([]Result, error) {
	const ranks = 2
	c := newCrew(ranks)
	models := make([]*llama38blayer.Model, ranks)
	ready := make(chan struct{}, ranks)
	ended := make(chan error, 1)
	go func() {
		ended <- shard.Run(context.Background(), shard.Local(ranks), func(ctx context.Context, rank *shard.Rank) error {
			m, err := llama38blayer.Open(ctx, rank, llama38blayer.Options{})
			if err != nil {
				return err
			}
			defer m.Close()
			if err := m.Update(ctx, keep); err != nil {
				return err
			}
			models[rank.Rank()] = m
			ready <- struct{}{}
			c.follow(rank.Rank())
			return nil
		})
	}()
	for range ranks {
		select {
		case <-ready:
		case err := <-ended:
			return nil, err
		}
	}
	results, err := compareGather(c, models)
	c.dismiss()
	if ended := <-ended; err == nil {
		err = ended
	}
	return results, err
}

func compareGather(c *crew, models []*llama38blayer.Model) ([]Result, error) {
	gather := func(rank int) error { return gatherLayer(models[rank]) }
	resident, err := residentBytes()
	if err != nil {
		return nil, err
	}
	if _, err := c.time(gather); err != nil { // touches the slots
		return nil, err
	}
	after, err := residentBytes()
	if err != nil {
		return nil, err
	}
	slot := layerBytes(models[0])
	extra := float64(after-resident)/float64(slot*int64(len(models))) - 1

	copies := newCopies(len(models), slot)
	if _, err := c.time(copies.run); err != nil {
		return nil, err
	}
	var ours, reference, ratios []float64
	for range rounds {
		a, err := c.time(gather)
		if err != nil {
			return nil, err
		}
		b, err := c.time(copies.run)
		if err != nil {
			return nil, err
		}
		total := float64(slot) * float64(len(models)) / 1e9
		ours, reference = append(ours, total/a.Seconds()), append(reference, total/b.Seconds())
		ratios = append(ratios, b.Seconds()/a.Seconds())
	}
	return []Result{
		{Name: "gather_vs_copy", Ours: median(ours), Reference: median(reference), Ratio: median(ratios), Unit: "GB/s",
			Note: fmt.Sprintf("a Llama-3-8B layer (%d bytes) by 2 local ranks, against 2 goroutines that copy the same bytes", slot)},
		{Name: "gather_extra_memory", Ours: max(extra, 0), Unit: "layers",
			Note: "resident memory that the first gather touched besides the slots"},
	}, nil
}

func gatherLayer(m *llama38blayer.Model) error {
	f := m.Forward(context.Background())
	layer, err := f.Layer()
	if err != nil {
		return err
	}
	layer.Release()
	return f.End()
}

// layerBytes is the gathered layer: with one slot and nothing trainable it is
// all that a rank has besides its shard.
func layerBytes(m *llama38blayer.Model) int64 {
	mem := m.Memory()
	return mem.PeakBytes - mem.RestBytes
}

// copies is what a gather amounts to at the least: every rank writes every
// rank's part into memory of its own.
type copies struct{ from, to [][]byte }

func newCopies(ranks int, bytes int64) *copies {
	c := &copies{}
	for range ranks {
		c.from = append(c.from, make([]byte, bytes/int64(ranks)))
		c.to = append(c.to, make([]byte, bytes))
	}
	for rank, part := range c.from { // a page that nobody wrote is read from the cache
		for i := range part {
			part[i] = byte(rank + i)
		}
	}
	return c
}

func (c *copies) run(rank int) error {
	for i, part := range c.from {
		copy(c.to[rank][i*len(part):], part)
	}
	return nil
}

// residentBytes reads how much of this process is in memory.
func residentBytes() (int64, error) {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text))
	if len(fields) < 2 {
		return 0, fmt.Errorf("/proc/self/statm has %d fields, 2 expected", len(fields))
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// gatherHost measures what the host does for a gather and a release when the
// transport does nothing, at several world sizes.
func gatherHost() ([]Result, error) {
	worlds := []int{8, 64, 512, 1024}
	ns := make(map[int][]float64)
	for range rounds {
		for _, w := range worlds {
			rank, err := shard.NewRank(fake.New(0, w), cpu.New())
			if err != nil {
				return nil, err
			}
			each, err := hostNanoseconds(rank, 50_000)
			if err != nil {
				return nil, err
			}
			ns[w] = append(ns[w], each)
		}
	}
	base := median(ns[worlds[0]])
	var results []Result
	for _, w := range worlds {
		r := Result{Name: fmt.Sprintf("gather_host_ns_%d", w), Ours: median(ns[w]), Unit: "ns", Note: fmt.Sprintf("gather and release of a block of 9 parameters, W=%d, a transport that does nothing", w)}
		if w != worlds[0] {
			r.Reference, r.Ratio = base, median(ns[w])/base
			r.Note += fmt.Sprintf("; reference: W=%d", worlds[0])
		}
		results = append(results, r)
	}
	return results, nil
}

// hostNanoseconds is the mean time of one gather and release on a rank.
func hostNanoseconds(rank *shard.Rank, n int) (float64, error) {
	ctx := context.Background()
	m, err := llama38bhost.Open(ctx, rank, llama38bhost.Options{})
	if err != nil {
		return 0, err
	}
	defer m.Close()
	if err := m.Update(ctx, keep); err != nil {
		return 0, err
	}
	f := m.Forward(ctx)
	begin := time.Now()
	for range n {
		layer, err := f.Layer()
		if err != nil {
			return 0, err
		}
		layer.Release()
	}
	spent := time.Since(begin)
	return float64(spent.Nanoseconds()) / float64(n), f.End()
}

// gatherLocal is gatherHost with ranks that really meet.
func gatherLocal() ([]Result, error) {
	var results []Result
	for _, w := range []int{2, 4, 8} {
		var ns []float64
		for range rounds {
			times := make([]float64, w)
			err := shard.Run(context.Background(), shard.Local(w), func(_ context.Context, rank *shard.Rank) error {
				var err error
				times[rank.Rank()], err = hostNanoseconds(rank, 5_000)
				return err
			})
			if err != nil {
				return nil, err
			}
			ns = append(ns, times[0])
		}
		results = append(results, Result{Name: fmt.Sprintf("gather_local_ns_%d", w), Ours: median(ns), Unit: "ns",
			Note: fmt.Sprintf("the same with %d ranks that are goroutines and meet for every gather", w)})
	}
	return results, nil
}
