package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/local"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/internal/launch"
)

// Rank is one member of a process group with the device that it computes on.
type Rank struct {
	mu     sync.Mutex // the rank's models share its streams: one call of one of them at a time
	comm   comm.Communicator
	device device.Device
	stream device.Stream // models opened from now on compute on it
	own    device.Stream // the one that NewRank made

	models  uint16  // opened so far
	history history // what all of them did
	scratch device.Memory
}

// NewRank joins a communicator and a device. The rank's own work (filling,
// zeroing, optimizer steps) runs on a compute stream that it makes and Close
// frees, as it does a KiB or two for each rank of the group, through which ranks
// compare what they do.
func NewRank(c comm.Communicator, d device.Device) (*Rank, error) {
	if c == nil || d == nil {
		return nil, fmt.Errorf("rank of communicator %v on device %v: neither may be nil", c, d)
	}
	s, err := d.NewStream("compute", true)
	if err != nil {
		return nil, fmt.Errorf("rank %d: making the compute stream: %w", c.Rank(), err)
	}
	scratch, err := d.Alloc(int64(c.Size()+1) * messageBytes)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("rank %d: allocating room for messages between ranks: %w", c.Rank(), err), s.Close())
	}
	return &Rank{comm: c, device: d, stream: s, own: s, scratch: scratch}, nil
}

// messageBytes is the longest message that ranks exchange: a history.
const messageBytes = 8 * (2 + 2*remembered)

// Close frees what NewRank took. Close its models first; a stream of the trainer's
// is the trainer's to close.
func (r *Rank) Close() error {
	err := r.own.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	scratch := r.scratch
	r.scratch = device.Memory{}
	return errors.Join(err, r.device.Free(scratch))
}

// Rank returns the rank's place in its group, from 0.
func (r *Rank) Rank() int { return r.comm.Rank() }

// Size returns the number of ranks in the group: the world size.
func (r *Rank) Size() int { return r.comm.Size() }

// Device returns the device that the rank computes on.
func (r *Rank) Device() device.Device { return r.device }

// Stream returns the compute stream: gathers make it wait, releases and
// reductions record on it.
func (r *Rank) Stream() device.Stream { return r.stream }

// SetStream makes a stream of the trainer's the compute stream of the models
// opened afterwards; nil means the rank's own.
func (r *Rank) SetStream(s device.Stream) {
	if s == nil {
		s = r.own
	}
	r.stream = s
}

// Sum replaces x by its sums over the ranks, added in rank order where the
// transport promises that: losses to report, counts of samples. what names them in
// errors. Every rank must call it, with as many numbers, and waits for the others.
func (r *Rank) Sum(ctx context.Context, what string, x []float64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx == nil {
		return fmt.Errorf("sum of %s: the context is nil; pass context.Background()", what)
	}
	if r.scratch.Bytes() == 0 {
		return &StateError{Operation: "sum", Subject: what, Found: fmt.Sprintf("rank %d is closed", r.comm.Rank()), Fix: "close a rank when nothing uses it any more"}
	}
	r.history.add(entry{act: actSum, detail: newDigest.texts([]string{what}).floats(float64(len(x))).detail()})
	most := int(r.scratch.Bytes() / dtype.Float64.Bytes())
	for more := true; more; more = len(x) > 0 { // once for no numbers too, as others may have some
		part := x[:min(len(x), most)]
		err := r.through(ctx, dtype.Bytes(part), r.comm.ReduceStream(), func(mem device.Memory) {
			r.comm.AllReduce(what, mem, dtype.Float64)
		})
		if err != nil {
			return fmt.Errorf("sum of %s: %w", what, err)
		}
		x = x[len(part):]
	}
	return nil
}

