package plan

import (
	_ "embed"
	"encoding/json"
	"fmt"

	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// Schema is the JSON Schema of what JSON returns.
//
//go:embed plan.schema.json
var Schema []byte

// report is a plan at one world size as `plan --format json` prints it. A field
// without meaning is absent.
type report struct {
	Model        string           `json:"model"`
	Package      string           `json:"package"`
	World        int64            `json:"world"`
	RanksPerNode int64            `json:"ranks_per_node"`
	Layout       string           `json:"layout"`
	Hashes       reportHashes     `json:"hashes"`
	Params       []reportParam    `json:"params"`
	Buckets      []reportBucket   `json:"buckets"`
	Memory       reportMemory     `json:"memory"`
	Totals       reportTotals     `json:"totals"`
	Segments     *[]reportSegment `json:"segments,omitempty"` // present with a rank, even if it owns nothing
}

type reportHashes struct {
	Model  string `json:"model"`
	Layout string `json:"layout"`
	Plan   string `json:"plan"`
}

type reportParam struct {
	Name           string  `json:"name"`
	Block          string  `json:"block"`
	DType          string  `json:"dtype"`
	Shape          []int64 `json:"shape"`
	Numel          int64   `json:"numel"`
	Trainable      bool    `json:"trainable"`
	Resident       bool    `json:"resident"`
	Shared         bool    `json:"shared"`
	Bucket         string  `json:"bucket,omitempty"`
	OffsetElements *int64  `json:"offset_elements,omitempty"`
	AliasOf        string  `json:"alias_of,omitempty"`
}

type reportBucket struct {
	Name            string `json:"name"`
	Block           string `json:"block,omitempty"`
	DType           string `json:"dtype"`
	Group           string `json:"group"`
	Ranks           int64  `json:"ranks"`
	Elements        int64  `json:"elements"`
	ShardElements   int64  `json:"shard_elements"`
	PaddingElements int64  `json:"padding_elements"`
	PayloadBytes    int64  `json:"payload_bytes"`
}

type reportTier struct {
	RestBytes int64 `json:"rest_bytes"`
	PeakBytes int64 `json:"peak_bytes"`
}

type reportMemory struct {
	Device reportTier `json:"device"`
	Host   reportTier `json:"host"`
	NVMe   reportTier `json:"nvme"`
}

type reportTotals struct {
	Params             int64   `json:"params"`
	Numel              int64   `json:"numel"`
	Bytes              int64   `json:"bytes"`
	PaddingPercent     float64 `json:"padding_percent"`
	GatherBytesPerStep int64   `json:"gather_bytes_per_step"`
	ReduceBytesPerStep int64   `json:"reduce_bytes_per_step"`
}

type reportSegment struct {
	Bucket      string `json:"bucket"`
	Param       string `json:"param"`
	ParamOffset int64  `json:"param_offset"`
	ShardOffset int64  `json:"shard_offset"`
	Len         int64  `json:"len"`
}

// JSON returns the plan at one of its world sizes, described by Schema, and with
// a rank given the segments that this rank owns, padding left out.
func (p *Plan) JSON(world int64, rank *int64) ([]byte, error) {
	w := p.Layout.WorldIndex(world)
	if w < 0 {
		return nil, fmt.Errorf("world size %d is not planned, only %v", world, p.Layout.Worlds)
	}
	if rank != nil && (*rank < 0 || *rank >= world) {
		return nil, fmt.Errorf("rank %d is not from 0 to %d: the world size is %d", *rank, world-1, world)
	}
	r := p.report(w)
	if rank != nil {
		segments := p.segments(w, *rank)
		r.Segments = &segments
	}
	text, err := json.MarshalIndent(r, "", "  ")
	return append(text, '\n'), err
}

func (p *Plan) report(w int) *report {
	world := &p.Worlds[w]
	r := &report{
		Model:        p.Spec.Name.V,
		Package:      p.Spec.Package.V,
		World:        world.Ranks,
		RanksPerNode: p.Spec.Topology.RanksPerNode.V,
		Layout:       p.Spec.Shard.Layout.V,
		Hashes:       reportHashes{Model: p.Hashes.Model, Layout: world.Layout, Plan: world.Plan},
		Params:       p.reportParams(),
		Buckets:      p.reportBuckets(w),
		Memory: reportMemory{Device: reportTier{
			RestBytes: world.Placement.RestBytes(), PeakBytes: world.Placement.PeakBytes(),
		}},
		Totals: p.totals(w),
	}
	if r.RanksPerNode == 0 {
		r.RanksPerNode = world.Ranks
	}
	return r
}

func (p *Plan) reportParams() []reportParam {
	params := []reportParam{}
	for i := range p.Params {
		params = append(params, p.reportParam(&p.Params[i]))
	}
	return params
}

func (p *Plan) reportParam(of *Param) reportParam {
	f := &p.Kinds[of.Kind].Fields[of.Field]
	bucket := p.Bucket(of.Kind, f.At)
	r := reportParam{
		Name: of.Name, Block: of.Block, DType: f.DType.String(), Shape: append([]int64{}, f.Shape...), Numel: f.Numel,
		Trainable: bucket.Trainable, Shared: f.At.Shared, AliasOf: of.AliasOf,
	}
	if of.AliasOf == "" {
		r.Bucket = p.bucketName(of, f.At)
		r.OffsetElements = &bucket.Params[f.At.Param].Start
	}
	return r
}

func (p *Plan) bucketName(of *Param, at Ref) string {
	name := p.Bucket(of.Kind, at).Name
	if at.Shared {
		return spec.Literal(name)
	}
	return p.Layout.Kinds[of.Kind].Instance(name, of.Instance)
}

// instanceBucket is a bucket of one block, or a shared one (block empty), and
// how its templates expand.
type instanceBucket struct {
	*layout.Bucket
	block  string
	expand func(template string) string
}

// eachBucket yields the buckets of all blocks in their order, then the shared
// ones.
func (p *Plan) eachBucket(yield func(instanceBucket) bool) {
	for k := range p.Layout.Kinds {
		kind := &p.Layout.Kinds[k]
		for n := range kind.Count {
			expand := func(template string) string { return kind.Instance(template, n) }
			for i := range kind.Buckets {
				if !yield(instanceBucket{&kind.Buckets[i], expand(kind.Name), expand}) {
					return
				}
			}
		}
	}
	for i := range p.Layout.Shared {
		if !yield(instanceBucket{&p.Layout.Shared[i], "", spec.Literal}) {
			return
		}
	}
}

func (p *Plan) reportBuckets(w int) []reportBucket {
	ranks := p.Worlds[w].Ranks
	buckets := []reportBucket{}
	for b := range p.eachBucket {
		shard := b.ShardElements[w]
		elements := bucketNumel(b.Bucket)
		buckets = append(buckets, reportBucket{
			Name: b.expand(b.Name), Block: b.block, DType: b.DType.String(), Group: "world", Ranks: ranks,
			Elements: elements, ShardElements: shard, PaddingElements: shard*ranks - elements,
			PayloadBytes: shard * b.DType.Bytes(),
		})
	}
	return buckets
}

// bucketNumel counts a bucket's elements without any padding.
func bucketNumel(b *layout.Bucket) int64 {
	var n int64
	for i := range b.Params {
		n += b.Params[i].Numel
	}
	return n
}

// totals counts storage once, padding apart.
func (p *Plan) totals(w int) reportTotals {
	world := &p.Worlds[w]
	t := reportTotals{GatherBytesPerStep: world.GatherBytesPerStep, ReduceBytesPerStep: world.ReduceBytesPerStep}
	var stored int64 // bytes, padding included
	for b := range p.eachBucket {
		numel := bucketNumel(b.Bucket)
		t.Params += int64(len(b.Params))
		t.Numel += numel
		t.Bytes += numel * b.DType.Bytes()
		stored += b.ShardElements[w] * world.Ranks * b.DType.Bytes()
	}
	if stored > 0 {
		t.PaddingPercent = 100 * float64(stored-t.Bytes) / float64(stored)
	}
	return t
}

func (p *Plan) segments(w int, rank int64) []reportSegment {
	segments := []reportSegment{}
	for b := range p.eachBucket {
		for s := range b.Segments(b.ShardElements[w], rank) {
			segments = append(segments, reportSegment{
				Bucket: b.expand(b.Name), Param: b.expand(b.Params[s.Param].Name),
				ParamOffset: s.ParamOffset, ShardOffset: s.ShardOffset, Len: s.Len,
			})
		}
	}
	return segments
}
