package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/shardgen/shardgen/internal/devicetest"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/gpu"
)

// collectiveTimeout bounds a collective, and how long ranks wait for each other.
const collectiveTimeout = time.Minute

// models runs small models as wholes, on one GPU and on all, and compares them
// with the same models on the CPU.
func (c *checker) models(ctx context.Context) {
	for _, d := range c.packages {
		if !runnable(&d.Layout) {
			continue
		}
		c.check("model", d.Package, func(k *Check) error { return c.model(ctx, k, d, 1) })
		if ranks := mostRanks(d, c.count); ranks > 1 {
			c.check("model", fmt.Sprintf("%s on %d", d.Package, ranks), func(k *Check) error { return c.model(ctx, k, d, ranks) })
		}
	}
}

// mostRanks returns the largest world size of a package that has a GPU for each
// rank; 8 at most.
func mostRanks(d *shard.Descriptor, gpus int) int {
	most := 0
	for _, w := range d.Layout.Worlds {
		if w <= int64(min(gpus, 8)) {
			most = max(most, int(w))
		}
	}
	return most
}

func (c *checker) model(ctx context.Context, k *Check, d *shard.Descriptor, ranks int) error {
	if lacks, err := c.withoutNCCL(ranks); lacks != "" || err != nil {
		return errors.Join(err, k.skip("%s", lacks))
	}
	if d.Layout.WorldIndex(int64(ranks)) < 0 {
		return k.skip("the package is not generated for %d ranks", ranks)
	}
	want, err := traces(ctx, shard.LocalRanks{Ranks: ranks, Timeout: collectiveTimeout}, d, ranks)
	if err != nil {
		return fmt.Errorf("on the CPU: %w", err)
	}
	got, err := traces(ctx, gpu.Local(ranks, gpu.Options{Timeout: collectiveTimeout}), d, ranks)
	if err != nil {
		return err
	}
	values := 0
	for r := range ranks {
		if err := compareTraces(got[r], want[r], ranks); err != nil {
			return fmt.Errorf("rank %d: %w", r, err)
		}
		values += len(got[r])
	}
	k.Detail = fmt.Sprintf("%d tensors, shards and norms have the CPU's bits; NCCL only copies for one rank", values)
	if ranks > 1 {
		k.Detail = fmt.Sprintf("%d tensors and shards have the CPU's bits, or are sums within their bound", values)
	}
	return nil
}

// record is something that a run of a model shows.
type record struct {
	what  string
	t     dtype.DType
	value []byte
	bound float64 // on the difference of sums of several ranks; 0 where bits are equal
}

// traces runs a model and returns what each rank saw.
func traces(ctx context.Context, l shard.Launcher, d *shard.Descriptor, ranks int) ([][]record, error) {
	var mu sync.Mutex
	all := make([][]record, ranks)
	err := shard.Run(ctx, l, func(ctx context.Context, rank *shard.Rank) error {
		trace, err := trace(ctx, rank, d)
		mu.Lock()
		defer mu.Unlock()
		all[rank.Rank()] = trace
		return err
	})
	return all, err
}

// trace opens a model, trains it for two steps and then reduces one more gradient.
// The gradients of the steps are small integers: their sums over ranks are exact
// in every type and any order. The last one's are not.
func trace(ctx context.Context, rank *shard.Rank, d *shard.Descriptor) (_ []record, err error) {
	m, err := shard.Open(ctx, rank, d, shard.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	r := &training{model: m, rank: rank, layout: &d.Layout}
	if err := m.Init(ctx, 42); err != nil {
		return nil, err
	}
	for step := range 2 {
		if err := r.step(ctx, step); err != nil {
			return r.trace, fmt.Errorf("step %d: %w", step, err)
		}
	}
	if rank.Size() == 1 {
		return r.trace, nil
	}
	if err := r.backward(ctx, 2, fraction); err != nil {
		return r.trace, err
	}
	return r.trace, r.gradients(ctx, false)
}

// compareTraces says where two runs differ.
func compareTraces(got, want []record, ranks int) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d records, the CPU has %d", len(got), len(want))
	}
	for i := range want {
		g, w := got[i], want[i]
		if g.what != w.what || g.t != w.t {
			return fmt.Errorf("record %d is %s in %s, the CPU has %s in %s", i, g.what, g.t, w.what, w.t)
		}
		if ranks > 1 && w.bound > 0 {
			if err := within(g, w); err != nil {
				return err
			}
			continue
		}
		if err := devicetest.Differ(w.what, w.t, g.value, w.value, false); err != nil {
			return err
		}
	}
	return nil
}

// within says where sums differ by more than their bound.
func within(got, want record) error {
	n := int64(len(want.value)) / want.t.Bytes()
	a, b := make([]float64, n), make([]float64, n)
	widen(a, got)
	widen(b, want)
	for i := range a {
		if d := math.Abs(a[i] - b[i]); !(d <= want.bound) {
			return fmt.Errorf("%s: element %d of %d is %v, the CPU has %v: they differ by %.3g, expected at most %.3g", want.what, i, n, a[i], b[i], d, want.bound)
		}
	}
	return nil
}

func widen(dst []float64, r record) {
	if r.t == f64 {
		copy(dtype.Bytes(dst), r.value)
		return
	}
	dtype.Convert(dtype.Bytes(dst), f64, r.value, r.t, int64(len(dst)))
}
