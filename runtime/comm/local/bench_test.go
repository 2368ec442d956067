package local_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// BenchmarkGatherAgainstCopy gathers 436 MB over 2 ranks and, in turns with
// that, lets 2 goroutines copy as many bytes with copy. It reports the median
// of the ratios of the two rates.
//
//	go test ./runtime/comm/local -run ^$ -bench GatherAgainstCopy -benchtime 9x
func BenchmarkGatherAgainstCopy(b *testing.B) {
	const part = 218 << 20
	var dst, src [2]device.Memory
	for r := range 2 {
		dst[r], src[r] = dirty(b, 2*part), dirty(b, part)
	}
	plain := func(r int) {
		copy(dst[r].Host()[:part], src[r].Host())
		copy(dst[r].Host()[part:], src[1-r].Host())
	}
	g := newGroup(b, 2, time.Minute)
	gather := func(r int) {
		c := g.Communicator(r)
		c.AllGather("h.0/bf16", dst[r], src[r])
		if err := c.Synchronize(context.Background(), c.GatherStream().Record()); err != nil {
			b.Error(err)
		}
	}
	onBoth(plain) // touches the pages
	onBoth(gather)
	var ratios []float64
	for b.Loop() {
		ratios = append(ratios, float64(onBoth(plain))/float64(onBoth(gather)))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "of-copy-rate")
}

func onBoth(f func(rank int)) time.Duration {
	start := time.Now()
	var wait sync.WaitGroup
	for r := range 2 {
		wait.Go(func() { f(r) })
	}
	wait.Wait()
	return time.Since(start)
}

// BenchmarkLatency runs collectives too small to take time of their own, and
// waits for each.
func BenchmarkLatency(b *testing.B) {
	for _, size := range []int{2, 4, 8} {
		for _, wait := range []bool{true, false} {
			b.Run(fmt.Sprintf("ranks=%d/each=%v", size, wait), func(b *testing.B) { tinyGathers(b, size, wait) })
		}
	}
}

func tinyGathers(b *testing.B, size int, each bool) {
	g := newGroup(b, size, time.Minute)
	dst, src := make([]device.Memory, size), make([]device.Memory, size)
	for r := range size {
		dst[r], src[r] = dirty(b, int64(size)*64), dirty(b, 64)
	}
	b.ReportAllocs()
	b.ResetTimer()
	n := b.N
	for _, err := range onEach(g, func(r int, c comm.Communicator) {
		for range n {
			c.AllGather("tiny", dst[r], src[r])
			if each {
				_ = c.Synchronize(context.Background(), c.GatherStream().Record())
			}
		}
	}) {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReduceScatter reports the rate at which sources are read.
func BenchmarkReduceScatter(b *testing.B) {
	for _, t := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		for _, size := range []int{2, 4, 8} {
			b.Run(fmt.Sprintf("%v/ranks=%d", t, size), func(b *testing.B) { bigReduces(b, size, t) })
		}
	}
}

func bigReduces(b *testing.B, size int, t dtype.DType) {
	const whole = 32 << 20
	g := newGroup(b, size, time.Minute)
	dst, src := make([]device.Memory, size), make([]device.Memory, size)
	for r := range size {
		dst[r], src[r] = dirty(b, int64(whole/size)), dirty(b, whole)
		clear(src[r].Host()) // NaNs take other branches than gradients do
	}
	b.SetBytes(int64(whole * size))
	b.ResetTimer()
	n := b.N
	for _, err := range onEach(g, func(r int, c comm.Communicator) {
		for range n {
			c.ReduceScatter("grads", dst[r], src[r], t)
		}
	}) {
		if err != nil {
			b.Fatal(err)
		}
	}
}
