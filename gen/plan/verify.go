package plan

import (
	"fmt"

	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/spec"
)

// verify checks the finished plan against the rules that the runtime relies on,
// so that a mistake in a pass never reaches a trainer.
func (b *builder) verify() {
	m := b.plan.Layout
	check := func(k *layout.Bucket) {
		for w := range m.Worlds {
			if err := verifyBucket(k, m.AlignBytes, w, m.Worlds[w]); err != nil {
				b.fault(spec.Errorf(b.spec.Topology.Pos, spec.CodeInternal,
					"internal error: bucket %q at world size %d: %v", k.Name, m.Worlds[w], err).
					WithHint("the planner is wrong, not the spec: please report it with the spec"))
			}
		}
	}
	for i := range m.Kinds {
		for j := range m.Kinds[i].Buckets {
			check(&m.Kinds[i].Buckets[j])
		}
	}
	for i := range m.Shared {
		check(&m.Shared[i])
	}
}

// verifyBucket checks alignment, order, the bound on padding and that the
// segments of all ranks tile every parameter.
func verifyBucket(k *layout.Bucket, alignBytes int64, w int, ranks int64) error {
	shard := k.ShardElements[w]
	var numel int64
	for i := range k.Params {
		p := &k.Params[i]
		if p.Start%k.Unit != 0 {
			return fmt.Errorf("parameter %q starts at %d, which is no multiple of the unit %d", p.Name, p.Start, k.Unit)
		}
		if i > 0 && p.Start < k.Params[i-1].Start+k.Params[i-1].Numel {
			return fmt.Errorf("parameter %q starts inside %q", p.Name, k.Params[i-1].Name)
		}
		if p.Start+p.Numel > k.End {
			return fmt.Errorf("parameter %q ends at %d, behind the bucket's end at %d", p.Name, p.Start+p.Numel, k.End)
		}
		numel += p.Numel
	}
	switch {
	case shard%k.Unit != 0:
		return fmt.Errorf("shards of %d elements are no multiple of the unit %d", shard, k.Unit)
	case shard*k.DType.Bytes()%alignBytes != 0:
		return fmt.Errorf("shards of %d elements are not aligned to %d bytes", shard, alignBytes)
	case shard*ranks < k.End:
		return fmt.Errorf("%d shards of %d elements do not hold %d", ranks, shard, k.End)
	case !paddingBounded(shard*ranks-numel, int64(len(k.Params)), ranks, k.Unit):
		return fmt.Errorf("%d of %d elements are padding", shard*ranks-numel, shard*ranks)
	}
	return verifyTiling(k, shard)
}

// paddingBounded reports padding < (params + ranks) x unit, without overflow.
func paddingBounded(padding, params, ranks, unit int64) bool {
	return padding/unit < params+ranks
}

// verifyTiling walks the segments of the ranks at which some parameter starts or
// ends. Those between lie inside one parameter and hold a whole shard each.
func verifyTiling(k *layout.Bucket, shard int64) error {
	covered := make([]int64, len(k.Params))
	last := int64(-1)
	for i := range k.Params {
		p := &k.Params[i]
		if p.Numel == 0 {
			continue
		}
		for _, rank := range []int64{p.Start / shard, (p.Start + p.Numel - 1) / shard} {
			if rank <= last {
				continue
			}
			if err := verifyRank(k, shard, rank, (rank-last-1)*shard, covered); err != nil {
				return err
			}
			last = rank
		}
	}
	for i := range k.Params {
		if covered[i] != k.Params[i].Numel {
			return fmt.Errorf("ranks own %d of the %d elements of %q", covered[i], k.Params[i].Numel, k.Params[i].Name)
		}
	}
	return nil
}

// verifyRank checks the segments of one rank and adds them to what is covered;
// skipped are the elements of the whole shards that were not walked before it.
func verifyRank(k *layout.Bucket, shard, rank, skipped int64, covered []int64) error {
	end := int64(0)
	for s := range k.Segments(shard, rank) {
		if covered[s.Param] > 0 {
			covered[s.Param] += skipped
		}
		skipped = 0
		at := k.Params[s.Param].Start + s.ParamOffset
		switch {
		case s.Len <= 0, s.ShardOffset < end, s.ShardOffset+s.Len > shard:
			return fmt.Errorf("segment %+v does not fit its shard of %d elements", s, shard)
		case at != rank*shard+s.ShardOffset:
			return fmt.Errorf("segment %+v lies at %d of the bucket, not at %d", s, rank*shard+s.ShardOffset, at)
		case s.ParamOffset != covered[s.Param]:
			return fmt.Errorf("segment %+v leaves a gap or overlaps: %d elements come before it", s, covered[s.Param])
		}
		covered[s.Param] += s.Len
		end = s.ShardOffset + s.Len
	}
	return nil
}
