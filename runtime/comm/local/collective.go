package local

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
)

const (
	// Before it blocks, a rank looks this often whether its peers have come.
	spins = 60
	// An all-reduce of at most this many bytes is summed by every rank alone,
	// which saves a meeting.
	smallBytes = 4 << 10
)

// request is what the ranks must agree on.
type request struct {
	op      comm.Operation
	dtype   dtype.DType
	root    int
	bytes   int64 // a rank's part
	subject string
	src     []byte // not compared: where peers find this rank's data
}

func (r *request) agrees(o *request) bool {
	return r.op == o.op && r.dtype == o.dtype && r.root == o.root && r.bytes == o.bytes && r.subject == o.subject
}

func (r *request) String() string {
	switch r.op {
	case comm.Barrier:
		return fmt.Sprintf("%s of %s", r.op, r.subject)
	case comm.Broadcast:
		return fmt.Sprintf("%s of %s (%d bytes from rank %d)", r.op, r.subject, r.bytes, r.root)
	case comm.ReduceScatter, comm.AllReduce:
		return fmt.Sprintf("%s of %s (%d bytes of %s)", r.op, r.subject, r.bytes, r.dtype)
	default:
		return fmt.Sprintf("%s of %s (%d bytes a rank)", r.op, r.subject, r.bytes)
	}
}

// board is where the ranks post their requests of one collective. One is
// enough: a rank goes on to the next when nobody needs this one's requests.
type board struct {
	posts []request     // by rank
	first atomic.Uint64 // sequence*maxRanks + rank of the first that posted
}

// collective is one rank's part in a collective: a task on its stream.
type collective struct {
	request
	rank     *Communicator
	seq      uint64
	dst, src device.Memory
	fault    error // found before the peers were asked
}

// Run implements cpu.Task.
func (t *collective) Run(failed error) error {
	err := t.run(failed)
	t.rank.finished.Store(t.seq)
	return err
}

func (t *collective) run(failed error) error {
	g := t.rank.group
	switch {
	case failed != nil:
		t.rank.Abort(failed) // its peers would wait for nothing
		return failed
	case g.Err() != nil:
		return t.failure(g.Err())
	case t.fault != nil:
		err := t.failure(t.fault)
		g.Abort(err)
		return err
	}
	if err := t.post(); err != nil {
		g.Abort(err)
		return t.failure(g.Err())
	}
	if err := t.meet(); err != nil {
		return err
	}
	t.move()
	return nil
}

// failure returns the error of this rank's collective for what happened to the
// group.
func (t *collective) failure(cause error) error {
	e := &comm.Error{Operation: t.op, Sequence: t.seq, Subject: t.subject, Rank: t.rank.rank}
	var first *comm.Error
	if errors.As(cause, &first) && first.Sequence == t.seq && len(first.Missing) > 0 && !slices.Contains(first.Missing, e.Rank) {
		e.Missing = first.Missing // another rank's deadline was a moment earlier
		return e
	}
	e.Cause = cause
	return e
}

// post shows this rank's request to the others. It returns an error if the
// first that came asks for something else.
func (t *collective) post() error {
	b := &t.rank.group.board
	mine := &b.posts[t.rank.rank]
	*mine = t.request
	mine.src = t.src.Host()
	for {
		first := b.first.Load()
		if first/maxRanks == t.seq {
			return disagreement(mine, t.rank.rank, &b.posts[first%maxRanks], int(first%maxRanks))
		}
		if b.first.CompareAndSwap(first, t.seq*maxRanks+uint64(t.rank.rank)) {
			return nil
		}
	}
}

// disagreement names what two ranks want if that differs, the lower rank first.
func disagreement(a *request, rankA int, b *request, rankB int) error {
	if a.agrees(b) {
		return nil
	}
	if rankA > rankB {
		a, rankA, b, rankB = b, rankB, a, rankA
	}
	return fmt.Errorf("the ranks disagree: rank %d wants %s, rank %d wants %s", rankA, a, rankB, b)
}

// meet waits until all ranks have posted their requests.
func (t *collective) meet() error {
	c, g := t.rank, t.rank.group
	all := uint64(len(g.ranks)) * t.seq
	c.reached.Store(t.seq)
	for {
		n := g.arrived.Load()
		if n&abortBit != 0 {
			return t.failure(g.Err())
		}
		if !g.arrived.CompareAndSwap(n, n+1) {
			continue
		}
		if n+1 == all {
			g.wakeSleepers()
			return nil
		}
		break
	}
	for range spins {
		if g.arrived.Load()&^abortBit >= all {
			return nil
		}
		runtime.Gosched()
	}
	return t.sleepUntil(all)
}

