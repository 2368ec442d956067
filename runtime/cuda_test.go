package shard

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// trainerKernels are a trainer's own, one element a thread.
const trainerKernels = `
extern "C" __global__ void keepValues(float* to, const float* from, long long n) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    to[i] = from[i];
  }
}
extern "C" __global__ void addScaled(float* to, const float* from, float factor, long long n) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    to[i] += factor * from[i];
  }
}
`

// trainer is what a rank computes with: kernels on a stream, and memory for what
// it keeps of each block in the forward pass.
type trainer struct {
	gpu        *cuda.Device
	stream     *cuda.Stream
	module     *cuda.Module
	keep, add  cuda.Function
	activation device.Memory
	elements   int64 // of a block's first parameter
}

func newTrainer(rank *Rank, image []byte, blocks int, elements int64) (*trainer, error) {
	tr := &trainer{gpu: rank.Device().(*cuda.Device), stream: rank.Stream().(*cuda.Stream), elements: elements}
	var err error
	if tr.module, err = tr.gpu.LoadModule(image); err != nil {
		return nil, err
	}
	keep, err0 := tr.module.Function("keepValues")
	add, err1 := tr.module.Function("addScaled")
	tr.keep, tr.add = keep, add
	tr.activation, err = tr.gpu.Alloc(int64(blocks) * elements * 4)
	return tr, errors.Join(err0, err1, err)
}

func (tr *trainer) close() error {
	err := tr.stream.Synchronize(context.Background(), tr.stream.Record())
	return errors.Join(err, tr.gpu.Free(tr.activation), tr.module.Close())
}

var (
	gridOf2   = [3]uint32{2, 1, 1}
	blockOf32 = [3]uint32{32, 1, 1}
)

func (tr *trainer) at(block int) device.Addr {
	return tr.activation.Addr() + device.Addr(int64(block)*tr.elements*4)
}

// forward keeps every block's first parameter.
func (tr *trainer) forward(p Pass, blocks int) error {
	for i := range blocks {
		b, err := p.Gather(0, i)
		if err != nil {
			return err
		}
		from := Param[float32](b, 0, 0, 0).DevicePtr()
		if err := tr.stream.Launch(tr.keep, gridOf2, blockOf32, 0, cuda.Pointer(tr.at(i)), cuda.Pointer(from), cuda.Int64(tr.elements)); err != nil {
			return err
		}
		b.Release()
	}
	return nil
}

// backward adds to each block's first gradient the parameter and what was kept of
// it, times a factor.
func (tr *trainer) backward(p Pass, blocks int, factor float32) error {
	for i := blocks - 1; i >= 0; i-- {
		b, g, err := p.GatherWithGrads(0, i)
		if err != nil {
			return err
		}
		to := cuda.Pointer(Grad[float32](g, 0, 0, 0).DevicePtr())
		for _, from := range []device.Addr{Param[float32](b, 0, 0, 0).DevicePtr(), tr.at(i)} {
			if err := tr.stream.Launch(tr.add, gridOf2, blockOf32, 0, to, cuda.Pointer(from), cuda.Float32(factor), cuda.Int64(tr.elements)); err != nil {
				return err
			}
		}
		b.Release()
		g.Reduce()
	}
	return nil
}

// kept compares what forward kept with the blocks' values.
func (tr *trainer) kept(ctx context.Context, m *Model, blocks int) error {
	host := make([]float32, int64(blocks)*tr.elements)
	if err := errors.Join(tr.stream.Synchronize(ctx, tr.stream.Record()), tr.gpu.Read(ctx, dtype.Bytes(host), tr.activation)); err != nil {
		return err
	}
	for i := range blocks {
		name := m.blocks[i].name + ".w"
		for j, got := range host[int64(i)*tr.elements : int64(i+1)*tr.elements] {
			if want := value(name, int64(j)); got != want {
				return fmt.Errorf("the kernel read %v from %s[%d], want %v", got, name, j, want)
			}
		}
	}
	return nil
}

