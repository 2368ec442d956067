package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
)

// Model is one rank's part of a sharded model.
type Model struct {
	rank       *Rank
	descriptor *Descriptor
	ordinal    uint16 // counts the models opened on the rank
	world      int    // index in the plan's worlds
	place      *layout.Placement
	divideBy   float64
	comm       comm.Communicator
	gathers    device.Stream // the communicator's, for all-gathers
	reductions device.Stream // the communicator's, for reduce-scatters and what prepares and ends them; may be the same
	compute    device.Stream // what the trainer's kernels and the optimizer run on
	kernels    device.Kernels
	arenas     arenas
	sums       device.Memory          // what the ranks add up in a step
	sumsHost   [layout.SumsBytes]byte // the same
	partials   device.Memory          // room for the norms of all chunks of gradient shards

	kindStart   []int   // position of each kind's first instance
	blocks      []block // by position
	shared      []sharedParam
	buckets     []bucket // all of them: the blocks' in order of position, then the shared ones
	slots       []slot
	gradBuffers []gradBuffer
	ranges      []stepRange // what an optimizer step walks over

	initialized bool
	spoiled     bool // a backward pass failed after it had reduced some gradients
	closed      bool
	err         error  // why the model can't be used any more
	visit       string // "update" or "inspection" while the function of one runs, else empty
	pass        passState
	tickets     uint64 // counts the gathers that the trainer asked for
	stats       Stats
}

// bucket is one instance's bucket with its memory.
type bucket struct {
	layout       *layout.Bucket
	params       []parameter // of layout.Params
	place        *layout.Place
	name         string
	index        uint32 // in Model.buckets
	wire         dtype.DType
	gradType     dtype.DType
	shard        device.Memory // this rank's part
	gathered     device.Memory // the whole, in a slot
	master       device.Memory
	moments      [2]device.Memory
	grad         device.Memory // reduced gradient of this rank's part
	summed       bool          // grad holds a sum since the last step
	frozen       int           // how many parameters Freeze holds back
	frozenParams []bool        // which; nil where not trainable
}

// parameter is a parameter of one instance of a bucket.
type parameter struct {
	*layout.Param
	block *block // nil for a shared parameter
}

// name returns the parameter's name, its placeholder expanded.
func (p *parameter) name() string {
	if p.block == nil {
		return literal(p.Name)
	}
	return p.block.instanceName(p.Name)
}

// literal turns doubled braces of a name without placeholder into braces.
func literal(name string) string {
	k := layout.Kind{}
	return k.Instance(name, 0)
}

// block is one instance of a block kind.
type block struct {
	kind      *layout.Kind
	instance  int64
	position  int
	name      string
	slot      int
	buckets   []*bucket // its own, those that move no bytes too
	uses      []int     // indices in Model.shared
	grads     []layout.GradBucket
	gradBytes int64
}

func (b *block) instanceName(template string) string { return b.kind.Instance(template, b.instance) }

// build makes the tables of blocks, buckets and slots. Nothing is allocated
// after it.
func (m *Model) build() {
	d := &m.descriptor.Layout
	m.buckets = make([]bucket, 0, m.countBuckets())
	m.blocks = make([]block, len(m.place.Blocks))
	m.kindStart = make([]int, len(d.Kinds))
	for p := range m.blocks {
		m.buildBlock(p)
	}
	for i := range d.Shared {
		own := m.addBucket(&d.Shared[i], &m.place.Shared[i], literal(d.Shared[i].Name), nil)
		m.shared = append(m.shared, sharedParam{bucket: own})
	}
	m.buildUses()
	m.buildSlots()
	m.buildGradBuffers()
	m.buildRanges()
}

func (m *Model) countBuckets() int {
	n := len(m.place.Shared)
	for i := range m.place.Blocks {
		n += len(m.place.Blocks[i].Buckets)
	}
	return n
}

