package nccl

import (
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
)

const (
	// ringLength is how many collectives can be in flight; the next waits.
	ringLength = 512
	// roomPause is how long a wait for room sleeps between two looks.
	roomPause = 50 * time.Microsecond
	// noEnd stands for the last collective of a peer that is not closed.
	noEnd = math.MaxUint64
)

// warmUps is how many collectives connect the ranks before the caller's first:
// see warmUp.
const warmUps = 4

// sequenceOf returns the number of a collective among the caller's, 0 for those
// that connect the ranks.
func sequenceOf(seq uint64) uint64 { return max(seq, warmUps) - warmUps }

// comparedRequests is how many requests ranks compare when one is late. Where
// they differ NCCL may end the one on some ranks and hang in one after it.
const comparedRequests = 16

// flight is a collective that was asked for. It stays in the ring when it is done.
type flight struct {
	seq      uint64
	first    uint64 // of those that are started together with it
	last     uint64
	op       comm.Operation
	subject  string
	bytes    int64 // the same on all ranks
	root     int
	stream   *cuda.Stream
	event    device.Event
	recorded bool      // event is behind it on its stream
	since    time.Time // when it was asked for
}

// failure returns the error of this rank's collective for what happened to the
// group. What is started together ends together: where one of them is named
// already, that is it.
func (f *flight) failure(rank int, cause error) error {
	e := &comm.Error{Operation: f.op, Sequence: sequenceOf(f.seq), Subject: f.subject, Rank: rank}
	var own *comm.Error
	var peer *rendezvous.PeerError
	switch {
	case errors.As(cause, &own) && f.together(own.Sequence) && own.Rank == rank:
		return own
	case errors.As(cause, &peer) && f.together(peer.Sequence) && len(peer.Missing) > 0 && !slices.Contains(peer.Missing, rank):
		e.Missing = peer.Missing // another rank's deadline was a moment earlier
		return e
	}
	e.Cause = cause
	return e
}

// together says whether the caller's collective of that number was started with
// this one.
func (f *flight) together(sequence uint64) bool {
	return sequenceOf(f.first) <= sequence && sequence <= sequenceOf(f.last)
}

// flights are a communicator's latest collectives, in a ring by their number,
// which counts those that connect the ranks.
type flights struct {
	mu      sync.Mutex
	ring    [ringLength]flight
	issued  uint64    // the last that was asked for
	done    uint64    // the last that is known to be done; those before it are
	oldest  time.Time // when done changed: NCCL can't have begun the next before
	peerEnd uint64    // the last collective of the peer that closed first
	peer    int       // and that peer
}

// begin counts the collectives of a launch and waits until the ring has room for
// them. They are in flight from then on, also while NCCL is being called. The error
// is why the communicator was aborted meanwhile.
func (r *flights) begin(c *Communicator, launch []request) error {
	now := time.Now()
	r.mu.Lock()
	first, last := r.issued+1, r.issued+uint64(len(launch))
	r.issued = last
	for i := range launch {
		f := &launch[i].flight
		f.seq, f.first, f.last, f.since = first+uint64(i), first, last, now
	}
	for looked := false; last-r.done > ringLength; looked = true {
		r.mu.Unlock()
		if err := c.Err(); err != nil {
			return err
		}
		if looked {
			time.Sleep(roomPause)
		}
		_ = r.advance() // the watchdog acts on the error
		r.mu.Lock()
	}
	for i := range launch {
		r.ring[launch[i].seq%ringLength] = launch[i].flight
	}
	r.mu.Unlock()
	return nil
}

// recorded says that an event is behind the collectives of a launch.
func (r *flights) recorded(launch []request, e device.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range launch {
		f := &r.ring[launch[i].seq%ringLength]
		f.event, f.recorded = e, true
	}
}

// advance looks which collectives are done. The error is that of a stream.
func (r *flights) advance() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.done < r.issued {
		f := &r.ring[(r.done+1)%ringLength]
		if f.seq != r.done+1 || !f.recorded {
			return nil // it waits for room, or NCCL is being called
		}
		past, err := f.stream.Done(f.event)
		if err != nil || !past {
			return err
		}
		r.done++
		r.oldest = time.Now()
	}
	return nil
}

// first returns the oldest collective in flight and how long it could have run.
func (r *flights) first() (f flight, age time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == r.issued {
		return flight{}, 0, false
	}
	seq := r.done + 1
	if f = r.ring[seq%ringLength]; f.seq != seq {
		f = flight{seq: seq, first: seq, last: seq} // it waits for room
	}
	since := f.since
	if r.oldest.After(since) {
		since = r.oldest
	}
	return f, time.Since(since), true
}

// progress returns how far this rank is known to be, with its latest requests up
// to until.
func (r *flights) progress(rank int, until uint64) rendezvous.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := rendezvous.Progress{Rank: rank, Issued: r.issued, Completed: r.done}
	until = min(until, r.issued)
	for seq := until - min(until, comparedRequests) + 1; seq <= until; seq++ {
		if f := &r.ring[seq%ringLength]; f.seq == seq {
			p.Requests = append(p.Requests, rendezvous.Request{Sequence: seq, Operation: f.op, Subject: f.subject, Bytes: f.bytes, Root: f.root, Together: int(f.last - f.first + 1)})
		}
	}
	return p
}

// close notes that a peer takes part in no collective after last.
func (r *flights) close(last rendezvous.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last.Issued < r.peerEnd {
		r.peerEnd, r.peer = last.Issued, last.Rank
	}
}

// abandoned returns the peer that closed before a collective that is in flight.
func (r *flights) abandoned() (peer int, last uint64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peer, r.peerEnd, r.issued > r.peerEnd
}