// deep is mixed with more blocks, of more elements, which take turns with one
// gradient buffer.
func deep(worlds ...int64) testModel {
	tm := mixed(worlds...)
	tm.gradSlots = 1
	tm.blocks[0].count = deepBlocks
	tm.blocks[0].params[0].shape = []int64{deepElements}
	return tm
}

const (
	deepBlocks   = 7
	deepElements = 77
)

// withTrainer runs ranks of a deep model, each with a trainer of its own.
func (b *backend) withTrainer(t *testing.T, n int, f func(ctx context.Context, m *Model, tr *trainer) error) error {
	image := machine.Image(t, trainerKernels)
	return b.run(n, deep(int64(n)).descriptor(t), func(ctx context.Context, m *Model) error {
		if err := fill(ctx, m); err != nil {
			return err
		}
		tr, err := newTrainer(m.rank, image, deepBlocks, deepElements)
		if err != nil {
			return err
		}
		return errors.Join(f(ctx, m, tr), tr.close())
	})
}

// trainPasses goes forward and backward with kernels and checks what they read
// and what came of it.
func trainPasses(ctx context.Context, m *Model, tr *trainer) error {
	f := m.Forward(ctx)
	if err := errors.Join(tr.forward(f, deepBlocks), f.End(), tr.kept(ctx, m, deepBlocks)); err != nil {
		return err
	}
	p := m.Backward(ctx)
	if err := errors.Join(tr.backward(p, deepBlocks, float32(1+m.rank.Rank())), p.End()); err != nil {
		return err
	}
	return wantGrads(ctx, m, func(name string, i int64) float32 {
		if name == "shared" || name[len(name)-2:] != ".w" {
			return 0
		}
		return meanOf(value(name, i), m.rank.Size())
	})
}

// meanOf is the mean over the ranks of 2(r+1)x, each rounded to bf16, in which
// they are summed.
func meanOf(x float32, ranks int) float32 {
	sum := float32(0)
	for r := range ranks {
		sum += dtype.BF16FromFloat32(float32(r+1)*x + float32(r+1)*x).Float32()
	}
	return dtype.BF16FromFloat32(sum).Float32() / float32(ranks)
}

