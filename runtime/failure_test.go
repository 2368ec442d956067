package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/layout"
	"github.com/shardgen/shardgen/runtime/optim"
)

// gatherLate is a gather to which rank 1 comes when come returns; so are the next
// two for a reduction and a step.
func gatherLate(ctx context.Context, m *Model, come func()) error {
	if m.rank.Rank() == 1 {
		come()
	}
	p := m.Forward(ctx)
	b, err := p.Gather(0, 0)
	if err != nil {
		return err
	}
	b.Release()
	return p.End()
}

func reduceLate(ctx context.Context, m *Model, come func()) error {
	p := m.Backward(ctx)
	b, g, err := p.GatherWithGrads(0, 0)
	if err != nil {
		return err
	}
	if err := expect(ctx, Param[float32](b, 0, 0, 0)); err != nil { // all ranks have come to the gather
		return err
	}
	come()
	b.Release()
	g.Reduce()
	return p.End()
}

func stepLate(ctx context.Context, m *Model, come func()) error {
	come()
	_, err := m.StepAdamW(ctx, optim.AdamW{LR: 1})
	return err
}

func TestALateRankIsNamedAtTheDeadline(t *testing.T) {
	for _, c := range []struct {
		name  string
		op    comm.Operation
		about string
		call  func(ctx context.Context, m *Model, come func()) error
	}{
		{"gather", comm.AllGather, "h.0/f32", gatherLate},
		{"reduce", comm.ReduceScatter, "h.0/f32", reduceLate},
		{"step", comm.AllReduce, "gradient norm", stepLate},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBackends(t, func(t *testing.T, b *backend) {
				errs := make([]error, 2)
				given := make(chan struct{}) // rank 0 has its error
				start := time.Now()
				_ = b.runShort(2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
					r := m.rank.Rank()
					come := func() {}
					if r == 1 {
						come = func() { <-given }
					} else {
						defer close(given)
					}
					errs[r] = c.call(ctx, m, come)
					return errs[r]
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
		})
	}
}

func TestCancellingEndsEveryRank(t *testing.T) {
	onBackends(t, func(t *testing.T, b *backend) {
		ctx, cancel := context.WithCancel(context.Background())
		start := time.Now()
		err := Run(ctx, b.launcher(2, time.Minute), withModel(trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			if m.rank.Rank() == 1 {
				cancel()
				<-ctx.Done()
				return ctx.Err()
			}
			p := m.Forward(ctx)
			b, gathered := p.Gather(0, 0)
			if gathered == nil {
				b.Release()
			}
			ended := p.End()
			if ended == nil {
				return errors.New("End of a pass without rank 1 returned nil")
			}
			if _, again := m.Forward(ctx).Gather(0, 0); again == nil {
				return errors.New("the model went on after a failed collective")
			}
			return errors.Join(gathered, ended)
		}))
		if !errors.Is(err, context.Canceled) || time.Since(start) > 2*time.Second {
			t.Fatalf("after %v: %v", time.Since(start), err)
		}
	})
}

func TestARankThatSkipsAGatherIsNamedBeforeTheDeadline(t *testing.T) {
	tm := testModel{worlds: []int64{2}, blocks: []testBlock{{name: "h.{i}", count: 3, params: []param{f32("h.{i}.w", 8)}}}}
	skip := func(ctx context.Context, m *Model) error {
		p := m.Forward(ctx)
		for i := m.rank.Rank(); i < 3; i++ {
			b, err := p.Gather(0, i)
			if err != nil {
				return err
			}
			b.Release()
		}
		return p.End()
	}
	onBackends(t, func(t *testing.T, b *backend) {
		start := time.Now()
		err := b.run(2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
			return errors.Join(fill(ctx, m), skip(ctx, m))
		})
		// NCCL does not know what it moves for which block: rank 1 leaves before rank
		// 0's last gather.
		want := map[string][]string{"cpu": {"h.0", "h.1"}, "cuda": {"all-gather of h.2/f32"}}[b.name]
		wantWords(t, err, want...)
		if spent := time.Since(start); spent > 2*time.Second {
			t.Errorf("it took %v", spent)
		}
	})
}

