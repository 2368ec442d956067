package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// stream returns the stream to work on, nil where it takes no more work or is
// not this device's.
func (k *Kernels) stream(s device.Stream, operation string) *Stream {
	if mine, ok := s.(*Stream); ok && (mine == nil || mine.device.context == k.device.context) {
		if mine.stopped(operation) {
			return nil
		}
		return mine
	}
	err := fmt.Errorf("%s: %s: the stream is another device's (a %T)", k.device.label(), operation, s)
	if other, ok := s.(interface{ Fail(error) }); ok {
		other.Fail(err)
	} else {
		k.misused.CompareAndSwap(nil, &err)
	}
	return nil
}

// launch adds a kernel whose arguments are in s.arguments. threads is how many
// have something to do.
func (k *Kernels) launch(s *Stream, operation string, f *Function, threads int64) {
	if f.handle == 0 {
		s.reject(operation, fmt.Errorf("package %s has no kernel %s: it was generated without; run `%s --cuda require` with this release of shardgen", k.code.Package, f.name, k.code.Command))
		return
	}
	perBlock := kernel.Threads(f.name)
	s.launch(operation, f.handle, [3]uint32{k.device.blocks(divideUp(threads, perBlock)), 1, 1}, [3]uint32{uint32(perBlock), 1, 1}, 0)
}

// wavesOfBlocks is how many times the blocks that a GPU surely runs at once are
// launched at most: threads take more than one share of a longer range. Kernels
// of few registers fit twice as many blocks.
const wavesOfBlocks = 2

// blocks returns the size of a grid in which so many have something to do.
func (d *Device) blocks(busy int64) uint32 {
	most := int64(d.multiprocessors) * kernel.BlocksPerMultiprocessor * wavesOfBlocks
	return uint32(max(1, min(most, busy)))
}

func divideUp(a, b int64) int64 {
	if a%b != 0 {
		return a/b + 1
	}
	return a / b
}

// Zero implements device.Kernels.
func (k *Kernels) Zero(stream device.Stream, dst device.Memory) {
	const operation = "zero"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	if err := checkElements("destination", dst, dtype.Uint8, dst.Bytes()); err != nil {
		s.reject(operation, err)
		return
	}
	if dst.Bytes() == 0 {
		return
	}
	s.arguments.reset()
	s.arguments.add(uint64(dst.Addr()))
	s.arguments.add(uint64(dst.Bytes()))
	k.launch(s, operation, &k.zero, divideUp(dst.Bytes(), kernel.AccessBytes))
}

// Cast implements device.Kernels, between any two float types. Integers and
// bools can be "cast" to their own type only.
func (k *Kernels) Cast(stream device.Stream, dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) {
	const operation = "cast"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	err := checkPair(dst, dstType, src, srcType, n)
	if err == nil && dstType != srcType && !(dstType.IsFloat() && srcType.IsFloat()) {
		err = fmt.Errorf("no conversion from %s to %s, only between float types", srcType, dstType)
	}
	switch {
	case err != nil:
		s.reject(operation, err)
	case n == 0:
	case dstType == srcType:
		s.copy(operation, cuMemcpyDtoDAsync, dst.Addr(), src.Addr(), n*srcType.Bytes())
	default:
		s.arguments.reset()
		s.arguments.add(uint64(dst.Addr()))
		s.arguments.add(uint64(src.Addr()))
		s.arguments.add(uint64(n))
		k.launch(s, operation, &k.cast[srcType][dstType], packs(n, srcType, dstType))
	}
}

// packs returns how many threads n elements keep busy.
func packs(n int64, a, b dtype.DType) int64 { return divideUp(n, kernel.PackElements(a, b)) }

// Accumulate implements device.Kernels: dst is f32 or f64, src f64, f32, bf16 or
// f16.
func (k *Kernels) Accumulate(stream device.Stream, dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64, divisor float64, store bool) {
	const operation = "accumulate"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	if err := checkAccumulate(dst, dstType, src, srcType, n); err != nil {
		s.reject(operation, err)
		return
	}
	if n == 0 {
		return
	}
	s.arguments.reset()
	s.arguments.add(uint64(dst.Addr()))
	s.arguments.add(uint64(src.Addr()))
	s.arguments.add(uint64(n))
	s.arguments.addFloat64(divisor)
	k.launch(s, operation, &k.accumulate[srcType][dstType][index(store)], packs(n, srcType, dstType))
}

func index(second bool) int {
	if second {
		return 1
	}
	return 0
}

func checkAccumulate(dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) error {
	if err := checkPair(dst, dstType, src, srcType, n); err != nil {
		return err
	}
	if err := checkFloat("destination", dstType); err != nil {
		return err
	}
	if !srcType.Trainable() {
		return fmt.Errorf("the source is %s, expected f64, f32, bf16 or f16", srcType)
	}
	return nil
}

// Fill implements device.Kernels.
func (k *Kernels) Fill(stream device.Stream, dst device.Memory, t dtype.DType, d *random.Distribution, r random.Stream, first, n int64) {
	const operation = "fill"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	if err := checkFill(dst, t, d, first, n); err != nil {
		s.reject(operation, err)
		return
	}
	if n == 0 {
		return
	}
	s.arguments.reset()
	s.arguments.add(uint64(dst.Addr()))
	if bits, ok := d.ConstantBits(t); ok {
		s.arguments.add(bits)
		s.arguments.add(uint64(n))
		k.launch(s, operation, &k.constant[t.Bytes()], packs(n, t, t))
		return
	}
	s.sampler = d.Sampler(t, r)
	s.arguments.addStruct(unsafe.Pointer(&s.sampler))
	s.arguments.add(uint64(first))
	s.arguments.add(uint64(n))
	k.launch(s, operation, k.drawn(d.Kind, t), packs(n, t, t))
}