// sleepUntil waits until the ranks have arrived all times, the group is
// aborted, a rank has left that is missing, or the deadline is over.
func (t *collective) sleepUntil(all uint64) error {
	c, g := t.rank, t.rank.group
	c.timer.Reset(g.timeout)
	defer c.timer.Stop()
	defer c.asleep.Store(false)
	for {
		c.asleep.Store(true)
		g.checkPeers(t.seq)
		switch n := g.arrived.Load(); {
		case n&^abortBit >= all:
			return nil
		case n&abortBit != 0:
			return t.failure(g.Err())
		}
		select {
		case <-c.wake:
		case <-g.aborted:
		case <-c.timer.C:
			t.expire(all)
		}
	}
}

// expire aborts the group because ranks are missing.
func (t *collective) expire(all uint64) {
	g := t.rank.group
	missing := g.missing(t.seq)
	if g.arrived.Load()&^abortBit < all {
		g.Abort(&comm.Error{Operation: t.op, Sequence: t.seq, Subject: t.subject, Rank: t.rank.rank, Missing: missing})
	}
}

func (g *Group) wakeSleepers() {
	for _, c := range g.ranks {
		if c.asleep.Load() {
			signal(c.wake)
		}
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a token is waiting already
	}
}

// settle waits until all ranks are done with a phase of moving. It has no
// deadline and does not end when the group is aborted: all ranks are copying or
// adding by now, which ends by itself, and until then they read this rank's
// memory.
func (t *collective) settle() {
	c, g := t.rank, t.rank.group
	c.phases++
	all := uint64(len(g.ranks)) * c.phases
	if g.moved.Add(1) == all {
		g.wakeSleepers()
		return
	}
	for range spins {
		if g.moved.Load() >= all {
			return
		}
		runtime.Gosched()
	}
	for {
		c.asleep.Store(true)
		if g.moved.Load() >= all {
			c.asleep.Store(false)
			return
		}
		<-c.wake
	}
}

// move moves this rank's share of the data. All ranks have posted.
func (t *collective) move() {
	posts := t.rank.group.board.posts
	switch t.op {
	case comm.AllGather:
		t.gather(posts)
	case comm.ReduceScatter:
		t.sumPart(t.dst.Host(), posts, int64(t.rank.rank)*t.bytes)
		t.settle()
	case comm.AllReduce:
		t.reduceAll(posts)
	case comm.Broadcast:
		if t.root != t.rank.rank {
			cpu.Move(t.dst.Host(), posts[t.root].src)
		}
		t.settle()
	case comm.Barrier: // meeting was all; no rank looks at the posts
	}
}

// gather copies every rank's source, each rank starting with its own, so that
// they don't all read the same memory at once.
func (t *collective) gather(posts []request) {
	dst := t.dst.Host()
	for i := range posts {
		r := (t.rank.rank + i) % len(posts)
		cpu.Move(dst[int64(r)*t.bytes:int64(r+1)*t.bytes], posts[r].src)
	}
	t.settle()
}

// sumPart sums the bytes that dst has from offset on in every rank's source.
func (t *collective) sumPart(dst []byte, posts []request, offset int64) {
	for r := range posts {
		t.rank.parts[r] = posts[r].src[offset : offset+int64(len(dst))]
	}
	sum(dst, t.rank.parts, t.dtype)
}

// reduceAll sums the ranks' buffers in place. A large sum is shared: each rank
// sums one part, which no other reads, and then fetches the others'.
func (t *collective) reduceAll(posts []request) {
	buf := t.dst.Host()
	if len(buf) <= smallBytes {
		t.sumPart(t.rank.small[:len(buf)], posts, 0)
		t.settle()
		copy(buf, t.rank.small)
		return
	}
	low, high := t.share(t.rank.rank)
	t.sumPart(buf[low:high], posts, low)
	t.settle()
	for i := range posts {
		r := (t.rank.rank + i) % len(posts)
		low, high := t.share(r)
		cpu.Move(buf[low:high], posts[r].src[low:high])
	}
	t.settle()
}

// share returns the bytes of a buffer that a rank sums: whole cache lines.
func (t *collective) share(rank int) (low, high int64) {
	const line = 64
	n := int64(len(t.rank.parts))
	share := ((t.bytes+n-1)/n + line - 1) / line * line
	return min(int64(rank)*share, t.bytes), min(int64(rank+1)*share, t.bytes)
}
