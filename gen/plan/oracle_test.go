package plan

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// home is where the written rule puts one element of a parameter.
type home struct {
	bucket            string
	rank, shardOffset int64
}

// oracle is a slow interpreter of a spec: it goes through every element with
// loops and shares no arithmetic with the planner. It knows `*` at the end of a
// match only.
type oracle struct {
	homes    map[string][]home // by the owner's name, by element
	elements map[string]int64  // by bucket: shards of all ranks together
	order    []string          // buckets in the order of their first parameter
}

// oracleBucket is one flat bucket while it is being filled.
type oracleBucket struct {
	unit, end int64
	names     []string
	starts    []int64
	numels    []int64
}

func interpret(m *spec.Model, world int64) *oracle {
	o := &oracle{homes: map[string][]home{}, elements: map[string]int64{}}
	buckets := map[string]*oracleBucket{}
	for _, b := range m.Blocks {
		for _, i := range indices(b) {
			for _, p := range b.Params {
				if p.TiedTo.V == "" {
					o.fill(m, buckets, b, p, i)
				}
			}
		}
	}
	for _, name := range o.order {
		o.cut(name, buckets[name], world)
	}
	return o
}

func indices(b spec.Block) []string {
	if b.Repeat == nil {
		return []string{""}
	}
	var list []string
	for i := b.Repeat.First; i <= b.Repeat.Last; i++ {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

// fill puts a parameter behind what its bucket has.
func (o *oracle) fill(m *spec.Model, buckets map[string]*oracleBucket, b spec.Block, p spec.Param, i string) {
	instance := func(s string) string { return strings.ReplaceAll(s, "{i}", i) }
	name := instance(p.Name.V)
	trainable := p.DType.V.Trainable() && p.Trainable.V
	for _, rule := range m.Overrides {
		if strings.HasPrefix(name, strings.TrimSuffix(rule.Match.V, "*")) {
			trainable = p.DType.V.Trainable() && rule.Trainable.V
		}
	}
	key := instance(b.Name.V) + "/" + p.DType.V.String()
	if p.DType.V.Trainable() && !trainable {
		key += "/frozen"
	}
	if readElsewhere(m, b, p) {
		key = "shared/" + name
	}
	if buckets[key] == nil {
		unit := m.Shard.AlignBytes.V / p.DType.V.Bytes()
		buckets[key] = &oracleBucket{unit: max(1, unit)}
		o.order = append(o.order, key)
	}
	buckets[key].append(name, p.Shape)
}

// readElsewhere follows ties by name and looks for uses in other blocks.
func readElsewhere(m *spec.Model, home spec.Block, p spec.Param) bool {
	same := map[string]bool{p.Name.V: true}
	for range m.Blocks {
		for _, b := range m.Blocks {
			for _, q := range b.Params {
				if same[q.TiedTo.V] {
					same[q.Name.V] = true
				}
			}
		}
	}
	for _, b := range m.Blocks {
		if b.Name.V == home.Name.V {
			continue
		}
		for _, q := range b.Params {
			if same[q.Name.V] {
				return true
			}
		}
		for _, use := range b.Uses {
			if use.V == p.Name.V {
				return true
			}
		}
	}
	return false
}

func (b *oracleBucket) append(name string, shape []spec.At[int64]) {
	numel := int64(1)
	for _, d := range shape {
		numel *= d.V
	}
	for b.end%b.unit != 0 {
		b.end++
	}
	b.names, b.starts, b.numels = append(b.names, name), append(b.starts, b.end), append(b.numels, numel)
	b.end += numel
	for b.end%b.unit != 0 {
		b.end++
	}
}

// cut grows the shard by a unit until all ranks hold the bucket, then counts
// through the ranks.
func (o *oracle) cut(name string, b *oracleBucket, world int64) {
	shard := int64(0)
	for shard*world < b.end {
		shard += b.unit
	}
	o.elements[name] = shard * world
	for i, param := range b.names {
		o.homes[param] = []home{}
		for e := range b.numels[i] {
			rank, left := int64(0), b.starts[i]+e
			for left >= shard {
				rank, left = rank+1, left-shard
			}
			o.homes[param] = append(o.homes[param], home{name, rank, left})
		}
	}
}

// TestPlanAgreesWithTheInterpreter draws models and compares every element of
// every rank's segments with the interpreter.
func TestPlanAgreesWithTheInterpreter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.OneOf(rapid.SampledFrom([]int64{1, 2, 3, 4, 7, 8, 64, 1024}), rapid.Int64Range(1, 1024)).Draw(t, "world")
		m := drawSpec(t, world)
		p := mustBuild(t, m)
		want := interpret(m, world)
		owned := map[string]int64{}
		for rank := range world {
			last := map[string]int64{}
			for _, s := range p.segments(0, rank) {
				if s.ShardOffset < last[s.Bucket] {
					t.Fatalf("rank %d: segment %+v overlaps the one before it", rank, s)
				}
				last[s.Bucket] = s.ShardOffset + s.Len
				for e := range s.Len {
					got := home{s.Bucket, rank, s.ShardOffset + e}
					if h := want.homes[s.Param][s.ParamOffset+e]; got != h {
						t.Fatalf("element %d of %q is at %+v, want %+v", s.ParamOffset+e, s.Param, got, h)
					}
				}
				owned[s.Param] += s.Len
			}
		}
		for name, homes := range want.homes {
			if owned[name] != int64(len(homes)) {
				t.Fatalf("ranks own %d elements of %q, want %d", owned[name], name, len(homes))
			}
		}
		compareBuckets(t, p, want, world)
	})
}

