package local

import (
	"slices"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// The sum of zeros is zeros: a type that is called summable and is not summed
// leaves what was there.
func TestEveryTypeIsSummedOrRefused(t *testing.T) {
	refused := []dtype.DType{dtype.Float8E4M3, dtype.Float8E5M2, dtype.Bool}
	for _, d := range dtype.All() {
		if summable(d) == slices.Contains(refused, d) {
			t.Errorf("%s is summable: %t", d, summable(d))
		}
		if !summable(d) {
			continue
		}
		words := []uint64{^uint64(0)}
		zeros := dtype.Bytes([]uint64{0})
		sum(dtype.Bytes(words), [][]byte{zeros, zeros}, d)
		if words[0] != 0 {
			t.Errorf("%s: the sum of zeros is %#x", d, words[0])
		}
	}
}
