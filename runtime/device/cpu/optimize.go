package cpu

import (
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// stateBytes is a device.State after its checks.
type stateBytes struct {
	master, grad []byte
	moments      [2][]byte
	copy         []byte
}

// check returns the ranges of a state in which the first moments count.
func check(s *device.State, moments int) (b stateBytes, err error) {
	if s.Type != dtype.Float32 && s.Type != dtype.Float64 {
		return b, fmt.Errorf("the master is %s, expected f32 or f64", s.Type)
	}
	if b.master, err = elements("master", s.Master, s.Type, s.N); err != nil {
		return b, err
	}
	if b.grad, err = elements("gradient", s.Grad, s.Type, s.N); err != nil {
		return b, err
	}
	for i := range moments {
		if b.moments[i], err = elements("moment", s.Moments[i], s.Type, s.N); err != nil {
			return b, err
		}
	}
	if s.Copy.Bytes() == 0 {
		return b, nil
	}
	if !s.CopyType.IsFloat() {
		return b, fmt.Errorf("the copy is %s, expected a float type", s.CopyType)
	}
	b.copy, err = elements("copy", s.Copy, s.CopyType, s.N)
	return b, err
}

func adamW(step *optim.AdamWStep, s *device.State) error {
	b, err := check(s, 2)
	if err != nil {
		return err
	}
	forBlocks(s, &b, func(b stateBytes) {
		if s.Type == dtype.Float64 {
			step.Update64(dtype.Slice[float64](b.master), dtype.Slice[float64](b.moments[0]), dtype.Slice[float64](b.moments[1]), dtype.Slice[float64](b.grad))
			return
		}
		step.Update(dtype.Slice[float32](b.master), dtype.Slice[float32](b.moments[0]), dtype.Slice[float32](b.moments[1]), dtype.Slice[float32](b.grad))
	})
	return nil
}

func sgd(step *optim.SGDStep, s *device.State) error {
	moments := 0
	if step.Momentum != 0 {
		moments = 1
	}
	b, err := check(s, moments)
	if err != nil {
		return err
	}
	forBlocks(s, &b, func(b stateBytes) {
		if s.Type == dtype.Float64 {
			step.Update64(dtype.Slice[float64](b.master), dtype.Slice[float64](b.moments[0]), dtype.Slice[float64](b.grad))
			return
		}
		step.Update(dtype.Slice[float32](b.master), dtype.Slice[float32](b.moments[0]), dtype.Slice[float32](b.grad))
	})
	return nil
}

// forBlocks calls update on a block of a state after another and rounds each
// block's masters to the low-precision copy while they are in the cache.
func forBlocks(s *device.State, all *stateBytes, update func(stateBytes)) {
	size, copySize := s.Type.Bytes(), s.CopyType.Bytes()
	for i := int64(0); i < s.N; i += blockElements {
		n := min(s.N-i, blockElements)
		b := stateBytes{master: part(all.master, i, n, size), grad: part(all.grad, i, n, size)}
		b.moments = [2][]byte{part(all.moments[0], i, n, size), part(all.moments[1], i, n, size)}
		update(b)
		if len(all.copy) > 0 {
			dtype.Convert(part(all.copy, i, n, copySize), s.CopyType, b.master, s.Type, n)
		}
	}
}

// part returns elements [i, i+n), or nothing of nothing.
func part(b []byte, i, n, size int64) []byte {
	if len(b) == 0 {
		return nil
	}
	return b[i*size : (i+n)*size]
}
