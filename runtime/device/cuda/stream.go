package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// Stream is a queue of the GPU's work, in order. Methods that add work are for
// one goroutine at a time; Synchronize, Done, Fail, Err, Close and waits by other
// streams are for any.
//
// A nil *Stream, which OpenStream returns with an error, is one that failed: work
// on it and waits for it end with that.
type Stream struct {
	device *Device
	name   string
	handle uintptr // CUstream

	events []uintptr     // CUevents: point n is recorded in n modulo their number
	seq    atomic.Uint64 // points recorded
	done   atomic.Uint64 // points known to be past
	failed atomic.Pointer[failure]

	closing sync.Once
	closed  atomic.Bool
	using   sync.RWMutex // held for writing when the driver's objects go
	gone    bool         // they have gone

	frame     [11]uintptr     // arguments of the call that is being made
	arguments launchArguments // of the launch that is being made, where the driver reads them
	sampler   random.Sampler  // and the structs among them
	adamw     optim.AdamWStep
	sgd       optim.SGDStep

	mu         sync.Mutex
	dependents []dependent
}

// failure is a stream's first error and the first point that it spoils.
type failure struct {
	seq  uint64
	err  error
	seen atomic.Bool // a Synchronize has returned it
}

// dependent is a stream that waits for a point of this one, and the latest such
// point.
type dependent struct {
	stream *Stream
	seq    uint64
}

// NewStream implements device.Device: a queue that does not wait for the
// driver's default stream. inline has no meaning on a GPU.
func (d *Device) NewStream(name string, _ bool) (device.Stream, error) { return d.OpenStream(name) }

// OpenStream is NewStream with what only streams of this package have, such as
// [Stream.Handle].
func (d *Device) OpenStream(name string) (*Stream, error) {
	return d.openStream(name, func(handle *uintptr) error {
		return d.within(cuStreamCreate, uintptr(unsafe.Pointer(handle)), streamNonBlock)
	})
}

// OpenUrgentStream is OpenStream with the highest priority of the GPU: where blocks
// of kernels of several streams could run, its own come first. Collectives are
// short of multiprocessors, not of time on them, and others wait for them.
func (d *Device) OpenUrgentStream(name string) (*Stream, error) {
	return d.openStream(name, func(handle *uintptr) error {
		var least, greatest int32
		err := d.within(cuCtxGetStreamPriorityRange, uintptr(unsafe.Pointer(&least)), uintptr(unsafe.Pointer(&greatest)))
		if err != nil {
			return err
		}
		return d.within(cuStreamCreateWithPriority, uintptr(unsafe.Pointer(handle)), streamNonBlock, uintptr(greatest))
	})
}

