package devicetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// operand is a range that a kernel works on.
type operand struct {
	name    string
	t       dtype.DType
	content content
	bytes   func(n int64) int64 // nil: n elements of t
	use     use
}

// use says what a kernel does with a range.
type use uint8

const (
	reads    use = iota
	writes       // all bits have to be equal
	computes     // writes, and any NaN equals another
	scratch      // writes what only it reads
)

func (o *operand) length(n int64) int64 {
	if o.bytes != nil {
		return o.bytes(n)
	}
	return n * o.t.Bytes()
}

// redBytes is the least garbage before, between and behind ranges: more than a
// warp's accesses.
const redBytes = 1024

// place is where a range lies in an arena.
type place struct{ start, bytes int64 }

// arrangement is the places of a case's ranges.
type arrangement struct {
	places []place
	bytes  int64 // of all, garbage included
}

// newLayout puts ranges one behind another, each at an odd multiple of the
// alignment.
func newLayout(operands []operand, n, align int64) *arrangement {
	l := &arrangement{}
	for i := range operands {
		start := (l.bytes + redBytes + align - 1) / align * align
		if start/align%2 == 0 {
			start += align
		}
		l.places = append(l.places, place{start, operands[i].length(n)})
		l.bytes = start + operands[i].length(n)
	}
	l.bytes += redBytes
	return l
}

// initial returns what the arena holds before: garbage, and the operands' content.
func (l *arrangement) initial(operands []operand, n int64) []byte {
	random := rand.New(rand.NewPCG(uint64(n), uint64(len(operands))))
	b := randomBytes(random, l.bytes)
	for i, p := range l.places {
		if operands[i].content != nil {
			copy(b[p.start:], operands[i].content(random, operands[i].t, p.bytes/operands[i].t.Bytes()))
		}
	}
	return b
}

// compare says where two arenas differ that shouldn't.
func (l *arrangement) compare(operands []operand, n int64, got, want, initial []byte) error {
	end := int64(0)
	for i, p := range l.places {
		if err := same("the garbage before the "+operands[i].name, got[end:p.start], initial[end:p.start]); err != nil {
			return err
		}
		end = p.start + p.bytes
		if err := operands[i].compare(got[p.start:end], want[p.start:end], initial[p.start:end]); err != nil {
			return err
		}
	}
	return same("the garbage behind all ranges", got[end:], initial[end:])
}

// same says where a range was changed that nothing should write.
func same(what string, got, initial []byte) error {
	if bytes.Equal(got, initial) {
		return nil
	}
	for i := range got {
		if got[i] != initial[i] {
			return fmt.Errorf("%s was changed: byte %d of %d is %#02x, before %#02x", what, i, len(got), got[i], initial[i])
		}
	}
	return nil
}

func (o *operand) compare(got, want, initial []byte) error {
	switch o.use {
	case scratch:
		return nil
	case reads:
		return same("the "+o.name, got, initial)
	}
	return Differ("the "+o.name, o.t, got, want, o.use == computes)
}

// Differ says where two ranges of elements of type t differ and in how many
// places; nil where they don't. Where anyNaN is true, two NaNs are equal whatever
// their bits are.
func Differ(what string, t dtype.DType, got, want []byte, anyNaN bool) error {
	if bytes.Equal(got, want) {
		return nil
	}
	if len(got) != len(want) {
		return fmt.Errorf("%s has %d bytes, expected %d", what, len(got), len(want))
	}
	first, count, size := -1, 0, int(t.Bytes())
	for at := 0; at < len(got); at += size {
		a, b := got[at:at+size], want[at:at+size]
		if bytes.Equal(a, b) || anyNaN && isNaN(t, a) && isNaN(t, b) {
			continue
		}
		if count++; first < 0 {
			first = at
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%s differs in %d of %d elements: element %d is %s, the CPU has %s",
		what, count, len(got)/size, first/size, text(t, got[first:first+size]), text(t, want[first:first+size]))
}

// value returns an element as an f64, in which all float types are exact.
func value(t dtype.DType, element []byte) float64 {
	var wide [1]float64
	if t == dtype.Float64 {
		copy(dtype.Bytes(wide[:]), element)
	} else {
		aligned := [1]uint64{}
		b := dtype.Bytes(aligned[:])[:len(element)]
		copy(b, element)
		dtype.Convert(dtype.Bytes(wide[:]), dtype.Float64, b, t, 1)
	}
	return wide[0]
}

func isNaN(t dtype.DType, element []byte) bool {
	return t.IsFloat() && value(t, element) != value(t, element)
}

// text writes an element as people read it, lowest byte last.
func text(t dtype.DType, element []byte) string {
	hex := ""
	for _, b := range element {
		hex = fmt.Sprintf("%02x", b) + hex
	}
	if t.IsFloat() {
		return fmt.Sprintf("0x%s (%v)", hex, value(t, element))
	}
	return "0x" + hex
}
