// Package devicetest holds a device's kernels against the CPU's, bit for bit.
//
// It takes a [Target]: a device, a generated package's code, and which kernels
// the code has. It gives a [Result] for each of them. Every kernel runs on ranges
// of many lengths, with ordinary numbers and with every kind of special one, on
// both devices; then all memory is compared: what the kernel writes, what it must
// not write, and the garbage around the ranges.
//
// One difference is allowed. The sign and payload of a NaN that arithmetic makes
// are a processor's own, so in results of arithmetic any NaN equals any other.
// Casts and initial values are compared in all bits.
//
// The package may import runtime/device, its cpu and cuda, and the packages below
// them; it does not import testing, so that programs can run it.
package devicetest
