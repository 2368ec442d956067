package cpu

import (
	"errors"
	"fmt"
	"math"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// blockElements is how many elements a kernel of more than one pass works on
// at a time: what one pass writes is still in the nearest cache for the next.
const blockElements = 1024

// host returns the bytes of a range as the host sees it.
func host(side string, m device.Memory) ([]byte, error) {
	if int64(len(m.Host())) != m.Bytes() {
		return nil, fmt.Errorf("the %s's %d bytes at %#x belong to another device, the host can't address them", side, m.Bytes(), m.Addr())
	}
	return m.Host(), nil
}

// elements returns the first n elements of a range, as bytes, and checks that
// they are there and aligned.
func elements(side string, m device.Memory, t dtype.DType, n int64) ([]byte, error) {
	b, err := host(side, m)
	if err != nil {
		return nil, err
	}
	size := t.Bytes()
	if size == 0 {
		return nil, fmt.Errorf("the %s has dtype %s", side, t)
	}
	if n < 0 || n > m.Bytes()/size {
		return nil, fmt.Errorf("%d elements of %s asked for, the %s has %d bytes", n, t, side, m.Bytes())
	}
	if n > 0 && int64(m.Addr())%size != 0 {
		return nil, fmt.Errorf("the %s at %#x is not aligned to the %d bytes of a %s", side, m.Addr(), size, t)
	}
	return b[:n*size], nil
}

func zero(dst device.Memory) error {
	b, err := host("destination", dst)
	clear(b)
	return err
}

func copyBytes(dst, src device.Memory) error {
	if dst.Bytes() != src.Bytes() {
		return fmt.Errorf("the destination has %d bytes, the source %d", dst.Bytes(), src.Bytes())
	}
	d, err := host("destination", dst)
	if err != nil {
		return err
	}
	s, err := host("source", src)
	if err != nil {
		return err
	}
	Move(d, s)
	return nil
}

// pair returns n elements each of a destination and a source.
func pair(dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) (d, s []byte, err error) {
	if d, err = elements("destination", dst, dstType, n); err != nil {
		return nil, nil, err
	}
	s, err = elements("source", src, srcType, n)
	return d, s, err
}

func cast(dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) error {
	d, s, err := pair(dst, dstType, src, srcType, n)
	if err != nil {
		return err
	}
	if dstType == srcType {
		copy(d, s)
		return nil
	}
	if !dstType.IsFloat() || !srcType.IsFloat() {
		return fmt.Errorf("no conversion from %s to %s, only between float types", srcType, dstType)
	}
	dtype.Convert(d, dstType, s, srcType, n)
	return nil
}

// float is the arithmetic type of gradients and masters.
type float interface{ float32 | float64 }

func accumulate(c *command) error {
	d, s, err := pair(c.dst, c.dstType, c.src, c.srcType, c.n)
	if err != nil {
		return err
	}
	switch c.dstType {
	case dtype.Float32:
		return accumulateInto(dtype.Slice[float32](d), s, c)
	case dtype.Float64:
		return accumulateInto(dtype.Slice[float64](d), s, c)
	}
	return fmt.Errorf("the destination is %s, expected f32 or f64", c.dstType)
}

func accumulateInto[D float](dst []D, src []byte, c *command) error {
	switch c.srcType {
	case dtype.Float32:
		accumulateFloats(dst, dtype.Slice[float32](src), c.factor, c.store)
	case dtype.Float64:
		accumulateFloats(dst, dtype.Slice[float64](src), c.factor, c.store)
	case dtype.BFloat16, dtype.Float16:
		accumulateHalves(dst, src, c)
	default:
		return fmt.Errorf("the source is %s, expected f64, f32, bf16 or f16", c.srcType)
	}
	return nil
}

// accumulateHalves widens 2-byte floats, which is exact, a block at a time.
func accumulateHalves[D float](dst []D, src []byte, c *command) {
	var wide [blockElements]float32
	for len(dst) > 0 {
		n := min(len(dst), blockElements)
		dtype.Convert(dtype.Bytes(wide[:]), dtype.Float32, src[:2*n], c.srcType, int64(n))
		accumulateFloats(dst[:n], wide[:n], c.factor, c.store)
		dst, src = dst[n:], src[2*n:]
	}
}

func accumulateFloats[D, S float](dst []D, src []S, divisor float64, store bool) {
	factor, exact := reciprocal(divisor)
	switch {
	case exact && store:
		storeScaled(dst, src, D(factor))
	case exact:
		addScaled(dst, src, D(factor))
	case store:
		storeDivided(dst, src, D(divisor))
	default:
		addDivided(dst, src, D(divisor))
	}
}

// reciprocal returns 1/x and whether multiplying by it gives the bits of
// dividing by x, in f32 as in f64: it does for powers of two, whose quotient
// and product are the same number before rounding.
func reciprocal(x float64) (factor float64, exact bool) {
	fraction, exponent := math.Frexp(x)
	return 1 / x, math.Abs(fraction) == 0.5 && exponent > -120 && exponent < 120
}

func storeScaled[D, S float](dst []D, src []S, factor D) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = D(src[i]) * factor
	}
}

