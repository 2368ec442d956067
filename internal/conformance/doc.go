// Package conformance runs generated packages against an oracle: a slow
// interpreter of the spec that knows nothing of buckets, shards or offsets.
//
// It takes a spec and the package generated from it ([Package]), runs the
// package at a world size on memory full of garbage and compares every name,
// shape, value, gradient and optimizer step with what the spec says
// ([Oracle.Check]). Packages of at most four ranks run
// on emulated GPUs too, under schedules that bring a missing dependency between
// streams to light, and all state must have the bits that it had on the CPU
// ([Record]).
// Packages are driven by reflection over their generated methods, so that one
// driver serves all, and reach tensors by copies, so that it serves all devices.
//
// It is for tests. It imports spec, runtime and internal/emulated, and of gen
// only the documented rule for Go names in gen/plan.
package conformance
