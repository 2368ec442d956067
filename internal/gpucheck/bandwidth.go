package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// goal is the least share of a copy's bandwidth that casts, accumulations and
// AdamW should reach.
const goal = 0.9

// What is measured: bytes that a launch reads and writes, how often, and how long
// a measurement lasts.
var (
	measuredBytes = []int64{256 << 20, 1 << 30}
	quickBytes    = []int64{512 << 10}
)

const (
	rounds       = 9
	quickRounds  = 3
	aimedTime    = 8 * time.Millisecond
	mostLaunches = 400
)

// load is a kernel whose bandwidth is measured.
type load struct {
	kernel       string
	goal         float64
	elementBytes int64 // read and written for an element
	run          func(b *band, n int64)
}

// band is memory and a stream to measure on.
type band struct {
	kernels  device.Kernels
	stream   device.Stream
	arena    device.Memory
	partials device.Memory
}

// part returns the i-th of several ranges of n elements each.
func (b *band) part(i int, n int64, types ...dtype.DType) device.Memory {
	var start int64
	for _, t := range types[:i] {
		start += (n*t.Bytes() + alignBytes - 1) / alignBytes * alignBytes
	}
	return b.arena.Slice(start, n*types[i].Bytes())
}

// alignBytes is more than any package's align_bytes.
const alignBytes = 64 << 10

// truncated and uniform are what else ranges are filled with to measure it.
var (
	truncated = random.Distribution{Kind: random.TruncatedNormal, Std: 1, Cut: 2}
	uniform   = random.Distribution{Kind: random.Uniform, Low: -1, High: 1}
)

// loads returns all kernels that are measured where a package has them.
func loads() []load {
	list := []load{
		{kernel.Zero(), 0, 1, func(b *band, n int64) { b.kernels.Zero(b.stream, b.arena.Slice(0, n)) }},
		{kernel.NormTotal(), 0, optim.NormBytes, func(b *band, n int64) { // one block, for whatever n
			b.kernels.NormTotal(b.stream, b.partials.Slice(0, optim.NormBytes), b.arena.Slice(0, n*optim.NormBytes))
		}},
	}
	for _, t := range []dtype.DType{dtype.Float8E4M3, bf16, f32, f64} { // one of each size
		list = append(list, fillLoad(t, random.Distribution{Kind: random.Ones}))
	}
	for _, from := range dtype.All() {
		if from.IsFloat() {
			list = append(list, fillLoad(from, normal), fillLoad(from, truncated), fillLoad(from, uniform))
		}
		for _, to := range dtype.All() {
			if from.IsFloat() && to.IsFloat() && from != to {
				list = append(list, castLoad(from, to))
			}
		}
	}
	for _, t := range []dtype.DType{f32, f64} {
		list = append(list, normLoad(t), scaleLoad(t))
		for _, own := range dtype.All() {
			if own.Trainable() {
				list = append(list, accumulateLoad(own, t, true), accumulateLoad(own, t, false), adamWLoad(t, own), sgdLoad(t, own, 0), sgdLoad(t, own, 1))
			}
		}
	}
	return list
}

func fillLoad(t dtype.DType, d random.Distribution) load {
	return load{kernel.Fill(d.Kind, t), 0, t.Bytes(), func(b *band, n int64) {
		b.kernels.Fill(b.stream, b.part(0, n, t), t, &d, random.NewStream(1, "w"), 0, n)
	}}
}

func castLoad(from, to dtype.DType) load {
	return load{kernel.Cast(from, to), goal, from.Bytes() + to.Bytes(), func(b *band, n int64) {
		b.kernels.Cast(b.stream, b.part(1, n, from, to), to, b.part(0, n, from, to), from, n)
	}}
}

func accumulateLoad(wire, sum dtype.DType, store bool) load {
	bytes := wire.Bytes() + sum.Bytes()
	if !store {
		bytes += sum.Bytes()
	}
	return load{kernel.Accumulate(wire, sum, store), goal, bytes, func(b *band, n int64) {
		b.kernels.Accumulate(b.stream, b.part(0, n, sum, wire), sum, b.part(1, n, sum, wire), wire, n, 8, store)
	}}
}

