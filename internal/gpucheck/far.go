package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/shardgen/shardgen/internal/devicetest"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// Elements of the ranges that are longer than 32 bits count; with -quick they are
// not.
const (
	farElements   = 1<<31 + 4099
	quickElements = 1<<17 + 4099
)

// far are the ranges of one check and the kernels that work on them.
type far struct {
	device  device.Device
	kernels device.Kernels
	stream  device.Stream
	n       int64
	ranges  []device.Memory // with redBytes behind each
}

// redBytes is the garbage behind a range, which has to stay.
const redBytes = 64 << 10

const (
	f32  = dtype.Float32
	f64  = dtype.Float64
	bf16 = dtype.BFloat16
)

// farChecks are the kernels that are run on long ranges, with the types of the
// ranges that they need.
var farChecks = []struct {
	name   string
	needs  []string
	ranges []dtype.DType
	run    func(*far, context.Context) error
}{
	{"zero", []string{kernel.Zero()}, []dtype.DType{f32}, (*far).zero},
	{"constant", []string{kernel.FillConstant(2)}, []dtype.DType{bf16}, (*far).constant},
	{"fill", []string{kernel.Fill(random.Normal, f32)}, []dtype.DType{f32}, (*far).fill},
	{"cast", []string{kernel.Fill(random.Normal, f32), kernel.Cast(f32, bf16)}, []dtype.DType{f32, bf16}, (*far).cast},
	{"accumulate", []string{kernel.Fill(random.Normal, f32), kernel.Accumulate(f32, f32, false)}, []dtype.DType{f32, f32}, (*far).accumulate},
	{"scale", []string{kernel.Fill(random.Normal, f32), kernel.Scale(f32)}, []dtype.DType{f32}, (*far).scale},
	{"norm", []string{kernel.FillConstant(4), kernel.Zero(), kernel.Norm(f32), kernel.NormTotal()}, []dtype.DType{f32}, (*far).norm},
	{"sgd", []string{kernel.Fill(random.Normal, f32), kernel.SGD(f32, f32, false)}, []dtype.DType{f32, f32}, (*far).sgd},
	{"adamw", []string{kernel.Fill(random.Normal, f32), kernel.FillConstant(4), kernel.AdamW(f32, bf16)}, []dtype.DType{f32, f32, f32, f32, bf16}, (*far).adamW},
}

// far checks ranges beyond 2^31 elements where the GPU has room for them.
func (c *checker) far(ctx context.Context) {
	n := int64(farElements)
	if c.quick {
		n = quickElements
	}
	for _, f := range farChecks {
		c.check("far", f.name, func(k *Check) error {
			m := c.with(f.needs...)
			if m == nil {
				return k.skip("no package that was loaded has all of %v", f.needs)
			}
			var bytes int64
			for _, t := range f.ranges {
				bytes += n*t.Bytes() + redBytes
			}
			if lacks, err := c.noRoom(bytes + optim.PartialBytes(n)); lacks != "" || err != nil {
				return errors.Join(err, k.skip("%s", lacks))
			}
			k.Detail = fmt.Sprintf("%d elements in %s: ends, powers of two and samples have the CPU's bits", n, size(bytes))
			return c.runFar(ctx, m.kernels, n, f.ranges, f.run)
		})
	}
}

// noRoom says what the GPU lacks for some bytes; nothing where it has them.
func (c *checker) noRoom(bytes int64) (string, error) {
	free, _, err := c.gpu.MemoryBytes()
	return noRoom(bytes, free), err
}

// noRoom leaves one part in 50 of what is free to the driver, which needs memory
// too and gives it in pages.
func noRoom(bytes, free int64) string {
	if bytes <= free-free/50 {
		return ""
	}
	return fmt.Sprintf("it needs %s, the GPU has %s free", size(bytes), size(free))
}

func (c *checker) runFar(ctx context.Context, k device.Kernels, n int64, types []dtype.DType, run func(*far, context.Context) error) (err error) {
	f := &far{device: c.gpu, kernels: k, n: n}
	if f.stream, err = c.gpu.NewStream("far", false); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.stream.Close())
		for _, m := range f.ranges {
			err = errors.Join(err, c.gpu.Free(m))
		}
	}()
	for _, t := range types {
		m, err := c.gpu.Alloc(n*t.Bytes() + redBytes)
		if err != nil {
			return err
		}
		f.ranges = append(f.ranges, m)
		if err := c.gpu.Write(ctx, m.Slice(n*t.Bytes(), redBytes), garbage()); err != nil {
			return err
		}
	}
	if err := run(f, ctx); err != nil {
		return err
	}
	return f.checkGarbage(ctx, types)
}