func (m *Model) buildBlock(position int) {
	at := &m.place.Blocks[position]
	kind := &m.descriptor.Layout.Kinds[at.Kind]
	if at.Instance == 0 {
		m.kindStart[at.Kind] = position
	}
	b := &m.blocks[position]
	*b = block{
		kind: kind, instance: at.Instance, position: position, slot: int(at.Slot),
		name: kind.Instance(kind.Name, at.Instance), uses: kind.Uses, grads: at.Grads, gradBytes: at.GradBytes,
	}
	for i := range kind.Buckets {
		name := kind.Instance(kind.Buckets[i].Name, at.Instance)
		b.buckets = append(b.buckets, m.addBucket(&kind.Buckets[i], &at.Buckets[i], name, b))
	}
}

// addBucket finds a bucket's memory. m.buckets has room, so pointers stay good.
func (m *Model) addBucket(l *layout.Bucket, at *layout.Place, name string, owner *block) *bucket {
	b := bucket{layout: l, place: at, name: name, index: uint32(len(m.buckets)), wire: m.descriptor.Layout.WireType(l), gradType: l.GradType()}
	shardBytes := at.ShardElements * l.DType.Bytes()
	stateBytes := at.ShardElements * b.gradType.Bytes()
	b.shard = m.part(layout.Shards, l.DType, at.Shard, shardBytes)
	b.gathered = m.part(layout.Slots, dtype.Invalid, at.Slot, at.GatheredBytes)
	b.master = m.part(layout.Masters, b.gradType, at.Master, stateBytes)
	b.grad = m.part(layout.GradShards, b.gradType, at.Grad, stateBytes)
	for i := range at.Moments {
		b.moments[i] = m.part(layout.Moments, b.gradType, at.Moments[i], stateBytes)
	}
	b.params = make([]parameter, len(l.Params))
	for i := range l.Params {
		b.params[i] = parameter{&l.Params[i], owner}
	}
	if l.Trainable {
		b.frozenParams = make([]bool, len(l.Params))
	}
	m.buckets = append(m.buckets, b)
	return &m.buckets[len(m.buckets)-1]
}

// part is a range of an arena; empty where the bucket has no such place.
func (m *Model) part(r layout.Role, t dtype.DType, at, bytes int64) device.Memory {
	if at == layout.None || bytes == 0 {
		return device.Memory{}
	}
	return m.arenas[r][t].Slice(at, bytes)
}

// value returns the memory that has the values of this rank's part in the highest
// precision there is, and their type: the master where there is one, else the
// shard.
func (b *bucket) value() (device.Memory, dtype.DType) {
	if b.master.Bytes() > 0 {
		return b.master, b.gradType
	}
	return b.shard, b.layout.DType
}

// elementsOf returns a segment's part of what a rank has of a bucket in elements
// of a type; empty where the rank has no such memory.
func elementsOf(mem device.Memory, t dtype.DType, at layout.Segment) device.Memory {
	if mem.Bytes() == 0 {
		return device.Memory{}
	}
	return mem.Slice(at.ShardOffset*t.Bytes(), at.Len*t.Bytes())
}

// buildUses records for each shared parameter the first and last block that
// uses it.
func (m *Model) buildUses() {
	for i := range m.shared {
		m.shared[i].first = len(m.blocks)
	}
	for p := range m.blocks {
		for _, s := range m.blocks[p].uses {
			m.shared[s].first = min(m.shared[s].first, p)
			m.shared[s].last = p
		}
	}
}

// Close frees the model's memory. It may be called more than once. A pass that
// is open is ended first: collectives that have started are waited for, since
// peers read this rank's memory, for five seconds. If the peers have not come to
// them by then, the group is aborted: this rank will not come to what they wait
// for. It is an error while Update or Inspect runs.
func (m *Model) Close() error {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	if m.closed {
		return nil
	}
	if m.visit != "" {
		return m.misuse("close", "its "+m.visit+" is running", "close it when that has returned")
	}
	m.closed = true
	var err error
	if m.pass.open {
		err = m.leavePass()
	}
	m.revokeAll()
	err = cmp.Or(err, m.drain())
	if m.err != nil { // the call that met it has returned it
		err = nil
	}
	m.err = m.misuse("use", "it is closed", "open it again")
	return errors.Join(err, m.free())
}

// leavePass gives peers some time to come to the collectives that this rank has
// started in a pass, and aborts the group if they don't.
func (m *Model) leavePass() error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	err := m.synchronize(ctx)
	if ctx.Err() == nil {
		return err
	}
	err = m.misuse("close", "a "+m.pass.kind.String()+" is open, and other ranks have not come to its collectives", "end passes on every rank")
	m.comm.Abort(err)
	return err
}