func normLoad(t dtype.DType) load {
	return load{kernel.Norm(t), 0, t.Bytes(), func(b *band, n int64) {
		partials := b.partials.Slice(alignBytes, optim.PartialBytes(n))
		b.kernels.Norm(b.stream, partials, b.part(0, n, t), t, n)
		b.kernels.NormTotal(b.stream, b.partials.Slice(0, optim.NormBytes), partials)
	}}
}

func scaleLoad(t dtype.DType) load {
	return load{kernel.Scale(t), 0, 2 * t.Bytes(), func(b *band, n int64) { b.kernels.Scale(b.stream, b.part(0, n, t), t, n, 1) }}
}

// stateOf lays out an optimizer's state: master, gradient, moments, copy.
func (b *band) stateOf(n int64, t, own dtype.DType, moments int) device.State {
	types := append(slices.Repeat([]dtype.DType{t}, 2+moments), own)
	s := device.State{N: n, Type: t, Master: b.part(0, n, types...), Grad: b.part(1, n, types...)}
	for i := range moments {
		s.Moments[i] = b.part(2+i, n, types...)
	}
	if own != t {
		s.Copy, s.CopyType = b.part(2+moments, n, types...), own
	}
	return s
}

func copyBytes(t, own dtype.DType) int64 {
	if t == own {
		return 0
	}
	return own.Bytes()
}

// adamWLoad reads master, gradient and moments, and writes all but the gradient.
func adamWLoad(t, own dtype.DType) load {
	step := optim.AdamWStep{GradScale: 1, Keep: 1, Gain1: 0.1, Keep1: 0.9, Beta2: 0.999, Gain2: 0.001, StepSize: 1e-3, Root2: 1, Eps: 1e-8}
	return load{kernel.AdamW(t, own), goal, 7*t.Bytes() + copyBytes(t, own), func(b *band, n int64) {
		b.kernels.AdamW(b.stream, step, b.stateOf(n, t, own, 2))
	}}
}

// sgdLoad reads and writes master and moments, and reads the gradient.
func sgdLoad(t, own dtype.DType, moments int) load {
	step := optim.SGDStep{GradScale: 1, Momentum: 0.9 * float64(moments), Gain: 1, LR: 1e-3}
	return load{kernel.SGD(t, own, moments > 0), 0, (3+2*int64(moments))*t.Bytes() + copyBytes(t, own), func(b *band, n int64) {
		b.kernels.SGD(b.stream, step, b.stateOf(n, t, own, moments))
	}}
}

// bandwidth measures all kernels that the packages have, each between copies of
// as many bytes.
func (c *checker) bandwidth(ctx context.Context) {
	sizes, count := measuredBytes, rounds
	if c.quick {
		sizes, count = quickBytes, quickRounds
	}
	c.check("rates", "bandwidth", func(k *Check) error {
		sizes, lacks, err := c.fitting(sizes)
		if err != nil || len(sizes) == 0 {
			return errors.Join(err, k.skip("%s", lacks))
		}
		b, err := c.newBand(slices.Max(sizes))
		if err != nil {
			return err
		}
		for _, l := range loads() {
			for _, bytes := range sizes {
				if err == nil {
					err = c.measure(ctx, b, l, bytes, count)
				}
			}
		}
		k.Detail = fmt.Sprintf("%d measured, %d goals missed", len(c.report.Rates), c.report.missed())
		if lacks != "" {
			k.Detail += "; larger ones left out: " + lacks
		}
		return errors.Join(err, c.closeBand(b))
	})
}

// fitting returns the sizes that the GPU has room for, and what it lacks for the
// first of the others. They are in increasing order.
func (c *checker) fitting(sizes []int64) (fit []int64, lacks string, err error) {
	for _, bytes := range sizes {
		if lacks, err = c.noRoom(bandBytes(bytes)); lacks != "" || err != nil {
			return fit, lacks, err
		}
		fit = append(fit, bytes)
	}
	return fit, "", nil
}

// missed returns how many rates are below their goal.
func (r *Report) missed() (count int) {
	for _, rate := range r.Rates {
		if rate.Share < rate.Goal {
			count++
		}
	}
	return count
}