// garbage is what stands behind ranges.
func garbage() []byte {
	b := make([]byte, redBytes)
	r := rand.New(rand.NewPCG(3, 5))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// settle waits for the work so far.
func (f *far) settle(ctx context.Context) error { return f.stream.Synchronize(ctx, f.stream.Record()) }

func (f *far) checkGarbage(ctx context.Context, types []dtype.DType) error {
	got := make([]byte, redBytes)
	for i, t := range types {
		if err := f.device.Read(ctx, got, f.ranges[i].Slice(f.n*t.Bytes(), redBytes)); err != nil {
			return err
		}
		if err := devicetest.Differ(fmt.Sprintf("the garbage behind range %d", i), dtype.Uint8, got, garbage(), false); err != nil {
			return err
		}
	}
	return nil
}

// windowElements is the length of a sample.
const windowElements = 4096

// windows returns where samples begin: at the ends, around powers of two in
// elements and in bytes, and anywhere.
func windows(n, elementBytes int64) []int64 {
	list := []int64{0, n - windowElements}
	r := rand.New(rand.NewPCG(7, uint64(elementBytes)))
	for range 60 {
		list = append(list, r.Int64N(n-windowElements+1))
	}
	for _, power := range []int64{1 << 29, 1 << 30, 1 << 31, 1 << 31 / elementBytes, 1 << 32 / elementBytes} {
		if at := power - windowElements/2; at >= 0 && at <= n-windowElements {
			list = append(list, at)
		}
	}
	return list
}

// sample compares samples of a range with what want writes for elements from
// first on.
func (f *far) sample(ctx context.Context, what string, m device.Memory, t dtype.DType, want func(dst []byte, first int64)) error {
	got, expected := elements(t, windowElements), elements(t, windowElements)
	for _, first := range windows(f.n, t.Bytes()) {
		if err := f.device.Read(ctx, got, m.Slice(first*t.Bytes(), int64(len(got)))); err != nil {
			return err
		}
		want(expected, first)
		if err := devicetest.Differ(what, t, got, expected, false); err != nil {
			return fmt.Errorf("from element %d of %d: %w", first, f.n, err)
		}
	}
	return nil
}

// elements returns room for n elements, as bytes.
func elements(t dtype.DType, n int64) []byte { return dtype.Bytes(make([]uint64, n))[:n*t.Bytes()] }

// normal is what ranges are filled with; each has a random stream of its own.
var normal = random.Distribution{Kind: random.Normal, Std: 1}

func streamOf(i int) random.Stream { return random.NewStream(11, fmt.Sprint("range ", i)) }

// drawn returns what a range that is filled with normal numbers holds.
func drawn(i int) func(dst []byte, first int64) {
	return func(dst []byte, first int64) { normal.Fill(dst, f32, streamOf(i), first) }
}

// draw fills ranges with normal numbers.
func (f *far) draw(ranges ...int) {
	for _, i := range ranges {
		f.kernels.Fill(f.stream, f.ranges[i], f32, &normal, streamOf(i), 0, f.n)
	}
}

func (f *far) zero(ctx context.Context) error {
	f.kernels.Zero(f.stream, f.ranges[0].Slice(0, f.n*f32.Bytes()))
	if err := f.settle(ctx); err != nil {
		return err
	}
	return f.sample(ctx, "the range", f.ranges[0], f32, func(dst []byte, _ int64) { clear(dst) })
}

func (f *far) constant(ctx context.Context) error {
	d := random.Distribution{Kind: random.Constant, Value: -1.5}
	f.kernels.Fill(f.stream, f.ranges[0], bf16, &d, random.Stream{}, 0, f.n)
	if err := f.settle(ctx); err != nil {
		return err
	}
	return f.sample(ctx, "the range", f.ranges[0], bf16, func(dst []byte, first int64) { d.Fill(dst, bf16, random.Stream{}, first) })
}

func (f *far) fill(ctx context.Context) error {
	f.draw(0)
	if err := f.settle(ctx); err != nil {
		return err
	}
	return f.sample(ctx, "the range", f.ranges[0], f32, drawn(0))
}

func (f *far) cast(ctx context.Context) error {
	f.draw(0)
	f.kernels.Cast(f.stream, f.ranges[1], bf16, f.ranges[0], f32, f.n)
	if err := f.settle(ctx); err != nil {
		return err
	}
	wide := elements(f32, windowElements)
	return f.sample(ctx, "the target", f.ranges[1], bf16, func(dst []byte, first int64) {
		drawn(0)(wide, first)
		dtype.Convert(dst, bf16, wide, f32, windowElements)
	})
}

func (f *far) accumulate(ctx context.Context) error {
	const divisor = 3
	f.draw(0, 1)
	f.kernels.Accumulate(f.stream, f.ranges[0], f32, f.ranges[1], f32, f.n, divisor, false)
	return f.changed(ctx, "the sum", func(sum, gradient []float32) {
		for i := range sum {
			sum[i] += gradient[i] / divisor
		}
	})
}

func (f *far) scale(ctx context.Context) error {
	const factor = 0.3
	f.draw(0)
	f.kernels.Scale(f.stream, f.ranges[0], f32, f.n, factor)
	return f.changed(ctx, "the range", func(x, _ []float32) {
		for i := range x {
			x[i] *= factor
		}
	})
}

func (f *far) sgd(ctx context.Context) error {
	step, err := optim.SGD{LR: 0.1, WeightDecay: 0.01}.Prepare(1, 0.5)
	if err != nil {
		return err
	}
	f.draw(0, 1)
	f.kernels.SGD(f.stream, step, device.State{N: f.n, Type: f32, Master: f.ranges[0], Grad: f.ranges[1]})
	return f.changed(ctx, "the master", func(master, gradient []float32) { step.Update(master, nil, gradient) })
}

// changed compares samples of the first range with what change makes of its
// numbers and of the second range's.
func (f *far) changed(ctx context.Context, what string, change func(first, second []float32)) error {
	if err := f.settle(ctx); err != nil {
		return err
	}
	second := elements(f32, windowElements)
	return f.sample(ctx, what, f.ranges[0], f32, func(dst []byte, first int64) {
		drawn(0)(dst, first)
		drawn(1)(second, first)
		change(dtype.Slice[float32](dst), dtype.Slice[float32](second))
	})
}

// norm has squares whose sums are exact, so that the sum of 2^31 of them is known:
// 0.5 everywhere and 3 in the last element. Then two elements become NaN.
func (f *far) norm(ctx context.Context) error {
	sums, err := f.device.Alloc(optim.NormBytes)
	if err != nil {
		return err
	}
	partials, err := f.device.Alloc(optim.PartialBytes(f.n))
	if err != nil {
		return errors.Join(err, f.device.Free(sums))
	}
	half := random.Distribution{Kind: random.Constant, Value: 0.5}
	f.kernels.Fill(f.stream, f.ranges[0], f32, &half, random.Stream{}, 0, f.n)
	err = f.settle(ctx)
	for _, c := range []struct {
		at    []int64
		value float32
		want  optim.Norm
	}{
		{[]int64{f.n - 1}, 3, optim.Norm{SumSquares: 0.25*float64(f.n-1) + 9}},
		{[]int64{f.n - 2, 17}, float32(math.NaN()), optim.Norm{SumSquares: math.NaN(), NonFinite: 2}},
	} {
		if err == nil {
			err = f.normWith(ctx, sums, partials, c.at, c.value, c.want)
		}
	}
	return errors.Join(err, f.device.Free(sums), f.device.Free(partials))
}

// normWith writes a value at some places and compares the norm of the range.
func (f *far) normWith(ctx context.Context, sums, partials device.Memory, at []int64, value float32, want optim.Norm) error {
	for _, i := range at {
		if err := f.device.Write(ctx, f.ranges[0].Slice(i*f32.Bytes(), f32.Bytes()), dtype.Bytes([]float32{value})); err != nil {
			return err
		}
	}
	f.kernels.Zero(f.stream, sums)
	f.kernels.Norm(f.stream, partials, f.ranges[0], f32, f.n)
	f.kernels.NormTotal(f.stream, sums, partials)
	if err := f.settle(ctx); err != nil {
		return err
	}
	got, expected := elements(f64, 2), elements(f64, 2)
	if err := f.device.Read(ctx, got, sums); err != nil {
		return err
	}
	want.Put(expected)
	return devicetest.Differ("the norm (sum of squares, count of NaNs and infinities)", f64, got, expected, true)
}

// adamW has a master, a gradient and a first moment of normal numbers, and second
// moments of 0.25.
func (f *far) adamW(ctx context.Context) error {
	step, err := optim.AdamW{LR: 1e-3, WeightDecay: 0.1}.Prepare(3, 0.5)
	if err != nil {
		return err
	}
	quarter := random.Distribution{Kind: random.Constant, Value: 0.25}
	f.draw(0, 1, 2)
	f.kernels.Fill(f.stream, f.ranges[3], f32, &quarter, random.Stream{}, 0, f.n)
	f.kernels.AdamW(f.stream, step, device.State{
		N: f.n, Type: f32, Master: f.ranges[0], Grad: f.ranges[1],
		Moments: [2]device.Memory{f.ranges[2], f.ranges[3]}, Copy: f.ranges[4], CopyType: bf16,
	})
	if err := f.settle(ctx); err != nil {
		return err
	}
	var state [4][]byte
	for i := range state {
		state[i] = elements(f32, windowElements)
	}
	update := func(first int64) {
		for i := range 3 {
			drawn(i)(state[i], first)
		}
		quarter.Fill(state[3], f32, random.Stream{}, first)
		step.Update(dtype.Slice[float32](state[0]), dtype.Slice[float32](state[2]), dtype.Slice[float32](state[3]), dtype.Slice[float32](state[1]))
	}
	for i, name := range []string{"the master", "the gradient", "the first moment", "the second moment"} {
		if err := f.sample(ctx, name, f.ranges[i], f32, func(dst []byte, first int64) { update(first); copy(dst, state[i]) }); err != nil {
			return err
		}
	}
	return f.sample(ctx, "the copy", f.ranges[4], bf16, func(dst []byte, first int64) {
		update(first)
		dtype.Convert(dst, bf16, state[0], f32, windowElements)
	})
}
