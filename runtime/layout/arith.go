package layout

import (
	"fmt"
	"math/bits"
)

// OverflowError says that a count or an offset does not fit 63 bits.
type OverflowError struct {
	What string // what was being computed, such as "bucket h.0/bf16"
}

func (e *OverflowError) Error() string {
	return fmt.Sprintf("%s: more than 2^63-1 elements or bytes", e.What)
}

// counter does int64 arithmetic on counts that are never negative and
// remembers whether any result overflowed.
type counter struct{ overflowed bool }

func (c *counter) add(a, b int64) int64 {
	sum := a + b
	if sum < 0 {
		c.overflowed = true
		return 0
	}
	return sum
}

func (c *counter) mul(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > 1<<63-1 {
		c.overflowed = true
		return 0
	}
	return int64(lo)
}

// roundUp returns the least multiple of unit that is at least n.
func (c *counter) roundUp(n, unit int64) int64 {
	if rest := n % unit; rest != 0 {
		return c.add(n, unit-rest)
	}
	return n
}

func (c *counter) err(what string) error {
	if c.overflowed {
		return &OverflowError{What: what}
	}
	return nil
}

// Numel returns the number of elements of a shape: the product of its
// dimensions, 1 for a scalar.
func Numel(shape []int64) (int64, error) {
	var c counter
	n := int64(1)
	for _, d := range shape {
		if d == 0 {
			return 0, nil
		}
	}
	for _, d := range shape {
		n = c.mul(n, d)
	}
	return n, c.err(fmt.Sprintf("shape %v", shape))
}
