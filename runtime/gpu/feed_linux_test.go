package gpu_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/shardgen/shardgen/generated/tiny"
	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// buffer is page-locked memory of the host and as much of the GPU's.
type buffer struct {
	host, gpu device.Memory
	copied    device.Event // behind the last copy between them
	used      device.Event // behind the kernels that read gpu
}

func newBuffer(d *cuda.Device, bytes int64) (b buffer, err error) {
	if b.host, err = d.AllocPinned(bytes); err != nil {
		return b, err
	}
	b.gpu, err = d.Alloc(bytes)
	return b, err
}

// feed moves batches and losses beside the passes, each on a stream of its own:
// a loss waits for kernels that the next batch must not wait for. One buffer of
// each kind is in use while the other is filled.
type feed struct {
	compute, up, down device.Stream
	batches, losses   [2]buffer
}

// send starts the copy of batch i. It waits for batch i-2, which was in this
// buffer: the host until it is copied, the stream until it is used.
func (f *feed) send(ctx context.Context, i int, batch []float32) error {
	b := &f.batches[i%2]
	if err := f.up.Synchronize(ctx, b.copied); err != nil {
		return err
	}
	copy(dtype.Slice[float32](b.host.Host()), batch)
	f.up.Wait(b.used)
	f.up.Copy(b.gpu, b.host)
	b.copied = f.up.Record()
	return nil
}

// step puts kernels that make loss i of batch i on the compute stream, and starts
// the loss's copy to the host.
func (f *feed) step(i int, kernels func(loss, batch device.Memory) error) error {
	b, l := &f.batches[i%2], &f.losses[i%2]
	f.compute.Wait(b.copied)
	if err := kernels(l.gpu, b.gpu); err != nil {
		return err
	}
	b.used = f.compute.Record()
	f.down.Wait(b.used)
	f.down.Copy(l.host, l.gpu)
	l.copied = f.down.Record()
	return nil
}

// loss waits until loss i is here.
func (f *feed) loss(ctx context.Context, i int) (float64, error) {
	l := &f.losses[i%2]
	err := f.down.Synchronize(ctx, l.copied)
	return dtype.Slice[float64](l.host.Host())[0], err
}

// run makes the loss of every batch; it looks at one when the GPU has two more
// to do.
func (f *feed) run(ctx context.Context, batches [][]float32, kernels func(loss, batch device.Memory) error, report func(float64)) error {
	for i := -1; i < len(batches)+2; i++ {
		if next := i + 1; next < len(batches) {
			if err := f.send(ctx, next, batches[next]); err != nil {
				return err
			}
		}
		if last := i - 2; last >= 0 {
			loss, err := f.loss(ctx, last)
			if err != nil {
				return err
			}
			report(loss)
		}
		if i >= 0 && i < len(batches) {
			if err := f.step(i, kernels); err != nil {
				return err
			}
		}
	}
	return nil
}

// open allocates, once for all steps.
func (f *feed) open(rank *shard.Rank, batchBytes, lossBytes int64) (err error) {
	gpu := rank.Device().(*cuda.Device)
	f.compute = rank.Stream()
	if f.up, err = gpu.OpenStream("batches"); err != nil {
		return err
	}
	if f.down, err = gpu.OpenStream("losses"); err != nil {
		return err
	}
	for i := range 2 {
		if f.batches[i], err = newBuffer(gpu, batchBytes); err != nil {
			return err
		}
		if f.losses[i], err = newBuffer(gpu, lossBytes); err != nil {
			return err
		}
	}
	return nil
}

func (f *feed) close(rank *shard.Rank) error {
	all := []error{f.up.Close(), f.down.Close()}
	for i := range 2 {
		for _, m := range []device.Memory{f.batches[i].host, f.batches[i].gpu, f.losses[i].host, f.losses[i].gpu} {
			all = append(all, rank.Device().Free(m))
		}
	}
	return errors.Join(all...)
}

// squares are batches, and the sums of the squares of each.
func squares() (batches [][]float32, sums []float64) {
	for i := range 7 {
		batch, sum := make([]float32, 1000), 0.0
		for j := range batch {
			batch[j] = float32((i*j)%17 - i)
			sum += float64(batch[j]) * float64(batch[j])
		}
		batches, sums = append(batches, batch), append(sums, sum)
	}
	return batches, sums
}

// Kernels of the package stand for the trainer's: a loss is the sum of the squares
// of its batch. Passes of a model go on between them.
func TestBatchesAndLossesMoveBesideThePasses(t *testing.T) {
	m := emulated.Require(t)
	withKernels(t)
	all := m.AllKernels(t, 16)
	batches, want := squares()
	for _, schedule := range emulated.Schedules() {
		m.Schedule(t, schedule)
		err := shard.Run(t.Context(), m.Launcher(2), func(ctx context.Context, r *shard.Rank) (err error) {
			k, err := r.Device().Load(all)
			if err != nil {
				return err
			}
			model, err := tiny.Open(ctx, r, tiny.Options{})
			if err != nil {
				return err
			}
			partials, err := r.Device().Alloc(optim.PartialBytes(1000))
			if err != nil {
				return err
			}
			f := &feed{}
			if err := f.open(r, 4*1000, optim.NormBytes); err != nil {
				return err
			}
			var got []float64
			err = errors.Join(model.Init(ctx, 7), f.run(ctx, batches, func(loss, batch device.Memory) error {
				err := forward(ctx, model, func(int) error { return nil })
				k.Zero(r.Stream(), loss)
				k.Norm(r.Stream(), partials, batch, dtype.Float32, 1000)
				k.NormTotal(r.Stream(), loss, partials)
				return err
			}, func(loss float64) { got = append(got, loss) }))
			if err == nil && !slices.Equal(got, want) {
				t.Errorf("%s: rank %d: the losses are %v, expected %v", schedule, r.Rank(), got, want)
			}
			return errors.Join(err, model.Close(), f.close(r), r.Device().Free(partials), k.Close())
		})
		if err != nil {
			t.Errorf("%s: %v", schedule, err)
		}
		m.Clean(t)
	}
}
