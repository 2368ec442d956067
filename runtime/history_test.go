package shard

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/optim"
)

// onRank1 runs one of two calls.
func onRank1(m *Model, one, other func() error) error {
	if m.rank.Rank() == 1 {
		return other()
	}
	return one()
}

func TestRanksThatDidDifferentThingsAreTold(t *testing.T) {
	step := func(ctx context.Context, m *Model, o optim.AdamW) error { _, err := m.StepAdamW(ctx, o); return err }
	for name, c := range map[string]struct {
		call func(context.Context, *Model) error
		want string
		cuda string // on GPUs, where that is another: NCCL does not compare what is summed
	}{
		"another learning rate": {func(ctx context.Context, m *Model) error {
			return onRank1(m, func() error { return step(ctx, m, optim.AdamW{LR: 1}) }, func() error { return step(ctx, m, optim.AdamW{LR: 2}) })
		}, "rank 0 did Step, rank 1 the same with other arguments", ""},
		"another loss scale": {func(ctx context.Context, m *Model) error {
			return onRank1(m, func() error { return step(ctx, m, optim.AdamW{}) }, func() error { return step(ctx, m, optim.AdamW{LossScale: 2}) })
		}, "rank 0 did Step, rank 1 the same with other arguments", ""},
		"another parameter frozen": {func(ctx context.Context, m *Model) error {
			err := onRank1(m, func() error { return m.Freeze("h.0.*") }, func() error { return m.Freeze("h.1.*") })
			return errors.Join(err, step(ctx, m, optim.AdamW{}))
		}, "rank 0 did Freeze, rank 1 the same with other arguments", ""},
		"one rank forgets the gradients": {func(ctx context.Context, m *Model) error {
			return errors.Join(onRank1(m, m.ZeroGrad, func() error { return nil }), step(ctx, m, optim.AdamW{}))
		}, "rank 0 did ZeroGrad, rank 1 Step", ""},
		"unscaled instead of stepped": {func(ctx context.Context, m *Model) error {
			return onRank1(m, func() error { return step(ctx, m, optim.AdamW{}) }, func() error { _, err := m.Unscale(ctx, 0, 0); return err })
		}, "rank 0 did Step, rank 1 Unscale", ""},
		"unscaled by another factor": {func(ctx context.Context, m *Model) error {
			return onRank1(m, func() error { _, err := m.Unscale(ctx, 2, 0); return err }, func() error { _, err := m.Unscale(ctx, 4, 0); return err })
		}, "rank 0 did Unscale, rank 1 the same with other arguments", ""},
		"clipped to another norm": {func(ctx context.Context, m *Model) error {
			return onRank1(m, func() error { _, err := m.Unscale(ctx, 0, 2); return err }, func() error { _, err := m.Unscale(ctx, 0, 1); return err })
		}, "rank 0 did Unscale, rank 1 the same with other arguments", ""},
		"another kind of pass": {func(ctx context.Context, m *Model) error {
			p := m.Forward(ctx)
			if m.rank.Rank() == 1 {
				_ = p.End()
				p = m.Eval(ctx)
			} else {
				_ = p.End()
				p = m.Forward(ctx)
			}
			return errors.Join(p.End(), step(ctx, m, optim.AdamW{}))
		}, "rank 0 did Forward, rank 1 Eval", ""},
		"sums of other things": {func(ctx context.Context, m *Model) error {
			what := []string{"the loss", "the count"}
			x := []float64{1}
			first, second := what[m.rank.Rank()], what[1-m.rank.Rank()]
			return errors.Join(m.rank.Sum(ctx, first, x), m.rank.Sum(ctx, second, x), step(ctx, m, optim.AdamW{}))
		}, "the ranks disagree: rank 0 wants all-reduce of the loss", "rank 0 did a sum, rank 1 the same with other arguments"},
		"an update instead of a step": {func(ctx context.Context, m *Model) error {
			return onRank1(m, func() error { return step(ctx, m, optim.AdamW{}) }, func() error { return m.Update(ctx, func(*Shards) error { return nil }) })
		}, "the ranks disagree: rank 0 wants all-reduce of the gradient norm", "rank 0 did Step, rank 1 Update"},
		"a block is skipped, which a prefetch hides": {func(ctx context.Context, m *Model) error {
			p := m.Forward(ctx)
			for i := range 3 {
				if i == 1 && m.rank.Rank() == 1 {
					continue
				}
				b, err := p.Gather(0, i)
				if err != nil {
					return err
				}
				b.Release()
			}
			return errors.Join(p.End(), step(ctx, m, optim.AdamW{}))
		}, "rank 0 did the gather of block h.1, rank 1 the gather of block h.2", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tm := trainable(2)
			tm.prefetch = 1
			onBackends(t, func(t *testing.T, b *backend) {
				errs := make([]error, 2)
				err := b.runShort(2, tm.descriptor(t), func(ctx context.Context, m *Model) error {
					errs[m.rank.Rank()] = c.call(ctx, m)
					return errs[m.rank.Rank()]
				})
				if err == nil {
					t.Fatal("nobody noticed")
				}
				want := c.want
				if b.name == "cuda" && c.cuda != "" {
					want = c.cuda
				}
				for r, e := range errs {
					if e == nil || !strings.Contains(e.Error(), want) {
						t.Errorf("rank %d: %v, want %q", r, e, want)
					}
				}
			})
		})
	}
}

