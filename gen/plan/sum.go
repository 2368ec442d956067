package plan

import "math/bits"

// sum adds products of counts and remembers whether any result overflowed.
type sum struct {
	value      int64
	overflowed bool
}

func (s *sum) add(factors ...int64) {
	product := uint64(1)
	for _, f := range factors {
		if f == 0 {
			return
		}
	}
	for _, f := range factors {
		hi, lo := bits.Mul64(product, uint64(f))
		s.overflowed = s.overflowed || hi != 0
		product = lo
	}
	total, carry := bits.Add64(uint64(s.value), product, 0)
	s.overflowed = s.overflowed || carry != 0 || total > 1<<63-1
	s.value = int64(total & (1<<63 - 1))
}
