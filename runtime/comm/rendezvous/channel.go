package rendezvous

import (
	"context"
	"fmt"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
)

// maxChannels bounds the channels that a group remembers.
const maxChannels = 1 << 16

// Progress says how far a rank has come with a communicator's collectives, which
// are counted from 1.
type Progress struct {
	Rank      int    `json:"rank"`      // in the communicator
	Issued    uint64 `json:"issued"`    // the last that its program asked for
	Completed uint64 `json:"completed"` // the last that is done
	// Requests are what it asked for, one after another: some that another rank
	// wants to compare, and that this one still knows.
	Requests []Request `json:"requests,omitempty"`
}

// Request is a collective as a rank asked for it.
type Request struct {
	Sequence  uint64         `json:"sequence"`
	Operation comm.Operation `json:"operation"`
	Subject   string         `json:"subject"`
	Bytes     int64          `json:"bytes"`    // the same on all ranks: of a rank's part where each has one
	Root      int            `json:"root"`     // of a broadcast
	Together  int            `json:"together"` // how many are started together with it, itself counted
}

// String says what was asked for, without the sequence.
func (r Request) String() string {
	text := fmt.Sprintf("%s of %s", r.Operation, r.Subject)
	switch {
	case r.Operation == comm.Barrier:
		return text
	case r.Operation == comm.Broadcast:
		return text + fmt.Sprintf(" (%d bytes from rank %d)", r.Bytes, r.Root)
	case r.Together > 1:
		return text + fmt.Sprintf(" (%d bytes, one of %d in a launch)", r.Bytes, r.Together)
	}
	return text + fmt.Sprintf(" (%d bytes)", r.Bytes)
}

// Member is a communicator as the others of its channel see it. Its methods are
// called from any goroutine and must return at once.
type Member interface {
	// Progress says how far this rank is, with its requests up to the collective
	// until; 0 asks for none.
	Progress(until uint64) Progress
	// Aborted says that a peer has aborted the communicator.
	Aborted(cause *PeerError)
	// Closed says that a peer is done with the communicator: it will take part in
	// no collective after last.Issued.
	Closed(last Progress)
}

// Channel connects the ends of one communicator, by its name.
type Channel struct {
	group   *Group
	name    string
	member  Member // nil before Watch and after Close
	closed  bool
	aborted *PeerError // came before Watch
	done    []Progress // came before Watch
}

// Watch joins the channel of a name that is the same on all its ranks, and that
// no other channel of the group has had. What the others have said before is
// told to m at once.
func (g *Group) Watch(name string, m Member) (*Channel, error) {
	g.mu.Lock()
	c, err := g.channel(name)
	if err == nil && (c.member != nil || c.closed) {
		err = fmt.Errorf("the control channel %q is in use or was used before; a communicator's id may be used once", name)
	}
	if err != nil {
		g.mu.Unlock()
		return nil, err
	}
	c.member = m
	aborted, done := c.aborted, c.done
	c.aborted, c.done = nil, nil
	g.mu.Unlock()
	if aborted != nil {
		m.Aborted(aborted)
	}
	for _, p := range done {
		m.Closed(p)
	}
	return c, nil
}

// channel returns the channel of a name, a new one where there is none yet.
func (g *Group) channel(name string) (*Channel, error) {
	c := g.channels[name]
	if c == nil {
		if len(g.channels) >= maxChannels {
			return nil, fmt.Errorf("a job has at most %d communicators in its life", maxChannels)
		}
		c = &Channel{group: g, name: name}
		g.channels[name] = c
	}
	return c, nil
}

// tellChannel tells a peer's message to the channel's member, or keeps it for
// Watch.
func (g *Group) tellChannel(m *message) {
	g.mu.Lock()
	c, err := g.channel(m.Channel)
	if err != nil || c.closed {
		g.mu.Unlock()
		return
	}
	member := c.member
	if member == nil {
		c.keep(m)
	}
	g.mu.Unlock()
	switch {
	case member == nil:
	case m.Kind == kindAbort:
		member.Aborted(peerError(m))
	case m.Progress != nil:
		member.Closed(*m.Progress)
	}
}

func (c *Channel) keep(m *message) {
	switch {
	case m.Kind == kindAbort && c.aborted == nil:
		c.aborted = peerError(m)
	case m.Kind == kindClosed && m.Progress != nil && len(c.done) < c.group.size:
		c.done = append(c.done, *m.Progress)
	}
}

// progress returns how far this rank is with a channel, nil where it has none of
// that name; see Member.
func (g *Group) progress(name string, until uint64) *Progress {
	g.mu.Lock()
	c := g.channels[name]
	var member Member
	if c != nil {
		member = c.member
	}
	g.mu.Unlock()
	if member == nil {
		return nil
	}
	p := member.Progress(until)
	return &p
}

// Abort tells the other ends that the communicator is aborted.
func (c *Channel) Abort(cause error) {
	m := failure(c.group.rank, cause)
	m.Kind, m.Channel = kindAbort, c.name
	c.group.link.post(m)
}

// Report asks all ends how far they are, and for their requests up to the
// collective until; 0 asks for none. It returns what those said that answered
// within grace, this one's first.
func (c *Channel) Report(ctx context.Context, grace time.Duration, until uint64) []Progress {
	g := c.group
	g.mu.Lock()
	g.question++
	number := g.question
	answers := map[int]*Progress{}
	g.questions[number] = answers
	g.mu.Unlock()
	g.link.post(&message{Kind: kindQuestion, From: g.rank, Number: number, Channel: c.name, Sequence: until})
	// An error means that not all have answered: those that have count.
	_ = g.await(ctx, grace, func() bool { return g.answered(answers) })
	var all []Progress
	if own := g.progress(c.name, until); own != nil {
		all = append(all, *own)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.questions, number)
	for _, p := range answers {
		if p != nil {
			all = append(all, *p)
		}
	}
	return all
}

// answered says whether all ranks that are still there have answered.
func (g *Group) answered(answers map[int]*Progress) bool {
	for r := range g.size {
		if _, ok := answers[r]; !ok && r != g.rank && !g.left[r] {
			return false
		}
	}
	return true
}

// Close leaves the channel and tells the others how far this rank got.
func (c *Channel) Close() {
	g := c.group
	g.mu.Lock()
	member := c.member
	c.member, c.closed = nil, true
	g.mu.Unlock()
	if member != nil {
		p := member.Progress(0)
		g.link.post(&message{Kind: kindClosed, From: g.rank, Channel: c.name, Progress: &p})
	}
}
