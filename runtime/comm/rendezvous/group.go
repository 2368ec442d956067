package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
)

const (
	// maxAhead bounds the exchanges for which others have sent something before
	// this rank asks for it.
	maxAhead = 4096
	// maxText bounds the text of an error that goes over the control channel.
	maxText = 64 << 10
)

// Group is one rank's end of a job. Its methods may be called from any
// goroutine; Broadcast and Exchange by one at a time, in the same order on all
// ranks.
type Group struct {
	rank, size int
	timeout    time.Duration
	link       link
	failed     chan struct{} // closed when err is set

	mu        sync.Mutex
	err       error
	ended     bool          // Close was called
	changed   chan struct{} // closed, and made anew, when something came
	number    uint64        // of the last exchange
	exchanges map[uint64]map[int][]byte
	left      map[int]bool
	channels  map[string]*Channel
	question  uint64 // number of the last question
	questions map[uint64]map[int]*Progress
}

// link carries messages to the other ranks.
type link interface {
	// post sends a message to all other ranks, an answer to its rank. It does not
	// wait.
	post(m *message)
	// close returns when the others have what was posted, or never will.
	close()
}

// PeerError is what another rank did to the group or the channel: it failed, it
// died, or it ended the job.
type PeerError struct {
	Rank     int    // of the job
	Text     string // its error
	Sequence uint64 // where that was a *comm.Error with missing ranks: its sequence
	Missing  []int  // and those ranks
	cause    error  // the error itself, where the ranks are in one process
}

func (e *PeerError) Error() string { return fmt.Sprintf("rank %d: %s", e.Rank, e.Text) }

// Unwrap returns the other rank's error where it is in the same process.
func (e *PeerError) Unwrap() error { return e.cause }

func newGroup(rank, size int, timeout time.Duration) *Group {
	return &Group{
		rank: rank, size: size, timeout: timeout,
		failed: make(chan struct{}), changed: make(chan struct{}),
		exchanges: map[uint64]map[int][]byte{}, left: map[int]bool{},
		channels: map[string]*Channel{}, questions: map[uint64]map[int]*Progress{},
	}
}

// Rank returns this rank's number in the job.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks in the job.
func (g *Group) Size() int { return g.size }

// Failed is closed when a rank failed or died, or one ended the job by Abort.
// Err then says why.
func (g *Group) Failed() <-chan struct{} { return g.failed }

// Err returns nil while the job works. If another rank was the cause it is a
// *PeerError, else what Abort was given.
func (g *Group) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Abort ends the job on every rank with cause. Only the first counts.
func (g *Group) Abort(cause error) {
	if cause == nil {
		cause = errors.New("the job was aborted without a cause")
	}
	if g.fail(cause) {
		m := failure(g.rank, cause)
		m.Kind = kindFailed
		g.link.post(m)
	}
}

// failure puts an error into a message.
func failure(rank int, cause error) *message {
	text := cause.Error()
	m := &message{From: rank, Text: text[:min(len(text), maxText)], cause: cause}
	var e *comm.Error
	if errors.As(cause, &e) && len(e.Missing) > 0 {
		m.Sequence, m.Ranks = e.Sequence, e.Missing
	}
	return m
}

func peerError(m *message) *PeerError {
	return &PeerError{Rank: m.From, Text: m.Text, Sequence: m.Sequence, Missing: m.Ranks, cause: m.cause}
}

// fail sets the group's error; it returns false where it has one, or is closed.
func (g *Group) fail(cause error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil || g.ended {
		return false
	}
	g.err = cause
	close(g.failed)
	return true
}

// Close says that this rank is done. That is no failure, but others that wait
// for it in Broadcast or Exchange hear of it. Rank 0, over which all messages go,
// returns when the others are done, when the job has failed, or after the
// timeout of Join; then those that are left have no control channel any more.
func (g *Group) Close() error {
	g.mu.Lock()
	ended := g.ended
	g.ended = true
	g.mu.Unlock()
	if !ended {
		g.link.post(&message{Kind: kindLeft, From: g.rank})
		g.link.close()
	}
	return nil
}

