package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"math"
	"slices"

	"github.com/shardgen/shardgen/runtime/abi"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
	"github.com/shardgen/shardgen/spec"
)

// hashBytes is how much of a SHA-256 a hash keeps.
const hashBytes = 16

// encoder feeds a hash with an encoding that has one reading: numbers are 8
// bytes, strings and lists are led by their length.
type encoder struct{ to hash.Hash }

func newEncoder(title string) *encoder {
	e := &encoder{to: sha256.New()}
	e.text(title)
	return e
}

func (e *encoder) number(n int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	e.to.Write(b[:])
}

func (e *encoder) numbers(list []int64) {
	e.number(int64(len(list)))
	for _, n := range list {
		e.number(n)
	}
}

func (e *encoder) text(s string) {
	e.number(int64(len(s)))
	e.to.Write([]byte(s))
}

func (e *encoder) flag(b bool) {
	if b {
		e.number(1)
	} else {
		e.number(0)
	}
}

func (e *encoder) hex() string { return hex.EncodeToString(e.to.Sum(nil)[:hashBytes]) }

// hash computes the three hashes. Each of layout and plan starts from the one
// before it, so that they differ where that differs.
func (b *builder) hash() {
	b.plan.Hashes.Model = b.modelHash()
	for i := range b.plan.Worlds {
		w := &b.plan.Worlds[i]
		w.Layout = b.layoutHash(i)
		w.Plan = b.planHash(w)
	}
}

// modelHash covers what a checkpoint holds: names with their shapes, types and
// ties. A checkpoint finds parameters by name, so their order does not count.
func (b *builder) modelHash() string {
	params := slices.Clone(b.plan.Params)
	slices.SortFunc(params, func(x, y Param) int { return cmp.Compare(x.Name, y.Name) })
	e := newEncoder("model")
	e.number(int64(len(params)))
	for _, p := range params {
		f := &b.plan.Kinds[p.Kind].Fields[p.Field]
		e.text(p.Name)
		e.text(p.AliasOf)
		e.text(f.DType.String())
		e.numbers(f.Shape)
	}
	return e.hex()
}

// layoutHash covers where every element of every shard lies at one world size.
func (b *builder) layoutHash(w int) string {
	m := b.plan.Layout
	e := newEncoder("layout")
	e.text(b.plan.Hashes.Model)
	e.text(b.spec.Shard.Layout.V)
	e.number(m.Worlds[w])
	e.number(m.AlignBytes)
	e.number(m.Blocks())
	for i := range m.Kinds {
		kind := &m.Kinds[i]
		for n := range kind.Count {
			e.number(int64(len(kind.Buckets)))
			for j := range kind.Buckets {
				e.bucket(&kind.Buckets[j], w, func(name string) string { return kind.Instance(name, n) })
			}
		}
	}
	e.number(int64(len(m.Shared)))
	for i := range m.Shared {
		e.bucket(&m.Shared[i], w, spec.Literal)
	}
	return e.hex()
}

func (e *encoder) bucket(k *layout.Bucket, w int, expand func(string) string) {
	e.text(expand(k.Name))
	e.text(k.DType.String())
	e.flag(k.Trainable)
	e.number(k.Unit)
	e.number(k.End)
	e.number(k.ShardElements[w])
	e.number(int64(len(k.Params)))
	for i := range k.Params {
		e.text(expand(k.Params[i].Name))
		e.number(k.Params[i].Start)
	}
}

// planHash covers all that ranks must agree on to run together: the layout, the
// order of collectives and what each sends, initial values and the optimizer's
// view of the parameters, and the contract between package and runtime.
func (b *builder) planHash(w *World) string {
	m := b.plan.Layout
	e := newEncoder("plan")
	e.text(w.Layout)
	e.number(abi.Version)
	e.text(b.spec.Gather.Mode.V)
	e.numbers([]int64{m.MaxLive, m.Prefetch, m.GradSlots})
	e.text(m.Reduce.String())
	e.number(cmp.Or(m.DivideBy, w.Ranks))
	e.text(string(b.spec.Optimizer.Kind.V))
	e.flag(m.Optimizer.Masters)
	e.number(m.Optimizer.Kind.Moments())
	e.number(int64(len(m.Kinds)))
	for i := range m.Kinds {
		e.kind(&m.Kinds[i])
	}
	e.updates(m.Shared)
	return e.hex()
}

func (e *encoder) kind(k *layout.Kind) {
	for n := range k.Count {
		e.text(k.Instance(k.Name, n))
		e.number(int64(len(k.Uses)))
		for _, s := range k.Uses {
			e.number(int64(s))
		}
	}
	e.updates(k.Buckets)
}

// updates covers what Init and Step do to the parameters.
func (e *encoder) updates(buckets []layout.Bucket) {
	for i := range buckets {
		for j := range buckets[i].Params {
			p := &buckets[i].Params[j]
			e.flag(p.Decay)
			e.distribution(p.Init)
		}
	}
}

func (e *encoder) distribution(d *random.Distribution) {
	if d == nil {
		e.text("")
		return
	}
	e.text(string(d.Kind))
	for _, x := range []float64{d.Value, d.Mean, d.Std, d.Cut, d.Low, d.High} {
		e.number(int64(math.Float64bits(x)))
	}
}
