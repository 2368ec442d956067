package layout

import (
	"errors"
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

func TestUnitIsTheLargerOfAlignmentAndGroup(t *testing.T) {
	for _, c := range []struct{ align, element, group, want int64 }{
		{256, 4, 1, 64},
		{256, 2, 1, 128},
		{256, 1, 1, 256},
		{16, 8, 1, 2},
		{16, 2, 128, 128},
		{65536, 8, 1, 8192},
		{256, 2, 64, 128},
	} {
		if got := Unit(c.align, c.element, c.group); got != c.want {
			t.Errorf("Unit(%d, %d, %d) = %d, want %d", c.align, c.element, c.group, got, c.want)
		}
	}
}

func TestStartsRoundEveryParameterUpToTheUnit(t *testing.T) {
	for _, c := range []struct {
		numels, starts []int64
		unit, end      int64
	}{
		{nil, []int64{}, 64, 0},
		{[]int64{5, 3, 10}, []int64{0, 4 * 2, 12}, 4, 24},
		{[]int64{63, 64, 65}, []int64{0, 64, 128}, 64, 256},
		{[]int64{5, 0, 0, 3}, []int64{0, 64, 64, 64}, 64, 128}, // empty ones cost nothing
		{[]int64{1 << 31, 1}, []int64{0, 1 << 31}, 64, 1<<31 + 64},
	} {
		starts, end, err := Starts(c.numels, c.unit)
		if err != nil || end != c.end || !slices.Equal(starts, c.starts) {
			t.Errorf("Starts(%v, %d) = %v, %d, %v, want %v, %d", c.numels, c.unit, starts, end, err, c.starts, c.end)
		}
	}
}

func TestShardIsTheLeastThatHoldsTheBucket(t *testing.T) {
	for _, c := range []struct{ end, ranks, unit, want int64 }{
		{0, 7, 64, 0},
		{64, 7, 64, 64},
		{64 * 8, 8, 64, 64},
		{64 * 9, 8, 64, 128},
		{1 << 31, 2, 64, 1 << 30},
		{1 << 31, 3, 64, 715827904},
		{24, 4, 1, 6},
		{21, 4, 1, 6},
	} {
		got, err := ShardElements(c.end, c.ranks, c.unit)
		if err != nil || got != c.want {
			t.Errorf("ShardElements(%d, %d, %d) = %d, %v, want %d", c.end, c.ranks, c.unit, got, err, c.want)
		}
	}
}

func TestOverflowIsAnErrorThatNamesThePlace(t *testing.T) {
	var overflow *OverflowError
	_, err := Numel([]int64{1 << 32, 1 << 31})
	if !errors.As(err, &overflow) {
		t.Errorf("a shape of 2^63 elements: %v", err)
	}
	if n, err := Numel([]int64{1 << 40, 1 << 40, 0}); n != 0 || err != nil {
		t.Errorf("a shape with a 0 has %d elements, %v", n, err)
	}
	if n, err := Numel(nil); n != 1 || err != nil {
		t.Errorf("a scalar has %d elements, %v", n, err)
	}
	if _, _, err := Starts([]int64{math.MaxInt64, 1}, 64); !errors.As(err, &overflow) {
		t.Errorf("a bucket of 2^63 elements: %v", err)
	}
	if _, err := ShardElements(math.MaxInt64-63, 3, 64); !errors.As(err, &overflow) {
		t.Errorf("shards of 2^63 elements together: %v", err)
	}
	m := testModel(1, Bucket{Name: "a/f64", DType: dtype.Float64, Unit: 32, ShardElements: []int64{1 << 60}})
	const message = "memory of a rank at world size 1: more than 2^63-1 elements or bytes"
	if _, err := m.Place(0); !errors.As(err, &overflow) || err.Error() != message {
		t.Errorf("memory of 2^63 bytes: %v", err)
	}
}

// TestStartsAgreeWithBigArithmetic compares with integers that cannot overflow.
func TestStartsAgreeWithBigArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := int64(1) << rapid.IntRange(0, 16).Draw(t, "log2 unit")
		numels := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(0, 300), rapid.Int64Range(0, math.MaxInt64)), 0, 6).Draw(t, "numels")
		ranks := rapid.Int64Range(1, 1<<20).Draw(t, "ranks")
		starts, end, err := Starts(numels, unit)
		want := bigEnd(numels, unit)
		if (err != nil) != !want.IsInt64() {
			t.Fatalf("error %v for an end of %v", err, want)
		}
		if err != nil {
			return
		}
		if end != want.Int64() || !slices.IsSorted(starts) {
			t.Fatalf("starts %v, end %d, want %v", starts, end, want)
		}
		shard, err := ShardElements(end, ranks, unit)
		whole := new(big.Int).Mul(big.NewInt(shard), big.NewInt(ranks))
		if err == nil && (shard%unit != 0 || whole.Cmp(want) < 0 || !whole.IsInt64()) {
			t.Fatalf("shard %d of %d ranks for %d", shard, ranks, end)
		}
		if err == nil && shard > 0 && (shard-unit)*ranks >= end {
			t.Fatalf("shard %d is not the least for %d on %d ranks", shard, end, ranks)
		}
	})
}

