package nccl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
)

// The watchdog looks often enough to keep a deadline within a tenth.
const (
	minInterval = 2 * time.Millisecond
	maxInterval = 20 * time.Millisecond
)

// watch is the watchdog: it ends the communicator when something is wrong with
// it, and itself when the communicator is closed.
func (c *Communicator) watch() {
	defer close(c.watched)
	ticker := time.NewTicker(min(max(c.timeout/10, minInterval), maxInterval))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-c.poke:
		case <-c.jobFailed():
			c.stop(jobError(c.control.Err()), false)
		case <-c.closing:
			if c.Err() == nil {
				return
			}
		}
		if c.Err() == nil {
			c.inspect()
		}
		if c.Err() != nil {
			c.kill()
			return
		}
	}
}

// jobError returns the error of a job that failed. Sequences in it are not those
// of this communicator.
func jobError(err error) error {
	if peer, ok := err.(*rendezvous.PeerError); ok {
		return &rendezvous.PeerError{Rank: peer.Rank, Text: peer.Text}
	}
	return err
}

// inspect stops the communicator where something is wrong.
func (c *Communicator) inspect() {
	if err := c.flights.advance(); err != nil {
		c.stop(err, true)
		return
	}
	if code := c.library.status(ncclCommGetAsyncError, c.query[:]...); code != success {
		c.stop(c.library.check(ncclCommGetAsyncError, code), true)
		return
	}
	if c.state != success && c.state != inProgress {
		c.stop(fmt.Errorf("asynchronous error of NCCL: %w", c.library.check(ncclCommGetAsyncError, c.state)), true)
		return
	}
	if peer, last, ok := c.flights.abandoned(); ok {
		c.stop(fmt.Errorf("rank %d left the group after %d collectives", peer, sequenceOf(last)), true)
		return
	}
	if f, age, ok := c.flights.first(); ok && age > c.timeout {
		c.expire(f)
	}
}

// expire stops the communicator because a collective took too long.
func (c *Communicator) expire(f flight) {
	missing, cause := c.behind(f.seq, f.last)
	if err := c.flights.advance(); err != nil {
		c.stop(err, true)
		return
	}
	if now, _, ok := c.flights.first(); !ok || now.seq != f.seq {
		return // it was done at the last moment
	}
	c.stop(&comm.Error{Operation: f.op, Sequence: sequenceOf(f.seq), Subject: f.subject, Rank: c.rank, Missing: missing, Cause: cause}, true)
}

// behind asks the other ranks how far they are and what they asked for, up to last,
// which is started together with seq. Where that differs, NCCL hangs or mixes it up:
// that is the cause. Missing are those that say nothing or have not asked for the
// collective; if there are none, those for which earlier ones are not done.
func (c *Communicator) behind(seq, last uint64) (missing []int, cause error) {
	if c.channel == nil {
		return nil, fmt.Errorf("it is not done after %v", c.timeout)
	}
	known := make([]*rendezvous.Progress, c.size)
	for _, p := range c.channel.Report(context.Background(), grace, last) {
		if p.Rank >= 0 && p.Rank < c.size {
			known[p.Rank] = &p
		}
	}
	if cause := differ(known); cause != nil {
		return nil, cause
	}
	for r, p := range known {
		if p == nil || p.Issued < seq {
			missing = append(missing, r)
		}
	}
	if len(missing) > 0 {
		return missing, nil
	}
	for r, p := range known {
		if p.Completed+1 < seq {
			missing = append(missing, r)
		}
	}
	if len(missing) > 0 {
		return missing, nil
	}
	return nil, fmt.Errorf("it is not done after %v, though all ranks have asked for it: what is on their streams before it may be stuck, or NCCL", c.timeout)
}

// differ returns the first collective for which ranks asked differently, as an
// error that names one that differs from most, nil where there is none. Ranks that
// said nothing are nil.
func differ(known []*rendezvous.Progress) error {
	var first, odd rendezvous.Request
	var usual, other int
	for seq, asked := range requestsOf(known) {
		a, b := mostAsked(asked)
		if b >= 0 && (odd.Sequence == 0 || seq < odd.Sequence) {
			usual, other, first, odd = a, b, asked[a], asked[b]
		}
	}
	if odd.Sequence == 0 {
		return nil
	}
	return fmt.Errorf("the ranks ask for different collectives: as sequence %d rank %d asked for %s, rank %d for %s", sequenceOf(odd.Sequence), usual, first, other, odd)
}

// requestsOf returns what ranks asked for, by the collective's number and by rank.
func requestsOf(known []*rendezvous.Progress) map[uint64]map[int]rendezvous.Request {
	requests := map[uint64]map[int]rendezvous.Request{}
	for r, p := range known {
		if p == nil {
			continue
		}
		for _, q := range p.Requests {
			if requests[q.Sequence] == nil {
				requests[q.Sequence] = map[int]rendezvous.Request{}
			}
			requests[q.Sequence][r] = q
		}
	}
	return requests
}

// mostAsked returns the lowest rank of those that asked for what most did, and the
// lowest that asked for something else, -1 where none did.
func mostAsked(asked map[int]rendezvous.Request) (usual, other int) {
	ranks := slices.Sorted(maps.Keys(asked))
	votes, usual, other := map[rendezvous.Request]int{}, ranks[0], -1
	for _, r := range ranks {
		votes[asked[r]]++
	}
	for _, r := range ranks {
		if votes[asked[r]] > votes[asked[usual]] {
			usual = r
		}
	}
	for _, r := range slices.Backward(ranks) {
		if asked[r] != asked[usual] {
			other = r
		}
	}
	return usual, other
}

// kill fails the streams and then ends NCCL's work.
func (c *Communicator) kill() {
	handle, inside := c.take()
	_ = c.flights.advance() // what is done stays done
	if f, _, ok := c.flights.first(); ok {
		err := underCall(f.failure(c.rank, c.Err()), inside)
		c.gather.Fail(err)
		c.reduce.Fail(err)
	}
	c.abortHandle(handle)
}
