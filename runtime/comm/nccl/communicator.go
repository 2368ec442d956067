package nccl

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/rendezvous"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
)

const (
	// DefaultTimeout is how long a collective may take if the options don't say.
	DefaultTimeout = 5 * time.Minute
	// maxRanks bounds a communicator, so that a count read from elsewhere can't
	// take all memory.
	maxRanks = 1 << 16
)

// Options are what a communicator can be told.
type Options struct {
	// Device is the GPU that the rank works on. Every rank has one of its own.
	Device     *cuda.Device
	Rank, Size int // 0 <= Rank < Size
	ID         ID  // from one NewID, the same on all ranks; every id serves once
	// Timeout bounds each collective, from when it was asked for and those before it
	// were done, so computation that its stream waits for counts; and in New and
	// Split the wait for the other ranks and that for their first connections; 0
	// means DefaultTimeout.
	Timeout time.Duration
	// Control connects the ranks beside NCCL: over it they hear of each other's
	// failures, and are named at a deadline. It may be nil; then a failure of one
	// rank shows on the others when NCCL notices it, or at the deadline.
	Control *rendezvous.Group
}

// Communicator is one rank's end of a group of GPUs; see [comm.Communicator]. Its
// collectives are called by one goroutine at a time.
type Communicator struct {
	library    *library
	device     *cuda.Device
	rank, size int
	timeout    time.Duration
	control    *rendezvous.Group
	channel    *rendezvous.Channel // nil without control
	name       string              // of the channel

	gather, reduce *cuda.Stream
	one            device.Memory // the element that barriers add up

	call   sync.Mutex     // held while NCCL is called with handle
	handle atomic.Uintptr // ncclComm_t; 0 before it is made and after it is aborted
	launch []request      // what is being asked for, to be started together
	query  [2]uintptr     // arguments of the question for an asynchronous error
	state  int32          // and its answer

	flights flights
	parent  *Communicator // that this one was split off from
	splits  int           // how often this one was split

	failed   atomic.Pointer[failure]
	closed   atomic.Bool
	poke     chan struct{} // has room for one token: the watchdog is to look
	closing  chan struct{} // closed when the watchdog is to end
	watched  chan struct{} // closed when it has
	mu       sync.Mutex
	children []*Communicator // that are not closed
}

// failure is why a communicator was aborted.
type failure struct{ cause error }

// New joins a communicator as one of its ranks. It waits for the others, at most
// until the deadline, whose error names those that did not come, and then runs
// each kind of collective once, so that they are connected.
func New(ctx context.Context, o Options) (*Communicator, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	l, err := load()
	if err != nil {
		return nil, fmt.Errorf("nccl: rank %d: %w", o.Rank, err)
	}
	c := newCommunicator(l, o, channelName(o.ID))
	err = c.open(ctx, func(handle *uintptr) error {
		return l.check(ncclCommInitRank, l.initRank(handle, int32(o.Size), byValue{o.ID}, int32(o.Rank)))
	})
	if err != nil {
		return nil, fmt.Errorf("nccl: rank %d of %d joins the communicator: %w", o.Rank, o.Size, err)
	}
	return c, nil
}

