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

// flight is a collective that was asked for and is not known to be done.
type flight struct {
	op       comm.Operation
	subject  string
	stream   *cuda.Stream
	event    device.Event
	recorded bool      // event is behind it on its stream
	since    time.Time // when it was asked for
}

// failure returns the error of this rank's collective for what happened to the
// group.
func (f *flight) failure(rank int, seq uint64, cause error) error {
	e := &comm.Error{Operation: f.op, Sequence: seq, Subject: f.subject, Rank: rank}
	var own *comm.Error
	var peer *rendezvous.PeerError
	switch {
	case errors.As(cause, &own) && own.Sequence == seq && own.Rank == rank:
		return own
	case errors.As(cause, &peer) && peer.Sequence == seq && len(peer.Missing) > 0 && !slices.Contains(peer.Missing, rank):
		e.Missing = peer.Missing // another rank's deadline was a moment earlier
		return e
	}
	e.Cause = cause
	return e
}

// flights are a communicator's collectives in flight, in a ring by their
// sequence.
type flights struct {
	mu      sync.Mutex
	ring    [ringLength]flight
	issued  uint64    // the last that was asked for
	done    uint64    // the last that is known to be done; those before it are
	oldest  time.Time // when done changed: NCCL can't have begun the next before
	peerEnd uint64    // the last collective of the peer that closed first
	peer    int       // and that peer
}

// begin counts a collective and waits until the ring has room for it. It is in
// flight from then on, also while NCCL is being called. The error is why the
// communicator was aborted meanwhile.
func (r *flights) begin(c *Communicator, f flight) (seq uint64, err error) {
	f.since = time.Now()
	r.mu.Lock()
	r.issued++
	seq = r.issued
	for looked := false; seq-r.done > ringLength; looked = true {
		r.mu.Unlock()
		if err = c.Err(); err != nil {
			return seq, err
		}
		if looked {
			time.Sleep(roomPause)
		}
		_ = r.advance() // the watchdog acts on the error
		r.mu.Lock()
	}
	r.ring[seq%ringLength] = f
	r.mu.Unlock()
	return seq, nil
}

// recorded says that an event is behind a collective.
func (r *flights) recorded(seq uint64, e device.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &r.ring[seq%ringLength]
	f.event, f.recorded = e, true
}

// advance looks which collectives are done. The error is that of a stream.
func (r *flights) advance() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.done < r.issued {
		f := &r.ring[(r.done+1)%ringLength]
		if !f.recorded {
			return nil
		}
		past, err := f.stream.Done(f.event)
		if err != nil || !past {
			return err
		}
		*f = flight{}
		r.done++
		r.oldest = time.Now()
	}
	return nil
}

// first returns the oldest collective in flight and how long it could have run.
func (r *flights) first() (f flight, seq uint64, age time.Duration, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == r.issued {
		return flight{}, 0, 0, false
	}
	f = r.ring[(r.done+1)%ringLength]
	since := f.since
	if r.oldest.After(since) {
		since = r.oldest
	}
	return f, r.done + 1, time.Since(since), true
}

// progress returns how far this rank is known to be.
func (r *flights) progress(rank int) rendezvous.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return rendezvous.Progress{Rank: rank, Issued: r.issued, Completed: r.done}
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