// measure measures a kernel if a package has it.
func (c *checker) measure(ctx context.Context, b *band, l load, bytes int64, count int) error {
	m := c.with(l.kernel)
	if m == nil {
		return nil
	}
	if c.quick {
		l.goal = 0 // so small sizes say nothing about speed
	}
	b.kernels = m.kernels
	r, err := b.rate(ctx, l, bytes, count)
	if err != nil {
		return fmt.Errorf("%s: %w", l.kernel, err)
	}
	r.print(c.out)
	c.report.Rates = append(c.report.Rates, r)
	return nil
}

func arenaBytes(bytes int64) int64   { return bytes + 8*alignBytes }
func partialBytes(bytes int64) int64 { return alignBytes + optim.PartialBytes(bytes) }

// bandBytes is what newBand allocates.
func bandBytes(bytes int64) int64 { return arenaBytes(bytes) + partialBytes(bytes) }

// newBand allocates what launches of some bytes need: a copy has two halves, and
// no kernel has more memory than it reads and writes.
func (c *checker) newBand(bytes int64) (*band, error) {
	b := &band{}
	var err error
	if b.stream, err = c.gpu.NewStream("bandwidth", false); err != nil {
		return nil, err
	}
	if b.arena, err = c.gpu.Alloc(arenaBytes(bytes)); err == nil {
		b.partials, err = c.gpu.Alloc(partialBytes(bytes))
	}
	if err != nil {
		return nil, errors.Join(err, c.closeBand(b))
	}
	return b, nil
}

func (c *checker) closeBand(b *band) error {
	return errors.Join(b.stream.Close(), c.gpu.Free(b.arena), c.gpu.Free(b.partials))
}

// rate measures a kernel: the median of several pairs of a copy and the kernel,
// each as many launches as take a few milliseconds.
func (b *band) rate(ctx context.Context, l load, bytes int64, count int) (Rate, error) {
	n, half := bytes/l.elementBytes/optim.ChunkElements*optim.ChunkElements, bytes/2
	r := Rate{Kernel: l.kernel, Bytes: n * l.elementBytes, Goal: l.goal}
	kernels := work{bytes: r.Bytes, do: func() { l.run(b, n) }}
	copies := work{bytes: 2 * half, do: func() { b.stream.Copy(b.arena.Slice(0, half), b.arena.Slice(half, half)) }}
	if err := errors.Join(b.prepare(ctx, &copies), b.prepare(ctx, &kernels)); err != nil {
		return r, err
	}
	var shares []float64
	for range count {
		if err := errors.Join(b.repeat(ctx, &copies), b.repeat(ctx, &kernels)); err != nil {
			return r, err
		}
		shares = append(shares, kernels.last()/copies.last())
	}
	r.CopyBytesPerSec, r.BytesPerSecond, r.Share = median(copies.rates), median(kernels.rates), median(shares)
	return r, nil
}

// work is something that is measured several times.
type work struct {
	bytes    int64 // read and written by a launch
	do       func()
	launches int       // of a measurement
	rates    []float64 // bytes per second
}

func (w *work) last() float64 { return w.rates[len(w.rates)-1] }

// prepare warms up and chooses how many launches a measurement has.
func (b *band) prepare(ctx context.Context, w *work) error {
	_, err := b.time(ctx, w.do, 1)
	one, again := b.time(ctx, w.do, 1)
	w.launches = max(1, min(mostLaunches, int(aimedTime/one)))
	return errors.Join(err, again)
}

func (b *band) repeat(ctx context.Context, w *work) error {
	took, err := b.time(ctx, w.do, w.launches)
	w.rates = append(w.rates, float64(w.bytes)*float64(w.launches)/took.Seconds())
	return err
}

// time returns how long the GPU takes for some launches. Waiting for their end
// adds a few microseconds.
func (b *band) time(ctx context.Context, do func(), launches int) (time.Duration, error) {
	begin := time.Now()
	for range launches {
		do()
	}
	err := b.stream.Synchronize(ctx, b.stream.Record())
	return max(1, time.Since(begin)), err
}

func median(x []float64) float64 {
	sorted := slices.Sorted(slices.Values(x))
	return sorted[len(sorted)/2]
}
