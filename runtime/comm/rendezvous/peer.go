package rendezvous

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	// maxQueued bounds what is kept for a peer that reads too slowly.
	maxQueued = 64 << 20
	// flushWait bounds the wait for a peer to take what is queued.
	flushWait = 5 * time.Second
	// A host that is gone says nothing: its connection is given up after
	// keepAliveIdle + keepAliveCount*keepAliveInterval.
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 5 * time.Second
	keepAliveCount    = 4
)

// peer is a connection after the handshake. Frames are sent by a goroutine of
// its own, so that nobody waits for a slow reader.
type peer struct {
	conn    net.Conn
	name    string // of its process
	left    bool   // it said goodbye; used by its reader alone
	mu      sync.Mutex
	more    sync.Cond // queue or closing changed
	queue   [][]byte
	queued  int
	closing bool
	done    chan struct{} // closed when the sender has ended
}

func newPeer(conn net.Conn, name string) *peer {
	p := &peer{conn: conn, name: name, done: make(chan struct{})}
	p.more.L = &p.mu
	go p.sendAll()
	return p
}

// setKeepAlive makes a connection notice a host that is gone.
func setKeepAlive(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		// An error leaves the system's own, slower, settings.
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount})
	}
}

// send queues a frame. A peer that leaves too much unread loses its connection.
func (p *peer) send(frame []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return
	}
	if p.queued+len(frame) > maxQueued {
		p.closing = true
		_ = p.conn.Close() // its reader reports that
	}
	p.queue = append(p.queue, frame)
	p.queued += len(frame)
	p.more.Signal()
}

// sendAll is the sender. It ends when the connection fails, which the reader
// reports, or after finish.
func (p *peer) sendAll() {
	defer close(p.done)
	for {
		frames := p.take()
		if len(frames) == 0 {
			return
		}
		for _, frame := range frames {
			if _, err := p.conn.Write(frame); err != nil {
				return
			}
		}
	}
}

// take waits for frames and returns them, none when the peer is closing.
func (p *peer) take() [][]byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) == 0 && !p.closing {
		p.more.Wait()
	}
	frames := p.queue
	p.queue, p.queued = nil, 0
	return frames
}

// finish sends what is queued and then the end of the stream, in bounded time.
func (p *peer) finish() {
	p.mu.Lock()
	p.closing = true
	p.more.Signal()
	p.mu.Unlock()
	_ = p.conn.SetWriteDeadline(time.Now().Add(flushWait))
	<-p.done
	if tcp, ok := p.conn.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

// vanished says that a process is gone that did not say goodbye; err is the end
// of its connection.
func vanished(name string, err error) string {
	if errors.Is(err, net.ErrClosed) {
		return fmt.Sprintf("its process (%s) was given up: it has left too much unread on the control channel", name)
	}
	return fmt.Sprintf("its process (%s) ended without a word, as when it is killed; its own output or the kernel's log says why (%v)", name, err)
}
