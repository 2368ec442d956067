package rendezvous

import (
	"container/list"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// maxStrangers bounds the connections that have not shown the token, beside
	// those that the job's own ranks may have at the same time.
	maxStrangers = 512
	// proofWait is how long a stranger may take to show it. A rank that needs longer
	// tries again.
	proofWait = 2 * time.Second
)

// errCrowded is why a stranger was sent away that did nothing wrong.
var errCrowded = errors.New("its connection was closed to make room for others")

// strangers are connections that have not shown the token, the oldest first. Who
// only holds connections open can't keep others out: each that comes when there
// are too many takes the place of the oldest.
type strangers struct {
	most  int
	mu    sync.Mutex
	conns list.List // of net.Conn
}

func newStrangers(most int) *strangers { return &strangers{most: most} }

// enter adds a connection and returns its place.
func (s *strangers) enter(conn net.Conn) *list.Element {
	s.mu.Lock()
	place := s.conns.PushBack(conn)
	full := s.conns.Len() > s.most
	s.mu.Unlock()
	if full {
		s.evict()
	}
	return place
}

// evict closes the oldest connection; it returns false where there is none.
func (s *strangers) evict() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := s.conns.Front()
	if oldest == nil {
		return false
	}
	_ = s.conns.Remove(oldest).(net.Conn).Close()
	return true
}

// leave takes a connection out; it returns false where that has happened before.
func (s *strangers) leave(place *list.Element) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.conns.Len()
	s.conns.Remove(place)
	return s.conns.Len() < before
}