func (d *Device) openStream(name string, create func(handle *uintptr) error) (*Stream, error) {
	s := &Stream{device: d, name: name, events: make([]uintptr, ringEvents)}
	err := create(&s.handle)
	for i := 0; err == nil && i < ringEvents; i++ {
		err = d.within(cuEventCreate, uintptr(unsafe.Pointer(&s.events[i])), eventNoTiming)
	}
	if err != nil {
		return nil, errors.Join(s.errorf("creation: %w", err), s.destroy())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ending {
		return nil, errors.Join(s.errorf("creation: %w", d.errClosed()), s.destroy())
	}
	d.streams = append(d.streams, s)
	return s, nil
}

// Name returns the name that the stream was given.
func (s *Stream) Name() string { return s.name }

// Device returns the GPU that the stream is of.
func (s *Stream) Device() *Device { return s.device }

// Handle returns the CUstream, for libraries such as cuBLAS and NCCL: what they
// add is in order with the stream's own work. See [Device.Enter].
func (s *Stream) Handle() uintptr { return s.handle }

func (s *Stream) errorf(format string, arguments ...any) error {
	return fmt.Errorf("%s: stream %s: %w", s.device.label(), s.name, fmt.Errorf(format, arguments...))
}

// stopped reports whether the stream takes no more work. An operation after
// Close becomes its error.
func (s *Stream) stopped(operation string) bool {
	if s == nil || s.failed.Load() != nil {
		return true
	}
	if s.closed.Load() {
		s.reject(operation, errAfterClose)
		return true
	}
	return false
}

// reject fails the stream behind all points that are recorded.
func (s *Stream) reject(operation string, err error) {
	s.fail(s.seq.Load()+1, s.errorf("%s: %w", operation, err))
}

// Fail makes err the stream's error, if it is the first: points that are not
// known to be past will never be reached, and later work is not submitted. A
// library that found the stream's work stuck or spoiled calls it before it ends
// that work.
func (s *Stream) Fail(err error) {
	if s != nil {
		s.fail(s.done.Load()+1, s.errorf("%w", err))
	}
}

// fail also fails the streams that wait for a spoiled point: their work would use
// what is not there.
func (s *Stream) fail(seq uint64, err error) {
	if !s.failed.CompareAndSwap(nil, &failure{seq: seq, err: err}) {
		return
	}
	s.mu.Lock()
	dependents := slices.Clone(s.dependents)
	s.mu.Unlock()
	for _, d := range dependents {
		if d.seq >= seq && !d.stream.closed.Load() {
			d.stream.fail(d.stream.done.Load()+1, err)
		}
	}
}

// errNoStream is what ends work on a nil *Stream.
var errNoStream = errors.New("cuda: the stream is a nil *cuda.Stream: opening it returned an error")

// Err returns the stream's first error so far, nil while it works.
func (s *Stream) Err() error {
	if s == nil {
		return errNoStream
	}
	if f := s.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// submit makes a call that adds work, with arguments in s.frame.
func (s *Stream) submit(operation string, f function, arguments int) {
	if err := s.device.Enter(); err != nil {
		s.reject(operation, err)
		return
	}
	s.using.RLock()
	code := int32(success)
	gone := s.gone
	if !gone {
		code = s.device.driver.status(f, s.frame[:arguments]...)
	}
	s.using.RUnlock()
	s.device.Leave()
	switch {
	case gone:
		s.reject(operation, errAfterClose)
	case code != success:
		s.reject(operation, s.device.driver.check(f, code))
	}
}

var errAfterClose = errors.New("after Close")

// Copy implements device.Stream. The ranges are the same or do not overlap, and
// one of them may be page-locked memory of the host: all or a part of what
// [Device.AllocPinned] returned. The host reads what was copied to it, or writes
// over what is copied from it, when Done or Synchronize says that the work up to a
// Record behind the copy is done. Other memory of the host is refused: the driver
// would copy it through buffers of its own, and the host would wait.
func (s *Stream) Copy(dst, src device.Memory) {
	const operation = "copy"
	if s.stopped(operation) {
		return
	}
	if err := s.device.checkCopy(dst, src); err != nil {
		s.reject(operation, err)
		return
	}
	f := cuMemcpyDtoDAsync
	switch {
	case src.Host() != nil:
		f = cuMemcpyHtoDAsync
	case dst.Host() != nil:
		f = cuMemcpyDtoHAsync
	}
	s.copy(operation, f, dst.Addr(), src.Addr(), dst.Bytes())
}

// copy adds a copy in the direction of f.
func (s *Stream) copy(operation string, f function, dst, src device.Addr, bytes int64) {
	if bytes == 0 || dst == src {
		return
	}
	s.frame = [11]uintptr{uintptr(dst), uintptr(src), uintptr(bytes), s.handle}
	s.submit(operation, f, 4)
}

// Record implements device.Stream.
func (s *Stream) Record() device.Event {
	if s == nil {
		return device.Event{Stream: s, Seq: 1}
	}
	seq := s.seq.Load()
	if s.closed.Load() && s.failed.Load() == nil {
		return device.Event{Stream: s, Seq: seq}
	}
	if s.failed.Load() == nil {
		s.frame[0], s.frame[1] = s.events[(seq+1)%ringEvents], s.handle
		s.submit("record", cuEventRecord, 2)
	}
	if s.failed.Load() == nil {
		s.seq.Store(seq + 1)
	}
	return device.Event{Stream: s, Seq: seq + 1}
}

// Wait implements device.Stream. An event behind failed work fails this stream
// too, also where that shows later. The zero event is always past.
func (s *Stream) Wait(e device.Event) {
	const operation = "wait"
	if e.Stream == nil || e.Stream == device.Stream(s) || s.stopped(operation) {
		return
	}
	other, ok := e.Stream.(*Stream)
	if ok && other == nil {
		s.reject(operation, errNoStream)
		return
	}
	if !ok || other.device.context != s.device.context {
		s.reject(operation, fmt.Errorf("the event is of a stream of another device (a %T)", e.Stream))
		return
	}
	if other.isPast(e.Seq) {
		return
	}
	if err := other.lend(s, e.Seq); err != nil {
		s.fail(s.seq.Load()+1, err)
		return
	}
	other.using.RLock()
	defer other.using.RUnlock()
	if other.gone { // after its work
		return
	}
	s.frame[0], s.frame[1], s.frame[2] = s.handle, *other.eventOf(e.Seq), 0
	s.submit(operation, cuStreamWaitEvent, 3)
}

// isPast reports whether a point is known to be past, without asking the driver.
func (s *Stream) isPast(seq uint64) bool {
	f := s.failed.Load()
	return s.done.Load() >= seq && (f == nil || f.seq > seq)
}

// lend notes that another stream waits for a point, or says why that point will
// not be reached. The note comes first: fail reads notes after it has set the
// failure.
func (s *Stream) lend(to *Stream, seq uint64) error {
	s.mu.Lock()
	s.note(to, seq)
	s.mu.Unlock()
	if f := s.failed.Load(); f != nil && f.seq <= seq {
		return f.err
	}
	if recorded := s.seq.Load(); seq > recorded {
		return to.errorf("wait: the event is point %d of stream %s, which has recorded %d", seq, s.name, recorded)
	}
	return nil
}

// note enters a dependent, over one that is closed where there is one.
func (s *Stream) note(to *Stream, seq uint64) {
	free := -1
	for i := range s.dependents {
		d := &s.dependents[i]
		if d.stream == to {
			d.seq = max(d.seq, seq)
			return
		}
		if d.stream.closed.Load() {
			free = i
		}
	}
	if free >= 0 {
		s.dependents[free] = dependent{to, seq}
		return
	}
	s.dependents = append(s.dependents, dependent{to, seq})
}

// Close implements device.Stream. It waits for the work that was submitted, half
// a minute at most, and returns the stream's first error where no Synchronize
// has. Where the work is stuck, the driver's objects stay until the device is
// closed. Closing twice is allowed: all calls return when it is closed, and the
// first has the error.
func (s *Stream) Close() (err error) {
	if s != nil {
		s.closing.Do(func() { err = s.close() })
	}
	return err
}

func (s *Stream) close() error {
	s.closed.Store(true)
	if s.device.closed.Load() { // which left it behind, and said so
		return s.unseen()
	}
	err := s.drain()
	if err == nil {
		err = s.destroy()
	}
	if s.gone {
		s.device.forget(s)
	}
	if f := s.unseen(); f != err {
		return errors.Join(f, err)
	}
	return err
}

// unseen returns the stream's first error where nobody has heard of it.
func (s *Stream) unseen() error {
	if f := s.failed.Load(); f != nil && !f.seen.Swap(true) {
		return f.err
	}
	return nil
}

// drain waits until the stream is empty; the error is that it is not in time.
// Broken work makes its status the stream's error.
func (s *Stream) drain() error {
	limit := s.device.patience()
	err := s.ended(time.Now().Add(limit))
	switch {
	case err == nil:
		s.done.Store(s.seq.Load())
		return nil
	case codeOf(err) == errNotReady:
		s.device.late.Store(true)
		err = s.errorf("Close: its work is not done after %v, a kernel may be stuck", limit)
		s.fail(s.done.Load()+1, err)
		return err
	}
	s.Fail(err)
	return nil
}

// ended waits until the work that the stream has now is done, or an end. A status
// that is neither done nor pending is that of broken work, which has ended.
func (s *Stream) ended(end time.Time) error {
	next := s.seq.Load() + 1 // of a stream that never is empty, a point behind that work
	for pause := (pause{}); ; pause.wait() {
		err := s.ask()
		if codeOf(err) != errNotReady {
			return err
		}
		if s.failed.Load() == nil && s.seq.Load() >= next {
			if past, _ := s.poll(next); past {
				return nil
			}
		}
		if time.Now().After(end) {
			return err
		}
	}
}

// ask asks the driver whether the stream has work left.
func (s *Stream) ask() error {
	d := s.device
	if err := d.Enter(); err != nil {
		return err
	}
	defer d.Leave()
	s.using.RLock()
	defer s.using.RUnlock()
	if s.gone {
		return nil
	}
	return d.driver.check(cuStreamQuery, d.query(cuStreamQuery, []uintptr{s.handle}))
}

// destroy gives the driver's objects back, when no other goroutine is about to
// use them: a call with them can be stuck, as work can.
func (s *Stream) destroy() error {
	for end := time.Now().Add(s.device.patience()); !s.using.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return s.errorf("Close: a call of the driver has not returned, a kernel may be stuck")
		}
	}
	defer s.using.Unlock()
	if s.gone {
		return nil
	}
	s.gone = true
	var all []error
	for _, e := range s.events {
		if e != 0 {
			all = append(all, s.device.within(cuEventDestroy, e))
		}
	}
	if s.handle != 0 {
		all = append(all, s.device.within(cuStreamDestroy, s.handle))
	}
	if err := errors.Join(all...); err != nil && s.failed.Load() == nil {
		return s.errorf("Close: %w", err)
	}
	return nil
}
