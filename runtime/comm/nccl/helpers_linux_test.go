package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/cudasrc/emu/double"
	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// long is a deadline that no test reaches: what fails before it fails by other
// means.
const long = time.Hour

// patience is how long a test waits for what comes at once.
const patience = 20 * time.Second

// built is the double, which a process has once.
var built struct {
	once      sync.Once
	libraries *double.Libraries
	err       error
}

// libraries makes the driver and NCCL the doubles, as at the beginning.
func libraries(t testing.TB) *double.Libraries {
	t.Helper()
	emu.Require(t)
	built.once.Do(func() {
		built.libraries, built.err = double.Build(context.Background(), "../../../build/emu")
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	built.libraries.Reset()
	t.Setenv("SHARDGEN_LIBCUDA", built.libraries.CUDA)
	t.Setenv(libraryVariable, built.libraries.NCCL)
	return built.libraries
}

func fault(t testing.TB, l *double.Libraries, spec string) {
	t.Helper()
	if err := l.Fault(spec); err != nil {
		t.Fatal(err)
	}
}

// world is a group of ranks on GPUs of the double.
type world struct {
	devices  []*cuda.Device
	controls []*rendezvous.Group
	ranks    []*Communicator
}

// newWorld opens the GPUs and joins the ranks; both are closed in the end.
func newWorld(t testing.TB, size int, timeout time.Duration) *world {
	t.Helper()
	w := openDevices(t, size)
	errs := w.join(timeout, w.controls)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return w
}

func openDevices(t testing.TB, size int) *world {
	t.Helper()
	w := &world{devices: make([]*cuda.Device, size), ranks: make([]*Communicator, size)}
	var err error
	if w.controls, err = rendezvous.Inside(size, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	for r := range w.devices {
		d, err := cuda.Open(r, cuda.Options{})
		if err != nil {
			t.Fatal(err)
		}
		w.devices[r] = d
		t.Cleanup(func() { _ = d.Close() })
	}
	t.Cleanup(func() { _ = w.close() })
	return w
}

// join makes the communicators with these controls, or without any.
func (w *world) join(timeout time.Duration, controls []*rendezvous.Group) []error {
	return w.joinEach(slices.Repeat([]time.Duration{timeout}, len(w.ranks)), controls)
}

// joinEach is join where ranks have timeouts of their own.
func (w *world) joinEach(timeouts []time.Duration, controls []*rendezvous.Group) []error {
	id, err := NewID()
	errs := make([]error, len(w.ranks))
	var wait sync.WaitGroup
	for r := range w.ranks {
		wait.Go(func() {
			o := Options{Device: w.devices[r], Rank: r, Size: len(w.ranks), ID: id, Timeout: timeouts[r]}
			if controls != nil {
				o.Control = controls[r]
			}
			c, failed := New(context.Background(), o)
			w.ranks[r], errs[r] = c, errors.Join(err, failed)
		})
	}
	wait.Wait()
	return errs
}

// onEach calls f for every rank, for all at the same time, and returns what its
// collectives say in the end.
func (w *world) onEach(f func(r int, c *Communicator)) []error {
	errs := make([]error, len(w.ranks))
	meet := meeting(len(w.ranks))
	var wait sync.WaitGroup
	for r, c := range w.ranks {
		wait.Go(func() {
			meet()
			f(r, c)
			errs[r] = errors.Join(finished(c, c.gather), finished(c, c.reduce))
		})
	}
	wait.Wait()
	return errs
}

// meeting returns a function that returns when n goroutines have called it.
// Deadlines that a test sets are for what comes after, not for a goroutine to
// start on a machine that is busy.
func meeting(n int) func() {
	var all sync.WaitGroup
	all.Add(n)
	return func() {
		all.Done()
		all.Wait()
	}
}

// finished waits for a stream, within the patience of tests.
func finished(c comm.Communicator, s device.Stream) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), patience, errors.New("a test's patience"))
	defer cancel()
	return c.Synchronize(ctx, s.Record())
}

// overdue waits until ranks have asked for a collective, which is counted from 1, and
// those before it are done on them, and then makes all that they have in flight
// older than their timeout: a deadline is over as soon as the test wants it, and not
// before.
func (w *world) overdue(sequence uint64, ranks ...int) {
	for _, r := range ranks {
		f := &w.ranks[r].flights
		for end := time.Now().Add(patience); !f.reached(warmUps+sequence) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
	}
	for _, r := range ranks {
		w.ranks[r].flights.age(2 * w.ranks[r].timeout)
	}
}