func addScaled[D, S float](dst []D, src []S, factor D) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] += D(D(src[i]) * factor)
	}
}

func storeDivided[D, S float](dst []D, src []S, divisor D) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] = D(src[i]) / divisor
	}
}

func addDivided[D, S float](dst []D, src []S, divisor D) {
	src = src[:len(dst)]
	for i := range dst {
		dst[i] += D(src[i]) / divisor
	}
}

// norm writes the norms of chunks, as optim.Norm lays them out.
func norm(c *command) error {
	b, err := elements("gradient", c.src, c.srcType, c.n)
	if err != nil {
		return err
	}
	partials, err := elements("room for partial norms", c.dst, dtype.Float64, optim.PartialBytes(c.n)/8)
	if err != nil {
		return err
	}
	switch c.srcType {
	case dtype.Float32:
		optim.PutNorms(partials, dtype.Slice[float32](b))
	case dtype.Float64:
		optim.PutNorms64(partials, dtype.Slice[float64](b))
	default:
		return fmt.Errorf("the gradient is %s, expected f32 or f64", c.srcType)
	}
	return nil
}

func normTotal(total, partials device.Memory) error {
	to, err := elements("total", total, dtype.Float64, optim.NormBytes/8)
	if err != nil {
		return err
	}
	from, err := elements("partial norms", partials, dtype.Float64, partials.Bytes()/optim.NormBytes*optim.NormBytes/8)
	if err != nil {
		return err
	}
	sum := optim.NormOf(to)
	sum.AddAll(from)
	sum.Put(to)
	return nil
}

func scale(dst device.Memory, t dtype.DType, n int64, factor float64) error {
	b, err := elements("gradient", dst, t, n)
	switch {
	case err != nil:
		return err
	case t == dtype.Float32:
		multiply(dtype.Slice[float32](b), float32(factor))
	case t == dtype.Float64:
		multiply(dtype.Slice[float64](b), factor)
	default:
		return fmt.Errorf("the gradient is %s, expected f32 or f64", t)
	}
	return nil
}

func multiply[F float](x []F, factor F) {
	for i := range x {
		x[i] *= factor
	}
}

// moveBytes is how much is copied in one go: the runtime can't stop a goroutine
// inside a copy, and the collector waits until it can.
const moveBytes = 4 << 20

// Move copies src over dst, which has the same length, and lets the collector
// stop it now and then. It does nothing where both are the same memory.
func Move(dst, src []byte) {
	if len(dst) == 0 || &dst[0] == &src[0] {
		return
	}
	for len(dst) > moveBytes {
		copy(dst[:moveBytes], src)
		dst, src = dst[moveBytes:], src[moveBytes:]
	}
	copy(dst, src)
}

func fill(c *command) error {
	if c.distribution == nil {
		return errors.New("no distribution")
	}
	if err := c.distribution.Validate(c.dstType); err != nil {
		return err
	}
	if c.first < 0 {
		return fmt.Errorf("the first element is %d, expected 0 or more", c.first)
	}
	b, err := elements("destination", c.dst, c.dstType, c.n)
	if err != nil {
		return err
	}
	c.distribution.Fill(b, c.dstType, c.random, c.first)
	return nil
}
