package nccl

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
)

const (
	// grace is how long a rank waits at a deadline for the others to say how far
	// they are.
	grace = time.Second
	// finishWait, or the timeout where that is less, bounds ncclCommFinalize and
	// ncclCommDestroy. What takes longer is left behind.
	finishWait = 30 * time.Second
)

// warmUpBytes is a rank's part of the first collectives.
const warmUpBytes = 16

// Together these are less than the grace of a launch, in which the ranks have to
// return. Tests shorten them.
var (
	// callWait bounds the wait for a call of NCCL to return before the communicator
	// is aborted under it: see abortHandle.
	callWait = 500 * time.Millisecond
	// abortWait bounds ncclCommAbort.
	abortWait = 3 * time.Second
)

// channelName returns the name of the control channel of an id's communicator.
func channelName(id ID) string {
	hash := sha256.Sum256(id[:])
	return fmt.Sprintf("%x", hash[:8])
}

// member is the communicator as its control channel sees it.
type member struct{ c *Communicator }

// Progress implements rendezvous.Member.
func (m member) Progress(until uint64) rendezvous.Progress {
	return m.c.flights.progress(m.c.rank, until)
}

// Aborted implements rendezvous.Member.
func (m member) Aborted(cause *rendezvous.PeerError) { m.c.stop(cause, false) }

// Closed implements rendezvous.Member.
func (m member) Closed(last rendezvous.Progress) {
	m.c.flights.close(last)
	signal(m.c.poke)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a token is waiting already
	}
}

// open makes what the communicator needs and lets init, which stores the
// ncclComm_t, find the other ranks.
func (c *Communicator) open(ctx context.Context, init func(handle *uintptr) error) error {
	err := c.prepare()
	if err == nil {
		err = c.meet(ctx, init)
	}
	if err == nil {
		err = c.verify()
	}
	if err != nil {
		c.stop(err, true)
		handle, inside := c.take()
		c.abortHandle(handle)
		return errors.Join(underCall(err, inside), c.release())
	}
	c.query = [2]uintptr{c.handle.Load(), uintptr(unsafe.Pointer(&c.state))}
	go c.watch()
	if err := c.warmUp(ctx); err != nil {
		c.stop(err, true)
		<-c.watched
		return errors.Join(err, c.release())
	}
	return nil
}

// warmUp runs each kind of collective once. In the first by an algorithm NCCL
// connects the ranks and allocates its buffers: so a network that doesn't work
// shows here, and the memory is taken before a model allocates its own. Only
// algorithms that NCCL takes for longer ranges alone are left. All of it has to be
// done within a collective's deadline.
func (c *Communicator) warmUp(ctx context.Context) error {
	m, err := c.device.Alloc(int64(c.size) * warmUpBytes)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout+grace, fmt.Errorf("not all kinds of collectives are done after %v", c.timeout+grace))
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.stop(context.Cause(ctx), true) })()
	part := m.Slice(int64(c.rank)*warmUpBytes, warmUpBytes)
	const subject = "the first connection"
	c.AllGather(subject, m, part)
	c.ReduceScatter(subject, part, m, dtype.Float32)
	c.AllReduce(subject, part, dtype.Float32)
	c.Broadcast(subject, part, 0)
	err = errors.Join(c.Synchronize(ctx, c.reduce.Record()), c.Synchronize(ctx, c.gather.Record()))
	if err != nil {
		c.stop(err, true)
		<-c.watched // the collectives use the memory until then
		var named *comm.Error
		if errors.As(err, &named) {
			err = named // of both streams' the same
		}
		err = fmt.Errorf("connecting the ranks (NCCL_DEBUG=INFO shows what NCCL tries): %w", err)
	}
	return errors.Join(err, c.device.Free(m))
}

func (c *Communicator) prepare() (err error) {
	if c.gather, err = c.device.OpenUrgentStream("gather"); err != nil {
		return err
	}
	if c.reduce, err = c.device.OpenUrgentStream("reduce"); err != nil {
		return err
	}
	if c.one, err = c.device.Alloc(1); err != nil {
		return err
	}
	if c.control != nil {
		c.channel, err = c.control.Watch(c.name, member{c})
	}
	return err
}

// entrant is who can enter a GPU's context: a device, or a hold on one.
type entrant interface {
	Enter() error
	Leave()
}

// within calls f on a thread that has the GPU's context.
func within(gpu entrant, f func() error) error {
	if err := gpu.Enter(); err != nil {
		return err
	}
	defer gpu.Leave()
	return f()
}

