package gpu_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/shardgen/shardgen/generated/tiny"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// trained opens the model, trains it and returns a hash of the rank's shards.
func trained(ctx context.Context, r *shard.Rank) (sum string, err error) {
	m, err := tiny.Open(ctx, r, tiny.Options{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.Init(ctx, 7); err != nil {
		return "", err
	}
	for step := range 2 {
		if err := train(ctx, m, r.Rank(), step); err != nil {
			return "", fmt.Errorf("step %d: %w", step, err)
		}
	}
	if err := m.Update(ctx, func(all *shard.Shards) error { return halve(ctx, all) }); err != nil {
		return "", err
	}
	h := sha256.New()
	err = m.Inspect(ctx, func(all *shard.Shards) error { return hashShards(ctx, h, all) })
	return fmt.Sprintf("%x", h.Sum(nil)), err
}

// train is a forward pass, a backward pass with gradients that depend on the
// rank, and a step.
func train(ctx context.Context, m *tiny.Model, rank, step int) error {
	if err := forward(ctx, m, func(int) error { return nil }); err != nil {
		return err
	}
	b := m.Backward(ctx)
	head, g, err := b.Head()
	if err != nil {
		return err
	}
	err = errors.Join(fill(ctx, g.LnF, rank, step), fill(ctx, g.LmHead, rank, step))
	head.Release()
	g.Reduce()
	for i := tiny.HLen - 1; i >= 0 && err == nil; i-- {
		err = backwardH(ctx, b, i, rank, step)
	}
	if err != nil {
		return err
	}
	embed, e, err := b.Embed()
	if err != nil {
		return err
	}
	err = fill(ctx, e.Wte, rank, step)
	embed.Release()
	e.Reduce()
	if err = errors.Join(err, b.End()); err != nil {
		return err
	}
	_, err = m.Step(ctx, optim.AdamW{LR: 1e-2, WeightDecay: 0.1, ClipNorm: 1})
	return err
}

// forward gathers all blocks and calls before with the number of each.
func forward(ctx context.Context, m *tiny.Model, before func(block int) error) error {
	f := m.Forward(ctx)
	e, err := f.Embed()
	if err != nil {
		return err
	}
	e.Release()
	for i := range tiny.HLen {
		if err := before(i); err != nil {
			return err
		}
		h, err := f.H(i)
		if err != nil {
			return err
		}
		h.Release()
	}
	head, err := f.Head()
	if err != nil {
		return err
	}
	head.Release()
	return f.End()
}

func backwardH(ctx context.Context, b tiny.BackwardPass, i, rank, step int) error {
	h, g, err := b.H(i)
	if err != nil {
		return err
	}
	err = errors.Join(
		fill(ctx, g.Ln_1, rank, step), fill(ctx, g.Ln_1_Bias, rank, step),
		fill(ctx, g.Mlp, rank, step), fill(ctx, g.Mlp_Bias, rank, step),
	)
	h.Release()
	g.Reduce()
	return err
}

// fill writes a gradient whose sum over the ranks depends on their order.
func fill[T dtype.Element](ctx context.Context, t shard.Tensor[T], rank, step int) error {
	n := t.Numel()
	wide, values := make([]float32, n), make([]T, n)
	for i := range wide {
		wide[i] = float32(1+i%13)/float32(3+rank) - float32(step+rank*rank)/7
	}
	dtype.Convert(dtype.Bytes(values), dtype.Of[T](), dtype.Bytes(wide), dtype.Float32, n)
	return t.CopyFrom(ctx, values)
}

// halve is an optimizer of the trainer's own.
func halve(ctx context.Context, all *shard.Shards) error {
	for s := range all.All() {
		if !s.Trainable {
			continue
		}
		values := make([]float32, s.Len)
		if err := shard.ReadValues(ctx, s, values); err != nil {
			return err
		}
		for i := range values {
			values[i] /= 2
		}
		if err := shard.WriteValues(ctx, s, values); err != nil {
			return err
		}
	}
	return nil
}

func hashShards(ctx context.Context, h hash.Hash, all *shard.Shards) error {
	for s := range all.All() {
		fmt.Fprintf(h, "%s %d %d %v\n", s.Name, s.Offset, s.Len, s.Type)
		if err := hashShard(ctx, h, s); err != nil {
			return err
		}
	}
	return nil
}

func hashShard(ctx context.Context, h hash.Hash, s shard.Shard) error {
	if s.Type == dtype.BFloat16 { // a frozen one, which has no master
		return hashValues(ctx, h, s, make([]dtype.BF16, s.Len))
	}
	return hashValues(ctx, h, s, make([]float32, s.Len))
}

func hashValues[T dtype.Element](ctx context.Context, h hash.Hash, s shard.Shard, values []T) error {
	err := shard.ReadValues(ctx, s, values)
	h.Write(dtype.Bytes(values))
	return err
}

// work trains and prints the hash.
func work(ctx context.Context, r *shard.Rank) error {
	sum, err := trained(ctx, r)
	if err == nil {
		fmt.Printf("rank %d of %d: %s\n", r.Rank(), r.Size(), sum)
	}
	return err
}

// inPass returns what a rank does that comes to a block of a forward pass and
// calls there before it gathers it.
func inPass(there func(r *shard.Rank, block int) error) func(context.Context, *shard.Rank) error {
	return func(ctx context.Context, r *shard.Rank) (err error) {
		m, err := tiny.Open(ctx, r, tiny.Options{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		if err := m.Init(ctx, 7); err != nil {
			return err
		}
		err = forward(ctx, m, func(block int) error { return there(r, block) })
		fmt.Printf("in the pass: %v\n", err)
		return err
	}
}

// waits notes that the rank is about to gather a block that another one will not.
func waits(r *shard.Rank, block int) error {
	if block < 2 {
		return nil
	}
	return os.WriteFile(filepath.Join(os.Getenv(folderVariable), fmt.Sprint("waits.", r.Rank())), nil, 0o600)
}

// ends returns what a rank does that ends at block 1, once the others wait for
// it. The gather of block 1 was prefetched.
func ends(end func() error) func(*shard.Rank, int) error {
	return func(r *shard.Rank, block int) error {
		if block != 1 {
			return nil
		}
		for start := time.Now(); time.Since(start) < processWait/2; time.Sleep(time.Millisecond) {
			waiting, err := filepath.Glob(filepath.Join(os.Getenv(folderVariable), "waits.*"))
			if err != nil {
				return err
			}
			if len(waiting) == r.Size()-1 {
				time.Sleep(300 * time.Millisecond)
				return end()
			}
		}
		return errors.New("the other ranks do not come to the gather")
	}
}

func die() error {
	return syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// sleep does not even look at its context.
func sleep() error {
	time.Sleep(time.Minute)
	return nil
}