func compareBuckets(t *rapid.T, p *Plan, want *oracle, world int64) {
	var names []string
	for _, b := range p.reportBuckets(0) {
		names = append(names, b.Name)
		if b.Elements != b.ShardElements*b.Ranks-b.PaddingElements || b.Ranks != world {
			t.Fatalf("bucket %+v does not add up", b)
		}
		if b.ShardElements*world != want.elements[b.Name] {
			t.Fatalf("bucket %q has shards of %d on %d ranks, want %d together", b.Name, b.ShardElements, world, want.elements[b.Name])
		}
		if b.PayloadBytes%p.Layout.AlignBytes != 0 {
			t.Fatalf("payload of bucket %+v is not aligned", b)
		}
	}
	order := slices.Clone(want.order)
	shared := func(name string) bool { return strings.HasPrefix(name, "shared/") }
	own := slices.DeleteFunc(slices.Clone(order), shared)
	if got := slices.DeleteFunc(slices.Clone(names), shared); !slices.Equal(got, own) {
		t.Fatalf("buckets %v, want %v", got, own)
	}
	slices.Sort(order)
	slices.Sort(names)
	if !slices.Equal(names, order) {
		t.Fatalf("buckets %v, want %v", names, order)
	}
}

var drawnTypes = []dtype.DType{dtype.Float64, dtype.Float32, dtype.BFloat16, dtype.Float16, dtype.Float8E4M3, dtype.Int64, dtype.Bool}

// drawSpec draws a sound model: blocks of one to four parameters of awkward
// sizes, some repeated, ties inside and across blocks, uses and overrides.
func drawSpec(t *rapid.T, worlds ...int64) *spec.Model {
	m := newModel(worlds)
	m.Shard.AlignBytes.V = 16 << rapid.IntRange(0, 5).Draw(t, "log2 align")
	m.Gather.MaxLive.V = rapid.Int64Range(2, 4).Draw(t, "max_live")
	m.Optimizer.Kind.V = rapid.SampledFrom([]spec.OptimizerKind{spec.OptimizerNone, spec.OptimizerAdamW, spec.OptimizerSGD}).Draw(t, "optimizer")
	for i := range rapid.IntRange(1, 4).Draw(t, "blocks") {
		m.Blocks = append(m.Blocks, drawBlock(t, m, i))
	}
	first := m.Blocks[0].Params[0]
	for i := range m.Blocks[1:] {
		b := &m.Blocks[1+i]
		prefix, _, _ := strings.Cut(b.Name.V, "/")
		switch rapid.IntRange(0, 3).Draw(t, "link") {
		case 0:
			b.Params = append(b.Params, tiedParam(prefix+".far", first.Name.V), tiedParam(prefix+".further", prefix+".far"))
		case 1:
			b.Uses = append(b.Uses, said(first.Name.V))
		}
	}
	if rapid.Bool().Draw(t, "override") {
		no := said(false)
		m.Overrides = []spec.Override{{Match: said("b0*"), Trainable: &no}}
	}
	return m
}

// drawBlock draws block number n; the first is not repeated, so that others can
// share its parameters.
func drawBlock(t *rapid.T, m *spec.Model, n int) spec.Block {
	name := fmt.Sprintf("b%d", n)
	b := blockOf(name)
	if n > 0 && rapid.Bool().Draw(t, "repeated") {
		name += ".{i}"
		b = repeated(name, 0)
		b.Repeat.First = rapid.Int64Range(0, 3).Draw(t, "first")
		b.Repeat.Last = b.Repeat.First + rapid.Int64Range(0, 2).Draw(t, "more")
	}
	for i := range rapid.IntRange(1, 4).Draw(t, "params") {
		d := rapid.SampledFrom(drawnTypes).Draw(t, "dtype")
		unit := m.Shard.AlignBytes.V / d.Bytes()
		numel := rapid.OneOf(rapid.SampledFrom([]int64{0, 1, 31, 32, 33, 97, unit - 1, unit, unit + 1}), rapid.Int64Range(0, 400)).Draw(t, "numel")
		p := paramOf(fmt.Sprintf("%s.p%d", name, i), d, numel)
		if d.Trainable() && rapid.IntRange(0, 4).Draw(t, "frozen") == 0 {
			p.Trainable = said(false)
		}
		b.Params = append(b.Params, p)
	}
	b.Params = append(b.Params, tiedParam(name+".near", b.Params[0].Name.V))
	return b
}

