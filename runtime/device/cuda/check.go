package cuda

import (
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
)

// checkMemory reports memory that is the host's.
func checkMemory(side string, m device.Memory) error {
	if m.Host() != nil {
		return fmt.Errorf("the %s's %d bytes at %#x are the host's, the GPU can't address them", side, m.Bytes(), m.Addr())
	}
	return nil
}

// checkCopy reports ranges between which the GPU can't copy by itself.
func (d *Device) checkCopy(dst, src device.Memory) error {
	if dst.Bytes() != src.Bytes() {
		return fmt.Errorf("the destination has %d bytes, the source %d", dst.Bytes(), src.Bytes())
	}
	if dst.Host() != nil && src.Host() != nil {
		return fmt.Errorf("both ranges of %d bytes are the host's, none is the GPU's", dst.Bytes())
	}
	if err := d.checkPinned("destination", dst); err != nil {
		return err
	}
	return d.checkPinned("source", src)
}

// checkPinned reports memory of the host that is not page-locked.
func (d *Device) checkPinned(side string, m device.Memory) error {
	if m.Host() == nil || d.isPinned(m) {
		return nil
	}
	return fmt.Errorf("the %s's %d bytes at %#x are the host's and not page-locked by this device: copy from and to what AllocPinned returned and Free has not taken back, or use CopyFrom and CopyTo, which wait", side, m.Bytes(), m.Addr())
}

// checkElements reports a range that does not hold n elements where a kernel can
// access them.
func checkElements(side string, m device.Memory, t dtype.DType, n int64) error {
	if err := checkMemory(side, m); err != nil {
		return err
	}
	size := t.Bytes()
	if size == 0 {
		return fmt.Errorf("the %s has dtype %s", side, t)
	}
	if n < 0 || n > m.Bytes()/size {
		return fmt.Errorf("%d elements of %s asked for, the %s has %d bytes", n, t, side, m.Bytes())
	}
	if n > 0 && m.Addr()%kernel.AccessBytes != 0 {
		return fmt.Errorf("the %s at %#x is not aligned to the %d bytes of a kernel's access", side, m.Addr(), kernel.AccessBytes)
	}
	return nil
}

func checkPair(dst device.Memory, dstType dtype.DType, src device.Memory, srcType dtype.DType, n int64) error {
	if err := checkElements("destination", dst, dstType, n); err != nil {
		return err
	}
	return checkElements("source", src, srcType, n)
}

// checkFloat reports a type that sums and masters don't have.
func checkFloat(side string, t dtype.DType) error {
	if t != dtype.Float32 && t != dtype.Float64 {
		return fmt.Errorf("the %s is %s, expected f32 or f64", side, t)
	}
	return nil
}

// checkState checks the ranges of a state in which the first moments count. own
// is the type of the parameter.
func checkState(s *device.State, moments int) (own dtype.DType, err error) {
	if err := checkFloat("master", s.Type); err != nil {
		return 0, err
	}
	if err := checkElements("master", s.Master, s.Type, s.N); err != nil {
		return 0, err
	}
	if err := checkElements("gradient", s.Grad, s.Type, s.N); err != nil {
		return 0, err
	}
	for i := range moments {
		if err := checkElements("moment", s.Moments[i], s.Type, s.N); err != nil {
			return 0, err
		}
	}
	if s.Copy.Bytes() == 0 {
		return s.Type, nil
	}
	if !s.CopyType.IsFloat() || s.CopyType == s.Type {
		return 0, fmt.Errorf("the copy is %s, expected a float type other than the master's %s", s.CopyType, s.Type)
	}
	return s.CopyType, checkElements("copy", s.Copy, s.CopyType, s.N)
}