func TestTwoModelsOfOnePackageAreToldApart(t *testing.T) {
	d := trainable(2).descriptor(t)
	onBackends(t, func(t *testing.T, b *backend) {
		err := b.runShort(2, d, func(ctx context.Context, first *Model) error {
			second, err := Open(ctx, first.rank, d, Options{})
			if err != nil {
				return err
			}
			defer second.Close()
			if err := fill(ctx, second); err != nil {
				return err
			}
			order := []*Model{first, second}
			if first.rank.Rank() == 1 {
				order = []*Model{second, first}
			}
			for _, m := range order {
				p := m.Forward(ctx)
				b, err := p.Gather(0, 0)
				if err != nil {
					return err
				}
				b.Release()
				if err := p.End(); err != nil {
					return err
				}
			}
			_, err = first.StepAdamW(ctx, optim.AdamW{})
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "rank 0 did Forward, rank 1 Forward of the rank's model 2") {
			t.Errorf("error %v", err)
		}
	})
}

func TestADifferenceThatIsLongAgoIsStillFound(t *testing.T) {
	onBackends(t, func(t *testing.T, b *backend) {
		err := b.runShort(2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
			if m.rank.Rank() == 1 {
				if err := m.ZeroGrad(); err != nil {
					return err
				}
			} else if err := m.Freeze("h.0.w"); err != nil {
				return err
			}
			for range 2 * remembered {
				if err := m.ZeroGrad(); err != nil {
					return err
				}
			}
			_, err := m.StepAdamW(ctx, optim.AdamW{})
			return err
		})
		if err == nil || !strings.Contains(err.Error(), "in what is more than 64 acts ago") {
			t.Errorf("error %v", err)
		}
	})
}

// Every field of the hyperparameters counts.
func TestStepsCompareAllHyperparameters(t *testing.T) {
	for _, o := range []any{optim.AdamW{}, optim.SGD{}} {
		for i := range reflect.TypeOf(o).NumField() {
			changed := reflect.New(reflect.TypeOf(o)).Elem()
			if f := changed.Field(i); f.Kind() == reflect.Bool {
				f.SetBool(true)
			} else {
				f.SetFloat(0.5)
			}
			if callDigest(o) == callDigest(changed.Interface()) {
				t.Errorf("%T.%s is not compared", o, reflect.TypeOf(o).Field(i).Name)
			}
		}
	}
}