// reached says whether a collective is the oldest in flight.
func (r *flights) reached(seq uint64) bool {
	_ = r.advance()
	f, _, ok := r.first()
	return ok && f.seq == seq
}

// age makes what is in flight older.
func (r *flights) age(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.oldest = r.oldest.Add(-by)
	for i := range r.ring {
		r.ring[i].since = r.ring[i].since.Add(-by)
	}
}

// close closes all ranks at the same time.
func (w *world) close() error {
	errs := make([]error, len(w.ranks))
	var wait sync.WaitGroup
	for r, c := range w.ranks {
		if c != nil {
			wait.Go(func() { errs[r] = c.Close() })
		}
	}
	wait.Wait()
	return errors.Join(errs...)
}

// memory returns memory of a GPU with a content.
func memory(t testing.TB, d *cuda.Device, content []byte) device.Memory {
	t.Helper()
	m, err := d.Alloc(int64(len(content)))
	if err == nil && len(content) > 0 {
		err = d.Write(context.Background(), m, content)
	}
	if err != nil {
		t.Error(err)
	}
	return m
}

func content(t testing.TB, d *cuda.Device, m device.Memory) []byte {
	t.Helper()
	b := make([]byte, m.Bytes())
	if err := d.Read(context.Background(), b, m); err != nil {
		t.Error(err)
	}
	return b
}

func checkAll(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func wantContent(t *testing.T, what string, d *cuda.Device, m device.Memory, want []byte) {
	t.Helper()
	if got := content(t, d, m); !bytes.Equal(got, want) {
		t.Errorf("%s: %x, expected %x", what, got, want)
	}
}

// wantErrors checks that the ranks that are not nil in errs have a comm.Error of
// their own that mentions all the words.
func wantErrors(t *testing.T, errs []error, words ...string) {
	t.Helper()
	for r, err := range errs {
		var e *comm.Error
		if !errors.As(err, &e) || e.Rank != r {
			t.Errorf("rank %d: %v, expected a comm.Error of its own", r, err)
			continue
		}
		wantWords(t, err, words...)
	}
}

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not mention %q", err, word)
		}
	}
}

func inTime(t *testing.T, start time.Time) {
	t.Helper()
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
}

func eachSize(t *testing.T, f func(t *testing.T, w *world)) {
	for size := 1; size <= 4; size++ {
		t.Run(fmt.Sprintf("ranks=%d", size), func(t *testing.T) {
			l := libraries(t)
			w := newWorld(t, size, 20*time.Second)
			f(t, w)
			if err := w.close(); err != nil {
				t.Error(err)
			}
			for _, d := range w.devices {
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}
			for _, finding := range l.Check() {
				t.Error(finding)
			}
		})
	}
}

func wantRankError(t *testing.T, err error, r int, words ...string) {
	t.Helper()
	var e *comm.Error
	if !errors.As(err, &e) || e.Rank != r {
		t.Errorf("rank %d: %v, expected a comm.Error of its own", r, err)
		return
	}
	wantWords(t, err, words...)
}

var collectives = map[string]func(*testing.T, *world, *Communicator){
	"all-gather": func(t *testing.T, w *world, c *Communicator) {
		m := memory(t, w.devices[c.rank], make([]byte, 4*c.size))
		c.AllGather("h.3/bf16", m, m.Slice(int64(4*c.rank), 4))
	},
	"reduce-scatter": func(t *testing.T, w *world, c *Communicator) {
		m := memory(t, w.devices[c.rank], make([]byte, 4*c.size))
		c.ReduceScatter("h.3/bf16", m.Slice(int64(4*c.rank), 4), m, dtype.Float32)
	},
	"all-reduce": func(t *testing.T, w *world, c *Communicator) {
		c.AllReduce("h.3/bf16", memory(t, w.devices[c.rank], make([]byte, 12)), dtype.Float32)
	},
	"broadcast": func(t *testing.T, w *world, c *Communicator) {
		c.Broadcast("h.3/bf16", memory(t, w.devices[c.rank], make([]byte, 4)), 1)
	},
	"barrier": func(_ *testing.T, _ *world, c *Communicator) { c.Barrier("h.3/bf16") },
}
