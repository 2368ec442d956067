package emu

import (
	"os"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
)

var far = source{read: func() (string, error) {
	b, err := os.ReadFile("testdata/far.cu")
	return string(b), err
}}

func TestKernelsReachElementsPast8Billion(t *testing.T) {
	t.Parallel()
	r := start(t, far.program(t, false), false)
	for _, kernel := range []string{"far_zero", "far_cast", "far_accumulate", "far_adamw", "far_fill", "far_norm"} {
		different := []int64{-1}
		if err := r.Launch(kernel, Grid{1, 256}, Buffer(dtype.Bytes(different))); err != nil {
			t.Fatal(err)
		}
		if different[0] != 0 {
			t.Errorf("%s: %d bytes at element 2^33 differ from those of a short range", kernel, different[0])
		}
	}
}

// A thread's packs and single elements are where 64-bit arithmetic puts them, for
// counts and grids around the limits of 31 and 32 bits.
func TestRangesAreCutIn64Bits(t *testing.T) {
	t.Parallel()
	const threads, pack = 64, 8
	r := start(t, far.program(t, false), false)
	for _, elements := range []int64{1<<31 - 1, 1 << 31, 1<<31 + 5, 1<<32 + 7, 1<<33 + 3, 1<<40 + 1} {
		packs := elements / pack
		blocks := min((packs+threads-1)/threads, 1<<31-1)
		for _, block := range []int64{0, 1, blocks / 2, blocks - 1} {
			got := make([]int64, 4*threads)
			if err := r.Launch("range_of", Grid{1, threads}, Buffer(dtype.Bytes(got)), Value(block), Value(blocks), Value(elements)); err != nil {
				t.Fatal(err)
			}
			for thread := range int64(threads) {
				var want [4]int64
				id := block*threads + thread
				for i := id; i < packs; i += blocks * threads {
					want[0], want[1] = want[0]+1, i*pack
				}
				for i := packs*pack + id; i < elements; i += blocks * threads {
					want[2], want[3] = want[2]+1, i
				}
				if [4]int64(got[4*thread:]) != want {
					t.Fatalf("thread %d of block %d of %d, %d elements: packs and single elements, how many and the last, %v, want %v", thread, block, blocks, elements, got[4*thread:4*thread+4], want)
				}
			}
		}
	}
}