func callDigest(o any) digest {
	if a, ok := o.(optim.AdamW); ok {
		return adamWDigest(a)
	}
	return sgdDigest(o.(optim.SGD))
}

func TestSumsOfUnequalNumbersAreTold(t *testing.T) {
	for _, c := range []struct {
		x    []uint64
		want bool
	}{
		{[]uint64{5}, true}, {[]uint64{5, 5, 5}, true}, {[]uint64{0, 0}, true},
		{[]uint64{4, 6}, false}, {[]uint64{1, 5, 3}, false}, {[]uint64{0, 1<<20 - 1}, false},
	} {
		var sum, squares float64
		for _, x := range c.x {
			sum, squares = sum+float64(x), squares+float64(x*x)
		}
		b := appendFloats(nil, sum, squares)
		if got := sumsOfEqual(b, uint64(len(c.x))); got != c.want {
			t.Errorf("%v: %t", c.x, got)
		}
	}
}

func TestCloseInAPassDoesNotWaitForThoseWhoDoNotCome(t *testing.T) {
	tm := trainable(2)
	tm.prefetch = 1
	failed := errors.New("rank 0 fails")
	onBackends(t, func(t *testing.T, b *backend) {
		shortenGrace(t)
		start := time.Now()
		err := Run(context.Background(), b.launcher(2, time.Minute), withModel(tm.descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			p := m.Forward(ctx)
			if m.rank.Rank() == 0 {
				if _, err := p.Gather(0, 0); err != nil { // its prefetch is in flight now
					return err
				}
				return failed
			}
			if _, err := m.blockAlone(p); err != nil {
				return err
			}
			<-ctx.Done() // does not come to the prefetch of rank 0
			return context.Cause(ctx)
		}))
		if !errors.Is(err, failed) {
			t.Errorf("error %v", err)
		}
		if spent := time.Since(start); spent < grace || spent > grace+2*time.Second {
			t.Errorf("it took %v", spent)
		}
	})
}

// blockAlone gathers the first block without a prefetch behind it.
func (m *Model) blockAlone(p Pass) (Block, error) {
	m.rank.mu.Lock()
	m.pass.cursor = len(m.blocks)
	b := &m.blocks[0]
	m.fetch(b)
	ticket := m.admit(b)
	err := m.await(b)
	m.rank.mu.Unlock()
	return Block{m: m, position: 0, ticket: ticket}, err
}

func TestGradientsOfAFailedPassAreNotStepped(t *testing.T) {
	mustRun(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		p := m.Backward(ctx)
		b, g, err := p.GatherWithGrads(0, 2)
		if err != nil {
			return err
		}
		b.Release()
		g.Reduce()
		if _, _, err := p.GatherWithGrads(0, 7); err == nil {
			t.Error("there is a block 7")
		}
		if err := p.End(); err == nil {
			t.Error("End does not return the pass's error")
		}
		want := "the last backward pass failed, so its gradients are incomplete; call ZeroGrad"
		_, stepped := m.StepAdamW(ctx, optim.AdamW{})
		_, unscaled := m.Unscale(ctx, 0, 0)
		_, gathered := m.Backward(ctx).Gather(0, 0)
		updated := m.Update(ctx, func(*Shards) error { return nil })
		for _, err := range []error{stepped, unscaled, gathered, updated} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want %q", err, want)
			}
		}
		if err := m.ZeroGrad(); err != nil {
			return err
		}
		_, err = m.StepAdamW(ctx, optim.AdamW{})
		return err
	})
}

// Sums over the largest group of a piece and of its square are exact in f64.
func TestSumsOfPiecesAreExactForAllRanks(t *testing.T) {
	const maxRanks, piece int64 = 65536, 1<<pieceBits - 1
	if sum := piece * piece * maxRanks; sum > 1<<53 {
		t.Errorf("%d ranks with the largest piece give %d", maxRanks, sum)
	}
}
