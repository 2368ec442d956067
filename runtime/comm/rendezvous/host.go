package rendezvous

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxNoted bounds the refused connections that an error tells of.
	maxNoted    = 4
	statusEvery = time.Second
	drainWait   = time.Second // for the other side to read the last bytes
	// lingerWait is how long rank 0 stays to tell ranks that come later of a mistake
	// of the launch.
	lingerWait   = 3 * time.Second
	maxNotedRank = 64 // missing ranks that a status tells of
)

// host is rank 0: it listens, and hands on messages between the others.
type host struct {
	env       Environment
	listener  net.Listener
	group     *Group
	strangers *strangers
	changed   chan struct{} // has room for one token
	readers   sync.WaitGroup

	mu       sync.Mutex
	peers    []*peer // by rank
	complete bool    // all have come
	closing  bool
	fatal    error    // why they never will
	gone     []int    // ranks that came and gave up
	told     int      // processes that were refused for it
	noted    []string // who was refused, and why
}

// joinAsHost listens until all ranks have come.
func joinAsHost(ctx context.Context, e Environment, timeout time.Duration) (*Group, error) {
	listener, err := listen(ctx, e)
	if err != nil {
		return nil, err
	}
	h := &host{
		env: e, listener: listener,
		group:     newGroup(0, e.Size, timeout),
		strangers: newStrangers(e.Size + maxStrangers),
		changed:   make(chan struct{}, 1),
		peers:     make([]*peer, e.Size),
	}
	h.group.link = h
	go h.accept()
	if err := h.awaitAll(ctx); err != nil {
		h.refuseAll(err)
		return nil, fmt.Errorf("rendezvous of %d ranks at %s: %w", e.Size, listener.Addr(), err)
	}
	return h.group, nil
}

// listen takes the first of the environment's ports that is free. Where rank 0's
// address is the loopback, nobody outside the host can reach it.
func listen(ctx context.Context, e Environment) (net.Listener, error) {
	host := ""
	if ip := net.ParseIP(e.Host); e.Host == "localhost" || ip != nil && ip.IsLoopback() {
		host = e.Host
	}
	var config net.ListenConfig
	for _, port := range e.Ports {
		listener, err := config.Listen(ctx, "tcp", address(host, port))
		if err == nil {
			return listener, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("rank 0 can't listen on %s: %w; set SHARDGEN_PORT to a port that it may use", address(host, port), err)
		}
		if err := probe(ctx, e, e.Host, port); err != nil {
			return nil, fmt.Errorf("rank 0 found rank 0 of its own job at %s: %w", address(e.Host, port), err)
		}
	}
	return nil, fmt.Errorf("rank 0 can't listen: other programs use all of the ports %v; set SHARDGEN_PORT, on all ranks, to a port that is free on %s", e.Ports, e.Host)
}

func (h *host) accept() {
	for {
		conn, err := h.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors left, for example
			if !h.strangers.evict() {
				time.Sleep(firstPause)
			}
			continue
		}
		go h.welcome(conn, h.strangers.enter(conn))
	}
}

// welcome goes through the handshake with whoever called, and takes it in or
// refuses it. Until it has shown the token it is a stranger.
func (h *host) welcome(conn net.Conn, place *list.Element) {
	defer h.strangers.leave(place)
	_ = conn.SetDeadline(time.Now().Add(proofWait))
	member, self, err := h.shake(conn)
	if errors.Is(err, net.ErrClosed) || err == nil && !h.strangers.leave(place) {
		err = errCrowded
	}
	var p *peer
	var refused *refusedError
	if err == nil {
		p, err = h.admit(conn, member, self)
	}
	if err == nil {
		defer h.readers.Done()
		h.read(member.rank, p)
		return
	}
	if errors.As(err, &refused) {
		_, _ = conn.Write(refused.verdict())
	}
	h.note(conn, err)
	drain(conn)
}

// drain lets the other side read the reason before the connection ends: unread
// bytes would reset it.
func drain(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
	_ = conn.SetReadDeadline(time.Now().Add(drainWait))
	_, _ = io.CopyN(io.Discard, conn, 4<<10)
	_ = conn.Close()
}

