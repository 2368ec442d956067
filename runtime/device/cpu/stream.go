package cpu

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/shardgen/shardgen/runtime/device"
)

// QueueLength is how many commands a queued stream holds, the one being done
// included. The next call waits for room.
const QueueLength = 256

// Before it blocks, a wait looks this often, and lets other goroutines run in
// between: most work is short, and a sleep and a wake-up cost more.
const spins = 40

// Task is work that package cpu does not know. A task that is put on a stream
// must stay unchanged until the stream has passed it.
type Task interface {
	// Run does the work. failed is the stream's first error, nil while it works:
	// a task is called even then, so that it can tell others who wait for it, but
	// must not touch memory. An error fails the stream.
	Run(failed error) error
}

// Stream is a queue of work, in order. Methods that add work are for one
// goroutine at a time; Synchronize and waits by other streams are for any.
type Stream struct {
	name   string
	inline bool

	ring   []command
	head   atomic.Uint64 // commands added
	done   atomic.Uint64 // commands done
	failed atomic.Pointer[failure]

	asleep atomic.Bool   // the worker is about to block on wake
	wake   chan struct{} // tells the worker that head or closing changed
	closed atomic.Bool
	ended  chan struct{} // closed when the worker has returned

	waiting atomic.Int32 // waiters in list
	mu      sync.Mutex
	list    *waiter // those that wait for done to reach their seq
	free    *waiter
}

// failure is a stream's first error and the command that had it.
type failure struct {
	seq  uint64
	err  error
	seen atomic.Bool // a Synchronize has returned it
}

// waiter is a goroutine that waits for a sequence number. It is reused.
type waiter struct {
	seq   uint64
	ready chan struct{} // has room for one token
	next  *waiter
}

// NewStream implements device.Device. A queued stream has a goroutine until it
// is closed.
func (d *Device) NewStream(name string, inline bool) (device.Stream, error) {
	return NewStream(name, inline), nil
}

