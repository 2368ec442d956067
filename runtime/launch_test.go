package shard

import (
	"context"
	"fmt"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
)

func TestABlocksBucketsAreMovedInOneLaunch(t *testing.T) {
	const blocks, reductions = 4, 3 // of a block: f32, bf16, shared bf16
	// With bf16 one of them is cast. With f32 two are: staging has room for one, so
	// the other is on its own.
	for _, reduce := range []dtype.DType{dtype.BFloat16, dtype.Float32} {
		for _, n := range []int64{1, 2, 3} {
			tm := mixed(n)
			tm.reduce = reduce
			d := tm.descriptor(t)
			mustRun(t, int(n), d, reduceAllBlocks)
			onCUDA(t, func(t *testing.T, b *backend) {
				b.must(t, int(n), d, reduceAllBlocks)
				if got, want := machine.Calls("ncclGroupEnd"), n*2*blocks; got != want {
					t.Errorf("reduce %s, %d ranks: %d groups, expected %d: for each block and rank one of gathers and one of reductions", reduce, n, got, want)
				}
				if got, want := machine.Calls("ncclReduceScatter"), n*(1+blocks*reductions); got != want { // one connects
					t.Errorf("reduce %s, %d ranks: %d reduce-scatters, expected %d", reduce, n, got, want)
				}
			})
		}
	}
}

func TestABlockOfOneBucketNeedsNoGroup(t *testing.T) {
	onCUDA(t, func(t *testing.T, b *backend) {
		tm := trainable(2)
		b.must(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			return backwardOnce(ctx, m, 1)
		})
		if got := machine.Calls("ncclGroupStart"); got != 0 {
			t.Errorf("%d groups", got)
		}
	})
}

// reduceAllBlocks gives every element of a gradient a number of its own, and checks
// the mean over the ranks.
func reduceAllBlocks(ctx context.Context, m *Model) error {
	if err := fill(ctx, m); err != nil {
		return err
	}
	p := m.Backward(ctx)
	for i := 3; i >= 0; i-- {
		b, g, err := p.GatherWithGrads(0, i)
		if err != nil {
			return err
		}
		own := float32(m.rank.Rank() + 1)
		if err := edit(ctx, Grad[float32](g, 0, 0, 0), func(k int, _ float32) float32 { return own * gradient(k) }); err != nil {
			return err
		}
		low := func(k int, _ dtype.BF16) dtype.BF16 { return dtype.BF16FromFloat32(own * gradient(k)) }
		if err := edit(ctx, Grad[dtype.BF16](g, 1, 0, 0), low); err != nil {
			return err
		}
		if err := edit(ctx, SharedGrad[dtype.BF16](g, 0, 0, 0), low); err != nil {
			return err
		}
		b.Release()
		g.Reduce()
	}
	if err := p.End(); err != nil {
		return err
	}
	return m.Update(ctx, func(s *Shards) error {
		for sh := range s.All() {
			got, err := gradientOf(ctx, sh)
			if err != nil {
				return err
			}
			mean := float32(m.rank.Size()+1) / 2
			if sh.Name == "shared" {
				mean *= 4
			}
			for k, v := range got {
				if want := mean * gradient(int(sh.Offset)+k); v != want {
					return fmt.Errorf("gradient of %s[%d]: %v, expected %v", sh.Name, sh.Offset+int64(k), v, want)
				}
			}
		}
		return nil
	})
}

// gradient is what rank 0 has at element k: exact in bf16, as are its sums.
func gradient(k int) float32 { return float32(k%7 - 3) }
