package nccl

import (
	"slices"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
)

func TestEveryTypeHasANumberInNCCLOrIsRefused(t *testing.T) {
	refused := []dtype.DType{dtype.Float8E4M3, dtype.Float8E5M2, dtype.Int16, dtype.Uint16, dtype.Bool}
	for _, d := range dtype.All() {
		if has := dataType(d) != noType; has == slices.Contains(refused, d) {
			t.Errorf("%s has a number: %t", d, has)
		}
	}
}
