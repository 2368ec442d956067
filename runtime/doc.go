// Package shard is what generated packages import: it opens a model's shards on
// a rank, gathers blocks and releases them in passes, reduces gradients and
// steps the optimizer.
//
// A generated package describes its model by a Descriptor of constants; this
// package keeps the state. It takes a communicator (package comm) and a device
// (package device) and knows nothing of what is behind them. All memory is
// allocated in Open at the places that package layout computes; nothing is
// allocated afterwards.
//
// A Model belongs to one rank. Its methods may be called from any goroutine, one
// pass at a time; the models of a rank take turns. Ranks must make the same calls
// in the same order. A call that the model's state does not allow is a
// *StateError; a collective that failed ends the model for good, on every rank.
package shard
