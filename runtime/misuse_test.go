package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
)

// trainable is a model of three equal blocks with an optimizer.
func trainable(worlds ...int64) testModel {
	return testModel{worlds: worlds, optimizer: layout.Optimizer{Masters: true, Moments: 2}, blocks: []testBlock{
		{name: "h.{i}", count: 3, params: []param{f32("h.{i}.w", 9)}},
	}}
}

// runShort is run with a deadline of a collective that a test can wait for.
func runShort(n int, d *Descriptor, f func(ctx context.Context, m *Model) error) error {
	l := LocalRanks{Ranks: n, Timeout: 300 * time.Millisecond, Device: func(int) (device.Device, error) { return cpu.Poisoned(), nil }}
	return Run(context.Background(), l, func(ctx context.Context, rank *Rank) error {
		m, err := Open(ctx, rank, d, Options{})
		if err != nil {
			return err
		}
		defer m.Close()
		if err := fill(ctx, m); err != nil {
			return err
		}
		return f(ctx, m)
	})
}

func TestASleepingRankIsNamedAtTheDeadline(t *testing.T) {
	gather := func(ctx context.Context, m *Model) error { _, err := m.Forward(ctx).Gather(0, 0); return err }
	reduce := func(ctx context.Context, m *Model) error {
		p := m.Backward(ctx)
		b, g, err := p.GatherWithGrads(0, 0)
		if err != nil {
			return err
		}
		if m.rank.Rank() == 1 {
			time.Sleep(900 * time.Millisecond)
		}
		b.Release()
		g.Reduce()
		return p.End()
	}
	step := func(ctx context.Context, m *Model) error { _, err := m.StepAdamW(ctx, optim.AdamW{LR: 1}); return err }
	for _, c := range []struct {
		name  string
		op    comm.Operation
		about string
		sleep bool // rank 1 sleeps before the call
		call  func(context.Context, *Model) error
	}{
		{"gather", comm.AllGather, "h.0/f32", true, gather},
		{"reduce", comm.ReduceScatter, "h.0/f32", false, reduce},
		{"step", comm.AllReduce, "gradient norm", true, step},
	} {
		t.Run(c.name, func(t *testing.T) {
			errs := make([]error, 2)
			start := time.Now()
			_ = runShort(2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
				if c.sleep && m.rank.Rank() == 1 {
					time.Sleep(900 * time.Millisecond)
				}
				err := c.call(ctx, m)
				errs[m.rank.Rank()] = err
				return err
			})
			var failed *comm.Error
			if !errors.As(errs[0], &failed) || failed.Operation != c.op || !strings.Contains(failed.Subject, c.about) || len(failed.Missing) != 1 || failed.Missing[0] != 1 {
				t.Errorf("rank 0: %v", errs[0])
			}
			if errs[1] == nil {
				t.Error("the late rank got no error")
			}
			if spent := time.Since(start); spent > 3*time.Second {
				t.Errorf("it took %v", spent)
			}
		})
	}
}

func TestARankThatNeverOpensIsNamed(t *testing.T) {
	d := trainable(2).descriptor(t)
	var err error
	_ = Run(context.Background(), LocalRanks{Ranks: 2, Timeout: 200 * time.Millisecond}, func(ctx context.Context, rank *Rank) error {
		if rank.Rank() == 1 {
			time.Sleep(600 * time.Millisecond)
			return nil
		}
		_, err = Open(ctx, rank, d, Options{})
		return err
	})
	var failed *comm.Error
	if !errors.As(err, &failed) || len(failed.Missing) != 1 || failed.Missing[0] != 1 {
		t.Errorf("rank 0: %v", err)
	}
}

