//go:build race

package nccl

// raced says that the race detector is on.
const raced = true
