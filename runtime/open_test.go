package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/fake"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/random"
)

func TestOpenRefusesRanksWithDifferentPlans(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "b", params: []param{f32("w", 8)}}}}
	one, two := tm.descriptor(t), tm.descriptor(t)
	two.Worlds[0].PlanHash = "another"
	onBackends(t, func(t *testing.T, b *backend) {
		errs := make([]error, 2)
		err := Run(context.Background(), b.launcher(2, time.Minute), func(ctx context.Context, rank *Rank) error {
			d := one
			if rank.Rank() == 1 {
				d = two
			}
			_, errs[rank.Rank()] = Open(ctx, rank, d, Options{})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for r, err := range errs {
			if err == nil || !strings.Contains(err.Error(), "hash-2") || !strings.Contains(err.Error(), "another") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

func TestOpenRefusesAWorldSizeOutsideThePlan(t *testing.T) {
	tm := testModel{worlds: []int64{2, 4}, blocks: []testBlock{{name: "b", params: []param{f32("w", 8)}}}}
	onBackends(t, func(t *testing.T, b *backend) {
		err := b.run(1, tm.descriptor(t), func(context.Context, *Model) error { return nil })
		if err == nil || !strings.Contains(err.Error(), "1 ranks") || !strings.Contains(err.Error(), "2, 4") {
			t.Fatal(err)
		}
	})
}

func TestARankThatNeverOpensIsNamed(t *testing.T) {
	d := trainable(2).descriptor(t)
	onBackends(t, func(t *testing.T, b *backend) {
		given := make(chan struct{}) // rank 0 has its error
		var err error
		_ = Run(context.Background(), b.launcher(2, b.short), func(ctx context.Context, rank *Rank) error {
			if rank.Rank() == 1 {
				<-given
				return nil
			}
			defer close(given)
			_, err = Open(ctx, rank, d, Options{})
			return err
		})
		var failed *comm.Error
		if !errors.As(err, &failed) || len(failed.Missing) != 1 || failed.Missing[0] != 1 {
			t.Errorf("rank 0: %v", err)
		}
	})
}

func TestClosingInAPassEndsIt(t *testing.T) {
	mustRun(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		b, g, err := p.GatherWithGrads(0, 2)
		if err != nil {
			return err
		}
		x := Param[float32](b, 0, 0, 0)
		for range 2 {
			if err := m.Close(); err != nil {
				return fmt.Errorf("Close: %w", err)
			}
		}
		for what, f := range map[string]func(){"read": func() { x.Host() }, "release": b.Release, "reduce": g.Reduce} {
			if err := wantStateError(f, ""); err != nil {
				return fmt.Errorf("%s after Close: %w", what, err)
			}
		}
		for what, err := range map[string]error{
			"End": p.End(), "Forward": m.Forward(ctx).End(), "Init": m.Init(ctx, 1), "ZeroGrad": m.ZeroGrad(), "Freeze": m.Freeze("*"),
			"Update": m.Update(ctx, func(*Shards) error { return nil }),
		} {
			var state *StateError
			if !errors.As(err, &state) || !strings.Contains(err.Error(), "closed") {
				return fmt.Errorf("%s after Close: %w", what, err)
			}
		}
		return nil
	})
}

// stingy is a CPU with a limit, which counts what is not given back.
type stingy struct {
	device.Device
	limitBytes int64
	usedBytes  int64
}

func (d *stingy) Alloc(bytes int64) (device.Memory, error) {
	if bytes > d.limitBytes {
		return device.Memory{}, fmt.Errorf("no room for %d bytes", bytes)
	}
	d.usedBytes += bytes
	return d.Device.Alloc(bytes)
}

func (d *stingy) Free(m device.Memory) error {
	d.usedBytes -= m.Bytes()
	return d.Device.Free(m)
}

func TestARankThatCanNotOpenTellsTheOthersWhy(t *testing.T) {
	tm := trainable(3)
	tm.blocks[0].params[0].shape = []int64{1000}
	good := tm.descriptor(t)
	changed := tm.descriptor(t)
	changed.Worlds[0].RestBytes++
	other := trainable(5).descriptor(t)
	for name, c := range map[string]struct {
		limitBytes int64
		descriptor *Descriptor
		words      string
	}{
		"no memory":    {2500 + 4*messageBytes, good, "rank 1 could not open it: allocating"},
		"other layout": {1 << 30, changed, "rank 1 could not open it: planned for"},
		"other world":  {1 << 30, other, "rank 1 could not open it: the communicator has 3 ranks, but the package is generated for 5"},
	} {
		t.Run(name, func(t *testing.T) {
			errs, devices := make([]error, 3), make([]*stingy, 3)
			l := LocalRanks{Ranks: 3, Timeout: 3 * time.Second, Device: func(r int) (device.Device, error) {
				devices[r] = &stingy{Device: cpu.Poisoned(), limitBytes: 1 << 30}
				if r == 1 {
					devices[r].limitBytes = c.limitBytes
				}
				return devices[r], nil
			}}
			err := Run(t.Context(), l, func(ctx context.Context, rank *Rank) error {
				d := good
				if rank.Rank() == 1 {
					d = c.descriptor
				}
				_, errs[rank.Rank()] = Open(ctx, rank, d, Options{})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			for r, err := range errs {
				if err == nil || !strings.Contains(err.Error(), c.words) {
					t.Errorf("rank %d: %v", r, err)
				}
				if devices[r].usedBytes != 0 {
					t.Errorf("rank %d keeps %d bytes", r, devices[r].usedBytes)
				}
			}
		})
	}
}

func TestModelsOpenedInAnotherOrderAreToldApart(t *testing.T) {
	one, two := trainable(2).descriptor(t), trainable(2).descriptor(t)
	two.Worlds[0].PlanHash = "other"
	onBackends(t, func(t *testing.T, b *backend) {
		err := Run(t.Context(), b.launcher(2, time.Minute), func(ctx context.Context, rank *Rank) error {
			order := []*Descriptor{one, two}
			if rank.Rank() == 1 {
				order = []*Descriptor{two, one}
			}
			for _, d := range order {
				m, err := Open(ctx, rank, d, Options{})
				if err != nil {
					return err
				}
				defer m.Close()
			}
			return nil
		})
		if err == nil || !strings.Contains(err.Error(), "rank 0 has plan hash-2 (test), rank 1 has plan other (test)") {
			t.Fatal(err)
		}
	})
}

func TestOpenRefusesWhatIsNotThere(t *testing.T) {
	d := trainable(1).descriptor(t)
	rank, err := NewRank(fake.New(0, 1), cpu.New())
	if err != nil {
		t.Fatal(err)
	}
	for name, open := range map[string]func() (*Model, error){
		"context":    func() (*Model, error) { return Open(nil, rank, d, Options{}) },
		"rank":       func() (*Model, error) { return Open(t.Context(), nil, d, Options{}) },
		"zero rank":  func() (*Model, error) { return Open(t.Context(), &Rank{}, d, Options{}) },
		"descriptor": func() (*Model, error) { return Open(t.Context(), rank, nil, Options{}) },
		"worlds":     func() (*Model, error) { return Open(t.Context(), rank, &Descriptor{Layout: d.Layout}, Options{}) },
	} {
		if m, err := open(); m != nil || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACancelledOpenFreesItsMemory(t *testing.T) {
	d := trainable(2).descriptor(t)
	onBackends(t, func(t *testing.T, b *backend) {
		ctx, cancel := context.WithCancel(t.Context())
		errs := make([]error, 2)
		_ = Run(context.Background(), b.launcher(2, time.Minute), func(_ context.Context, rank *Rank) error {
			if rank.Rank() == 1 {
				time.Sleep(20 * time.Millisecond)
				cancel()
				time.Sleep(20 * time.Millisecond)
			}
			_, errs[rank.Rank()] = Open(ctx, rank, d, Options{})
			return nil
		})
		for r, err := range errs {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

func TestCloseWaitsForPeersThatReadItsMemory(t *testing.T) {
	tm := trainable(2)
	tm.blocks[0].params[0].shape = []int64{200_000}
	tm.prefetch = 1
	d := tm.descriptor(t)
	for round := range 10 {
		mustRun(t, 2, d, func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			p := m.Forward(ctx)
			if m.rank.Rank() == round%2 {
				m.rank.mu.Lock()
				m.pass.cursor = 0
				m.fetch(&m.blocks[0])
				m.fetch(&m.blocks[1])
				m.rank.mu.Unlock()
				return m.Close() // its shard is on the way to the other rank
			}
			b, err := p.Gather(0, 0)
			if err != nil {
				return err
			}
			if err := expect(ctx, Param[float32](b, 0, 0, 0)); err != nil {
				return err
			}
			b.Release()
			return m.Close()
		})
	}
}

func TestInitRefusesRanksWithDifferentSeeds(t *testing.T) {
	ones := &random.Distribution{Kind: random.Ones}
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "b", params: []param{{name: "w", shape: []int64{9}, dtype: dtype.Float32, init: ones}}}}}
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		err := m.Init(ctx, uint64(7+m.rank.Rank()))
		if err == nil || !strings.Contains(err.Error(), "seed 7") || !strings.Contains(err.Error(), "rank 1 has 8") {
			return fmt.Errorf("different seeds: %w", err)
		}
		return m.Init(ctx, 7)
	})
}