// abortLate aborts what an init made that nobody wants any more. Its error changes
// nothing: New or Split has failed for another reason.
func (c *Communicator) abortLate(gpu entrant, handle uintptr) {
	_ = within(gpu, func() error { return c.library.call(ncclCommAbort, handle) })
}

// made is what init gave.
type made struct {
	handle uintptr
	err    error
}

// meet calls init, which blocks until all ranks have come, on a goroutine of its
// own. If that takes too long, or something fails meanwhile, the goroutine is
// left behind: nothing can end the call. It holds the context, because the device
// may be closed before it returns.
func (c *Communicator) meet(ctx context.Context, init func(handle *uintptr) error) error {
	hold, err := c.device.Hold()
	if err != nil {
		return err
	}
	done := make(chan made, 1)
	go func() {
		handle := new(uintptr)
		err := nonBlocking(within(hold, func() error { return init(handle) }))
		if errors.Is(err, errNonBlocking) && *handle != 0 {
			c.abortLate(hold, *handle)
		}
		done <- made{*handle, err}
	}()
	m, err := c.await(ctx, done)
	if err != nil {
		go c.discard(hold, done)
		return err
	}
	if m.err == nil {
		c.handle.Store(m.handle)
	}
	return errors.Join(m.err, hold.Release())
}

// await waits for what init makes. The error is why it waits no longer.
func (c *Communicator) await(ctx context.Context, done <-chan made) (made, error) {
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	for {
		var err error
		select {
		case m := <-done:
			return m, nil
		case <-c.poke:
			err = c.Err()
		case <-c.jobFailed():
			err = c.control.Err()
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-timer.C:
			err = c.absent(ctx)
		}
		if err != nil {
			return made{}, err
		}
	}
}

// jobFailed returns the channel that is closed when the job fails, nil without
// control.
func (c *Communicator) jobFailed() <-chan struct{} {
	if c.control == nil {
		return nil
	}
	return c.control.Failed()
}

// discard aborts what an abandoned init makes after all, and lets the context go.
func (c *Communicator) discard(hold *cuda.Hold, done <-chan made) {
	if m := <-done; m.err == nil {
		c.abortLate(hold, m.handle)
	}
	_ = hold.Release() // nobody is left to hear of its error
}

