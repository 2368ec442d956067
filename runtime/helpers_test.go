package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/random"
)

// param describes a parameter of a test model.
type param struct {
	name   string
	shape  []int64
	dtype  dtype.DType
	frozen bool
	plain  bool // no weight decay
	init   *random.Distribution
}

// testBlock describes a block kind of a test model.
type testBlock struct {
	name   string
	count  int64 // 0: a single block
	params []param
	uses   []int
}

// testModel puts a descriptor together by hand, so that these tests depend on
// neither planner nor emitter.
type testModel struct {
	worlds            []int64
	align             int64
	maxLive, prefetch int64
	gradSlots         int64
	reduce            dtype.DType
	optimizer         layout.Optimizer
	blocks            []testBlock
	shared            []param
}

func (tm testModel) descriptor(t testing.TB) *Descriptor {
	t.Helper()
	m := layout.Model{
		AlignBytes: or(tm.align, 16), MaxLive: or(tm.maxLive, 2), Prefetch: tm.prefetch, GradSlots: or(tm.gradSlots, 2),
		Reduce: dtype.Float32, Optimizer: tm.optimizer, Worlds: tm.worlds,
	}
	if tm.reduce != dtype.Invalid {
		m.Reduce = tm.reduce
	}
	for _, b := range tm.blocks {
		kind := layout.Kind{Name: b.name, Count: or(b.count, 1), Uses: b.uses}
		if b.count > 0 {
			kind.Var = "i"
		}
		kind.Buckets = tm.buckets(t, b.name, b.params)
		m.Kinds = append(m.Kinds, kind)
	}
	for _, p := range tm.shared {
		m.Shared = append(m.Shared, tm.buckets(t, "shared", []param{p})...)
	}
	d := &Descriptor{Model: "test", Package: "test", ModelHash: "0", Layout: m, Code: allKernels(t, m.AlignBytes)}
	for w, n := range tm.worlds {
		place, err := m.Place(w)
		if err != nil {
			t.Fatal(err)
		}
		d.Worlds = append(d.Worlds, World{PlanHash: fmt.Sprintf("hash-%d", n), RestBytes: place.RestBytes(), PeakBytes: place.PeakBytes()})
	}
	return d
}

func or(n, fallback int64) int64 {
	if n == 0 {
		return fallback
	}
	return n
}

// buckets groups parameters by dtype and trainability, in order of appearance.
func (tm testModel) buckets(t testing.TB, block string, params []param) []layout.Bucket {
	t.Helper()
	var out []layout.Bucket
	find := func(p param, trainable bool) *layout.Bucket {
		for i := range out {
			if out[i].DType == p.dtype && out[i].Trainable == trainable {
				return &out[i]
			}
		}
		out = append(out, layout.Bucket{Name: fmt.Sprintf("%s/%s", block, p.dtype), DType: p.dtype, Trainable: trainable, Unit: layout.Unit(or(tm.align, 16), p.dtype.Bytes(), 1)})
		return &out[len(out)-1]
	}
	for _, p := range params {
		b := find(p, p.dtype.Trainable() && !p.frozen)
		n, err := layout.Numel(p.shape)
		if err != nil {
			t.Fatal(err)
		}
		b.Params = append(b.Params, layout.Param{Name: p.name, Shape: p.shape, Numel: n, Decay: !p.plain, Init: p.init})
	}
	for i := range out {
		var numels []int64
		for _, p := range out[i].Params {
			numels = append(numels, p.Numel)
		}
		starts, end, err := layout.Starts(numels, out[i].Unit)
		if err != nil {
			t.Fatal(err)
		}
		for j := range starts {
			out[i].Params[j].Start = starts[j]
		}
		out[i].End = end
		for _, w := range tm.worlds {
			shard, err := layout.ShardElements(end, w, out[i].Unit)
			if err != nil {
				t.Fatal(err)
			}
			out[i].ShardElements = append(out[i].ShardElements, shard)
		}
	}
	return out
}

func f32(name string, shape ...int64) param {
	return param{name: name, shape: shape, dtype: dtype.Float32}
}

// trainable is a model of three equal blocks with an optimizer.
func trainable(worlds ...int64) testModel {
	return testModel{worlds: worlds, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{
		{name: "h.{i}", count: 3, params: []param{f32("h.{i}.w", 9)}},
	}}
}

// value is what the tests put into element i of a parameter.
func value(name string, i int64) float32 {
	h := float32(0)
	for _, c := range name {
		h += float32(c)
	}
	return h + float32(i%251)
}

// fill writes value(name, i) into every f32 and bf16 element that the rank owns.
func fill(ctx context.Context, m *Model) error {
	return m.Update(ctx, func(s *Shards) error {
		for sh := range s.All() {
			if err := fillShard(ctx, sh); err != nil {
				return err
			}
		}
		return nil
	})
}