func bigEnd(numels []int64, unit int64) *big.Int {
	end, u := new(big.Int), big.NewInt(unit)
	for _, n := range numels {
		end.Add(end, big.NewInt(n))
		end.Add(end, big.NewInt(unit-1))
		end.Div(end, u).Mul(end, u)
	}
	return end
}

// newBucket lays out a bucket with shards for one world size.
func newBucket(t interface{ Fatal(...any) }, name string, d dtype.DType, unit, ranks int64, numels ...int64) Bucket {
	starts, end, err := Starts(numels, unit)
	if err != nil {
		t.Fatal(err)
	}
	shard, err := ShardElements(end, ranks, unit)
	if err != nil {
		t.Fatal(err)
	}
	b := Bucket{Name: name, DType: d, Unit: unit, End: end, ShardElements: []int64{shard}, Trainable: d.Trainable()}
	for i, n := range numels {
		b.Params = append(b.Params, Param{Numel: n, Start: starts[i]})
	}
	return b
}

func TestSegmentsOfAShard(t *testing.T) {
	b := newBucket(t, "a", dtype.Float32, 4, 3, 5, 0, 9, 1) // starts 0 8 8 20, end 24, shards of 8
	for _, c := range []struct {
		rank int64
		want []Segment
	}{
		{0, []Segment{{Param: 0, Rank: 0, Len: 5}}},
		{1, []Segment{{Param: 2, Rank: 1, Len: 8}}},
		{2, []Segment{{Param: 2, ParamOffset: 8, Rank: 2, Len: 1}, {Param: 3, Rank: 2, ShardOffset: 4, Len: 1}}},
	} {
		if got := slices.Collect(b.Segments(8, c.rank)); !slices.Equal(got, c.want) {
			t.Errorf("rank %d owns %+v, want %+v", c.rank, got, c.want)
		}
	}
}

func TestSegmentsStopWhenTheReaderDoes(t *testing.T) {
	b := newBucket(t, "a", dtype.Float32, 1, 1, 1, 1, 1)
	count := 0
	for range b.Segments(3, 0) {
		count++
		break
	}
	if count != 1 {
		t.Errorf("%d segments after a break", count)
	}
}

// TestSegmentsTileEveryParameter marks every element that some rank owns.
func TestSegmentsTileEveryParameter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := int64(1) << rapid.IntRange(0, 6).Draw(t, "log2 unit")
		numels := rapid.SliceOfN(rapid.OneOf(rapid.SampledFrom([]int64{0, 1, unit - 1, unit, unit + 1, 97}), rapid.Int64Range(0, 500)), 0, 8).Draw(t, "numels")
		ranks := rapid.Int64Range(1, 40).Draw(t, "ranks")
		b := newBucket(t, "a", dtype.Float32, unit, ranks, numels...)
		shard := b.ShardElements[0]
		owned := make([]int, b.End)
		for rank := range ranks {
			for s := range b.Segments(shard, rank) {
				for e := range s.Len {
					at := b.Params[s.Param].Start + s.ParamOffset + e
					if at != rank*shard+s.ShardOffset+e || s.ShardOffset+e >= shard {
						t.Fatalf("segment %+v lies outside its shard of %d", s, shard)
					}
					owned[at]++
				}
			}
		}
		for i := range b.Params {
			p := &b.Params[i]
			for e := range p.Numel {
				if owned[p.Start+e] != 1 {
					t.Fatalf("element %d of parameter %d has %d owners", e, i, owned[p.Start+e])
				}
				owned[p.Start+e] = 0
			}
		}
		if slices.ContainsFunc(owned, func(n int) bool { return n != 0 }) {
			t.Fatal("padding has an owner")
		}
	})
}

