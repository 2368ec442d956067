// Package cudasrc holds the hand-written CUDA headers that generated kernels are
// made of: folder shardgen has a header for each kernel, its body a __device__
// template on a constexpr configuration, and the element types, ranges and
// random numbers that bodies share.
//
// A generated .cu includes them as <shardgen/name.cuh>, so a compiler gets the
// folder that holds folder shardgen: this directory, or one that [Write] made.
// The headers need nothing but CUDA's built-in functions; package emu runs them
// on a CPU, package toolchain compiles them. Headers hold inline functions and
// templates only, no variable with storage: so what is compiled of them is the
// same bytes in any folder.
//
// It imports the standard library only.
package cudasrc

import (
	"embed"
	"fmt"
	"os"
)

// Headers are the files shardgen/*.cuh.
//
//go:embed shardgen/*.cuh
var Headers embed.FS

// Write writes the headers into folder shardgen of an existing directory, which
// then can be a compiler's include path.
func Write(directory string) error {
	if err := os.CopyFS(directory, Headers); err != nil {
		return fmt.Errorf("CUDA headers into %s: %w; write them to a folder that has none", directory, err)
	}
	return nil
}
