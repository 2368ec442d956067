package layout

// Unit returns the granularity of a flat bucket in elements: parameters start
// and shards are cut at its multiples.
//
//	unit = lcm(max(1, alignBytes/elementBytes), groupElements)
//
// alignBytes and groupElements are powers of two, so the least common multiple
// is the larger of the two. groupElements is 1 where nothing is quantized.
func Unit(alignBytes, elementBytes, groupElements int64) int64 {
	return max(1, alignBytes/elementBytes, groupElements)
}

// Starts returns where each parameter of a flat bucket starts, in elements from
// the bucket's start, and where the last one's padding ends:
//
//	start[0] = 0,  start[i+1] = roundup(start[i] + numel[i], unit),  end = start[len]
//
// It depends neither on the world size nor on the rank.
func Starts(numels []int64, unit int64) (starts []int64, end int64, err error) {
	var c counter
	starts = make([]int64, len(numels))
	for i, n := range numels {
		starts[i] = end
		end = c.roundUp(c.add(end, n), unit)
	}
	return starts, end, c.err("bucket")
}

// ShardElements returns how many elements of a flat bucket each of the ranks
// owns: rank r has [r*shard, (r+1)*shard).
//
//	shard = roundup(ceil(end/ranks), unit)
func ShardElements(end, ranks, unit int64) (int64, error) {
	var c counter
	whole := end / ranks
	if end%ranks != 0 {
		whole++
	}
	shard := c.roundUp(whole, unit)
	c.mul(shard, ranks)
	return shard, c.err("bucket")
}
