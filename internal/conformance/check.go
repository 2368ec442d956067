package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/spec"
)

// Package is a generated package and the spec that it comes from.
type Package struct {
	Spec       string // path
	Shrunk     bool   // generated after [Shrink]
	Open       func(context.Context, *shard.Rank) (any, error)
	Descriptor func() *shard.Descriptor
	CUDA       string // folder with its CUDA source; empty where it runs on the CPU only
	Thorough   bool   // runs on emulated GPUs at every world size and under every schedule, not only once
}

// Load reads a spec, as a package with these settings is generated from it.
func Load(path string, shrunk bool) (*spec.Model, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, faults := spec.Parse(path, source)
	if len(faults) > 0 {
		return nil, fmt.Errorf("%s: %v", path, faults)
	}
	if shrunk {
		Shrink(m)
	}
	return m, nil
}

// CheckAll runs every package at each world size of its spec that fits one
// process, and returns all that differs from the spec. With a machine, packages
// with CUDA source run on that too, and must leave the same bits there.
func CheckAll(ctx context.Context, packages []Package, m *emulated.Machine) error {
	if err := compile(ctx, packages, m); err != nil {
		return err
	}
	errs := make([]error, len(packages))
	var turn sync.Mutex // there is one machine
	var wait sync.WaitGroup
	for _, thorough := range []bool{false, true} {
		wait.Go(func() {
			for i, p := range packages {
				if p.Thorough == thorough {
					errs[i] = p.check(ctx, m, &turn)
				}
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// check runs a package at every world size, and on the machine when it is its
// turn.
func (p Package) check(ctx context.Context, m *emulated.Machine, turn *sync.Mutex) error {
	s, err := Load(p.Spec, p.Shrunk)
	if err != nil {
		return err
	}
	o, err := NewOracle(s)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Spec, err)
	}
	var all []error
	for _, world := range o.worlds() {
		want, err := o.Check(ctx, p, world, CPU(world))
		if schedules := o.schedules(p, world); err == nil && m != nil && len(schedules) > 0 {
			turn.Lock()
			err = o.emulate(ctx, p, world, m, schedules, want)
			turn.Unlock()
		}
		if err != nil {
			all = append(all, fmt.Errorf("%s at %d ranks: %w", p.Spec, world, err))
		}
	}
	return errors.Join(all...)
}

// CPU launches ranks in this process whose fresh memory is garbage.
func CPU(world int) shard.Launcher {
	return shard.LocalRanks{
		Ranks: world, Timeout: 20 * time.Second,
		Device: func(int) (device.Device, error) { return cpu.Poisoned(), nil },
	}
}

// Check runs a package at one world size, and returns what each rank had.
func (o *Oracle) Check(ctx context.Context, p Package, world int, l shard.Launcher) ([]*Record, error) {
	want, err := o.expect(world)
	if err != nil {
		return nil, err
	}
	owned := &ownership{ranges: map[string][]span{}}
	records := make([]*Record, world)
	err = shard.Run(ctx, l, func(ctx context.Context, rank *shard.Rank) error {
		opened, err := p.Open(ctx, rank)
		if err != nil {
			return err
		}
		m, ok := opened.(model)
		if !ok {
			return fmt.Errorf("%T lacks a method that every model has", opened)
		}
		c := &checker{oracle: o, want: want, model: m, rank: rank.Rank(), owned: owned, record: newRecord()}
		records[c.rank] = c.record
		return errors.Join(c.on(ctx, rank), m.Close())
	})
	if err != nil {
		return nil, err
	}
	return records, owned.tile(o)
}

// checker follows one rank through the run that an expectation describes.
type checker struct {
	oracle *Oracle
	want   *expectation
	model  model
	rank   int
	reach  reach
	late   late
	owned  *ownership
	record *Record
}

// on goes through the run on a rank.
func (c *checker) on(ctx context.Context, rank *shard.Rank) error {
	var err error
	if c.reach, err = reachOf(rank.Device()); err != nil {
		return err
	}
	if c.late, err = c.oracle.newLate(rank.Device(), rank.Stream()); err != nil {
		return err
	}
	return errors.Join(c.run(ctx), c.late.close())
}

func (c *checker) run(ctx context.Context) error {
	stages := []struct {
		name string
		run  func(context.Context) error
	}{
		{"filling", c.fill},
		{"reading", c.read},
		{"accumulating gradients", c.accumulateTwice},
		{"stepping", c.steps},
		{"init", c.init},
	}
	for _, s := range stages {
		if err := errors.Join(s.run(ctx), c.note(ctx, s.name)); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// fill writes wild values and records who owns what. The values come by the
// compute stream, and reading must wait for them.
func (c *checker) fill(ctx context.Context) error {
	err := c.eachShard(ctx, func(w *Owner, s shard.Shard) error {
		c.owned.add(s)
		value, t := c.want.wild[w], c.oracle.valueType(w)
		if t != w.Type {
			value = convert(value, w.Type, t)
		}
		mine := part(value, s, t.Bytes())
		if err := c.late.write(ctx, s.Value, mine); err != nil {
			return err
		}
		got, err := values(ctx, s)
		return errors.Join(err, difference("shard of "+w.Name, got, mine, t))
	})
	return errors.Join(err, c.late.end(ctx, c.record))
}

// eachShard visits this rank's shards in an Update.
func (c *checker) eachShard(ctx context.Context, visit func(*Owner, shard.Shard) error) error {
	return c.model.Update(ctx, func(shards *shard.Shards) error {
		for s := range shards.All() {
			w := c.oracle.byName[s.Name]
			if w == nil {
				return fmt.Errorf("a shard is named %q, which the spec does not declare as an owner", s.Name)
			}
			if err := c.describes(s, w); err != nil {
				return err
			}
			if err := visit(w, s); err != nil {
				return err
			}
		}
		return nil
	})
}

// describes compares what a shard says of itself with the spec.
func (c *checker) describes(s shard.Shard, w *Owner) error {
	t := c.oracle.valueType(w)
	if !slices.Equal(s.Shape, w.Shape) || s.Type != t || s.Trainable != w.Trainable || s.Decay != w.Decay || s.Frozen {
		return fmt.Errorf("shard of %s is %v %s, trainable %t, decay %t, frozen %t, want %v %s, %t, %t, false",
			w.Name, s.Shape, s.Type, s.Trainable, s.Decay, s.Frozen, w.Shape, t, w.Trainable, w.Decay)
	}
	if s.Len < 1 || s.Offset < 0 || s.Offset+s.Len > w.Numel || s.Value.Bytes() != s.Len*t.Bytes() {
		return fmt.Errorf("shard of %s is elements %d..%d of %d, in %d bytes", w.Name, s.Offset, s.Offset+s.Len, w.Numel, s.Value.Bytes())
	}
	if w.Trainable && (s.GradType != w.gradType() || s.Grad.Bytes() != s.Len*s.GradType.Bytes()) {
		return fmt.Errorf("gradient shard of %s is %d bytes of %s, want %d elements of %s", w.Name, s.Grad.Bytes(), s.GradType, s.Len, w.gradType())
	}
	return nil
}

// part cuts a shard's elements out of a whole tensor.
func part(whole []byte, s shard.Shard, size int64) []byte {
	return whole[s.Offset*size : (s.Offset+s.Len)*size]
}

// read goes through the blocks as trainers do: in order, against it, and with
// gaps, so that prefetches are used, useless and missing.
func (c *checker) read(ctx context.Context) error {
	all := c.oracle.visits(firstRound)
	inOrder := slices.Clone(all)
	slices.Reverse(inOrder)
	for _, p := range []struct {
		method string
		order  []int
		check  blockCheck
	}{
		{"Forward", inOrder, c.checkBlock}, {"Forward", inOrder, c.checkLate}, {"Eval", all, c.checkBlock},
		{"Forward", c.oracle.visits(secondRound), c.checkLate}, {"Eval", inOrder, c.checkLate}, {"Forward", nil, c.checkBlock},
	} {
		if err := c.forward(ctx, p.method, p.order, c.want.wild, p.check); err != nil {
			return fmt.Errorf("%s in order %v: %w", p.method, brief(p.order), err)
		}
	}
	return nil
}

// blockCheck compares a block's tensors with a snapshot: at once, or when the
// pass has ended.
type blockCheck func(context.Context, *Block, view, snapshot) error

// brief keeps an order of many blocks out of messages.
func brief(order []int) []int { return order[:min(len(order), 6)] }

// forward compares all that the blocks show with a snapshot.
func (c *checker) forward(ctx context.Context, method string, order []int, want snapshot, check blockCheck) error {
	p := openPass(ctx, c.model, method)
	for _, position := range order {
		b := &c.oracle.Blocks[position]
		views, err := p.gather(b)
		if err != nil {
			return err
		}
		if len(views) != 1 {
			return fmt.Errorf("block %s: %d results", b.Name, len(views))
		}
		if err := check(ctx, b, views[0], want); err != nil {
			return fmt.Errorf("block %s: %w", b.Name, err)
		}
		views[0].call("Release")
	}
	return errors.Join(p.end(), c.late.end(ctx, c.record))
}

// all compares everything in a forward pass.
func (c *checker) all(ctx context.Context, want snapshot) error {
	order := c.oracle.visits(firstRound)
	slices.Reverse(order)
	return c.forward(ctx, "Forward", order, want, c.checkBlock)
}

func (c *checker) checkBlock(ctx context.Context, b *Block, v view, want snapshot) error {
	list, err := v.tensors(b, b.Fields)
	if err != nil {
		return err
	}
	for i, x := range list {
		if err := c.checkTensor(ctx, x, b.Fields[i].Owner, want[b.Fields[i].Owner]); err != nil {
			return err
		}
	}
	return c.checkPadding(ctx, b, list)
}

// checkLate is checkBlock by the compute stream.
func (c *checker) checkLate(_ context.Context, b *Block, v view, want snapshot) error {
	list, err := v.tensors(b, b.Fields)
	for i, x := range list {
		w := b.Fields[i].Owner
		c.late.read(w.Name, c.reach.memory(x, 0), want[w], w.Type)
	}
	return err
}

func (c *checker) checkTensor(ctx context.Context, x tensor, w *Owner, want []byte) error {
	if x.Name() != w.Name || !slices.Equal(x.Shape(), w.Shape) || x.Numel() != w.Numel || !x.Planned() {
		return fmt.Errorf("tensor %s %v of %d elements, planned %t, want %s %v of %d", x.Name(), x.Shape(), x.Numel(), x.Planned(), w.Name, w.Shape, w.Numel)
	}
	got, t, err := elements(ctx, x)
	if err != nil {
		return err
	}
	if t != w.Type {
		return fmt.Errorf("%s holds %s, want %s", w.Name, t, w.Type)
	}
	c.record.add(w.Name, got)
	return difference(w.Name, got, want, t)
}

// checkPadding wants zeros between the parameters of a bucket: those of one
// block, of one type, that no other block shares.
func (c *checker) checkPadding(ctx context.Context, b *Block, list []tensor) error {
	last := map[string]int{}
	for i, f := range b.Fields {
		if !f.Own || f.Owner.Blocks > 1 {
			continue
		}
		bucket := fmt.Sprint(f.Owner.Type, f.Owner.Trainable)
		if before, found := last[bucket]; found && b.Fields[before].Owner.Numel > 0 {
			padding, err := c.reach.behind(ctx, list[before], list[i])
			if err != nil {
				return err
			}
			if slices.ContainsFunc(padding, func(x byte) bool { return x != 0 }) {
				return fmt.Errorf("padding between %s and %s is not zero", list[before].Name(), f.Owner.Name)
			}
		}
		last[bucket] = i
	}
	return nil
}

// backward contributes a round's gradients and compares the parameters on the
// way; in odd rounds by the compute stream.
func (c *checker) backward(ctx context.Context, round int, want snapshot) error {
	check, contribute := c.checkBlock, c.contribute
	if round%2 == 1 {
		check, contribute = c.checkLate, c.contributeLate
	}
	p := openPass(ctx, c.model, "Backward")
	for _, position := range c.oracle.visits(round) {
		b := &c.oracle.Blocks[position]
		views, err := p.gather(b)
		if err != nil {
			return err
		}
		if len(views) != 2 {
			return fmt.Errorf("block %s: %d results", b.Name, len(views))
		}
		err = errors.Join(check(ctx, b, views[0], want), contribute(ctx, b, views[1], round, position))
		if err != nil {
			return fmt.Errorf("block %s: %w", b.Name, err)
		}
		views[0].call("Release")
		views[1].call("Reduce")
	}
	return errors.Join(p.end(), c.late.end(ctx, c.record))
}

// contribute finds a block's gradients zeroed and writes this rank's. Names of
// one storage in one block are one gradient, which is written once.
func (c *checker) contribute(ctx context.Context, b *Block, grads view, round, position int) error {
	fields := b.trainable()
	list, err := grads.tensors(b, fields)
	if err != nil {
		return err
	}
	for i, x := range list {
		w := fields[i].Owner
		if err := c.checkTensor(ctx, x, w, make([]byte, w.Numel*w.Type.Bytes())); err != nil {
			return fmt.Errorf("fresh gradient of %w", err)
		}
	}
	for i, x := range list {
		if err := setElements(ctx, x, contribution(fields[i].Owner, round, position, c.rank)); err != nil {
			return err
		}
	}
	return nil
}

// contributeLate is contribute by the compute stream.
func (c *checker) contributeLate(ctx context.Context, b *Block, grads view, round, position int) error {
	fields := b.trainable()
	list, err := grads.tensors(b, fields)
	for i, x := range list {
		w := fields[i].Owner
		c.late.read("fresh gradient of "+w.Name, c.reach.memory(x, 0), make([]byte, w.Numel*w.Type.Bytes()), w.Type)
	}
	for i, x := range list {
		err = errors.Join(err, c.late.write(ctx, c.reach.memory(x, 0), contribution(fields[i].Owner, round, position, c.rank)))
	}
	return err
}

// accumulateTwice runs two rounds, compares the reduced gradients and writes
// values that steps can work on.
func (c *checker) accumulateTwice(ctx context.Context) error {
	for _, round := range []int{firstRound, secondRound} {
		if err := errors.Join(c.backward(ctx, round, c.want.wild), c.note(ctx, "a backward pass")); err != nil {
			return err
		}
	}
	err := c.eachShard(ctx, func(w *Owner, s shard.Shard) error {
		err := setValues(ctx, s, part(c.want.tame[w], s, s.Type.Bytes()))
		if err != nil || !w.Trainable {
			return err
		}
		got, err := gradient(ctx, s)
		return errors.Join(err, difference("gradient of "+w.Name, got, part(c.want.gradients[w], s, s.GradType.Bytes()), s.GradType))
	})
	return errors.Join(err, c.all(ctx, c.want.gathered))
}

// steps runs the spec's optimizer; without one the model must have no Step.
func (c *checker) steps(ctx context.Context) error {
	before := c.want.gathered
	for n, want := range c.want.steps {
		if err := c.backward(ctx, firstStep+n, before); err != nil {
			return err
		}
		result, err := c.step(ctx)
		if err != nil {
			return err
		}
		if math.Abs(result.GradNorm-want.norm) > 1e-9*want.norm || result.Skipped || result.ClipScale != 1 {
			return fmt.Errorf("step %d: result %+v, want the norm %v", n+1, result, want.norm)
		}
		c.record.add("result", fmt.Append(nil, result))
		if err := errors.Join(c.all(ctx, want.gathered), c.note(ctx, "a step")); err != nil {
			return fmt.Errorf("after step %d: %w", n+1, err)
		}
		if err := c.values(ctx, want.values); err != nil {
			return fmt.Errorf("after step %d: %w", n+1, err)
		}
		before = want.gathered
	}
	return c.withoutStep()
}

func (c *checker) step(ctx context.Context) (shard.StepResult, error) {
	switch m := c.model.(type) {
	case interface {
		Step(context.Context, optim.AdamW) (shard.StepResult, error)
	}:
		return m.Step(ctx, adamW)
	case interface {
		Step(context.Context, optim.SGD) (shard.StepResult, error)
	}:
		return m.Step(ctx, c.oracle.sgd())
	}
	return shard.StepResult{}, fmt.Errorf("%T has no Step for optimizer %s", c.model, c.oracle.Spec.Optimizer.Kind.V)
}

func (c *checker) withoutStep() error {
	if c.oracle.Spec.Optimizer.Kind.V == spec.OptimizerNone && hasMethod(c.model, "Step") {
		return fmt.Errorf("%T has a Step, but the spec has no optimizer", c.model)
	}
	return nil
}

// values compares the shards, masters where there are any, with a snapshot.
func (c *checker) values(ctx context.Context, want snapshot) error {
	return c.eachShard(ctx, func(w *Owner, s shard.Shard) error {
		got, err := values(ctx, s)
		return errors.Join(err, difference("shard of "+w.Name, got, part(want[w], s, s.Type.Bytes()), s.Type))
	})
}

// init compares Init with a serial fill, or wants the error that counts what
// lacks an init, and nothing changed.
func (c *checker) init(ctx context.Context) error {
	err := c.model.Init(ctx, initSeed)
	if c.want.lacksInit == 0 {
		return errors.Join(err, c.all(ctx, c.want.init))
	}
	if want := fmt.Sprintf("%d parameters have no init", c.want.lacksInit); err == nil || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("error %v, want one with %q", err, want)
	}
	last := c.want.gathered
	if n := len(c.want.steps); n > 0 {
		last = c.want.steps[n-1].gathered
	}
	return c.all(ctx, last)
}

// span is a range of a parameter's elements.
type span struct{ offset, end int64 }

// ownership collects what all ranks say that they own.
type ownership struct {
	mu     sync.Mutex
	ranges map[string][]span
}

func (o *ownership) add(s shard.Shard) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ranges[s.Name] = append(o.ranges[s.Name], span{s.Offset, s.Offset + s.Len})
}

// tile wants every element of every owner on exactly one rank.
func (o *ownership) tile(oracle *Oracle) error {
	for _, w := range oracle.Owners {
		ranges := o.ranges[w.Name]
		slices.SortFunc(ranges, func(a, b span) int { return int(a.offset - b.offset) })
		end := int64(0)
		for _, r := range ranges {
			if r.offset != end {
				return fmt.Errorf("%s: elements up to %d are followed by those from %d", w.Name, end, r.offset)
			}
			end = r.end
		}
		if end != w.Numel {
			return fmt.Errorf("%s: the ranks own %d of %d elements", w.Name, end, w.Numel)
		}
	}
	return nil
}