func (o *Options) check() error {
	switch {
	case o.Device == nil:
		return errNoDevice
	case o.Size < 1 || o.Size > maxRanks:
		return fmt.Errorf("nccl: communicator of %d ranks, expected 1 to %d", o.Size, maxRanks)
	case o.Rank < 0 || o.Rank >= o.Size:
		return fmt.Errorf("nccl: rank %d of %d, expected 0 to %d", o.Rank, o.Size, o.Size-1)
	case o.ID == ID{}:
		return errors.New("nccl: the id is empty; one rank makes it with NewID and gives it to the others")
	case o.Timeout < 0:
		return fmt.Errorf("nccl: timeout %v is negative, 0 means %v", o.Timeout, DefaultTimeout)
	case o.Control != nil && o.Control.Size() < o.Size:
		return fmt.Errorf("nccl: the control group has %d ranks, the communicator %d", o.Control.Size(), o.Size)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	return nil
}

func newCommunicator(l *library, o Options, name string) *Communicator {
	c := &Communicator{
		library: l, device: o.Device, rank: o.Rank, size: o.Size, timeout: o.Timeout,
		control: o.Control, name: name,
		poke: make(chan struct{}, 1), closing: make(chan struct{}), watched: make(chan struct{}),
	}
	c.flights.peerEnd = noEnd
	return c
}

// Rank implements comm.Communicator.
func (c *Communicator) Rank() int { return c.rank }

// Size implements comm.Communicator.
func (c *Communicator) Size() int { return c.size }

// GatherStream implements comm.Communicator: a *cuda.Stream.
func (c *Communicator) GatherStream() device.Stream { return c.gather }

// ReduceStream implements comm.Communicator: a *cuda.Stream.
func (c *Communicator) ReduceStream() device.Stream { return c.reduce }

// AllGather implements comm.Communicator: bytes go straight from src to dst. src
// may be the rank's own part of dst.
func (c *Communicator) AllGather(subject string, dst, src device.Memory) {
	c.addGather(subject, dst, src)
	c.start()
}

// AllGathers implements comm.Communicator: one group of NCCL's, which makes one
// kernel of it.
func (c *Communicator) AllGathers(all []comm.Gather) {
	for len(all) > 0 {
		n := min(len(all), maxLaunch)
		for i := range all[:n] {
			c.addGather(all[i].Subject, all[i].Dst, all[i].Src)
		}
		c.start()
		all = all[n:]
	}
}

func (c *Communicator) addGather(subject string, dst, src device.Memory) {
	c.add(flight{op: comm.AllGather, subject: subject, bytes: src.Bytes(), stream: c.gather}, c.checkParts(dst, src), ncclAllGather, 4, src.Bytes() == 0,
		[8]uintptr{uintptr(src.Addr()), uintptr(dst.Addr()), uintptr(src.Bytes()), typeUint8, 0, c.gather.Handle()})
}

// ReduceScatter implements comm.Communicator, but for the order of the sum. dst
// may be the rank's own part of src. The element types are all but bool, the f8
// formats, i16 and u16.
func (c *Communicator) ReduceScatter(subject string, dst, src device.Memory, t dtype.DType) {
	c.addScatter(subject, dst, src, t)
	c.start()
}

// ReduceScatters implements comm.Communicator, as AllGathers.
func (c *Communicator) ReduceScatters(all []comm.Reduction) {
	for len(all) > 0 {
		n := min(len(all), maxLaunch)
		for i := range all[:n] {
			c.addScatter(all[i].Subject, all[i].Dst, all[i].Src, all[i].Type)
		}
		c.start()
		all = all[n:]
	}
}

func (c *Communicator) addScatter(subject string, dst, src device.Memory, t dtype.DType) {
	fault := c.checkParts(src, dst)
	if fault == nil {
		fault = checkSum(t, dst, src)
	}
	c.add(flight{op: comm.ReduceScatter, subject: subject, bytes: dst.Bytes(), stream: c.reduce}, fault, ncclReduceScatter, 5, dst.Bytes() == 0,
		[8]uintptr{uintptr(src.Addr()), uintptr(dst.Addr()), elements(dst, t), dataType(t), sum, 0, c.reduce.Handle()})
}

// AllReduce implements comm.Communicator, but for the order of the sum, for the
// element types of [Communicator.ReduceScatter].
func (c *Communicator) AllReduce(subject string, buf device.Memory, t dtype.DType) {
	c.add(flight{op: comm.AllReduce, subject: subject, bytes: buf.Bytes(), stream: c.reduce}, checkSum(t, buf, buf), ncclAllReduce, 5, buf.Bytes() == 0,
		[8]uintptr{uintptr(buf.Addr()), uintptr(buf.Addr()), elements(buf, t), dataType(t), sum, 0, c.reduce.Handle()})
	c.start()
}

// Broadcast implements comm.Communicator.
func (c *Communicator) Broadcast(subject string, buf device.Memory, root int) {
	fault := checkMemory(buf)
	if root < 0 || root >= c.size {
		fault = fmt.Errorf("the root is rank %d, the group has ranks 0 to %d", root, c.size-1)
	}
	c.add(flight{op: comm.Broadcast, subject: subject, bytes: buf.Bytes(), root: root, stream: c.gather}, fault, ncclBroadcast, 5, buf.Bytes() == 0,
		[8]uintptr{uintptr(buf.Addr()), uintptr(buf.Addr()), uintptr(buf.Bytes()), typeUint8, uintptr(root), 0, c.gather.Handle()})
	c.start()
}

// Barrier implements comm.Communicator: all ranks add up one element.
func (c *Communicator) Barrier(subject string) {
	c.add(flight{op: comm.Barrier, subject: subject, stream: c.gather}, nil, ncclAllReduce, 5, false,
		[8]uintptr{uintptr(c.one.Addr()), uintptr(c.one.Addr()), 1, typeUint8, sum, 0, c.gather.Handle()})
	c.start()
}

// Synchronize implements comm.Communicator.
func (c *Communicator) Synchronize(ctx context.Context, e device.Event) error {
	err := c.gather.Synchronize(ctx, e)
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil:
		return c.named(err)
	case !c.ending():
		return err
	}
	// What ended the group may have cancelled the context, too. The watchdog fails
	// the streams in a moment, with an error that names the collective.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*callWait)
	defer cancel()
	var named *comm.Error
	if errors.As(c.gather.Synchronize(ctx, e), &named) {
		return named
	}
	return err
}

