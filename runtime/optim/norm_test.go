package optim

import (
	"bytes"
	"math"
	"testing"
)

func TestANormInMemoryIsTwoNumbers(t *testing.T) {
	b := bytes.Repeat([]byte{0xa5}, NormBytes+1)
	for _, n := range []Norm{{}, {SumSquares: 0.1, NonFinite: 3}, {SumSquares: math.Inf(1), NonFinite: 1<<53 - 1}} {
		n.Put(b)
		if got := NormOf(b); got != n {
			t.Errorf("%v comes back as %v", n, got)
		}
	}
	Norm{SumSquares: 2, NonFinite: 1}.Put(b)
	if want := "\x00\x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\xf0\x3f\xa5"; string(b) != want {
		t.Errorf("a norm is %q in memory, want %q", b, want)
	}
}

func TestPartialBytesHasRoomForEachChunk(t *testing.T) {
	for n, want := range map[int64]int64{
		0: 0, 1: 16, ChunkElements: 16, ChunkElements + 1: 32, 5 * ChunkElements: 80, math.MaxInt64: 16 * (1 << 50),
	} {
		if got := PartialBytes(n); got != want {
			t.Errorf("norms of the chunks of %d elements have %d bytes, want %d", n, got, want)
		}
	}
}
