package emu

import (
	"slices"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// A result that depends on the order of threads differs between the two runs: that
// is how the tests that run reversed find a missing barrier.
func TestAReversedRunTakesThreadsAndBlocksFromTheLast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reversed bool
		want     []int64
	}{
		"in order": {false, []int64{int64(grid.Threads) - 1, int64(grid.Blocks) - 1, int64(grid.Threads) - 1}},
		"reversed": {true, []int64{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			got := []int64{-1, -1, -1}
			launch(t, start(t, all.program(t, false), c.reversed), "last_writer", Buffer(dtype.Bytes(got)))
			if !slices.Equal(got, c.want) {
				t.Errorf("last to write: thread, block, and thread behind a barrier %v, want %v", got, c.want)
			}
		})
	}
}