// named returns an error of the GPU itself as one of the oldest collective in
// flight.
func (c *Communicator) named(err error) error {
	var known *comm.Error
	if errors.As(err, &known) {
		return err
	}
	if f, _, ok := c.flights.first(); ok {
		return f.failure(c.rank, err)
	}
	return err
}

// ending says whether the group or its job has failed.
func (c *Communicator) ending() bool {
	select {
	case <-c.jobFailed():
		return true
	default:
		return c.Err() != nil
	}
}

// Abort implements comm.Communicator. Groups split off from this one end with
// it.
func (c *Communicator) Abort(cause error) {
	if cause == nil {
		cause = errors.New("without a cause")
	}
	c.stop(&comm.AbortError{Rank: c.rank, Cause: cause}, true)
}

// Err implements comm.Communicator.
func (c *Communicator) Err() error {
	if f := c.failed.Load(); f != nil {
		return f.cause
	}
	return nil
}

// checkParts checks that whole holds a part of every rank.
func (c *Communicator) checkParts(whole, part device.Memory) error {
	size := int64(c.size)
	if whole.Bytes()%size != 0 || whole.Bytes()/size != part.Bytes() {
		return fmt.Errorf("a rank's part has %d bytes, the whole has %d, expected %d times the part", part.Bytes(), whole.Bytes(), size)
	}
	if err := checkMemory(whole); err != nil {
		return err
	}
	return checkMemory(part)
}

func checkMemory(m device.Memory) error {
	if m.Host() != nil {
		return fmt.Errorf("%d bytes at %#x are the host's memory; allocate on the GPU that the communicator is of", m.Bytes(), m.Addr())
	}
	return nil
}

// checkSum checks that two ranges are elements that can be summed.
func checkSum(t dtype.DType, a, b device.Memory) error {
	if dataType(t) == noType {
		return fmt.Errorf("elements of %s can't be summed by NCCL", t)
	}
	for _, m := range [...]device.Memory{a, b} {
		if m.Bytes()%t.Bytes() != 0 || m.Bytes() > 0 && int64(m.Addr())%t.Bytes() != 0 {
			return fmt.Errorf("%d bytes at %#x are not whole, aligned elements of %s", m.Bytes(), m.Addr(), t)
		}
	}
	return checkMemory(a)
}

// noType stands for an element type that NCCL does not sum.
const noType = ^uintptr(0)

// dataType returns NCCL's number of an element type.
func dataType(t dtype.DType) uintptr {
	switch t {
	case dtype.Float64:
		return typeFloat64
	case dtype.Float32:
		return typeFloat32
	case dtype.BFloat16:
		return typeBFloat16
	case dtype.Float16:
		return typeFloat16
	case dtype.Int8:
		return typeInt8
	case dtype.Uint8:
		return typeUint8
	case dtype.Int32:
		return typeInt32
	case dtype.Uint32:
		return typeUint32
	case dtype.Int64:
		return typeInt64
	case dtype.Uint64:
		return typeUint64
	}
	return noType
}

// elements returns how many elements a range holds, 0 where its type is none.
func elements(m device.Memory, t dtype.DType) uintptr {
	if t.Bytes() == 0 {
		return 0
	}
	return uintptr(m.Bytes() / t.Bytes())
}