// testModel is a model of one block per bucket at one world size.
func testModel(world int64, buckets ...Bucket) *Model {
	m := &Model{AlignBytes: 16, MaxLive: 2, Prefetch: 1, GradSlots: 2, Reduce: dtype.Float32, Worlds: []int64{world}}
	for _, b := range buckets {
		m.Kinds = append(m.Kinds, Kind{Name: b.Name, Count: 1, Buckets: []Bucket{b}})
	}
	return m
}

func place(t interface{ Fatal(...any) }, m *Model) *Placement {
	p, err := m.Place(0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPlacementOfASmallModel(t *testing.T) {
	m := testModel(2,
		newBucket(t, "a", dtype.BFloat16, 8, 2, 32),  // shard 16 elements, 32 bytes, gathered 64
		newBucket(t, "b", dtype.Float32, 4, 2, 24),   // shard 12 elements, 48 bytes, gathered 96
		newBucket(t, "c", dtype.BFloat16, 8, 2, 100)) // shard 56 elements, 112 bytes, gathered 224
	m.Optimizer = Optimizer{Kind: AdamW, Masters: true}
	p := place(t, m)
	want := []Arena{
		{Shards, dtype.Float32, 48},
		{Shards, dtype.BFloat16, 32 + 112},
		{Masters, dtype.Float32, 4 * (16 + 56)},
		{Moments, dtype.Float32, 4 * 2 * (16 + 12 + 56)},
		{GradShards, dtype.Float32, 4 * (16 + 12 + 56)},
		{Slots, dtype.Invalid, 224 + 96}, // a and c share slot 0
		{GradBuffers, dtype.Invalid, 2 * 224},
		{Staging, dtype.Invalid, 2*56*4 + 56*4},
		{Scratch, dtype.Invalid, SumsBytes + 3*16}, // a chunk of a norm for each bucket
	}
	if !slices.Equal(p.Arenas, want) {
		t.Errorf("arenas %v, want %v", p.Arenas, want)
	}
	if rest := p.RestBytes(); rest != 48+144+288+672+336 {
		t.Errorf("rest is %d bytes", rest)
	}
	if peak := p.PeakBytes(); peak != p.RestBytes()+320+448+672+112 {
		t.Errorf("peak is %d bytes", peak)
	}
	if b := p.Blocks[1].Buckets[0]; b.Master != None || b.Slot != 224 || b.Moments != [2]int64{128, 176} {
		t.Errorf("b lies at %+v", b)
	}
}

func TestEveryRankHasRoomForTheNormsOfItsChunks(t *testing.T) {
	const chunk = optim.ChunkElements
	for _, numels := range [][]int64{{1}, {0, 5}, {chunk - 1, chunk, chunk + 1, 3*chunk + 7}, {100 * chunk, 1, 1, 0, 1}, {3, 3, 3, 3, 3}} {
		for world := int64(1); world <= 5; world++ {
			b := newBucket(t, "a", dtype.Float32, 4, world, numels...)
			p := place(t, testModel(world, b, b))
			for rank := range world {
				var needed int64
				for s := range b.Segments(b.ShardElements[0], rank) {
					needed += 2 * optim.PartialBytes(s.Len)
				}
				if needed > p.Partials {
					t.Errorf("parameters of %v elements: rank %d of %d has %d bytes of norms, the plan %d", numels, rank, world, needed, p.Partials)
				}
			}
		}
	}
}

func TestFrozenBucketsHaveNoState(t *testing.T) {
	b := newBucket(t, "a", dtype.BFloat16, 8, 1, 32)
	b.Trainable = false
	m := testModel(1, b)
	m.Optimizer = Optimizer{Kind: AdamW, Masters: true}
	p := place(t, m)
	at := p.Blocks[0].Buckets[0]
	if at.Grad != None || at.Master != None || at.Moments != [2]int64{None, None} || len(p.Blocks[0].Grads) != 0 {
		t.Errorf("a frozen bucket lies at %+v", at)
	}
	if p.PeakBytes() != 64+64+SumsBytes {
		t.Errorf("peak is %d bytes, want the shard, its slot and the sums", p.PeakBytes())
	}
}

func TestSharedBucketsHaveSlotsOfTheirOwn(t *testing.T) {
	m := testModel(1, newBucket(t, "a", dtype.Float32, 4, 1, 4), newBucket(t, "b", dtype.Float32, 4, 1, 8))
	m.Shared = []Bucket{newBucket(t, "s", dtype.Float32, 4, 1, 16)}
	m.Kinds[1].Uses = []int{0}
	p := place(t, m)
	if at := p.Shared[0].Slot; at != 16+32 {
		t.Errorf("the shared bucket is gathered at %d, want behind the slots at 48", at)
	}
	grads := p.Blocks[1].Grads
	if len(grads) != 2 || !grads[1].Shared || grads[1].Offset != 32 || p.GradBuffer.Bytes != 32+64 {
		t.Errorf("gradients of b are %+v in buffers of %d bytes", grads, p.GradBuffer.Bytes)
	}
}

// span is a range of bytes in one arena.
type span struct {
	role       Role
	dtype      dtype.DType
	start, end int64
}

// TestPlacesNeverOverlap draws models and checks that what lives at the same
// time has bytes of its own, aligned and inside its arena.
func TestPlacesNeverOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawModel(t)
		p := place(t, m)
		var spans []span
		for i := range p.Blocks {
			kind := &m.Kinds[p.Blocks[i].Kind]
			for b, at := range p.Blocks[i].Buckets {
				spans = append(spans, restSpans(m, &kind.Buckets[b], at)...)
			}
		}
		for s, at := range p.Shared {
			spans = append(spans, restSpans(m, &m.Shared[s], at)...)
		}
		checkSpans(t, m, p, spans)
		position := rapid.IntRange(0, len(p.Blocks)-1).Draw(t, "position")
		checkSpans(t, m, p, liveSpans(m, p, position))
		checkGrads(t, m, p)
	})
}