func TestRanksThatReduceAndDiscardAreToldApart(t *testing.T) {
	onBackends(t, func(t *testing.T, b *backend) {
		err := b.runShort(2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
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
		want := map[string][]string{"cpu": {"reduce-scatter", "all-gather"}, "cuda": {"ncclReduceScatter", "ncclAllGather"}}[b.name]
		wantWords(t, err, want...)
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
		return readAll(ctx, m.Eval(ctx), m.descriptor)
	})
}

func TestAPassThatIsCancelledOnOneRankWaitsForTheOthersAGrace(t *testing.T) {
	tm := trainable(2)
	tm.prefetch = 1
	stop := errors.New("enough")
	onBackends(t, func(t *testing.T, b *backend) {
		shortenGrace(t)
		start := time.Now()
		err := Run(context.Background(), b.launcher(2, time.Minute), withModel(tm.descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			limited, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			p := m.Forward(limited)
			if m.rank.Rank() == 1 {
				_, err := m.blockAlone(p)
				<-ctx.Done() // does not come to the prefetch of rank 0
				return errors.Join(err, context.Cause(ctx))
			}
			block, err := p.Gather(0, 0)
			if err != nil {
				return err
			}
			block.Release()
			cancel(stop)
			return p.End()
		}))
		if !errors.Is(err, stop) {
			t.Error(err)
		}
		if spent := time.Since(start); spent < grace || spent > grace+2*time.Second {
			t.Errorf("it took %v", spent)
		}
	})
}

func TestAModelWhoseCollectiveFailedStaysFailed(t *testing.T) {
	tm := testModel{worlds: []int64{2}, maxLive: 3, optimizer: layout.Optimizer{Kind: layout.AdamW, Masters: true}, blocks: []testBlock{
		{name: "a", params: []param{f32("a.w", 9)}}, {name: "b", params: []param{f32("b.w", 9)}}, {name: "c", params: []param{f32("c.w", 90)}},
	}}
	onBackends(t, func(t *testing.T, b *backend) {
		errs := make([]error, 2)
		_ = b.runShort(2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
			first, err := gatherDifferent(ctx, m)
			if first == nil {
				return errors.New("ranks that gather different blocks got no error")
			}
			for what, call := range everyCall(ctx, m) {
				if failed := call(); !errors.Is(failed, first) {
					err = errors.Join(err, fmt.Errorf("%s: %w", what, failed))
				}
			}
			errs[m.rank.Rank()] = errors.Join(err, m.Close(), m.Close())
			return first
		})
		for r, err := range errs {
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		}
	})
}

// gatherDifferent gathers the same block on all ranks, then not the same, and
// returns the model's first failure. err is what does not go as it must.
func gatherDifferent(ctx context.Context, m *Model) (first, err error) {
	p := m.Backward(ctx)
	b, g, err := p.GatherWithGrads(0, 0)
	if err != nil {
		return nil, err
	}
	x := Param[float32](b, 0, 0, 0)
	other, first := p.Gather(1+m.rank.Rank(), 0)
	if m.onHost() {
		err = expect(context.WithoutCancel(ctx), x) // what was gathered before stays
	}
	g.Reduce()
	b.Release()
	if first == nil { // where the host does not wait for it
		other.Release()
	}
	ended := p.End()
	if first == nil {
		first = ended
	}
	if !errors.Is(ended, first) {
		err = errors.Join(err, fmt.Errorf("End returned %w", ended))
	}
	return first, err
}

func TestCancellingAnywhereNeitherHangsNorLies(t *testing.T) {
	onBackends(t, func(t *testing.T, b *backend) {
		d := mixed(2).descriptor(t)
		rounds, step := 30, 100*time.Microsecond
		if b.name == "cuda" { // where everything takes longer
			rounds, step = 15, time.Millisecond
		}
		for round := range rounds {
			ctx, cancel := context.WithCancel(t.Context())
			var joined sync.WaitGroup
			joined.Add(2)
			err := Run(ctx, b.launcher(2, 5*time.Second), func(ctx context.Context, rank *Rank) error {
				joined.Done()
				joined.Wait()
				time.AfterFunc(time.Duration(round)*step, cancel)
				return withModel(d, trainForEver)(ctx, rank)
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("round %d: %v", round, err)
			}
		}
	})
}

func trainForEver(ctx context.Context, m *Model) error {
	err := fill(ctx, m)
	for scratch := make([]float32, 9); err == nil; {
		err = trainOnce(ctx, m, scratch)
	}
	return err
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
