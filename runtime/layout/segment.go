package layout

import "iter"

// Segment is a row of the segment table: the part of one parameter that one
// rank owns. All counts are elements.
type Segment struct {
	Param       int   // index in Bucket.Params
	ParamOffset int64 // from the parameter's start
	Rank        int64
	ShardOffset int64 // from the start of the rank's shard of the bucket
	Len         int64 // > 0
}

// Segments yields what a rank owns of a bucket whose shards have shardElements
// elements, in the order of the shard. Padding is left out. With n the number
// of the bucket's parameters, it takes O(log n) steps to the first segment.
func (b *Bucket) Segments(shardElements, rank int64) iter.Seq[Segment] {
	return func(yield func(Segment) bool) {
		low := rank * shardElements
		high := low + shardElements
		for i := b.firstReaching(low); i < len(b.Params); i++ {
			p := &b.Params[i]
			if p.Start >= high {
				return
			}
			from, to := max(p.Start, low), min(p.Start+p.Numel, high)
			if from >= to {
				continue
			}
			s := Segment{Param: i, ParamOffset: from - p.Start, Rank: rank, ShardOffset: from - low, Len: to - from}
			if !yield(s) {
				return
			}
		}
	}
}

// firstReaching returns the first parameter that ends behind the offset.
func (b *Bucket) firstReaching(offset int64) int {
	low, high := 0, len(b.Params)
	for low < high {
		mid := (low + high) / 2
		if b.Params[mid].Start+b.Params[mid].Numel > offset {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}