func drawModel(t *rapid.T) *Model {
	world := rapid.Int64Range(1, 9).Draw(t, "world")
	types := rapid.SampledFrom([]dtype.DType{dtype.Float64, dtype.Float32, dtype.BFloat16, dtype.Int8})
	draw := func(name string) Bucket {
		d := types.Draw(t, "dtype")
		b := newBucket(t, name, d, Unit(16, d.Bytes(), 1), world, rapid.SliceOfN(rapid.Int64Range(0, 90), 1, 3).Draw(t, "numels")...)
		b.Trainable = b.Trainable && rapid.Bool().Draw(t, "trainable")
		return b
	}
	m := testModel(world)
	m.MaxLive = rapid.Int64Range(1, 4).Draw(t, "max_live")
	m.GradSlots = rapid.Int64Range(1, 3).Draw(t, "slots")
	m.Reduce = rapid.SampledFrom([]dtype.DType{dtype.Float32, dtype.BFloat16}).Draw(t, "reduce")
	m.Optimizer = Optimizer{Kind: rapid.SampledFrom([]OptimizerKind{NoOptimizer, SGD, MomentumSGD, AdamW}).Draw(t, "optimizer"), Masters: rapid.Bool().Draw(t, "masters")}
	for range rapid.IntRange(0, 2).Draw(t, "shared") {
		m.Shared = append(m.Shared, draw("s"))
	}
	for range rapid.IntRange(1, 3).Draw(t, "kinds") {
		kind := Kind{Name: "k", Count: rapid.Int64Range(1, 4).Draw(t, "count")}
		for range rapid.IntRange(0, 3).Draw(t, "buckets") {
			kind.Buckets = append(kind.Buckets, draw("b"))
		}
		for s := range m.Shared {
			if rapid.Bool().Draw(t, "uses") {
				kind.Uses = append(kind.Uses, s)
			}
		}
		m.Kinds = append(m.Kinds, kind)
	}
	return m
}

// restSpans lists what a bucket keeps between passes.
func restSpans(m *Model, b *Bucket, at Place) []span {
	shard, state := at.ShardElements*b.DType.Bytes(), at.ShardElements*b.GradType().Bytes()
	spans := []span{{Shards, b.DType, at.Shard, at.Shard + shard}}
	for _, s := range []struct {
		role  Role
		start int64
	}{{Masters, at.Master}, {Moments, at.Moments[0]}, {Moments, at.Moments[1]}, {GradShards, at.Grad}} {
		if s.start != None {
			spans = append(spans, span{s.role, b.GradType(), s.start, s.start + state})
		}
	}
	return spans
}

// liveSpans lists the gathered buckets of MaxLive blocks in a row, and of all
// shared parameters.
func liveSpans(m *Model, p *Placement, first int) []span {
	var spans []span
	for i := first; i < min(first+int(m.MaxLive), len(p.Blocks)); i++ {
		for _, at := range p.Blocks[i].Buckets {
			spans = append(spans, span{Slots, dtype.Invalid, at.Slot, at.Slot + at.GatheredBytes})
		}
	}
	for _, at := range p.Shared {
		spans = append(spans, span{Slots, dtype.Invalid, at.Slot, at.Slot + at.GatheredBytes})
	}
	return spans
}