func fillShard(ctx context.Context, sh Shard) error {
	f, low := make([]float32, sh.Len), make([]dtype.BF16, sh.Len)
	for i := range f {
		f[i] = value(sh.Name, sh.Offset+int64(i))
		low[i] = dtype.BF16FromFloat32(f[i])
	}
	switch sh.Type {
	case dtype.Float32:
		return WriteValues(ctx, sh, f)
	case dtype.BFloat16:
		return WriteValues(ctx, sh, low)
	}
	return fmt.Errorf("unexpected type %s", sh.Type)
}

// read copies a tensor's elements to the host.
func read[T dtype.Element](ctx context.Context, x Tensor[T]) ([]T, error) {
	out := make([]T, x.Numel())
	return out, x.CopyTo(ctx, out)
}

// edit changes every element of a tensor.
func edit[T dtype.Element](ctx context.Context, x Tensor[T], f func(i int, old T) T) error {
	host, err := read(ctx, x)
	if err != nil {
		return err
	}
	for i, old := range host {
		host[i] = f(i, old)
	}
	return x.CopyFrom(ctx, host)
}

// copyOver copies one tensor over another of the same size.
func copyOver[T dtype.Element](ctx context.Context, to, from Tensor[T]) error {
	host, err := read(ctx, from)
	if err != nil {
		return err
	}
	return to.CopyFrom(ctx, host)
}

// gradientOf copies a shard's gradient, which is f32, to the host.
func gradientOf(ctx context.Context, sh Shard) ([]float32, error) {
	out := make([]float32, sh.Len)
	return out, ReadGradient(ctx, sh, out)
}

// expect checks a gathered f32 tensor against value.
func expect(ctx context.Context, x Tensor[float32]) error {
	name := x.Name()
	host, err := read(ctx, x)
	if err != nil {
		return err
	}
	for i, v := range host {
		if want := value(name, int64(i)); v != want {
			return fmt.Errorf("%s[%d] = %v, want %v", name, i, v, want)
		}
	}
	return nil
}

// readAll goes forward through all blocks and checks every f32 parameter.
func readAll(ctx context.Context, p Pass, d *Descriptor) error {
	for k := range d.Layout.Kinds {
		kind := &d.Layout.Kinds[k]
		for i := range int(kind.Count) {
			b, err := p.Gather(k, i)
			if err != nil {
				return err
			}
			if err := expectBlock(ctx, b, kind); err != nil {
				return err
			}
			b.Release()
		}
	}
	return p.End()
}

// expectBlock checks shapes and values of the f32 parameters of a block.
func expectBlock(ctx context.Context, b Block, kind *layout.Kind) error {
	for bucket := range kind.Buckets {
		if kind.Buckets[bucket].DType != dtype.Float32 {
			continue
		}
		for j, param := range kind.Buckets[bucket].Params {
			x := Param[float32](b, bucket, j, param.Start)
			if got, want := fmt.Sprint(x.Shape()), fmt.Sprint(append([]int64{}, param.Shape...)); got != want {
				return fmt.Errorf("%s: shape %s, want %s", x.Name(), got, want)
			}
			if err := expect(ctx, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantStateError calls f and returns an error unless it panics with a
// *StateError that has the words.
func wantStateError(f func(), words string) (err error) {
	defer func() {
		state, ok := recover().(*StateError)
		if !ok || !strings.Contains(state.Error(), words) {
			err = fmt.Errorf("no *StateError with %q, but %v", words, state)
		}
	}()
	f()
	return nil
}

// mixed is trainable with two element types, a shared parameter, a wire type that
// is not all parameters' own, and four blocks, one of them ahead.
func mixed(worlds ...int64) testModel {
	tm := trainable(worlds...)
	tm.prefetch, tm.reduce = 1, dtype.BFloat16
	tm.blocks[0].count = 4
	tm.blocks[0].params = append(tm.blocks[0].params, bf16("h.{i}.low", 19))
	tm.blocks[0].uses = []int{0}
	tm.shared = []param{bf16("shared", 37)}
	return tm
}

func bf16(name string, shape ...int64) param {
	return param{name: name, shape: shape, dtype: dtype.BFloat16}
}

// wantMisuse returns an error unless err is a *StateError that has the words.
func wantMisuse(err error, words string) error {
	var state *StateError
	if errors.As(err, &state) && strings.Contains(err.Error(), words) {
		return nil
	}
	return fmt.Errorf("no *StateError with %q, but %w", words, err)
}

// wantWords reports an error that lacks one of the words.
func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not mention %q", err, word)
		}
	}
}