func TestCancellingEndsEveryRank(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	d := trainable(2).descriptor(t)
	start := time.Now()
	err := Run(ctx, Local(2), func(ctx context.Context, rank *Rank) error {
		m, err := Open(ctx, rank, d, Options{})
		if err != nil {
			return err
		}
		defer m.Close()
		if err := fill(ctx, m); err != nil {
			return err
		}
		if rank.Rank() == 1 {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		p := m.Forward(ctx)
		if _, err = p.Gather(0, 0); err == nil {
			return errors.New("the gather went on without rank 1")
		}
		if ended := p.End(); ended == nil {
			return errors.New("End of the failed pass returned nil")
		}
		if _, again := m.Forward(ctx).Gather(0, 0); again == nil {
			return errors.New("the model went on after a failed collective")
		}
		return err
	})
	if !errors.Is(err, context.Canceled) || time.Since(start) > 2*time.Second {
		t.Fatalf("after %v: %v", time.Since(start), err)
	}
}

func TestRanksThatReduceAndDiscardAreToldApart(t *testing.T) {
	err := runShort(2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		p := m.Backward(ctx)
		for i := 2; i >= 0; i-- {
			b, g, err := p.GatherWithGrads(0, i)
			if err != nil {
				return err
			}
			b.Release()
			if m.rank.Rank() == 0 {
				g.Reduce()
			} else {
				g.Discard()
			}
		}
		return p.End()
	})
	if err == nil || !strings.Contains(err.Error(), "reduce-scatter") || !strings.Contains(err.Error(), "all-gather") {
		t.Fatal(err)
	}
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

func TestZeroValuesAreRefused(t *testing.T) {
	if _, err := (Pass{}).Gather(0, 0); err == nil {
		t.Error("Gather of a zero Pass")
	}
	if _, _, err := (Pass{}).GatherWithGrads(0, 0); err == nil {
		t.Error("GatherWithGrads of a zero Pass")
	}
	if err := (Pass{}).End(); err == nil {
		t.Error("End of a zero Pass")
	}
	for what, f := range map[string]func(){
		"Release": Block{}.Release, "Reduce": Grads{}.Reduce, "Discard": Grads{}.Discard,
		"Host": func() { Tensor[float32]{}.Host() }, "DevicePtr": func() { Tensor[float32]{}.DevicePtr() },
	} {
		if err := wantStateError(f, ""); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if (Tensor[float32]{}).Planned() || (Tensor[float32]{}).Numel() != 0 {
		t.Error("a zero Tensor claims to be there")
	}
}

func TestAFailedOrPanickingUpdateLeavesTheModelUsable(t *testing.T) {
	mustRun(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		if _, err := m.Forward(ctx).Gather(0, 0); err == nil || !strings.Contains(err.Error(), "no values yet") {
			return fmt.Errorf("gather before Init: %w", err)
		}
		if err := m.Init(ctx, 1); err == nil || !strings.Contains(err.Error(), "h.0.w") {
			return fmt.Errorf("Init without inits: %w", err)
		}
		if err := fill(ctx, m); err != nil {
			return err
		}
		boom := errors.New("boom")
		if err := m.Update(ctx, func(*Shards) error { return boom }); !errors.Is(err, boom) {
			return err
		}
		var kept *Shards
		func() {
			defer func() { _ = recover() }()
			_ = m.Update(ctx, func(s *Shards) error { kept = s; panic(boom) })
		}()
		if err := wantStateError(func() { kept.All()(func(Shard) bool { return true }) }, "returned"); err != nil {
			return err
		}
		return readAll(m, m.Eval(ctx), m.descriptor)
	})
}

func TestTwoModelsOnOneRankDoNotMeet(t *testing.T) {
	one, two := trainable(2).descriptor(t), trainable(2).descriptor(t)
	mustRun(t, 2, one, func(ctx context.Context, m *Model) error {
		other, err := Open(ctx, m.rank, two, Options{})
		if err != nil {
			return err
		}
		defer other.Close()
		for _, model := range []*Model{m, other} {
			if err := fill(ctx, model); err != nil {
				return err
			}
		}
		a, b := m.Forward(ctx), other.Forward(ctx)
		x, err := a.Gather(0, 0)
		if err != nil {
			return err
		}
		y, err := b.Gather(0, 1)
		if err != nil {
			return err
		}
		if err := errors.Join(expect(Param[float32](x, 0, 0, 0)), expect(Param[float32](y, 0, 0, 0))); err != nil {
			return err
		}
		x.Release()
		y.Release()
		return errors.Join(a.End(), b.End())
	})
}

func TestGathersFromManyGoroutinesAreSafe(t *testing.T) {
	tm := trainable(1)
	tm.maxLive = 3
	mustRun(t, 1, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Forward(ctx)
		errs := make(chan error)
		for g := range 6 {
			go func() {
				b, err := p.Gather(0, g%3)
				if err == nil {
					err = expect(Param[float32](b, 0, 0, 0))
					b.Release()
				}
				errs <- err
			}()
		}
		for range 6 {
			if err := <-errs; err != nil {
				return err
			}
		}
		return p.End()
	})
}

func TestRunRefusesNoRanksAndLeavesNoGoroutines(t *testing.T) {
	if err := Run(context.Background(), Local(0), func(context.Context, *Rank) error { return nil }); err == nil || !strings.Contains(err.Error(), "at least 1") {
		t.Error(err)
	}
	before := runtime.NumGoroutine()
	for range 5 {
		_ = run(t, 3, trainable(3).descriptor(t), func(ctx context.Context, m *Model) error {
			if m.rank.Rank() == 2 {
				return errors.New("no")
			}
			return fill(ctx, m)
		})
	}
	for range 50 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines before, %d after", before, runtime.NumGoroutine())
}