func checkFill(dst device.Memory, t dtype.DType, d *random.Distribution, first, n int64) error {
	if d == nil {
		return errors.New("no distribution")
	}
	if err := d.Validate(t); err != nil {
		return err
	}
	if first < 0 {
		return fmt.Errorf("the first element is %d, expected 0 or more", first)
	}
	return checkElements("destination", dst, t, n)
}

// drawn returns the kernel of a random distribution.
func (k *Kernels) drawn(kind random.Kind, t dtype.DType) *Function {
	switch kind {
	case random.TruncatedNormal:
		return &k.truncated[t]
	case random.Uniform:
		return &k.uniform[t]
	default:
		return &k.normal[t]
	}
}

// Norm implements device.Kernels, for f32 and f64.
func (k *Kernels) Norm(stream device.Stream, partials, src device.Memory, t dtype.DType, n int64) {
	const operation = "norm"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	if err := checkNorm(partials, src, t, n); err != nil {
		s.reject(operation, err)
		return
	}
	if n == 0 {
		return
	}
	s.arguments.reset()
	s.arguments.add(uint64(partials.Addr()))
	s.arguments.add(uint64(src.Addr()))
	s.arguments.add(uint64(n))
	chunks := optim.PartialBytes(n) / optim.NormBytes // a block sums one
	k.launch(s, operation, &k.norm[t], chunks*kernel.ThreadsPerBlock)
}

// NormTotal implements device.Kernels.
func (k *Kernels) NormTotal(stream device.Stream, total, partials device.Memory) {
	const operation = "total of norms"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	count := partials.Bytes() / optim.NormBytes
	err := checkElements("total", total, dtype.Float64, optim.NormBytes/8)
	if err == nil {
		err = checkElements("partial norms", partials, dtype.Float64, count*optim.NormBytes/8)
	}
	if err != nil {
		s.reject(operation, err)
		return
	}
	if count == 0 {
		return
	}
	s.arguments.reset()
	s.arguments.add(uint64(total.Addr()))
	s.arguments.add(uint64(partials.Addr()))
	s.arguments.add(uint64(count))
	k.launch(s, operation, &k.normTotal, kernel.TotalThreads)
}

func checkNorm(partials, src device.Memory, t dtype.DType, n int64) error {
	if err := checkElements("gradient", src, t, n); err != nil {
		return err
	}
	if err := checkFloat("gradient", t); err != nil {
		return err
	}
	return checkElements("room for partial norms", partials, dtype.Float64, optim.PartialBytes(n)/8)
}

// Scale implements device.Kernels, for f32 and f64.
func (k *Kernels) Scale(stream device.Stream, dst device.Memory, t dtype.DType, n int64, factor float64) {
	const operation = "scale"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	err := checkElements("gradient", dst, t, n)
	if err == nil {
		err = checkFloat("gradient", t)
	}
	if err != nil {
		s.reject(operation, err)
		return
	}
	if n == 0 {
		return
	}
	s.arguments.reset()
	s.arguments.add(uint64(dst.Addr()))
	s.arguments.add(uint64(n))
	s.arguments.addFloat64(factor)
	k.launch(s, operation, &k.scale[t], packs(n, t, t))
}

// AdamW implements device.Kernels.
func (k *Kernels) AdamW(stream device.Stream, step optim.AdamWStep, state device.State) {
	const operation = "adamw"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	own, err := checkState(&state, 2)
	if err != nil {
		s.reject(operation, err)
		return
	}
	if state.N == 0 {
		return
	}
	s.adamw = step
	s.arguments.reset()
	s.arguments.addStruct(unsafe.Pointer(&s.adamw))
	s.arguments.add(uint64(state.Master.Addr()))
	s.arguments.add(uint64(state.Moments[0].Addr()))
	s.arguments.add(uint64(state.Moments[1].Addr()))
	s.arguments.addGradient(&state, own)
	k.launch(s, operation, &k.adamw[state.Type][own], packs(state.N, state.Type, own))
}

// SGD implements device.Kernels.
func (k *Kernels) SGD(stream device.Stream, step optim.SGDStep, state device.State) {
	const operation = "sgd"
	s := k.stream(stream, operation)
	if s == nil {
		return
	}
	momentum := step.Momentum != 0
	own, err := checkState(&state, index(momentum))
	if err != nil {
		s.reject(operation, err)
		return
	}
	if state.N == 0 {
		return
	}
	s.sgd = step
	s.arguments.reset()
	s.arguments.addStruct(unsafe.Pointer(&s.sgd))
	s.arguments.add(uint64(state.Master.Addr()))
	if momentum {
		s.arguments.add(uint64(state.Moments[0].Addr()))
	}
	s.arguments.addGradient(&state, own)
	k.launch(s, operation, &k.sgd[state.Type][own][index(momentum)], packs(state.N, state.Type, own))
}

// addGradient adds the arguments that all optimizers end with.
func (a *launchArguments) addGradient(state *device.State, own dtype.DType) {
	a.add(uint64(state.Grad.Addr()))
	if own != state.Type {
		a.add(uint64(state.Copy.Addr()))
	}
	a.add(uint64(state.N))
}
