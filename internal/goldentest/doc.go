// Package goldentest has tests only: it trains generated packages on ranks in one
// process, on the CPU and on emulated GPUs, and compares every figure with what
// DeepSpeed and torch measured.
package goldentest
