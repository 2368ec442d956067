package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/optim"
)

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
			if !errors.As(errs[0], &failed) || failed.Operation != c.op || !strings.Contains(failed.Subject, c.about) || failed.Sequence == 0 || len(failed.Missing) != 1 || failed.Missing[0] != 1 {
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

func TestARankThatSkipsAGatherIsNamedBeforeTheDeadline(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "h.{i}", count: 3, params: []param{f32("h.{i}.w", 8)}}}}
	start := time.Now()
	err := run(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Forward(ctx)
		for i := m.rank.Rank(); i < 3; i++ {
			b, err := p.Gather(0, i)
			if err != nil {
				return err
			}
			b.Release()
		}
		return p.End()
	})
	if err == nil || !strings.Contains(err.Error(), "h.0") || !strings.Contains(err.Error(), "h.1") || time.Since(start) > 2*time.Second {
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

func TestAPassThatIsCancelledEverywhereLeavesTheModelUsable(t *testing.T) {
	filled(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		stop := errors.New("enough")
		limited, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		p := m.Forward(limited)
		b, err := p.Gather(0, 0)
		if err != nil {
			return err
		}
		cancel(stop)
		_, err = p.Gather(0, 1)
		if !errors.Is(err, stop) || !strings.Contains(err.Error(), "gather in the forward pass") {
			return fmt.Errorf("gather after the end of its context: %w", err)
		}
		b.Release()
		if ended := p.End(); !errors.Is(ended, err) {
			return fmt.Errorf("End returned %w", ended)
		}
		for what, call := range everyCall(limited, m) {
			if err := call(); !errors.Is(err, stop) && !slices.Contains([]string{"ZeroGrad", "Freeze", "Unfreeze"}, what) {
				return fmt.Errorf("%s with a context that has ended: %w", what, err)
			}
		}
		return readAll(m, m.Eval(ctx), m.descriptor)
	})
}

func TestAModelWhoseCollectiveFailedStaysFailed(t *testing.T) {
	tm := trainable(2)
	tm.maxLive = 3
	errs := make([]error, 2)
	_ = runShort(2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		r := m.rank.Rank()
		p := m.Backward(ctx)
		b, g, err := p.GatherWithGrads(0, 0)
		if err != nil {
			return err
		}
		x := Param[float32](b, 0, 0, 0)
		_, first := p.Gather(0, 1+r) // not the same block on both ranks
		if first == nil {
			return errors.New("ranks that gather different blocks got no error")
		}
		if err := expect(x); err != nil {
			errs[r] = fmt.Errorf("what was gathered before: %w", err)
		}
		g.Reduce()
		b.Release()
		if ended := p.End(); !errors.Is(ended, first) {
			errs[r] = errors.Join(errs[r], fmt.Errorf("End returned %w", ended))
		}
		for what, call := range everyCall(ctx, m) {
			if err := call(); !errors.Is(err, first) {
				errs[r] = errors.Join(errs[r], fmt.Errorf("%s: %w", what, err))
			}
		}
		errs[r] = errors.Join(errs[r], m.Close(), m.Close())
		return first
	})
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

func TestCancellingAnywhereNeitherHangsNorLies(t *testing.T) {
	d := mixed(2).descriptor(t)
	for round := range 30 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Duration(round*100)*time.Microsecond, context.Canceled)
		err := Run(ctx, LocalRanks{Ranks: 2, Timeout: 5 * time.Second}, func(ctx context.Context, rank *Rank) error {
			m, err := Open(ctx, rank, d, Options{})
			if err != nil {
				return err
			}
			defer m.Close()
			err = fill(ctx, m)
			for err == nil {
				err = trainOnce(ctx, m)
			}
			return err
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("round %d: %v", round, err)
		}
		cancel()
	}
}

func TestClosingWithoutEndingThePassIsClean(t *testing.T) {
	tm := mixed(2)
	mustRun(t, 2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		if _, _, err := p.GatherWithGrads(0, 3); err != nil {
			return err
		}
		_, g, err := p.GatherWithGrads(0, 2)
		if err != nil {
			return err
		}
		g.Reduce()
		if err := m.Close(); err != nil {
			return err
		}
		if got := m.Memory().AllocatedBytes; got != 0 {
			return fmt.Errorf("%d bytes are left", got)
		}
		return wantMisuse(p.End(), "closed")
	})
}
