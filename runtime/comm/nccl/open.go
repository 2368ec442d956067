package nccl

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
)

const (
	// grace is how long a rank waits at a deadline for the others to say how far
	// they are.
	grace = time.Second
	// callWait bounds the wait for a call of NCCL to return before the communicator
	// is aborted under it, which ends the call.
	callWait = 500 * time.Millisecond
	// finishWait, or the timeout where that is less, bounds ncclCommFinalize and
	// ncclCommDestroy. What takes longer is left behind.
	finishWait = 30 * time.Second
)

// abortWait bounds ncclCommAbort. With callWait it is less than the grace of a
// launch, in which the ranks have to return. Tests shorten it.
var abortWait = 3 * time.Second

// channelName returns the name of the control channel of an id's communicator.
func channelName(id ID) string {
	hash := sha256.Sum256(id[:])
	return fmt.Sprintf("%x", hash[:8])
}

// member is the communicator as its control channel sees it.
type member struct{ c *Communicator }

// Progress implements rendezvous.Member.
func (m member) Progress() rendezvous.Progress { return m.c.flights.progress(m.c.rank) }

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
		c.abortHandle()
		return errors.Join(err, c.release())
	}
	c.query = [2]uintptr{c.handle.Load(), uintptr(unsafe.Pointer(&c.state))}
	go c.watch()
	return nil
}

func (c *Communicator) prepare() (err error) {
	if c.gather, err = c.device.OpenStream("gather"); err != nil {
		return err
	}
	if c.reduce, err = c.device.OpenStream("reduce"); err != nil {
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

// within calls f on a thread that has the GPU's context.
func (c *Communicator) within(f func() error) error {
	if err := c.device.Enter(); err != nil {
		return err
	}
	defer c.device.Leave()
	return f()
}

// made is what init gave.
type made struct {
	handle uintptr
	err    error
}

// meet calls init, which blocks until all ranks have come, on a goroutine of its
// own. If that takes too long, or something fails meanwhile, the goroutine is
// left behind: nothing can end the call.
func (c *Communicator) meet(ctx context.Context, init func(handle *uintptr) error) error {
	done := make(chan made, 1)
	go func() {
		handle := new(uintptr)
		err := c.within(func() error { return init(handle) })
		done <- made{*handle, err}
	}()
	timer := time.NewTimer(c.timeout)
	defer timer.Stop()
	for {
		var err error
		select {
		case m := <-done:
			if m.err == nil {
				c.handle.Store(m.handle)
			}
			return m.err
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
			go c.discard(done)
			return err
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

// discard aborts what an abandoned init makes after all.
func (c *Communicator) discard(done <-chan made) {
	if m := <-done; m.err == nil {
		_ = c.within(func() error { return c.library.call(ncclCommAbort, m.handle) })
	}
}

// absent says at the deadline which ranks did not come.
func (c *Communicator) absent(ctx context.Context) error {
	if c.channel == nil {
		return fmt.Errorf("it did not connect with all others within %v", c.timeout)
	}
	came := make([]int, 0, c.size)
	for _, p := range c.channel.Report(ctx, grace) {
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

// take takes the handle away from everybody else.
func (c *Communicator) take() uintptr {
	if c.lockCall() {
		defer c.call.Unlock()
	}
	return c.handle.Swap(0)
}

// abortHandle ends NCCL's work, on the GPU too. The collectives' streams must
// have failed before: ended work looks done.
func (c *Communicator) abortHandle() {
	if handle := c.take(); handle != 0 {
		// Its error changes nothing: the communicator has failed for another reason.
		_ = c.bounded(abortWait, ncclCommAbort, handle)
	}
}

// bounded calls functions of NCCL one after another on a goroutine of its own,
// which is left behind where they take too long.
func (c *Communicator) bounded(limit time.Duration, f function, handle uintptr) error {
	done := make(chan error, 1)
	go func() {
		done <- c.within(func() error { return c.library.call(f, handle) })
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
		if _, _, _, busy := c.flights.first(); !busy || c.Err() != nil {
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
	handle := c.take()
	if handle == 0 {
		return nil
	}
	limit := min(c.timeout, finishWait)
	err := c.bounded(limit, ncclCommFinalize, handle)
	if err == nil {
		err = c.bounded(limit, ncclCommDestroy, handle)
	} else {
		err = errors.Join(err, c.bounded(abortWait, ncclCommAbort, handle))
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
