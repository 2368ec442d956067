package gpucheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
)

// collectives runs NCCL between all GPUs, a rank on each, and compares what comes
// out with ranks on the CPU; then it measures.
func (c *checker) collectives(ctx context.Context) {
	if lacks, err := c.withoutNCCL(c.count); lacks != "" || err != nil {
		c.check("nccl", "start", func(k *Check) error { return errors.Join(err, k.skip("%s", lacks)) })
		return
	}
	var g group
	c.check("nccl", "start", func(k *Check) (err error) {
		k.Detail = fmt.Sprintf("%d ranks in this process, each on a GPU of its own", c.count)
		if c.count == 1 {
			k.Detail = oneRank
		}
		g, err = onGPUs(ctx, c.count)
		return err
	})
	if g == nil {
		return
	}
	for _, o := range []comm.Operation{comm.AllGather, comm.ReduceScatter, comm.AllReduce, comm.Broadcast} {
		c.check("nccl", o.String(), func(k *Check) error { return c.collective(ctx, k, g, o) })
	}
	c.check("nccl", "bandwidth", func(k *Check) error { return c.busBandwidth(ctx, k, g) })
	c.check("nccl", "end", func(*Check) error { return g.end() })
}

// ncclBytes is more than NCCL takes for itself on each GPU, which is some hundred
// megabytes.
const ncclBytes = 1 << 30

// withoutNCCL says why NCCL can't run on the first GPUs, nothing where it can.
func (c *checker) withoutNCCL(ranks int) (string, error) {
	if c.noNCCL != nil {
		return c.noNCCL.Error(), nil
	}
	for r := range ranks {
		gpu, err := cuda.Open(r, cuda.Options{})
		if err != nil {
			return "", err
		}
		free, _, err := gpu.MemoryBytes()
		if err = errors.Join(err, gpu.Close()); err != nil {
			return "", err
		}
		if free < ncclBytes {
			return fmt.Sprintf("NCCL needs up to %s for itself, GPU %d has %s free", size(ncclBytes), r, size(free)), nil
		}
	}
	return "", nil
}

