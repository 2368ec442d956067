package rendezvous

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// crowd keeps more idle connections to a port than a host takes, until the test
// ends: each that is closed comes back at once.
func crowd(t *testing.T, port int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var there, gone sync.WaitGroup
	t.Cleanup(func() { cancel(); gone.Wait() })
	for range maxStrangers + 200 {
		there.Add(1)
		gone.Go(func() {
			idle(ctx, port, sync.OnceFunc(there.Done))
		})
	}
	there.Wait()
}

// idle connects again and again, and waits for the other side to end it.
func idle(ctx context.Context, port int, connected func()) {
	var dialer net.Dialer
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, "tcp", address("127.0.0.1", port))
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		connected()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		_, _ = io.Copy(io.Discard, conn)
		stop()
		_ = conn.Close()
	}
	connected()
}

func TestARankJoinsThoughStrangersHoldMoreConnectionsThanThereIsRoomFor(t *testing.T) {
	all := ranks(t, 2)
	host := make(chan error, 1)
	var first *Group
	go func() {
		var err error
		first, err = Join(context.Background(), all[0], Options{Timeout: soon})
		host <- err
	}()
	dial(t, all[0].Ports[0]) // it listens
	crowd(t, all[0].Ports[0])
	second, err := Join(context.Background(), all[1], Options{Timeout: soon})
	if err := errors.Join(err, <-host); err != nil {
		t.Fatal(err)
	}
	closeAll([]*Group{first, second})
}

func TestAStrangerThatShowsNoTokenIsSentAway(t *testing.T) {
	t.Parallel()
	all := ranks(t, 2)
	var first *Group
	done := make(chan error, 1)
	go func() {
		var err error
		first, err = Join(context.Background(), all[0], Options{Timeout: soon})
		done <- err
	}()
	conn := dial(t, all[0].Ports[0])
	_, _ = conn.Write(newHello(1, 2, "slow").raw)
	if _, err := readHello(conn); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, conn); err != nil || n != 0 {
		t.Errorf("%d bytes, %v, expected the end of the connection", n, err)
	}
	select {
	case err := <-done:
		t.Errorf("rank 0 ended first: %v", err)
	default:
	}
	second, err := Join(context.Background(), all[1], Options{Timeout: soon})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	closeAll([]*Group{first, second})
}

func TestTheOldestStrangerMakesRoom(t *testing.T) {
	s := newStrangers(2)
	var near, far [4]net.Conn
	for i := range near {
		near[i], far[i] = net.Pipe()
	}
	one, two, three := s.enter(near[0]), s.enter(near[1]), s.enter(near[2])
	for i, open := range []bool{false, true, true} {
		_ = far[i].SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		_, err := far[i].Read(make([]byte, 1))
		if closed := errors.Is(err, io.EOF); closed == open {
			t.Errorf("stranger %d: %v", i, err)
		}
	}
	if s.leave(one) {
		t.Error("the oldest has not left")
	}
	if !s.leave(two) || s.leave(two) {
		t.Error("a stranger leaves once")
	}
	four := s.enter(near[3])
	if !s.leave(three) || !s.leave(four) {
		t.Error("there was room for two")
	}
	if s.evict() {
		t.Error("there is nobody to send away")
	}
}