// absent says at the deadline which ranks did not come.
func (c *Communicator) absent(ctx context.Context) error {
	if c.channel == nil {
		return fmt.Errorf("it did not connect with all others within %v", c.timeout)
	}
	came := make([]int, 0, c.size)
	for _, p := range c.channel.Report(ctx, grace, 0) {
		came = append(came, p.Rank)
	}
	if err := c.Err(); err != nil {
		return err // another rank's deadline was a moment earlier, and it is gone
	}
	var missing []int
	for r := range c.size {
		if !slices.Contains(came, r) {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return fmt.Errorf("all ranks have come, but NCCL did not connect them within %v; NCCL_DEBUG=INFO shows what it tries", c.timeout)
	}
	return fmt.Errorf("no sign of ranks %v within %v", missing, c.timeout)
}

// verify compares what NCCL made with what was asked for.
func (c *Communicator) verify() error {
	var rank, size int32
	err := errors.Join(
		c.library.call(ncclCommUserRank, c.handle.Load(), uintptr(unsafe.Pointer(&rank))),
		c.library.call(ncclCommCount, c.handle.Load(), uintptr(unsafe.Pointer(&size))),
	)
	if err == nil && (int(rank) != c.rank || int(size) != c.size) {
		err = fmt.Errorf("NCCL made it rank %d of %d, expected %d of %d; do all ranks have the same Size and a Rank of their own?", rank, size, c.rank, c.size)
	}
	return err
}

// stop makes cause the communicator's error, if it is the first. The watchdog
// does the rest.
func (c *Communicator) stop(cause error, tell bool) {
	if !c.failed.CompareAndSwap(nil, &failure{cause}) {
		return
	}
	if tell && c.channel != nil {
		c.channel.Abort(cause)
	}
	signal(c.poke)
	c.mu.Lock()
	children := slices.Clone(c.children)
	c.mu.Unlock()
	for _, child := range children {
		child.stop(cause, false) // the peers' parents stop theirs
	}
}

// lockCall takes the lock of the calls, but not for longer than callWait.
func (c *Communicator) lockCall() bool {
	for end := time.Now().Add(callWait); !c.call.TryLock(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// take takes the handle away from everybody else, and says whether a thread is
// inside NCCL with it all the same.
func (c *Communicator) take() (handle uintptr, inside bool) {
	if inside = !c.lockCall(); !inside {
		defer c.call.Unlock()
	}
	return c.handle.Swap(0), inside
}

// abortHandle ends NCCL's work, on the GPU too, where there is a handle. The
// collectives' streams must have failed before: ended work looks done.
//
// The communicators block, and ncclCommAbort frees the communicator: a thread that
// is inside with it can use freed memory when it comes back. So take waits until
// none is inside, and no other gets in. A thread that does not come out within
// callWait waits for a peer or for a full queue of the GPU, and nothing but the
// abort ends that: without it the trainer would hang for good in a call that has
// no deadline. ncclCommAbort raises the flag that such threads poll before it
// waits for the GPU and frees, so they are out first as a rule, but NCCL does not
// promise it: underCall tells the trainer. Communicators that don't block have no
// thread inside, but start one for each collective.
func (c *Communicator) abortHandle(handle uintptr) {
	if handle != 0 {
		// Its error changes nothing: the communicator has failed for another reason.
		_ = c.bounded(abortWait, ncclCommAbort, handle)
	}
}

// underCall marks the error of a communicator that is aborted while a thread is
// inside NCCL with it.
func underCall(err error, inside bool) error {
	if !inside {
		return err
	}
	return fmt.Errorf("%w; a call of NCCL did not return and the communicator was aborted under it, after which NCCL may use freed memory: end this process", err)
}

// errNonBlocking says why communicators that don't block are refused: what NCCL
// puts on a stream is there only some time after the call, so events behind it
// would come too early.
var errNonBlocking = errors.New("NCCL makes communicators that don't block, which are not supported: unset NCCL_COMM_BLOCKING in the environment, and in /etc/nccl.conf and ~/.nccl.conf")

// nonBlocking returns errNonBlocking in the place of the status of a call that
// goes on after it has returned.
func nonBlocking(err error) error {
	var status *Error
	if errors.As(err, &status) && status.Code == inProgress {
		return errNonBlocking
	}
	return err
}

// bounded calls functions of NCCL one after another on a goroutine of its own,
// which is left behind where they take too long.
func (c *Communicator) bounded(limit time.Duration, f function, handle uintptr) error {
	done := make(chan error, 1)
	go func() {
		done <- within(c.device, func() error { return c.library.call(f, handle) })
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("%s did not return within %v", f, limit)
	}
}

// Close implements comm.Communicator. It waits for the work on the streams,
// which is done or fails at its deadline, and then, in bounded time, for NCCL.
func (c *Communicator) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	c.drain()
	close(c.closing)
	<-c.watched
	err := c.finish()
	if c.parent != nil {
		c.parent.forget(c)
	}
	return errors.Join(err, c.release())
}

// drain waits until nothing is in flight any more.
func (c *Communicator) drain() {
	for {
		if err := c.flights.advance(); err != nil {
			c.stop(err, true)
		}
		if _, _, busy := c.flights.first(); !busy || c.Err() != nil {
			return
		}
		time.Sleep(roomPause)
	}
}

// finish ends a communicator that works: the others hear of it first, so that
// one that still waits for this rank need not wait for the deadline.
func (c *Communicator) finish() error {
	if c.channel != nil {
		c.channel.Close()
	}
	handle, _ := c.take() // collectives and Close are of one goroutine
	if handle == 0 {
		return nil
	}
	limit := min(c.timeout, finishWait)
	err := c.bounded(limit, ncclCommFinalize, handle)
	if err == nil {
		err = c.bounded(limit, ncclCommDestroy, handle)
	} else {
		var status *Error
		inside := !errors.As(err, &status) // it has no status, because it did not return
		err = errors.Join(underCall(err, inside), c.bounded(abortWait, ncclCommAbort, handle))
	}
	if err != nil {
		return fmt.Errorf("nccl: rank %d closes the communicator: %w", c.rank, err)
	}
	return nil
}

// release frees the streams, the memory and the channel.
func (c *Communicator) release() error {
	if c.channel != nil {
		c.channel.Close()
	}
	var all []error
	if c.gather != nil {
		all = append(all, c.gather.Close())
	}
	if c.reduce != nil {
		all = append(all, c.reduce.Close())
	}
	if c.one.Bytes() > 0 {
		all = append(all, c.device.Free(c.one))
	}
	return errors.Join(all...)
}
