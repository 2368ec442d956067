package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
)

// Model is one rank's part of a sharded model.
type Model struct {
	rank        *Rank
	descriptor  *Descriptor
	world       int // index in the plan's worlds
	place       *layout.Placement
	divideBy    float64
	comm        comm.Communicator
	stream      device.Stream // the communicator's
	arenas      arenas
	scratch     device.Memory // a few f64 that all ranks add up
	scratchHost [scratchBytes]byte
	norm        optim.Norm

	kindStart   []int   // position of each kind's first instance
	blocks      []block // by position
	shared      []sharedParam
	buckets     []bucket // all of them: the blocks' in order of position, then the shared ones
	slots       []slot
	gradBuffers []gradBuffer
	ranges      []stepRange // what an optimizer step walks over

	mu          sync.Mutex // one call at a time
	initialized bool
	closed      bool
	err         error // why the model can't be used any more
	pass        passState
	stats       Stats
}

// bucket is one instance's bucket with its memory.
type bucket struct {
	layout       *layout.Bucket
	place        *layout.Place
	name         string
	wire         dtype.DType
	gradType     dtype.DType
	shard        device.Memory // this rank's part
	gathered     device.Memory // the whole, in a slot
	master       device.Memory
	moments      [2]device.Memory
	grad         device.Memory // reduced gradient of this rank's part
	summed       bool          // grad holds a sum since the last step
	owner        *block        // nil for a shared parameter
	frozen       int           // how many parameters Freeze holds back
	frozenParams []bool        // which; nil where not trainable
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
	for i := range m.shared {
		m.shared[i].lease = lease{memory: m.arenas[layout.Slots][dtype.Invalid], device: m.rank.device}
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
		name: kind.Instance(kind.Name, at.Instance), uses: kind.Uses, grads: at.Grads,
	}
	for i := range kind.Buckets {
		name := kind.Instance(kind.Buckets[i].Name, at.Instance)
		b.buckets = append(b.buckets, m.addBucket(&kind.Buckets[i], &at.Buckets[i], name, b))
	}
}

// addBucket finds a bucket's memory. m.buckets has room, so pointers stay good.
func (m *Model) addBucket(l *layout.Bucket, at *layout.Place, name string, owner *block) *bucket {
	b := bucket{owner: owner, layout: l, place: at, name: name, wire: m.descriptor.Layout.WireType(l), gradType: l.GradType()}
	shardBytes := at.ShardElements * l.DType.Bytes()
	stateBytes := at.ShardElements * b.gradType.Bytes()
	b.shard = m.part(layout.Shards, l.DType, at.Shard, shardBytes)
	b.gathered = m.part(layout.Slots, dtype.Invalid, at.Slot, at.GatheredBytes)
	b.master = m.part(layout.Masters, b.gradType, at.Master, stateBytes)
	b.grad = m.part(layout.GradShards, b.gradType, at.Grad, stateBytes)
	for i := range at.Moments {
		b.moments[i] = m.part(layout.Moments, b.gradType, at.Moments[i], stateBytes)
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

// owner returns the expanded name of a bucket's parameter.
func (m *Model) owner(b *bucket, param int) string {
	if b.owner == nil {
		return literal(b.layout.Params[param].Name)
	}
	return b.owner.instanceName(b.layout.Params[param].Name)
}

// Close frees the model's memory. It may be called more than once. A pass that
// is open is ended first.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil
	}
	m.closed = true
	m.revokeAll()
	err := m.drain()
	if m.err != nil { // the call that met it has returned it
		err = nil
	}
	m.err = &StateError{Operation: "use", Subject: "model " + m.descriptor.Model, Found: "it is closed", Fix: "open it again"}
	return errors.Join(err, m.free())
}

// drain waits until the group's stream has passed, or dropped, all work of this
// model: peers and the stream read and write the arenas until then. The
// collectives' own deadline bounds it.
func (m *Model) drain() error {
	return m.comm.Synchronize(context.Background(), m.stream.Record())
}

// usable returns why the model can't be used at all.
func (m *Model) usable() error { return m.err }

// idle returns an error unless the model is usable and no pass is open.
func (m *Model) idle(operation string) error {
	if err := m.usable(); err != nil {
		return err
	}
	if m.pass.open {
		return &StateError{Operation: operation, Subject: "model " + m.descriptor.Model, Found: "a " + m.pass.kind.String() + " is open", Fix: "call its End first"}
	}
	return nil
}

// fail ends the model: a collective that failed leaves no rank with a state
// that the others can rely on.
func (m *Model) fail(err error) error {
	if err == nil {
		return nil
	}
	m.err = fmt.Errorf("model %s: %w", m.descriptor.Model, err)
	m.comm.Abort(m.err)
	return m.err
}

// settle waits until the group's stream has done all work so far.
func (m *Model) settle(ctx context.Context) error {
	return m.fail(m.comm.Synchronize(ctx, m.stream.Record()))
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
	m.mu.Lock()
	defer m.mu.Unlock()
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
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.arenas {
		for t := range m.arenas[r] {
			mem.AllocatedBytes += m.arenas[r][t].Bytes()
		}
	}
	return mem
}
