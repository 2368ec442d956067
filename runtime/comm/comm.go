// Package comm is the boundary to the ranks of a process group. Package local
// implements it for ranks that are goroutines of one process; other transports
// implement it for processes and GPUs.
package comm

import (
	"context"
	"fmt"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// Operation names a collective.
type Operation uint8

// The collectives.
const (
	AllGather Operation = iota + 1
	ReduceScatter
	AllReduce
	Broadcast
	Barrier
)

var operationNames = [...]string{AllGather: "all-gather", ReduceScatter: "reduce-scatter", AllReduce: "all-reduce", Broadcast: "broadcast", Barrier: "barrier"}

func (o Operation) String() string {
	if int(o) < len(operationNames) && operationNames[o] != "" {
		return operationNames[o]
	}
	return fmt.Sprintf("operation %d", uint8(o))
}

// Gather are the arguments of an AllGather.
type Gather struct {
	Subject  string
	Dst, Src device.Memory
}

// Reduction are the arguments of a ReduceScatter.
type Reduction struct {
	Subject  string
	Dst, Src device.Memory
	Type     dtype.DType
}

// Communicator is one rank's end of a process group.
//
// Collectives are put on one of the group's two streams in the order of the
// calls, which must be the same on all ranks, and return at once. A transport may
// have one stream for both, and may run collectives one after another whatever
// their stream. subject names what is
// moved, such as a bucket; it stands in errors and, where a transport compares
// what ranks ask for, is compared. Buffers may be reused when the stream has
// passed the collective. A collective that fails, or whose peers do not come
// within the deadline, fails the stream: Synchronize returns an *Error, on
// every rank. Nothing here allocates after the first use.
type Communicator interface {
	// Rank returns this rank's place in the group, 0 <= Rank < Size.
	Rank() int
	// Size returns the number of ranks.
	Size() int
	// GatherStream returns the stream of AllGather, Broadcast and Barrier,
	// ReduceStream that of ReduceScatter and AllReduce. Kernels that prepare or use
	// their buffers can be put between them.
	GatherStream() device.Stream
	ReduceStream() device.Stream
	// AllGather fills dst with every rank's src in rank order: dst has Size times
	// src's bytes.
	AllGather(subject string, dst, src device.Memory)
	// AllGathers is AllGather of each, in this order, started together: on GPUs that
	// is one launch. Each is a collective of its own, with its sequence and its
	// errors. All ranks must put the same ones together. None may read what another
	// one writes. all is not kept.
	AllGathers(all []Gather)
	// ReduceScatter sums src over the ranks, in type t, and leaves the part of this
	// rank in dst: src has Size times dst's bytes. dst may be this rank's part of
	// src. Package local adds in rank order, bf16 and f16 in f32, which is rounded
	// once. NCCL chooses the order, and rounds bf16 and f16 after every addition.
	ReduceScatter(subject string, dst, src device.Memory, t dtype.DType)
	// ReduceScatters is to ReduceScatter what AllGathers is to AllGather.
	ReduceScatters(all []Reduction)
	// AllReduce replaces buf by its sum over the ranks, which is made as that of
	// ReduceScatter.
	AllReduce(subject string, buf device.Memory, t dtype.DType)
	// Broadcast replaces buf by that of the root rank.
	Broadcast(subject string, buf device.Memory, root int)
	// Barrier lets no rank's stream pass before all have come.
	Barrier(subject string)
	// Synchronize waits until all work before an event of one of the streams is
	// done. It is bounded by ctx; the collectives have their own deadline.
	Synchronize(ctx context.Context, e device.Event) error
	// Split makes groups of the ranks that pass the same color, numbered by key
	// and, where keys are equal, by their rank here. All ranks must call it; it
	// waits for them. Close what it returns before this communicator.
	Split(ctx context.Context, subject string, color, key int) (Communicator, error)
	// Abort fails the group's pending and future collectives, on every rank, with
	// an *AbortError.
	Abort(cause error)
	// Err returns why the group was aborted, nil while it works.
	Err() error
	// Close frees the communicator's streams when their work is done. Every rank
	// closes its own.
	Close() error
}

// AbortError says that a rank aborted the group, and why. Other ranks' errors wrap
// it, so that the one where it began can be told.
type AbortError struct {
	Rank  int
	Cause error
}

func (e *AbortError) Error() string {
	return fmt.Sprintf("rank %d aborted the group: %v", e.Rank, e.Cause)
}

func (e *AbortError) Unwrap() error { return e.Cause }

// Error says which collective failed and why.
type Error struct {
	Operation Operation
	Sequence  uint64 // counts the group's collectives from 1
	Subject   string
	Rank      int   // where it was noticed
	Missing   []int // ranks that did not come in time
	Cause     error // what happened, where it is not missing ranks
}

func (e *Error) Error() string {
	text := fmt.Sprintf("rank %d: %s of %s (sequence %d)", e.Rank, e.Operation, e.Subject, e.Sequence)
	if len(e.Missing) > 0 {
		text += fmt.Sprintf(": no sign of ranks %v before the deadline", e.Missing)
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Cause }