// NewStream returns a stream that is not yet behind the device's interface, for
// packages that use [Stream.Do].
func NewStream(name string, inline bool) *Stream {
	s := &Stream{name: name, inline: inline, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	if inline {
		s.ring = make([]command, 1)
		close(s.ended)
		return s
	}
	s.ring = make([]command, QueueLength)
	go s.work()
	return s
}

// Name returns the name that the stream was given.
func (s *Stream) Name() string { return s.name }

// Do adds a task.
func (s *Stream) Do(t Task) {
	if c := s.next(opTask); c != nil {
		c.task = t
		s.submit()
	}
}

// next returns the cleared command that the following submit adds, or nil
// where the stream is closed.
func (s *Stream) next(o op) *command {
	head := s.head.Load()
	if s.closed.Load() {
		// At head, which is what Record returns: a wait for the work that was
		// refused must not find it done.
		s.fail(head, fmt.Errorf("stream %s: %s after Close", s.name, o))
		return nil
	}
	if size := uint64(len(s.ring)); head >= size {
		_ = s.await(context.Background(), head-size+1)
	}
	c := &s.ring[head%uint64(len(s.ring))]
	*c = command{op: o}
	return c
}

func (s *Stream) submit() {
	seq := s.head.Add(1)
	if s.inline {
		s.perform(seq)
		return
	}
	if s.asleep.Load() {
		signal(s.wake)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a token is waiting already
	}
}

// work is the goroutine of a queued stream.
func (s *Stream) work() {
	defer close(s.ended)
	for seq := uint64(1); s.awaitWork(seq); seq++ {
		s.perform(seq)
	}
}

// awaitWork waits for command seq; it returns false when the stream is closed
// and all commands are done.
func (s *Stream) awaitWork(seq uint64) bool {
	for range spins {
		if s.head.Load() >= seq {
			return true
		}
		runtime.Gosched()
	}
	for {
		s.asleep.Store(true)
		if s.head.Load() < seq && !s.closed.Load() {
			<-s.wake
		}
		s.asleep.Store(false)
		if s.head.Load() >= seq {
			return true
		}
		if s.closed.Load() {
			return false
		}
	}
}

// perform does command seq and lets those go on who wait for it.
func (s *Stream) perform(seq uint64) {
	c := &s.ring[(seq-1)%uint64(len(s.ring))]
	if err := s.run(c); err != nil {
		s.fail(seq, err)
	}
	s.done.Store(seq)
	if s.waiting.Load() > 0 {
		s.release(seq)
	}
}

func (s *Stream) run(c *command) error {
	f := s.failed.Load()
	switch {
	case c.op == opTask && f != nil:
		return c.task.Run(f.err)
	case c.op == opTask:
		return c.task.Run(nil)
	case f != nil:
		return nil
	}
	if err := c.run(); err != nil {
		return fmt.Errorf("stream %s: %s: %w", s.name, c.op, err)
	}
	return nil
}

func (s *Stream) fail(seq uint64, err error) {
	s.failed.CompareAndSwap(nil, &failure{seq: seq, err: err})
}

// Err returns the stream's first error so far, nil while it works.
func (s *Stream) Err() error {
	if f := s.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// errAt returns the stream's first error if it happened at or before seq.
func (s *Stream) errAt(seq uint64) error {
	if f := s.failed.Load(); f != nil && f.seq <= seq {
		f.seen.Store(true)
		return f.err
	}
	return nil
}

// Record implements device.Stream.
func (s *Stream) Record() device.Event { return device.Event{Stream: s, Seq: s.head.Load()} }

// Wait implements device.Stream. An event behind failed work fails this stream
// too. The zero event is always past.
func (s *Stream) Wait(e device.Event) {
	if e.Stream == nil || e.Stream == device.Stream(s) {
		return // work of one stream is in order already
	}
	if c := s.next(opWait); c != nil {
		c.event = e
		s.submit()
	}
}

// Synchronize implements device.Stream. It returns the stream's first error if
// that happened before the event, and the cause of ctx's end if that came
// first. The event may be of another stream; the zero event is always past.
func (s *Stream) Synchronize(ctx context.Context, e device.Event) error {
	switch other := e.Stream.(type) {
	case nil:
		return nil
	case *Stream:
		return other.reach(ctx, e.Seq)
	default:
		return other.Synchronize(ctx, e)
	}
}

// reach waits for an event of this stream.
func (s *Stream) reach(ctx context.Context, seq uint64) error {
	if head := s.head.Load(); seq > head {
		return fmt.Errorf("stream %s: wait for event %d, but only %d are recorded", s.name, seq, head)
	}
	if err := s.await(ctx, seq); err != nil {
		return fmt.Errorf("stream %s: wait for its work: %w", s.name, err)
	}
	return s.errAt(seq)
}

// await returns when done has reached seq, or with the cause of ctx's end.
func (s *Stream) await(ctx context.Context, seq uint64) error {
	for range spins {
		if s.done.Load() >= seq {
			return nil
		}
		runtime.Gosched()
	}
	w := s.enlist(seq)
	defer s.discharge(w)
	if s.done.Load() >= seq {
		return nil
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Stream) enlist(seq uint64) *waiter {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.free
	if w == nil {
		w = &waiter{ready: make(chan struct{}, 1)}
	} else {
		s.free = w.next
	}
	w.seq, w.next = seq, s.list
	s.list = w
	s.waiting.Add(1)
	return w
}

// discharge takes a waiter back, whether or not it has been released.
func (s *Stream) discharge(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := &s.list; *p != nil; p = &(*p).next {
		if *p == w {
			*p = w.next
			s.waiting.Add(-1)
			break
		}
	}
	select {
	case <-w.ready:
	default:
	}
	w.next, s.free = s.free, w
}

// release wakes the waiters that wait for seq or less.
func (s *Stream) release(seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := &s.list; *p != nil; {
		w := *p
		if w.seq > seq {
			p = &w.next
			continue
		}
		*p = w.next
		s.waiting.Add(-1)
		signal(w.ready)
	}
}

// Close implements device.Stream. It waits for the work that was added, ends
// the goroutine, and returns the stream's first error where no Synchronize has
// returned it before. Closing twice is allowed.
func (s *Stream) Close() error {
	if !s.closed.Swap(true) {
		signal(s.wake)
	}
	<-s.ended
	if f := s.failed.Load(); f != nil && !f.seen.Swap(true) {
		return f.err
	}
	return nil
}