// shake is rank 0's part of the handshake but for the verdict.
func (h *host) shake(conn net.Conn) (member, self hello, err error) {
	self = newHello(0, h.env.Size, processName())
	member, err = readHello(conn)
	var version *versionError
	if err == nil || errors.As(err, &version) {
		_, _ = conn.Write(self.raw) // an error shows at the next read
	}
	if err != nil {
		return member, self, err
	}
	theirs := make([]byte, proofBytes)
	if _, err := io.ReadFull(conn, theirs); err != nil {
		return member, self, fmt.Errorf("no proof of the token: %w", err)
	}
	if !sameToken(h.env.Token, theirs, member, self) {
		return member, self, &refusedError{reason: fmt.Sprintf("the token of rank %d (%s) differs from that of rank 0 (%s): it is of another job, or SHARDGEN_TOKEN is not the same on all ranks", member.rank, member.name, self.name)}
	}
	return member, self, nil
}

// admit takes a member in that has the token.
func (h *host) admit(conn net.Conn, member, self hello) (*peer, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.objection(member, self); err != nil {
		return nil, err
	}
	if _, err := conn.Write(append([]byte{accepted}, proof(h.env.Token, hostRole, member, self)...)); err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	setKeepAlive(conn)
	p := newPeer(conn, member.name)
	h.peers[member.rank] = p
	h.readers.Add(1)
	h.signal()
	return p, nil
}

// objection returns why a member can't be taken in. A mistake of the launch
// ends the rendezvous.
func (h *host) objection(member, self hello) error {
	var reason string
	switch {
	case h.fatal != nil:
		h.told++
		h.signal()
		return &refusedError{reason: h.fatal.Error(), final: true}
	case h.closing || h.complete:
		return &refusedError{reason: fmt.Sprintf("the group of rank 0 (%s) is complete; rank %d (%s) comes too late or a second time", self.name, member.rank, member.name)}
	case member.size != h.env.Size:
		reason = fmt.Sprintf("rank %d (%s) has WORLD_SIZE %d, rank 0 (%s) has %d; it must be the same on all ranks", member.rank, member.name, member.size, self.name, h.env.Size)
	case member.rank == 0:
		reason = fmt.Sprintf("two processes have RANK 0: %s and %s; every process needs a RANK of its own", self.name, member.name)
	case member.rank >= h.env.Size:
		reason = fmt.Sprintf("rank %d (%s) is not one of the ranks 0 to %d", member.rank, member.name, h.env.Size-1)
	case h.peers[member.rank] != nil:
		reason = fmt.Sprintf("two processes have RANK %d: %s and %s; every process needs a RANK of its own", member.rank, h.peers[member.rank].name, member.name)
	default:
		return nil
	}
	h.fatal = errors.New(reason)
	h.told++
	h.signal()
	return &refusedError{reason: reason, final: true}
}

// signal wakes awaitAll.
func (h *host) signal() {
	select {
	case h.changed <- struct{}{}:
	default: // a token is waiting already
	}
}

// note remembers whom rank 0 refused, for the error at the deadline.
func (h *host) note(conn net.Conn, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.noted) < maxNoted {
		h.noted = append(h.noted, fmt.Sprintf("%s: %v", conn.RemoteAddr(), err))
	}
}

// awaitAll waits for all ranks, lets them start, and tells those that are there
// about the others meanwhile.
func (h *host) awaitAll(ctx context.Context) error {
	status := time.NewTicker(statusEvery)
	defer status.Stop()
	for {
		if done, err := h.check(); done || err != nil {
			return err
		}
		select {
		case <-h.changed:
		case <-status.C:
			missing := h.missing()
			h.toAll(&message{Kind: kindWaiting, Ranks: missing[:min(len(missing), maxNotedRank)]}, 0)
		case <-ctx.Done():
			return h.late(context.Cause(ctx))
		}
	}
}

// check says whether all have come, and starts them then.
func (h *host) check() (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fatal != nil {
		return false, h.fatal
	}
	if len(h.absent()) > 0 {
		return false, nil
	}
	h.complete = true
	frame, err := encode(&message{Kind: kindStart})
	for _, p := range h.peers[1:] {
		p.send(frame)
	}
	return true, err
}

func (h *host) missing() []int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.absent()
}