// collective compares one operation.
func (c *checker) collective(ctx context.Context, k *Check, g group, o comm.Operation) error {
	all := exchanges(o, c.quick)
	reference, err := onCPU(len(g))
	if err != nil {
		return err
	}
	want, err := reference.trace(ctx, all)
	if err = errors.Join(err, reference.end()); err != nil {
		return fmt.Errorf("on the CPU: %w", err)
	}
	got, err := g.trace(ctx, all)
	if err != nil {
		return err
	}
	for r := range g {
		if err := compareTraces(got[r], want[r], len(g)); err != nil {
			return fmt.Errorf("rank %d of %d: %w", r, len(g), err)
		}
	}
	k.Detail = fmt.Sprintf("%d on %s have the CPU's bits", len(all), gpus(len(g)))
	if len(g) > 1 && o != comm.AllGather && o != comm.Broadcast {
		k.Detail += ", or are sums within their bound"
	}
	return nil
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// oneRank is what a run on one GPU shows of NCCL.
const oneRank = "1 rank: NCCL makes plain copies, which shows that it is called rightly, not that GPUs exchange or add up anything"

// exchange is one collective on elements of one type.
type exchange struct {
	operation comm.Operation
	t         dtype.DType
	elements  int64 // of a rank's part
	value     gradient
	exact     bool // sums of the values are, in every order
}

func (e *exchange) what() string {
	kind := "fractions"
	if e.exact {
		kind = "integers"
	}
	return fmt.Sprintf("%s of %d elements of %s (%s)", e.operation, e.elements, e.t, kind)
}

// exchanges are those that are done for an operation: bytes are moved, and numbers
// are added up in each type that gradients are reduced in.
func exchanges(o comm.Operation, quick bool) (all []exchange) {
	sizes := []int64{1, 33, 1000, 1<<18 + 3}
	if quick {
		sizes = sizes[:2]
	}
	for _, n := range sizes {
		if o == comm.AllGather || o == comm.Broadcast {
			all = append(all, exchange{o, dtype.Uint8, n, integer, true})
			continue
		}
		for _, t := range []dtype.DType{f32, f64, bf16, dtype.Float16} {
			all = append(all, exchange{o, t, n, integer, true}, exchange{o, t, n, fraction, false})
		}
	}
	return all
}

// bound is how far the sums of two transports can lie apart: each addition rounds
// by half a unit in the last place of at most ranks*largestFraction.
func (e *exchange) bound(ranks int) float64 {
	if e.exact {
		return 0
	}
	return 2 * float64(ranks-1) * halfUnit[e.t] * largestFraction * float64(ranks)
}

// values are what a rank brings.
func (e *exchange) values(rank int, elements int64) []byte {
	random := rand.New(rand.NewPCG(uint64(rank), uint64(e.elements)))
	if !e.t.IsFloat() {
		b := make([]byte, elements*e.t.Bytes())
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	wide := make([]float64, elements)
	for i := range wide {
		wide[i] = e.value(random)
	}
	b := make([]byte, elements*e.t.Bytes())
	narrow(b, e.t, wide)
	return b
}

// behindBytes is how much is watched behind what a rank receives.
const behindBytes = 256

// parts returns how many elements a rank sends and receives.
func (e *exchange) parts(ranks int) (send, receive int64) {
	switch e.operation {
	case comm.AllGather:
		return e.elements, e.elements * int64(ranks)
	case comm.ReduceScatter:
		return e.elements * int64(ranks), e.elements
	}
	return e.elements, e.elements
}

// roomBytes is what an exchange needs on each rank.
func (e *exchange) roomBytes(ranks int) int64 {
	send, receive := e.parts(ranks)
	return aligned(send*e.t.Bytes()) + receive*e.t.Bytes() + behindBytes
}

func aligned(bytes int64) int64 { return (bytes + behindBytes - 1) / behindBytes * behindBytes }

// trace does all exchanges and returns what each rank had afterwards.
func (g group) trace(ctx context.Context, all []exchange) (traces [][]record, err error) {
	var most int64
	for i := range all {
		most = max(most, all[i].roomBytes(len(g)))
	}
	if err := g.reserve(ctx, most); err != nil {
		return nil, errors.Join(err, g.release())
	}
	traces = make([][]record, len(g))
	err = g.each(ctx, func(ctx context.Context, p *peer) error {
		for i := range all {
			r, err := p.exchange(ctx, &all[i])
			if err != nil {
				return err
			}
			traces[p.rank] = append(traces[p.rank], r)
		}
		return nil
	})
	return traces, errors.Join(err, g.release())
}

// exchange does one and returns what the rank received, with what is behind it.
func (p *peer) exchange(ctx context.Context, e *exchange) (record, error) {
	ranks := p.comm.Size()
	send, receive := e.parts(ranks)
	from := e.values(p.rank, send)
	to := bytes.Repeat([]byte{0x55}, int(receive*e.t.Bytes())+behindBytes) // a number in every type
	if e.operation == comm.AllReduce || e.operation == comm.Broadcast {
		copy(to, from) // they work in place
	}
	r := record{what: e.what(), t: e.t, value: to, bound: e.bound(ranks)}
	src := p.memory.Slice(0, int64(len(from)))
	room := p.memory.Slice(aligned(src.Bytes()), int64(len(to)))
	if err := errors.Join(p.device.Write(ctx, src, from), p.device.Write(ctx, room, to)); err != nil {
		return r, err
	}
	dst := room.Slice(0, receive*e.t.Bytes())
	stream := p.comm.GatherStream()
	switch e.operation {
	case comm.AllGather:
		p.comm.AllGather(r.what, dst, src)
	case comm.Broadcast:
		p.comm.Broadcast(r.what, dst, ranks-1)
	case comm.ReduceScatter:
		p.comm.ReduceScatter(r.what, dst, src, e.t)
		stream = p.comm.ReduceStream()
	default:
		p.comm.AllReduce(r.what, dst, e.t)
		stream = p.comm.ReduceStream()
	}
	if err := p.comm.Synchronize(ctx, stream.Record()); err != nil {
		return r, err
	}
	return r, p.device.Read(ctx, to, room)
}
