package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
)

// act is something that all ranks must do alike: a call, or a collective. The order
// of collectives follows from the calls, but also from when prefetches find room;
// it is what a transport can't do without.
type act uint8

const (
	actInit act = iota + 1
	actForward
	actEval
	actBackward
	actGather
	actReduce
	actDiscard
	actZeroGrad
	actFreeze
	actUnfreeze
	actUnscale
	actStep
	actUpdate
	actFailedUpdate
	actSum
	actAllGather
	actReduceScatter
)

var actNames = [...]string{
	actInit: "Init", actForward: "Forward", actEval: "Eval", actBackward: "Backward", actGather: "the gather of block", actReduce: "Reduce of the gradients of block",
	actDiscard: "Discard of the gradients of block", actZeroGrad: "ZeroGrad", actFreeze: "Freeze", actUnfreeze: "Unfreeze",
	actUnscale: "Unscale", actStep: "Step", actUpdate: "Update", actFailedUpdate: "an Update that failed", actSum: "a sum",
	actAllGather: "the all-gather of", actReduceScatter: "the reduce-scatter of",
}

// entry is one act of a rank: on which of its models, and with what: a block's
// position, a bucket's index, or a hash of the arguments.
type entry struct {
	act    act
	model  uint16 // counts the models opened on the rank
	detail uint32
}

func (e entry) word() uint64 { return uint64(e.act)<<48 | uint64(e.model)<<32 | uint64(e.detail) }

func entryOf(word uint64) entry { return entry{act(word >> 48), uint16(word >> 32), uint32(word)} }

// remembered is how many acts a rank can tell others about when it finds that they
// did something else.
const remembered = 64

// history is what a rank has done. Its hash is the same on ranks that did the
// same; it rides in the sums of a step.
type history struct {
	count   uint64
	hash    uint64
	entries [remembered]uint64 // the last ones, by count mod remembered
	hashes  [remembered]uint64 // after each of them
}

func (h *history) add(e entry) {
	const odd = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio
	at := h.count % remembered
	h.hash = (bits.RotateLeft64(h.hash, 23) ^ e.word()) * odd
	h.entries[at], h.hashes[at] = e.word(), h.hash
	h.count++
}

// did records an act of this rank on this model.
func (m *Model) did(a act, detail uint32) {
	m.rank.history.add(entry{a, m.ordinal, detail})
}

// digest folds the arguments of a call.
type digest uint64

// FNV-1a's of 64 bits.
const (
	newDigest digest = 0xcbf29ce484222325
	fnvPrime  digest = 0x100000001b3
)

// end separates arguments: it is no byte.
const end = 0x100

func (d digest) fold(x uint64) digest { return (d ^ digest(x)) * fnvPrime }

func (d digest) texts(list []string) digest {
	for _, s := range list {
		for i := range len(s) {
			d = d.fold(uint64(s[i]))
		}
		d = d.fold(end)
	}
	return d
}

func (d digest) floats(x ...float64) digest {
	for _, f := range x {
		b := math.Float64bits(f)
		for ; b != 0; b >>= 8 {
			d = d.fold(b & 0xff)
		}
		d = d.fold(end)
	}
	return d
}

func (d digest) detail() uint32 { return uint32(d>>32) ^ uint32(d) }

// pieces is in how many parts of pieceBits bits a history's hash is summed: sums
// of them and of their squares are exact in f64 for all ranks that there can be.
const (
	pieces    = 3
	pieceBits = 18
)

// sumOverRanks adds up over the ranks what is at the start of m.sums, a norm,
// and checks that all ranks have done the same so far.
func (m *Model) sumOverRanks(ctx context.Context, subject string) (optim.Norm, error) {
	if err := m.writeChecks(ctx); err != nil {
		return optim.Norm{}, err
	}
	if err := m.sumSums(ctx, subject); err != nil {
		return optim.Norm{}, err
	}
	if !sumsOfEqual(m.sumsHost[optim.NormBytes:], uint64(m.rank.Size())) {
		return optim.Norm{}, m.fail(m.whoDiffers(ctx))
	}
	return optim.NormOf(m.sumsHost[:]), nil
}

// writeChecks puts the history's hash behind the norm in m.sums, as numbers whose
// sums show whether it is the same on all ranks: pieces and their squares. The sum
// of n equal numbers x is told from any other sum by that of their squares: only
// then is n times the one the square of the other.
func (m *Model) writeChecks(ctx context.Context) error {
	checks := m.sumsHost[optim.NormBytes:]
	for i := range pieces {
		x := float64(m.rank.history.hash >> (i * pieceBits) & (1<<pieceBits - 1))
		appendFloats(checks[:16*i], x, x*x)
	}
	return m.fail(m.rank.device.Write(ctx, m.sums.Slice(optim.NormBytes, int64(len(checks))), checks))
}

// sumSums adds up m.sums over the ranks, behind the norm's kernels, and reads what
// comes out into m.sumsHost.
func (m *Model) sumSums(ctx context.Context, subject string) error {
	m.reductions.Wait(m.compute.Record())
	m.comm.AllReduce(subject, m.sums, dtype.Float64)
	if err := m.settle(ctx, subject); err != nil {
		return err
	}
	return m.fail(m.rank.device.Read(ctx, m.sumsHost[:], m.sums))
}