// deliver takes a message of another rank. It is called by one goroutine per
// connection.
func (g *Group) deliver(m *message) {
	switch m.Kind {
	case kindFailed:
		g.fail(peerError(m))
	case kindData:
		g.store(m)
	case kindLeft:
		g.update(func() { g.left[m.From] = true })
	case kindAbort, kindClosed:
		g.tellChannel(m)
	case kindQuestion:
		g.link.post(&message{Kind: kindAnswer, From: g.rank, To: m.From, Number: m.Number, Progress: g.progress(m.Channel, m.Sequence)})
	case kindAnswer:
		g.update(func() {
			if answers := g.questions[m.Number]; answers != nil {
				answers[m.From] = m.Progress
			}
		})
	}
}

// update changes what waiters wait for.
func (g *Group) update(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *Group) store(m *message) {
	g.update(func() {
		if g.exchanges[m.Number] == nil {
			if m.Number <= g.number || len(g.exchanges) >= maxAhead {
				return // given up, or not to be believed
			}
			g.exchanges[m.Number] = map[int][]byte{}
		}
		g.exchanges[m.Number][m.From] = m.Payload
	})
}

// await returns when done, which is called under the group's lock, says so. It
// ends early with an error: the group's, ctx's, or errLate.
func (g *Group) await(ctx context.Context, limit time.Duration, done func() bool) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		g.mu.Lock()
		ok, changed := done(), g.changed
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-g.failed:
			return g.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return errLate
		}
	}
}

var errLate = errors.New("the deadline is over")

// Broadcast returns rank 0's payload, of at most MaxPayload bytes, on every
// rank. The others' payloads are ignored.
func (g *Group) Broadcast(ctx context.Context, payload []byte) ([]byte, error) {
	if g.rank != 0 {
		payload = nil
	}
	all, err := g.exchange(ctx, "broadcast", payload, []int{0})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// Exchange returns the payloads of all ranks, of at most MaxPayload bytes each,
// in rank order.
func (g *Group) Exchange(ctx context.Context, payload []byte) ([][]byte, error) {
	everyone := make([]int, g.size)
	for r := range everyone {
		everyone[r] = r
	}
	return g.exchange(ctx, "exchange", payload, everyone)
}

// exchange sends the payload if this rank is one of the senders, and waits for
// those of all senders.
func (g *Group) exchange(ctx context.Context, name string, payload []byte, senders []int) ([][]byte, error) {
	if len(payload) > MaxPayload {
		err := fmt.Errorf("%s of %d bytes over the control channel, expected at most %d", name, len(payload), MaxPayload)
		g.Abort(err) // the others would wait
		return nil, err
	}
	g.mu.Lock()
	g.number++
	number := g.number
	if g.exchanges[number] == nil {
		g.exchanges[number] = map[int][]byte{}
	}
	got := g.exchanges[number]
	payload = slices.Clone(payload)
	got[g.rank] = payload
	g.mu.Unlock()
	if slices.Contains(senders, g.rank) {
		g.link.post(&message{Kind: kindData, From: g.rank, Number: number, Payload: payload})
	}
	err := g.await(ctx, g.timeout, func() bool { return len(g.absent(got, senders)) == 0 || g.anyLeft(got, senders) })
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.exchanges, number)
	if absent := g.absent(got, senders); len(absent) > 0 {
		return nil, g.incomplete(name, number, absent, err)
	}
	all := make([][]byte, len(senders))
	for i, r := range senders {
		all[i] = got[r]
	}
	return all, nil
}

// absent returns the senders that have sent nothing yet.
func (g *Group) absent(got map[int][]byte, senders []int) (ranks []int) {
	for _, r := range senders {
		if _, ok := got[r]; !ok {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// anyLeft says whether a sender that has sent nothing never will.
func (g *Group) anyLeft(got map[int][]byte, senders []int) bool {
	return slices.ContainsFunc(g.absent(got, senders), func(r int) bool { return g.left[r] })
}

func (g *Group) incomplete(name string, number uint64, absent []int, err error) error {
	switch {
	case errors.Is(err, errLate):
		return fmt.Errorf("rank %d: %s %d over the control channel: no sign of ranks %v within %v", g.rank, name, number, absent, g.timeout)
	case err != nil:
		return fmt.Errorf("rank %d: %s %d over the control channel: %w", g.rank, name, number, err)
	}
	gone := slices.DeleteFunc(absent, func(r int) bool { return !g.left[r] })
	return fmt.Errorf("rank %d: %s %d over the control channel: ranks %v have left the job; all ranks must call it", g.rank, name, number, gone)
}