func TestKernelsOfTheTrainerSeeWhatTheyMustUnderEverySchedule(t *testing.T) {
	for _, schedule := range append([]string{"fifo"}, Schedules...) {
		for _, n := range []int{1, 2, 4} {
			t.Run(fmt.Sprintf("%s/ranks=%d", schedule, n), func(t *testing.T) {
				onCUDA(t, func(t *testing.T, b *backend) {
					machine.Schedule(t, schedule)
					if err := b.withTrainer(t, n, func(ctx context.Context, m *Model, tr *trainer) error {
						for range 3 {
							if err := errors.Join(trainPasses(ctx, m, tr), m.ZeroGrad()); err != nil {
								return err
							}
						}
						return nil
					}); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// waits are the driver's calls that wait or ask how far the GPU is.
func waits() (n int64) {
	for _, name := range []string{"cuEventSynchronize", "cuEventQuery", "cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize"} {
		n += machine.Calls(name)
	}
	return n
}

// Rank 1 comes to a pass when rank 0 is through with it: whatever waits for the
// GPU there waits for ever. Besides, nothing asks the driver how far it is, but the
// watchdog of collectives, now and then.
func TestNothingInAPassWaitsOnTheHost(t *testing.T) {
	onCUDA(t, func(t *testing.T, b *backend) {
		const rounds = 10
		through := make(chan struct{})
		var forward, backward []int64 // how often rank 0 asked
		alone := func(m *Model, counts *[]int64, pass func() error) error {
			if m.rank.Rank() != 0 {
				<-through
				return pass()
			}
			before := waits()
			err := pass()
			*counts = append(*counts, waits()-before)
			through <- struct{}{}
			return err
		}
		err := b.withTrainer(t, 2, func(ctx context.Context, m *Model, tr *trainer) error {
			for range rounds {
				f := m.Forward(ctx)
				err := alone(m, &forward, func() error { return tr.forward(f, deepBlocks) })
				if err = errors.Join(err, f.End()); err != nil {
					return err
				}
				p := m.Backward(ctx)
				err = alone(m, &backward, func() error { return tr.backward(p, deepBlocks, 1) })
				if err = errors.Join(err, p.End()); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if slices.Min(forward) != 0 || slices.Min(backward) != 0 {
			t.Errorf("calls that ask how far the GPU is: forward %v, backward %v", forward, backward)
		}
	})
}

func TestParametersAndShardsAreInTheGPUsMemory(t *testing.T) {
	onCUDA(t, func(t *testing.T, b *backend) {
		b.must(t, 2, trainable(2).descriptor(t), func(ctx context.Context, m *Model) error {
			if err := fill(ctx, m); err != nil {
				return err
			}
			p := m.Backward(ctx)
			block, g, err := p.GatherWithGrads(0, 1)
			if err != nil {
				return err
			}
			x, grad := Param[float32](block, 0, 0, 0), Grad[float32](g, 0, 0, 0)
			for _, tensor := range []Tensor[float32]{x, grad} {
				if err := wantStateError(func() { tensor.Host() }, "use CopyTo or DevicePtr"); err != nil {
					return err
				}
				if tensor.DevicePtr() == 0 || tensor.DevicePtr()%16 != 0 {
					return fmt.Errorf("%s is at %#x", tensor.Name(), tensor.DevicePtr())
				}
			}
			block.Release()
			g.Discard()
			if err := wantStateError(func() { x.DevicePtr() }, "released"); err != nil {
				return err
			}
			if err := p.End(); err != nil {
				return err
			}
			return m.Inspect(ctx, func(s *Shards) error {
				for sh := range s.All() {
					_, values := Values[float32](sh)
					_, gradient := Gradient[float32](sh)
					wantWords(t, values, "ReadValues")
					wantWords(t, gradient, "ReadGradient")
				}
				return nil
			})
		})
	})
}

func TestAStreamOfTheTrainersIsTheComputeStream(t *testing.T) {
	onCUDA(t, func(t *testing.T, b *backend) {
		machine.Schedule(t, "lazy")
		image := machine.Image(t, trainerKernels)
		d := deep(2).descriptor(t)
		err := Run(t.Context(), b.launcher(2, 10*time.Second), func(ctx context.Context, rank *Rank) error {
			own, err := rank.Device().(*cuda.Device).OpenStream("trainer's")
			if err != nil {
				return err
			}
			rank.SetStream(own)
			work := func(ctx context.Context, m *Model) error {
				tr, err := newTrainer(rank, image, deepBlocks, deepElements)
				if err != nil {
					return err
				}
				if m.compute != device.Stream(own) || tr.stream != own {
					return errors.New("the model computes on another stream")
				}
				return errors.Join(fill(ctx, m), trainPasses(ctx, m, tr), tr.close())
			}
			return errors.Join(withModel(d, work)(ctx, rank), own.Close())
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// failures runs a pass that a fault spoils and returns each rank's error.
func (b *backend) failures(t *testing.T, ranks int, timeout time.Duration, fault string) []error {
	t.Helper()
	errs := make([]error, ranks)
	d := deep(int64(ranks)).descriptor(t)
	var filled sync.WaitGroup
	filled.Add(ranks)
	start := time.Now()
	err := Run(t.Context(), b.launcher(ranks, timeout), withModel(d, func(ctx context.Context, m *Model) error {
		r := m.rank.Rank()
		err := fill(ctx, m)
		filled.Done()
		filled.Wait()
		if r == 0 {
			machine.Fault(t, fault)
		}
		ctx = context.WithoutCancel(ctx) // the others' errors are of their own
		for err == nil {
			err = trainZeros(ctx, m)
		}
		errs[r] = err
		return err
	}))
	if err == nil {
		t.Error("Run returned nil")
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	return errs
}

// trainZeros is a step whose gradients are zero: nothing is copied to the host.
func trainZeros(ctx context.Context, m *Model) error {
	p := m.Backward(ctx)
	for i := deepBlocks - 1; i >= 0; i-- {
		b, g, err := p.GatherWithGrads(0, i)
		if err != nil {
			return err
		}
		b.Release()
		g.Reduce()
	}
	if err := p.End(); err != nil {
		return err
	}
	_, err := m.StepAdamW(ctx, optim.AdamW{LR: 0.1})
	return err
}

func TestFaultsOfGPUsAreErrorsOfOperationsOnEveryRank(t *testing.T) {
	for name, c := range map[string]struct {
		fault   string
		timeout time.Duration
		cause   string // a pattern
		own     bool   // rank 1's kernels fail, not a collective
	}{
		"asynchronous error of NCCL": {"nccl_async:code=6:rank=1:after=9", time.Minute, `remote process exited .*\(6\)`, false},
		"dead peer":                  {"dead:rank=1", 700 * time.Millisecond, "it is not done after|no sign of ranks .1.", false},
		"fault of a kernel":          {"launch:719:device=1:after=9", time.Minute, `LAUNCH_FAILED \(719\)`, true},
		"fault of a launch":          {"cuLaunchKernel:719:device=1:after=9", time.Minute, `LAUNCH_FAILED \(719\)`, true},
		"fault of a collective":      {"ncclAllGather:3:device=1:after=9", time.Minute, "ncclAllGather", false},
	} {
		t.Run(name, func(t *testing.T) {
			onCUDA(t, func(t *testing.T, b *backend) {
				for r, err := range b.failures(t, 3, c.timeout, c.fault) {
					if err == nil || !regexp.MustCompile(c.cause).MatchString(err.Error()) {
						t.Errorf("rank %d: %v, want %s", r, err, c.cause)
					}
					if r == 1 && c.own { // it is the first to know, of what no collective is to blame for
						wantWords(t, err, "model test: ", "cuda:1: stream")
						continue
					}
					var failed *comm.Error
					if !errors.As(err, &failed) || failed.Rank != r || failed.Sequence == 0 || failed.Subject == "" {
						t.Errorf("rank %d: %v, want one that says which collective failed", r, err)
						continue
					}
					wantWords(t, err, failed.Operation.String(), fmt.Sprintf("sequence %d", failed.Sequence), failed.Subject)
				}
				b.begin(t) // a GPU whose kernel failed takes nothing back
			})
		})
	}
}

func TestAFullGPUIsToldByAllRanks(t *testing.T) {
	tm := trainable(3)
	tm.blocks[0].params[0].shape = []int64{900_000}
	for name, c := range map[string]struct {
		full  func(t *testing.T, rank int) // before it opens the model
		words []string
	}{
		"one GPU": {func(t *testing.T, rank int) {
			if rank == 1 {
				machine.Fault(t, "cuMemAlloc_v2:2:device=1")
			}
		}, []string{"rank 1 could not open it"}},
		"all GPUs": {func(t *testing.T, rank int) { machine.Memory(t, 6<<20) }, []string{"could not open it", "bytes are free"}},
	} {
		t.Run(name, func(t *testing.T) {
			onCUDA(t, func(t *testing.T, b *backend) {
				errs := make([]error, 3)
				err := Run(t.Context(), b.launcher(3, 10*time.Second), func(ctx context.Context, rank *Rank) error {
					c.full(t, rank.Rank())
					_, errs[rank.Rank()] = Open(ctx, rank, tm.descriptor(t), Options{})
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				for _, err := range errs {
					wantWords(t, err, append(c.words, "allocating", "bytes for", "CUDA_ERROR_OUT_OF_MEMORY")...)
					if err != nil && errs[0] != nil && err.Error() != errs[0].Error() {
						t.Errorf("ranks differ: %v, %v", errs[0], err)
					}
				}
			})
		})
	}
}
