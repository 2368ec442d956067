// Command gpucheck shows whether this project works on the GPUs of a machine, and
// how fast. See docs/gpu.md.
package main

import (
	"os"

	"github.com/shardgen/shardgen/internal/gpucheck"
)

func main() { os.Exit(gpucheck.Run(os.Args[1:], os.Stdout, os.Stderr)) }
