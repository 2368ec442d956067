// Package nccl is the transport between GPUs: NVIDIA's NCCL, opened while the
// program runs, so that a binary starts where it is missing.
//
// It takes memory of a [cuda.Device] and gives a [comm.Communicator]: a gather
// is one ncclAllGather of bytes from where the shard lies to where it is wanted.
// The ranks may be processes or goroutines; a [rendezvous.Group] connects them
// beside NCCL. NCCL itself waits for its peers without end: a goroutine of every
// communicator watches the collectives in flight, and aborts the communicator at
// a deadline, at an error that NCCL or the driver reports, or when a peer fails.
//
// Ranks have to ask for the same collectives in the same order. NCCL does not
// compare them: it hangs, or mixes them up. So each rank remembers its latest
// requests, and those of all ranks are compared when a deadline is over.
//
// NCCL puts the operations of one communicator one after another, in the order
// of the calls, also where they are on different streams: a collective on the
// gather stream and one on the reduce stream don't run at the same time, and need
// no event between them for the order to be the same on all ranks.
//
// Sums are made in the element type, in an order that NCCL chooses: it promises
// the same bits only for the same GPUs, algorithm and sizes. The package may
// import runtime/comm, runtime/comm/rendezvous, runtime/device/cuda and the
// packages below those.
package nccl
