package cuda

import (
	"context"
	"runtime"
	"time"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
)

// ringEvents is how many of a stream's points can be waited for exactly; an older
// one is waited for through the oldest of these.
const ringEvents = 256

// eventOf returns the driver's event of a recorded point. Where that was recorded
// anew since, it is the event of the oldest point that is kept, which is behind it
// in the same stream; recording one more in this moment moves it further behind,
// never before. Waiting for it can't close a circle, because work only ever waits
// for what was submitted before.
func (s *Stream) eventOf(seq uint64) *uintptr {
	if last := s.seq.Load(); last >= ringEvents {
		seq = max(seq, last-ringEvents+1)
	}
	return &s.events[seq%ringEvents]
}

// poll reports whether a point is past, without waiting. The error is the
// stream's, if it spoils the point.
func (s *Stream) poll(seq uint64) (bool, error) {
	if s == nil {
		return false, errNoStream
	}
	if past, err := s.settled(seq); past || err != nil {
		return past, err
	}
	if recorded := s.seq.Load(); seq > recorded {
		return false, s.errorf("wait for point %d, but only %d are recorded", seq, recorded)
	}
	if err := s.device.Enter(); err != nil {
		return false, err
	}
	s.using.RLock()
	code := int32(success) // of a stream that was closed meanwhile, when it was empty
	if !s.gone {
		code = s.device.query(cuEventQuery, unsafe.Slice(s.eventOf(seq), 1))
	}
	s.using.RUnlock()
	s.device.Leave()
	if code != success && code != errNotReady {
		return s.broken(seq, s.errorf("%w", s.device.driver.check(cuEventQuery, code)))
	}
	// A failure in the meantime comes first: work that was ended for it looks done.
	if past, err := s.settled(seq); past || err != nil || code != success {
		return past, err
	}
	s.advance(seq)
	return true, nil
}

// captureMode is a thread's answer to captures of others, and where the driver
// reads and writes it.
type captureMode struct {
	value   int32
	address [1]uintptr
}

func newCaptureMode() any {
	m := &captureMode{}
	m.address[0] = uintptr(unsafe.Pointer(&m.value))
	return m
}

// query asks whether work is done, between Enter and Leave. While another thread
// captures a stream, in the mode that is usual, a question would spoil the capture
// unless the thread is relaxed; its own mode comes back afterwards. What is being
// captured is not done.
func (d *Device) query(f function, argument []uintptr) int32 {
	m := d.modes.Get().(*captureMode)
	defer d.modes.Put(m)
	m.value = captureRelaxed
	if code := d.driver.status(cuThreadExchangeStreamCaptureMode, m.address[:]...); code != success {
		return code
	}
	code := d.driver.status(f, argument...)
	if back := d.driver.status(cuThreadExchangeStreamCaptureMode, m.address[:]...); code == success && back != success {
		return back
	}
	if code >= errCaptureFirst && code <= errCaptureLast {
		return errNotReady
	}
	return code
}

// broken fails the stream with what the driver says of its work, and returns what
// poll does: that, or an earlier error.
func (s *Stream) broken(seq uint64, err error) (bool, error) {
	s.fail(s.done.Load()+1, err)
	if past, first := s.settled(seq); past || first != nil {
		return past, first
	}
	return false, err
}

// settled returns what poll does where that is known already.
func (s *Stream) settled(seq uint64) (bool, error) {
	if f := s.failed.Load(); f != nil && f.seq <= seq {
		return false, s.seen()
	}
	return s.done.Load() >= seq, nil
}

// advance notes that a point is past.
func (s *Stream) advance(seq uint64) {
	for done := s.done.Load(); done < seq && !s.done.CompareAndSwap(done, seq); {
		done = s.done.Load()
	}
}

// seen returns the stream's error to one who waits, so that Close need not.
func (s *Stream) seen() error {
	f := s.failed.Load()
	if f == nil {
		return nil
	}
	f.seen.Store(true)
	return f.err
}

// Done reports whether all work before an event is done, without waiting; the
// error is the stream's, if it happened before the event. The zero event is
// always past.
func (s *Stream) Done(e device.Event) (bool, error) {
	switch other := e.Stream.(type) {
	case nil:
		return true, nil
	case *Stream:
		return other.poll(e.Seq)
	default:
		return false, s.errorf("the event is of a stream of another device (a %T)", e.Stream)
	}
}

// Synchronize implements device.Stream. It asks the driver again and again, at
// growing distances, and never waits inside it, so that it ends with ctx or with
// the stream's failure even where the GPU is stuck. The event may be of another
// stream.
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

// reach waits for a point of this stream.
func (s *Stream) reach(ctx context.Context, seq uint64) error {
	for pause := (pause{}); ; pause.wait() {
		if past, err := s.poll(seq); past || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return s.errorf("wait for its work: %w", context.Cause(ctx))
		}
	}
}

// pause is the distance between two questions to the driver. Much work is short:
// the first come one after another.
type pause struct {
	spins int
	sleep time.Duration
}

const (
	maxSpins = 50
	minSleep = 2 * time.Microsecond
	maxSleep = 60 * time.Microsecond
)

func (p *pause) wait() {
	if p.spins < maxSpins {
		p.spins++
		runtime.Gosched()
		return
	}
	p.sleep = min(max(minSleep, 2*p.sleep), maxSleep)
	time.Sleep(p.sleep)
}