func appendFloats(b []byte, x ...float64) []byte {
	for _, f := range x {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(f))
	}
	return b
}

// sumsOfEqual reports whether sums and sums of squares are those of n equal
// numbers.
func sumsOfEqual(b []byte, n uint64) bool {
	for ; len(b) >= 16; b = b[16:] {
		sum := uint64(math.Float64frombits(binary.LittleEndian.Uint64(b)))
		squares := uint64(math.Float64frombits(binary.LittleEndian.Uint64(b[8:])))
		if n*squares != sum*sum {
			return false
		}
	}
	return true
}

// zeroNorm zeroes the norm at the start of m.sums on the compute stream, and no
// more: what is behind it the host writes meanwhile, which no stream waits for.
func (m *Model) zeroNorm() device.Memory {
	total := m.sums.Slice(0, optim.NormBytes)
	m.kernels.Zero(m.compute, total)
	return total
}

// agree checks that all ranks have come to the same point by the same acts.
func (m *Model) agree(ctx context.Context, subject string) error {
	m.zeroNorm()
	_, err := m.sumOverRanks(ctx, subject)
	return err
}

// whoDiffers compares the ranks' histories and names the first act in which one
// differs from rank 0. All ranks call it, and get the same.
func (m *Model) whoDiffers(ctx context.Context) error {
	own := new(bytes.Buffer)
	h := &m.rank.history
	_ = binary.Write(own, binary.LittleEndian, [2]uint64{h.count, h.hash}) // a buffer takes all
	_ = binary.Write(own, binary.LittleEndian, h.entries[:])
	_ = binary.Write(own, binary.LittleEndian, h.hashes[:])
	all := make([]byte, own.Len()*m.rank.Size())
	if err := m.exchange(ctx, "what ranks did", all, own.Bytes()); err != nil {
		return fmt.Errorf("the ranks did different things; comparing them: %w", err)
	}
	first := historyOf(all)
	for r := 1; r < m.rank.Size(); r++ {
		if other := historyOf(all[r*own.Len():]); other.hash != first.hash || other.count != first.count {
			return fmt.Errorf("the ranks did different things: %s; every rank must make the same calls, with the same arguments", m.difference(first, other, r))
		}
	}
	return fmt.Errorf("the ranks' sums disagree, but not what they did: the transport or the memory gave wrong bits")
}

func historyOf(b []byte) *history {
	words := func(n int) []uint64 {
		out := make([]uint64, n)
		for i := range out {
			out[i] = binary.LittleEndian.Uint64(b[8*i:])
		}
		b = b[8*n:]
		return out
	}
	h := &history{}
	head := words(2)
	h.count, h.hash = head[0], head[1]
	copy(h.entries[:], words(remembered))
	copy(h.hashes[:], words(remembered))
	return h
}

// difference describes the first act that differs, of those that both ranks
// remember.
func (m *Model) difference(first, other *history, rank int) string {
	last := max(first.count, other.count)
	for i := last - min(last, remembered); i < last; i++ {
		at := i % remembered
		switch {
		case i >= first.count:
			return fmt.Sprintf("rank %d did more, %s", rank, m.describe(entryOf(other.entries[at])))
		case i >= other.count:
			return fmt.Sprintf("rank 0 did more than rank %d, %s", rank, m.describe(entryOf(first.entries[at])))
		case first.entries[at] != other.entries[at]:
			return m.contrast(entryOf(first.entries[at]), entryOf(other.entries[at]), rank)
		case first.hashes[at] != other.hashes[at]:
			return fmt.Sprintf("rank 0 and rank %d differ in what is more than %d acts ago", rank, last-i)
		}
	}
	return fmt.Sprintf("rank 0 and rank %d differ in what is more than %d acts ago", rank, remembered)
}

func (m *Model) contrast(a, b entry, rank int) string {
	one, other := m.describe(a), m.describe(b)
	if one == other {
		return fmt.Sprintf("rank 0 did %s, rank %d the same with other arguments", one, rank)
	}
	return fmt.Sprintf("rank 0 did %s, rank %d %s", one, rank, other)
}

// describe names an act. Blocks are named by this model, if they are its own.
func (m *Model) describe(e entry) string {
	if int(e.act) >= len(actNames) || actNames[e.act] == "" {
		return fmt.Sprintf("act %d", e.act)
	}
	text := actNames[e.act]
	own := e.model == m.ordinal
	switch {
	case e.act == actSum:
		return text // of no model
	case e.act == actGather || e.act == actReduce || e.act == actDiscard:
		text += " " + nameOr(own && int(e.detail) < len(m.blocks), func() string { return m.blocks[e.detail].name }, e.detail)
	case e.act == actAllGather || e.act == actReduceScatter:
		text += " " + nameOr(own && int(e.detail) < len(m.buckets), func() string { return m.buckets[e.detail].name }, e.detail)
	}
	if !own {
		text += fmt.Sprintf(" of the rank's model %d", e.model+1)
	}
	return text
}

// nameOr returns a name where it is known, else the number that stands for it.
func nameOr(known bool, name func() string, number uint32) string {
	if known {
		return name()
	}
	return fmt.Sprintf("number %d", number)
}

// The sums of a step are a norm and the pieces of a hash.
const _ = -uint(layout.SumsBytes - optim.NormBytes - 16*pieces)
