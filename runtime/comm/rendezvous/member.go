package rendezvous

import (
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

const (
	// A round of attempts at all ports is followed by a pause, which grows.
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
	dialWait   = 3 * time.Second
)

// caller is a rank other than 0 that looks for rank 0. The same knocking tells
// rank 0 whether a port is taken by its own job.
type caller struct {
	env     Environment
	self    hello
	missing []int // what rank 0 said last while it waited
}

// joinAsMember dials rank 0 until the deadline.
func joinAsMember(ctx context.Context, e Environment, timeout time.Duration) (*Group, error) {
	c := &caller{env: e}
	pause := firstPause
	var last error
	for {
		for _, port := range e.Ports {
			p, err := c.knock(ctx, e.Host, port)
			if err == nil {
				c.missing = nil
				if err = c.awaitStart(ctx, p); err == nil {
					return c.start(p, timeout), nil
				}
				_ = p.conn.Close()
				p.finish()
			}
			var refused *refusedError
			if errors.As(err, &refused) && refused.final {
				return nil, fmt.Errorf("rank %d was refused by rank 0 at %s: %w", e.Rank, address(e.Host, port), err)
			}
			if ctx.Err() == nil || c.missing != nil || last == nil {
				last = better(last, fmt.Errorf("%s: %w", address(e.Host, port), err))
			}
		}
		select {
		case <-ctx.Done():
			return nil, c.late(ctx, last)
		case <-time.After(pause):
			pause = min(2*pause, lastPause)
		}
	}
}

// better chooses what to tell of two failed attempts: a refusal with a reason
// says more than a port where nobody listens.
func better(old, new error) error {
	var refused *refusedError
	if errors.As(old, &refused) && !errors.As(new, &refused) {
		return old
	}
	return new
}

func (c *caller) late(ctx context.Context, last error) error {
	e := c.env
	text := fmt.Sprintf("rank %d of %d did not get together with rank 0 at %s, ports %v", e.Rank, e.Size, e.Host, e.Ports)
	if len(c.missing) > 0 {
		return fmt.Errorf("%s: ranks %v have not come: %w", text, c.missing, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w; last attempt at %w; check that rank 0 runs, that MASTER_ADDR is its host and that MASTER_PORT or SHARDGEN_PORT is open between the hosts", text, context.Cause(ctx), last)
}

func address(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// knock dials a port and goes through the handshake.
func (c *caller) knock(ctx context.Context, host string, port int) (*peer, error) {
	dialer := net.Dialer{Timeout: dialWait}
	conn, err := dialer.DialContext(ctx, "tcp", address(host, port))
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(handshakeWait))
	host0, err := c.shake(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	setKeepAlive(conn)
	return newPeer(conn, host0.name), nil
}

// shake is the member's part of the handshake.
func (c *caller) shake(conn net.Conn) (hello, error) {
	c.self = newHello(c.env.Rank, c.env.Size, processName())
	if _, err := conn.Write(c.self.raw); err != nil {
		return hello{}, err
	}
	host, err := readHello(conn)
	if err != nil {
		return hello{}, finalVersion(err)
	}
	if _, err := conn.Write(proof(c.env.Token, memberRole, c.self, host)); err != nil {
		return hello{}, err
	}
	theirs, err := readVerdict(conn)
	if err != nil {
		return hello{}, err
	}
	if !hmac.Equal(theirs, proof(c.env.Token, hostRole, c.self, host)) {
		return hello{}, errors.New("it accepted this rank without knowing the job's token")
	}
	if host.rank != 0 || host.size != c.env.Size {
		return hello{}, fmt.Errorf("it is rank %d of %d, expected rank 0 of %d", host.rank, host.size, c.env.Size)
	}
	return host, nil
}

// finalVersion makes another protocol version an end of all attempts.
func finalVersion(err error) error {
	var version *versionError
	if errors.As(err, &version) {
		return &refusedError{reason: err.Error(), final: true}
	}
	return err
}

// awaitStart waits until rank 0 says that all have come.
func (c *caller) awaitStart(ctx context.Context, p *peer) error {
	stop := context.AfterFunc(ctx, func() { _ = p.conn.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		m, err := readMessage(p.conn)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("rank 0 (%s) was found and then lost before all ranks had come: %w", p.name, err)
		case m.Kind == kindStart:
			if !stop() {
				return context.Cause(ctx)
			}
			return p.conn.SetReadDeadline(time.Time{})
		case m.Kind == kindRefused:
			return &refusedError{reason: m.Text, final: true}
		case m.Kind == kindWaiting:
			c.missing = m.Ranks
		}
	}
}

// start makes the group and reads what comes for it.
func (c *caller) start(p *peer, timeout time.Duration) *Group {
	g := newGroup(c.env.Rank, c.env.Size, timeout)
	l := &memberLink{peer: p, ended: make(chan struct{})}
	g.link = l
	go l.read(g)
	return g
}

// memberLink is the connection of a rank to rank 0.
type memberLink struct {
	peer  *peer
	ended chan struct{} // closed when the reader has ended
}

func (l *memberLink) read(g *Group) {
	defer close(l.ended)
	left := false
	for {
		m, err := readMessage(l.peer.conn)
		if err != nil {
			if !left {
				g.fail(&PeerError{Text: vanished(l.peer.name, err)})
			}
			return
		}
		left = left || m.Kind == kindLeft && m.From == 0
		g.deliver(m)
	}
}

func (l *memberLink) post(m *message) {
	if frame, err := encode(m); err == nil {
		l.peer.send(frame)
	}
}

// close says goodbye and waits until rank 0 has heard it.
func (l *memberLink) close() {
	l.peer.finish()
	_ = l.peer.conn.SetReadDeadline(time.Now().Add(flushWait))
	<-l.ended
	_ = l.peer.conn.Close()
}

// probe asks who listens at a port that rank 0 found taken. It returns an error
// if that is rank 0 of this very job.
func probe(ctx context.Context, e Environment, host string, port int) error {
	p, err := (&caller{env: e}).knock(ctx, host, port)
	if err == nil { // it never accepts a second rank 0
		_ = p.conn.Close()
		p.finish()
		return nil
	}
	var refused *refusedError
	if errors.As(err, &refused) && refused.final {
		return err
	}
	return nil
}

// sameToken says whether a member's proof is right.
func sameToken(token string, theirs []byte, member, host hello) bool {
	return hmac.Equal(theirs, proof(token, memberRole, member, host))
}
