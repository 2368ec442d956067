package cuda

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// closeLimit bounds how long Close and Free wait for work. Where that was in vain,
// the next waits are of lateLimit, so that what has much to give back doesn't wait
// over and over for the same stuck kernel. Tests shorten both.
var (
	closeLimit = 30 * time.Second
	lateLimit  = 100 * time.Millisecond
)

// patience returns how long to wait for work.
func (d *Device) patience() time.Duration {
	if d.late.Load() {
		return lateLimit
	}
	return closeLimit
}

// await waits until the work that all streams have now is done, in bounded time;
// the error names those whose is not. The driver's own waits have no bound, and
// most of what gives memory back waits: cuMemFree, cuMemFreeHost, cuModuleUnload
// and the release of the context. Streams that a library opened by itself are not
// known here.
func (d *Device) await() error {
	limit := d.patience()
	end := time.Now().Add(limit)
	var busy []string
	for _, s := range d.allStreams() {
		if codeOf(s.ended(end)) == errNotReady {
			busy = append(busy, s.name)
		}
	}
	d.late.Store(len(busy) > 0)
	if len(busy) > 0 {
		return fmt.Errorf("the work of streams %q is not done after %v, a kernel may be stuck", busy, limit)
	}
	return nil
}

func (d *Device) allStreams() []*Stream {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.streams)
}

// forget removes a stream that has gone.
func (d *Device) forget(s *Stream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams = slices.DeleteFunc(d.streams, func(other *Stream) bool { return other == s })
}

// Close closes the streams that are still open, frees memory that was not freed,
// and lets the GPU go. Kernels and modules must be closed before, and no goroutine
// may add work any more. It waits for work half a minute at most: where a kernel
// is stuck, streams, memory and the context are left until the process ends, and
// the error says so. Closing twice is allowed: all calls return when it is closed,
// and the first has the error.
func (d *Device) Close() (err error) {
	d.closing.Do(func() { err = d.close() })
	return err
}

func (d *Device) close() error {
	d.mu.Lock()
	d.ending = true
	d.mu.Unlock()
	stuck := d.staging.stop(d.patience())
	if stuck != nil {
		d.late.Store(true)
	}
	stuck = errors.Join(stuck, d.await())
	defer d.staging.resume() // those that wait for their turn find the device closed
	defer d.closed.Store(true)
	var all []error
	for _, s := range d.allStreams() {
		if stuck == nil {
			all = append(all, s.Close())
			stuck = s.destroy() // where the work was stuck in an earlier Close
		}
		all = append(all, s.unseen())
	}
	if stuck != nil {
		return errors.Join(append(all, fmt.Errorf("%s: Close: %w; the context, %s stay allocated until the process ends", d.label(), stuck, d.leaked()))...)
	}
	all = append(all, d.freeAll())
	d.closed.Store(true)
	return errors.Join(append(all, d.releaseContext())...)
}
