// Package abi is the handshake between generated packages and the runtime.
//
// A generated package refers to the constant of the version that its generator
// wrote for. When the runtime moves on, that constant is gone and the package
// stops compiling with a message that says what to run.
package abi

// Version counts the changes of the contract between generated code and runtime.
const Version = 1

// RunShardgenGenerate_Version1 exists while the runtime understands packages
// that were generated for version 1. If the compiler says that it is undefined,
// run `go tool shardgen generate` again on the spec that the package came from.
const RunShardgenGenerate_Version1 = Version