// TestHugeParametersAgreeWithBigArithmetic checks offsets beyond 2^31 and 2^40
// at the edges of parameters and shards.
func TestHugeParametersAgreeWithBigArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		world := rapid.Int64Range(1, 1024).Draw(t, "world")
		var params []spec.Param
		for i, n := range rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(1, 1<<42), rapid.SampledFrom([]int64{1, 1<<31 - 1, 1 << 31, 1<<31 + 1})), 1, 4).Draw(t, "numels") {
			params = append(params, paramOf(fmt.Sprintf("p%d", i), dtype.BFloat16, n))
		}
		p := mustBuild(t, newModel([]int64{world}, blockOf("b", params...)))
		b := &p.Layout.Kinds[0].Buckets[0]
		start := new(big.Int)
		for i := range b.Params {
			numel := b.Params[i].Numel
			for _, e := range []int64{0, numel / 2, numel - 1} {
				checkBigHome(t, p, i, e, new(big.Int).Add(start, big.NewInt(e)))
			}
			start.Add(start, big.NewInt(numel+127))
			start.Sub(start, new(big.Int).Mod(start, big.NewInt(128)))
		}
	})
}

// checkBigHome looks for an element in the shard that the rule names.
func checkBigHome(t *rapid.T, p *Plan, param int, e int64, at *big.Int) {
	b := &p.Layout.Kinds[0].Buckets[0]
	rank, offset := new(big.Int).DivMod(at, big.NewInt(b.ShardElements[0]), new(big.Int))
	for s := range b.Segments(b.ShardElements[0], rank.Int64()) {
		if s.Param == param && s.ParamOffset <= e && e < s.ParamOffset+s.Len {
			if got := s.ShardOffset + e - s.ParamOffset; got != offset.Int64() {
				t.Fatalf("element %d of parameter %d is at %d of rank %v, want %v", e, param, got, rank, offset)
			}
			return
		}
	}
	t.Fatalf("rank %v does not own element %d of parameter %d", rank, e, param)
}

// TestInvariantsOfEveryWorld checks what the runtime relies on at all worlds of
// one plan: equal bytes, bounded padding, starts that do not move.
func TestInvariantsOfEveryWorld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		worlds := slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.Int64Range(1, 1024), 1, 4).Draw(t, "worlds"))))
		p := mustBuild(t, drawSpec(t, worlds...))
		for b := range p.eachBucket {
			for w, world := range worlds {
				checkInvariants(t, b.Bucket, b.ShardElements[w], world)
			}
		}
		for _, world := range worlds {
			alone := mustBuild(t, p.Spec, world)
			w := p.Layout.WorldIndex(world)
			if alone.Worlds[0].Plan != p.Worlds[w].Plan || alone.Worlds[0].Placement.PeakBytes() != p.Worlds[w].Placement.PeakBytes() {
				t.Fatalf("world %d is planned differently beside others", world)
			}
		}
	})
}

func checkInvariants(t *rapid.T, b *layout.Bucket, shard, world int64) {
	padding := shard*world - bucketNumel(b)
	if limit := (int64(len(b.Params)) + world) * b.Unit; padding < 0 || padding >= limit {
		t.Fatalf("bucket %q at world %d has %d elements of padding, want less than %d", b.Name, world, padding, limit)
	}
	if b.End == 0 && shard != 0 {
		t.Fatalf("empty bucket %q has shards of %d", b.Name, shard)
	}
}

// TestAnyTiesAreResolvedOrRefused draws ties that may dangle or go round, and
// follows them by name.
func TestAnyTiesAreResolvedOrRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, 9).Draw(t, "count")
		m := newModel([]int64{2}, blockOf("even"), blockOf("odd"))
		ties := map[string]string{}
		for i := range count {
			name := fmt.Sprintf("p%d", i)
			p := paramOf(name, dtype.Float32, 4)
			if to := rapid.IntRange(-count, count).Draw(t, "to"); to >= 0 {
				ties[name] = fmt.Sprintf("p%d", to) // p<count> does not exist
				p = tiedParam(name, ties[name])
			}
			m.Blocks[i%2].Params = append(m.Blocks[i%2].Params, p)
		}
		owners, sound := followByName(ties, count)
		p, faults := Build(m)
		if (len(faults) == 0) != sound {
			t.Fatalf("ties %v are sound: %v, faults %v", ties, sound, faults)
		}
		for i := 0; sound && i < len(p.Params); i++ {
			if got := p.Params[i]; got.AliasOf != owners[got.Name] {
				t.Fatalf("%s is an alias of %q, want %q", got.Name, got.AliasOf, owners[got.Name])
			}
		}
	})
}

func followByName(ties map[string]string, count int) (owners map[string]string, sound bool) {
	owners, sound = map[string]string{}, true
	for name := range ties {
		at := name
		for range count + 1 {
			if next, tied := ties[at]; tied {
				at = next
			}
		}
		_, tied := ties[at]
		sound = sound && !tied && at != fmt.Sprintf("p%d", count)
		owners[name] = at
	}
	return owners, sound
}
