package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/generated/tiny"
	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/gpu"
)

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not mention %q", err, word)
		}
	}
}

func TestLocalRunsARankOnEveryGPU(t *testing.T) {
	m := emulated.Require(t)
	var mu sync.Mutex
	var ran []string
	err := shard.Run(t.Context(), gpu.Local(3, gpu.Options{}), func(_ context.Context, r *shard.Rank) error {
		mu.Lock()
		defer mu.Unlock()
		name, _, _ := strings.Cut(r.Device().Name(), " ")
		ran = append(ran, fmt.Sprintf("rank %d of %d on %s", r.Rank(), r.Size(), name))
		return nil
	})
	slices.Sort(ran)
	if want := []string{"rank 0 of 3 on cuda:0", "rank 1 of 3 on cuda:1", "rank 2 of 3 on cuda:2"}; err != nil || !slices.Equal(ran, want) {
		t.Errorf("%v, %v", ran, err)
	}
	m.Clean(t)
}

func TestWhateverEndsARankEndsTheOthersWithItsError(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		end  func() error
		want string
	}{
		"error":  {func() error { return boom }, "rank 1: boom"},
		"panic":  {func() error { panic(boom) }, "rank 1: panic: boom"},
		"goexit": {func() error { runtime.Goexit(); return nil }, "rank 1: its function ended the goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			emulated.Require(t)
			start := time.Now()
			var causes [3]error
			var started sync.WaitGroup
			started.Add(3)
			err := shard.Run(t.Context(), gpu.Local(3, gpu.Options{}), func(ctx context.Context, r *shard.Rank) error {
				started.Done()
				started.Wait()
				if r.Rank() == 1 {
					return c.end()
				}
				<-ctx.Done()
				causes[r.Rank()] = context.Cause(ctx)
				return nil
			})
			var failed *shard.RankError
			if !errors.As(err, &failed) || failed.Rank != 1 || name != "goexit" && !errors.Is(err, boom) {
				t.Errorf("Run returned %v", err)
			}
			wantWords(t, err, c.want)
			wantWords(t, causes[0], c.want)
			wantWords(t, causes[2], c.want)
			if took := time.Since(start); took > 4*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// OpenStream returns a nil stream with an error that a trainer may have passed over.
func TestANilComputeStreamIsAnError(t *testing.T) {
	withKernels(t)
	err := shard.Run(t.Context(), gpu.Local(2, gpu.Options{}), func(ctx context.Context, r *shard.Rank) error {
		var none *cuda.Stream
		r.SetStream(none)
		m, err := tiny.Open(ctx, r, tiny.Options{})
		if err != nil {
			return err
		}
		return errors.Join(m.Init(ctx, 7), forward(ctx, m, func(int) error { return nil }), m.Close())
	})
	wantWords(t, err, "the stream is a nil *cuda.Stream: opening it returned an error")
}

func TestAnErrorOfOpeningEndsAllRanks(t *testing.T) {
	emulated.Require(t).Fault(t, "cuStreamCreateWithPriority:2:after=1")
	start := time.Now()
	err := shard.Run(t.Context(), gpu.Local(2, gpu.Options{}), func(ctx context.Context, _ *shard.Rank) error { return nil })
	wantWords(t, err, "cuStreamCreateWithPriority")
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestTheContextEndsARun(t *testing.T) {
	emulated.Require(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(100*time.Millisecond, func() { cancel(enough) })
	err := shard.Run(ctx, gpu.Local(2, gpu.Options{}), func(ctx context.Context, _ *shard.Rank) error {
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if !errors.Is(err, enough) {
		t.Error(err)
	}
}

func TestWhatIsMissingIsNamedWithTheFix(t *testing.T) {
	run := func(l shard.Launcher) error {
		return shard.Run(t.Context(), l, func(context.Context, *shard.Rank) error { return nil })
	}
	emulated.Require(t)
	wantWords(t, run(gpu.Local(0, gpu.Options{})), "0 ranks")
	wantWords(t, run(gpu.Local(2, gpu.Options{Timeout: -1})), "negative")
	wantWords(t, run(gpu.Local(99, gpu.Options{})), "99 ranks need as many GPUs", "launch at most")
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	wantWords(t, gpu.Require(99), `CUDA_VISIBLE_DEVICES is "0"`)
	t.Setenv("SHARDGEN_LIBNCCL", "/nowhere/libnccl.so.2")
	wantWords(t, run(gpu.Local(2, gpu.Options{})), "NCCL can't be opened", "libnccl2", "SHARDGEN_LIBNCCL")
	t.Setenv("SHARDGEN_LIBCUDA", "/nowhere/libcuda.so.1")
	wantWords(t, run(gpu.Local(2, gpu.Options{})), "the CUDA driver library can't be opened", "SHARDGEN_LIBCUDA", "nvidia-smi")
}

// The environment comes before the driver.
func TestNothingIsOpenedBeforeItIsNeeded(t *testing.T) {
	t.Setenv("SHARDGEN_LIBCUDA", "/nowhere/libcuda.so.1")
	for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"} {
		t.Setenv(name, "")
	}
	err := shard.Run(t.Context(), gpu.Environment(gpu.Options{}), func(context.Context, *shard.Rank) error { return nil })
	wantWords(t, err, "no launcher", "torchrun")
}