// drain waits until all streams have passed, or dropped, all work of this
// model: they and the peers read and write the arenas until then. The
// collectives' own deadline bounds it, and for the compute stream drainLimit.
func (m *Model) drain() error {
	err := m.synchronize(context.Background())
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	return cmp.Or(err, m.compute.Synchronize(ctx, m.compute.Record()))
}

// drainLimit is how long a model that ends waits for the trainer's own kernels.
const drainLimit = 30 * time.Second

// misuse is the error of a call that the model's state does not allow.
func (m *Model) misuse(operation, found, fix string) error {
	return &StateError{Operation: operation, Subject: "model " + m.descriptor.Model, Found: found, Fix: fix}
}

// idle returns an error unless the model is usable, no pass is open and no
// function of an Update runs.
func (m *Model) idle(ctx context.Context, operation string) error {
	switch {
	case m.err != nil:
		return m.err
	case m.visit != "":
		return m.misuse(operation, "its "+m.visit+" is running", "call it when that has returned")
	case m.pass.open:
		return m.misuse(operation, "a "+m.pass.kind.String()+" is open", "call its End first")
	case ctx == nil:
		return m.misuse(operation, "the context is nil", "pass context.Background()")
	case ctx.Err() != nil:
		return fmt.Errorf("%s of model %s: %w", operation, m.descriptor.Model, context.Cause(ctx))
	}
	return nil
}

// ready is idle for what needs values in the shards.
func (m *Model) ready(ctx context.Context, operation string) error {
	if err := m.idle(ctx, operation); err != nil {
		return err
	}
	if !m.initialized {
		return m.misuse(operation, "its shards have no values yet", "call Init or Update first")
	}
	return nil
}

// fail ends the model: a collective that failed leaves no rank with a state
// that the others can rely on. The first failure stays.
func (m *Model) fail(err error) error {
	if err == nil {
		return nil
	}
	if m.err == nil {
		m.err = fmt.Errorf("model %s: %w", m.descriptor.Model, err)
		m.comm.Abort(m.err)
	}
	return m.err
}

// settle waits until the group's streams have done all work so far, the last of
// which is what subject says.
func (m *Model) settle(ctx context.Context, subject string) error {
	if err := m.synchronize(ctx); err != nil {
		return m.fail(fmt.Errorf("%s: %w", subject, err))
	}
	return nil
}

// synchronize waits for the group's streams.
func (m *Model) synchronize(ctx context.Context) error {
	err := m.comm.Synchronize(ctx, m.gathers.Record())
	if err == nil && m.reductions != m.gathers {
		err = m.comm.Synchronize(ctx, m.reductions.Record())
	}
	return err
}

// settleCompute waits until the compute stream has done all work so far.
func (m *Model) settleCompute(ctx context.Context) error {
	return m.fail(m.compute.Synchronize(ctx, m.compute.Record()))
}

// Stats counts what a rank received since Open.
type Stats struct {
	Gathers       int64 // all-gathers started
	Reductions    int64 // reduce-scatters started
	GatheredBytes int64 // received from other ranks by gathers
	ReducedBytes  int64 // received from other ranks by reductions
}

// Stats returns the counts so far.
func (m *Model) Stats() Stats {
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	return m.stats
}

// Memory is a rank's memory in bytes.
type Memory struct {
	RestBytes      int64 // planned: shards, masters, moments, gradient shards
	PeakBytes      int64 // planned: all that Open allocates
	AllocatedBytes int64 // what Open did allocate
}

// Memory returns what was planned for this rank and what was allocated.
func (m *Model) Memory() Memory {
	planned := m.descriptor.Worlds[m.world]
	mem := Memory{RestBytes: planned.RestBytes, PeakBytes: planned.PeakBytes}
	m.rank.mu.Lock()
	defer m.rank.mu.Unlock()
	for r := range m.arenas {
		for t := range m.arenas[r] {
			mem.AllocatedBytes += m.arenas[r][t].Bytes()
		}
	}
	return mem
}