func checkSpans(t *rapid.T, m *Model, p *Placement, spans []span) {
	for i, s := range spans {
		if s.start%m.AlignBytes != 0 {
			t.Fatalf("%+v is not aligned", s)
		}
		if s.end > s.start && s.end > arenaBytes(p, s.role, s.dtype) {
			t.Fatalf("%+v ends behind its arena of %d bytes", s, arenaBytes(p, s.role, s.dtype))
		}
		for _, o := range spans[:i] {
			if o.role == s.role && o.dtype == s.dtype && o.start < s.end && s.start < o.end {
				t.Fatalf("%+v and %+v overlap", o, s)
			}
		}
	}
}

func checkGrads(t *rapid.T, m *Model, p *Placement) {
	for i := range p.Blocks {
		end := int64(0)
		for _, g := range p.Blocks[i].Grads {
			at, b := p.Blocks[i].Buckets, m.Kinds[p.Blocks[i].Kind].Buckets
			if g.Shared {
				at, b = p.Shared, m.Shared
			}
			if g.Offset != end || !b[g.Bucket].Trainable {
				t.Fatalf("gradient %+v of block %d, want offset %d and a trainable bucket", g, i, end)
			}
			end += at[g.Bucket].GatheredBytes
		}
		if end > p.GradBuffer.Bytes || end != p.Blocks[i].GradBytes {
			t.Fatalf("gradients of block %d take %d bytes of %d, expected %d", i, p.Blocks[i].GradBytes, p.GradBuffer.Bytes, end)
		}
	}
	if all := p.GradBuffer.Bytes * p.GradBuffer.Count; all != arenaBytes(p, GradBuffers, dtype.Invalid) {
		t.Fatalf("gradient buffers take %d bytes in an arena of %d", all, arenaBytes(p, GradBuffers, dtype.Invalid))
	}
	if all := p.WireFull + p.WireShard; all != arenaBytes(p, Staging, dtype.Invalid) || p.WireFull%m.AlignBytes != 0 {
		t.Fatalf("staging of %d and %d bytes in an arena of %d", p.WireFull, p.WireShard, arenaBytes(p, Staging, dtype.Invalid))
	}
}

func arenaBytes(p *Placement, r Role, d dtype.DType) int64 {
	for _, a := range p.Arenas {
		if a.Role == r && a.DType == d {
			return a.Bytes
		}
	}
	return 0
}

func TestNamesOfInstances(t *testing.T) {
	k := Kind{Var: "i", First: 3, Count: 2}
	for template, want := range map[string]string{
		"h.{i}.w":    "h.4.w",
		"h.{{i}}.w":  "h.{i}.w",
		"{i}{{{i}}}": "4{4}",
		"h.{j}":      "h.{j}",
		"h":          "h",
	} {
		if got := k.Instance(template, 1); got != want {
			t.Errorf("instance 1 of %q is %q, want %q", template, got, want)
		}
	}
}

func TestCountsOfAModel(t *testing.T) {
	m := Model{Worlds: []int64{1, 8}, Reduce: dtype.BFloat16, Optimizer: Optimizer{Masters: true}, Kinds: []Kind{{Count: 1}, {Count: 12}}}
	if m.Blocks() != 13 || m.WorldIndex(8) != 1 || m.WorldIndex(2) != -1 {
		t.Errorf("%d blocks, world 8 at %d, world 2 at %d", m.Blocks(), m.WorldIndex(8), m.WorldIndex(2))
	}
	f64, bf16 := Bucket{DType: dtype.Float64, Trainable: true}, Bucket{DType: dtype.BFloat16, Trainable: true}
	if m.WireType(&f64) != dtype.Float64 || m.WireType(&bf16) != dtype.BFloat16 {
		t.Error("f64 reduces in f64, all others in the model's type")
	}
	if m.HasMaster(&f64) || !m.HasMaster(&bf16) || f64.GradType() != dtype.Float64 || bf16.GradType() != dtype.Float32 {
		t.Error("f64 is its own master, bf16 has one of f32")
	}
	if Moments.String() != "moments" || !GradShards.Rest() || Slots.Rest() {
		t.Error("what rests is shards, masters, moments and gradient shards")
	}
}
