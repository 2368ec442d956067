package nccl

import (
	"errors"
	"fmt"

	"github.com/shardgen/shardgen/runtime/device/cuda"
)

// maxLaunch is how many collectives are started together at most: they have to be
// in the ring at once.
const maxLaunch = ringLength / 2

// request is a collective that is asked for.
type request struct {
	flight
	fault error // why it can't be done
	call  function
	frame [8]uintptr // its arguments, but for the communicator
	at    int        // where in frame that goes
	empty bool       // it moves no bytes: it counts, but NCCL isn't asked
}

// add adds a collective to the launch; frame are its arguments but for the
// communicator, which goes into place at.
func (c *Communicator) add(f flight, fault error, call function, at int, empty bool, frame [8]uintptr) {
	c.launch = append(c.launch, request{flight: f, fault: fault, call: call, at: at, empty: empty, frame: frame})
}

// start puts the collectives of the launch on their stream, and begins another.
func (c *Communicator) start() {
	stream, at := c.launch[0].stream, 0
	err := c.flights.begin(c, c.launch)
	if err == nil {
		at, err = c.try(stream)
	}
	if err == nil {
		c.flights.recorded(c.launch, stream.Record())
		// The watchdog fails the streams if it finds a collective in flight: these
		// were, before failed was set, or see it here.
		err = c.Err()
	}
	if err != nil {
		err = c.launch[at].failure(c.rank, err)
		c.stop(err, true)
		stream.Fail(err)
	}
	c.launch = c.launch[:0]
}

// try submits a launch unless something is against it. The error is that of the
// request with index at.
func (c *Communicator) try(stream *cuda.Stream) (at int, err error) {
	switch {
	case c.closed.Load():
		return 0, errors.New("after Close")
	case c.Err() != nil:
		return 0, c.Err()
	}
	calls := 0
	for i := range c.launch {
		r := &c.launch[i]
		if r.fault != nil {
			return i, r.fault
		}
		if !r.empty {
			calls++
		}
	}
	switch {
	case stream.Err() != nil:
		return 0, stream.Err() // the peers would wait for nothing
	case calls == 0:
		return 0, nil
	}
	return c.submit(calls > 1)
}

// submit calls NCCL for a launch. A group is a state of the thread: it is begun
// and ended here, in one go, so that no other code of this process runs inside of
// it, and no abort comes between.
func (c *Communicator) submit(group bool) (at int, err error) {
	c.call.Lock()
	defer c.call.Unlock()
	handle := c.handle.Load()
	if handle == 0 {
		return 0, c.Err()
	}
	if err := c.device.Enter(); err != nil {
		return 0, err
	}
	defer c.device.Leave()
	if !group {
		return c.ask(handle)
	}
	if code := c.library.status(ncclGroupStart); code != success {
		return 0, c.library.check(ncclGroupStart, code)
	}
	at, err = c.ask(handle)
	// After a call that failed, too: it starts nothing then, and has its status.
	if code := c.library.status(ncclGroupEnd); code != success && err == nil {
		at, err = 0, fmt.Errorf("started together with %d others: %w", len(c.launch)-1, c.library.check(ncclGroupEnd, code))
	}
	return at, err
}

// ask makes the calls of a launch until one fails.
func (c *Communicator) ask(handle uintptr) (at int, err error) {
	for i := range c.launch {
		r := &c.launch[i]
		if r.empty {
			continue
		}
		r.frame[r.at] = handle
		if code := c.library.status(r.call, r.frame[:r.call.arguments()]...); code != success {
			return i, c.library.check(r.call, code)
		}
	}
	return 0, nil
}
