// Package local is the transport between ranks that are goroutines of one
// process: a collective is one copy, straight from a peer's memory to where the
// rank wants it.
//
// It takes memory that the host can address and gives a [comm.Communicator] for
// each rank of a [Group]. A rank's collectives run in order on a goroutine of
// its own, a queued stream of package cpu. Ranks meet before they touch each
// other's memory; what they ask for is compared there, so that ranks which
// disagree fail at once, with both sides named. It may import runtime/comm,
// runtime/device/cpu and the packages below those.
//
// Sums run in rank order: ((rank 0 + rank 1) + rank 2) + ... in the element
// type itself for f32, f64 and integers, which wrap; bf16 and f16 are summed in
// f32 and rounded once at the end.
package local

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
)

// DefaultTimeout is how long a rank waits for its peers if the options don't
// say.
const DefaultTimeout = 5 * time.Minute

// maxRanks bounds a group, so that a count read from elsewhere can't take all
// memory.
const maxRanks = 4096

// Options are what a group can be told.
type Options struct {
	// Timeout is how long a rank that came to a collective waits for the others;
	// 0 means DefaultTimeout.
	Timeout time.Duration
}

// Group is a number of ranks in this process. Its methods may be called from
// any goroutine.
type Group struct {
	timeout time.Duration
	ranks   []*Communicator
	board   board

	_       [64]byte      // what follows is written by all ranks: a cache line each
	arrived atomic.Uint64 // arrivals of all ranks at all collectives, and abortBit
	_       [56]byte
	moved   atomic.Uint64 // ranks that were done with a phase of moving, of all collectives
	_       [56]byte

	failed  atomic.Pointer[error] // why the group was aborted
	aborted chan struct{}         // closed after that
	once    sync.Once
	blamed  atomic.Bool // a rank left with an error

	children children // groups split off from this one
}

// abortBit in Group.arrived freezes it. Whether a collective was complete when
// the group was aborted is then the same for all its ranks: either each of them
// moves its data, or none touches a peer's memory, which may be freed.
const abortBit = 1 << 63

// New returns a group of size ranks. Close it when all of them are done.
func New(size int, o Options) (*Group, error) {
	if size < 1 || size > maxRanks {
		return nil, fmt.Errorf("local group of %d ranks, expected 1 to %d", size, maxRanks)
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("local group: timeout %v is negative, 0 means %v", o.Timeout, DefaultTimeout)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	g := &Group{timeout: o.Timeout, aborted: make(chan struct{})}
	g.board.posts = make([]request, size)
	for r := range size {
		g.ranks = append(g.ranks, newCommunicator(g, r, size))
	}
	return g, nil
}

// Size returns the number of ranks.
func (g *Group) Size() int { return len(g.ranks) }

// Communicator returns a rank's end of the group, always the same one. It
// panics if there is no such rank, as indexing does.
func (g *Group) Communicator(rank int) comm.Communicator { return g.ranks[rank] }

// Abort fails the pending and future collectives of all ranks with cause. A
// collective for which all ranks have come is finished first.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = errors.New("the group was aborted without a cause")
	}
	g.once.Do(func() {
		g.failed.Store(&cause)
		g.arrived.Or(abortBit)
		close(g.aborted)
		g.children.abort(cause)
	})
}

// Err returns why the group was aborted, nil while it works.
func (g *Group) Err() error {
	if err := g.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// Leave says that a rank's function has returned, with nil or an error, or has
// panicked. Collectives that it has put on its stream before are still done if
// err is nil. Others that wait for it, now or later, fail at once with an error
// that names it. It panics if there is no such rank.
func (g *Group) Leave(rank int, err error) {
	c := g.ranks[rank]
	cause := fmt.Errorf("rank %d left the group", rank)
	if err != nil {
		cause = fmt.Errorf("rank %d left the group: %w", rank, err)
		g.blamed.Store(true)
	}
	if !c.left.CompareAndSwap(nil, &cause) {
		return
	}
	if err != nil && c.finished.Load() < c.issued.Load() {
		g.Abort(cause)
	}
	for _, other := range g.ranks {
		signal(other.wake)
	}
	g.children.leave(rank, err)
}

// Close ends the goroutines of the group. Call it when the ranks' functions
// have returned: it counts all ranks as having left, so that what they have put
// on their streams is done, or fails where not all of them take part. It returns
// the first error of a stream that nobody has been told of, neither by
// Synchronize nor as the error of a rank that left.
func (g *Group) Close() error {
	for r := range g.ranks {
		g.Leave(r, nil)
	}
	var first error
	for _, c := range g.ranks {
		if err := c.stream.Close(); first == nil {
			first = err
		}
	}
	if g.blamed.Load() {
		return nil
	}
	return first
}

// checkPeers aborts the group if a rank has left that collective seq still
// waits for.
func (g *Group) checkPeers(seq uint64) {
	for _, c := range g.ranks {
		if left := c.left.Load(); left != nil && c.issued.Load() < seq {
			g.Abort(*left)
			return
		}
	}
}

// missing returns the ranks that have not come to collective seq.
func (g *Group) missing(seq uint64) []int {
	var ranks []int
	for r, c := range g.ranks {
		if c.reached.Load() < seq {
			ranks = append(ranks, r)
		}
	}
	return ranks
}