// through copies b to the device, puts a collective on it on one of the group's
// streams, and copies back what it left. b has no more bytes than r.scratch.
// Nothing is allocated: on a GPU that can wait for all work of all of a process's
// GPUs, also for collectives that wait for this rank. A failure ends the group:
// the memory is only free when nobody uses it any more.
func (r *Rank) through(ctx context.Context, b []byte, stream device.Stream, collective func(device.Memory)) error {
	mem := r.scratch.Slice(0, int64(len(b)))
	if err := r.device.Write(ctx, mem, b); err != nil {
		return err
	}
	collective(mem)
	if err := r.comm.Synchronize(ctx, stream.Record()); err != nil {
		r.comm.Abort(err)
		_ = r.comm.Synchronize(context.Background(), stream.Record()) // returns the same error, when nothing uses mem any more
		return err
	}
	return r.device.Read(ctx, b, mem)
}

// Launcher starts the ranks of a group and waits for them.
type Launcher interface {
	Launch(ctx context.Context, run func(context.Context, *Rank) error) error
}

// Run starts the launcher's ranks and calls run on each with its own Rank. It
// returns when all have returned: nil, or the error of the rank that failed
// first, as a *RankError. A rank that fails, panics (a *PanicError) or ends its
// goroutine ends the others: their context is cancelled and their collectives
// fail, both with its error. So does a rank that returns nil while others wait
// for it in a collective. A rank that has not returned five seconds after that is
// left behind, and named in the error.
func Run(ctx context.Context, l Launcher, run func(context.Context, *Rank) error) error {
	if ctx == nil || l == nil || run == nil {
		return errors.New("run: the context, the launcher or the function is nil; all three are needed")
	}
	return l.Launch(ctx, run)
}

// LocalRanks launches ranks as goroutines of this process.
type LocalRanks struct {
	Ranks   int                                   // at least 1
	Timeout time.Duration                         // of one collective; 0 means five minutes
	Device  func(rank int) (device.Device, error) // nil: the CPU
}

// Local launches n ranks as goroutines of this process, each with memory of its
// own on the CPU.
func Local(n int) LocalRanks { return LocalRanks{Ranks: n} }

// Launch implements Launcher.
func (l LocalRanks) Launch(ctx context.Context, run func(context.Context, *Rank) error) error {
	group, err := local.New(l.Ranks, local.Options{Timeout: l.Timeout})
	if err != nil {
		return err
	}
	ranks := make([]int, l.Ranks)
	for r := range ranks {
		ranks[r] = r
	}
	launched := launch.Launch{Ranks: ranks, Group: group, Grace: grace, Failed: Blame, Panicked: Panicked}
	return launched.Run(ctx, func(ctx context.Context, r int) error { return l.runRank(ctx, group.Communicator(r), run) })
}

// grace is how long peers have to come to what they have begun once something
// went wrong: their collectives have ended by then. Tests shorten it.
var grace = launch.Grace

// Blame returns the error of a rank's function as a *RankError of the rank where
// it began: another one, where that aborted the group or failed to open a model.
// Launchers call it.
func Blame(rank int, err error) error {
	var known *RankError
	var opened *openError
	var abort *comm.AbortError
	switch {
	case errors.As(err, &known):
		rank = known.Rank
	case errors.As(err, &opened):
		rank = opened.rank
	case errors.As(err, &abort):
		rank = abort.Rank
	}
	return &RankError{Rank: rank, Err: err}
}

// Panicked returns a panic of a rank's function as a *PanicError. Launchers call
// it.
func Panicked(value any, stack []byte) error { return &PanicError{Value: value, Stack: stack} }

// runRank calls run on a rank with a device of its own.
func (l LocalRanks) runRank(ctx context.Context, c comm.Communicator, run func(context.Context, *Rank) error) (err error) {
	d, err := l.device(c.Rank())
	if err != nil {
		return err
	}
	rank, err := NewRank(c, d)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, rank.Close()) }()
	return run(ctx, rank)
}

func (l LocalRanks) device(rank int) (device.Device, error) {
	if l.Device == nil {
		return cpu.New(), nil
	}
	return l.Device(rank)
}