// absent returns the ranks that have not come. The caller holds the lock.
func (h *host) absent() (ranks []int) {
	for r, p := range h.peers {
		if r > 0 && p == nil {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

func (h *host) late(cause error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	came := func(r int) bool { return slices.Contains(h.gone, r) }
	err := fmt.Errorf("ranks %v have not come: %w", slices.DeleteFunc(h.absent(), came), cause)
	if len(h.gone) > 0 {
		err = fmt.Errorf("%w; ranks %v came, but did not stay", err, h.gone[:min(len(h.gone), maxNotedRank)])
	}
	if len(h.noted) > 0 {
		err = fmt.Errorf("%w; refused were %s", err, strings.Join(h.noted, "; "))
	}
	return err
}

// refuseAll ends a rendezvous that failed.
func (h *host) refuseAll(err error) {
	h.toAll(&message{Kind: kindRefused, Text: err.Error()}, 0)
	h.linger()
	h.close()
}

// linger waits until all processes know of a mistake of the launch, but not long.
func (h *host) linger() {
	timer := time.NewTimer(lingerWait)
	defer timer.Stop()
	for h.someUntold() {
		select {
		case <-h.changed:
		case <-timer.C:
			return
		}
	}
}

// someUntold says whether there is a mistake of which a process doesn't know.
// Their number is the only thing that is sure then: two may have the same rank.
func (h *host) someUntold() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	came := h.env.Size - 1 - len(h.absent()) + len(h.gone)
	return h.fatal != nil && came+h.told < h.env.Size-1
}

// read takes a member's messages until its connection ends.
func (h *host) read(rank int, p *peer) {
	for {
		m, err := readMessage(p.conn)
		if err == nil {
			err = h.handle(rank, p, m)
		}
		if err != nil {
			h.lost(rank, p, err)
			return
		}
	}
}

// handle delivers a member's message here and hands it on.
func (h *host) handle(rank int, p *peer, m *message) error {
	m.From = rank
	switch m.Kind {
	case kindAnswer:
		switch {
		case m.To == 0:
			h.group.deliver(m)
		case m.To > 0 && m.To < len(h.peers):
			h.toOne(m)
		}
		return nil
	case kindData, kindFailed, kindLeft, kindAbort, kindClosed, kindQuestion:
	default:
		return fmt.Errorf("it sent a message of kind %q, which only rank 0 sends", m.Kind)
	}
	p.left = p.left || m.Kind == kindLeft
	h.toAll(m, rank)
	h.group.deliver(m)
	return nil
}

// lost deals with the end of a member's connection.
func (h *host) lost(rank int, p *peer, err error) {
	h.mu.Lock()
	started := h.complete
	h.peers[rank] = nil
	if !started {
		h.gone = append(h.gone, rank)
	}
	closing := h.closing
	h.mu.Unlock()
	h.signal()
	if started && !p.left && !closing {
		m := &message{Kind: kindFailed, From: rank, Text: vanished(p.name, err)}
		h.group.deliver(m)
		h.toAll(m, rank)
	}
	p.finish()
	_ = p.conn.Close()
}

// post implements link.
func (h *host) post(m *message) {
	if m.Kind == kindAnswer {
		h.toOne(m)
		return
	}
	h.toAll(m, 0)
}

func (h *host) toOne(m *message) {
	h.mu.Lock()
	p := h.peers[m.To]
	h.mu.Unlock()
	if frame, err := encode(m); err == nil && p != nil {
		p.send(frame)
	}
}

// toAll sends a message to all members but one.
func (h *host) toAll(m *message, but int) {
	frame, err := encode(m)
	if err != nil {
		return
	}
	h.mu.Lock()
	peers := slices.Clone(h.peers)
	h.mu.Unlock()
	for r, p := range peers {
		if p != nil && r != but {
			p.send(frame)
		}
	}
}

// close waits until the others are done, the job has failed, or the timeout is
// over, and ends the connections.
func (h *host) close() {
	if h.started() && h.group.Err() == nil {
		h.awaitLeaving()
	}
	h.mu.Lock()
	h.closing = true
	peers := slices.Clone(h.peers)
	h.mu.Unlock()
	_ = h.listener.Close()
	var wait sync.WaitGroup
	for _, p := range peers {
		if p != nil {
			wait.Go(func() {
				p.finish()
				_ = p.conn.SetReadDeadline(time.Now().Add(drainWait))
			})
		}
	}
	wait.Wait()
	h.readers.Wait() // they close the connections
}

func (h *host) started() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.complete
}

// awaitLeaving waits until no member is connected any more.
func (h *host) awaitLeaving() {
	timer := time.NewTimer(h.group.timeout)
	defer timer.Stop()
	for len(h.missing()) < h.env.Size-1 {
		select {
		case <-h.changed:
		case <-h.group.failed:
			return
		case <-timer.C:
			return
		}
	}
}
