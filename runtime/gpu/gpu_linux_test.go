package gpu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/cudasrc/emu/double"
	shard "github.com/shardgen/shardgen/runtime"
)

// A test binary that is started with this variable is a rank of a job: see rank.
const roleVariable = "SHARDGEN_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := rank(role); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// rank is a rank in a process of its own.
func rank(role string) error {
	return shard.Run(context.Background(), Environment(Options{Timeout: 20 * time.Second}), func(ctx context.Context, r *shard.Rank) error {
		fmt.Printf("rank %d of %d on %s\n", r.Rank(), r.Size(), r.Device().Name())
		switch role {
		case "fail":
			return errors.New("the loss is NaN")
		case "panic":
			panic("lost my mind")
		case "exit":
			os.Exit(7)
		}
		return nil
	})
}

var built struct {
	once      sync.Once
	libraries *double.Libraries
	err       error
}

// libraries makes the driver and NCCL the doubles, as at the beginning.
func libraries(t *testing.T) *double.Libraries {
	t.Helper()
	if err := emu.Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	built.once.Do(func() {
		built.libraries, built.err = double.Build(context.Background(), filepath.Join(os.TempDir(), "shardgen-double"))
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	built.libraries.Reset()
	t.Setenv("SHARDGEN_LIBCUDA", built.libraries.CUDA)
	t.Setenv("SHARDGEN_LIBNCCL", built.libraries.NCCL)
	return built.libraries
}

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not mention %q", err, word)
		}
	}
}

func TestLocalRunsARankOnEveryGPU(t *testing.T) {
	l := libraries(t)
	var mu sync.Mutex
	var ran []string
	err := shard.Run(t.Context(), Local(3, Options{}), func(_ context.Context, r *shard.Rank) error {
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
	for _, finding := range l.Check() {
		t.Error(finding)
	}
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
			libraries(t)
			start := time.Now()
			var causes [3]error
			var started sync.WaitGroup
			started.Add(3)
			err := shard.Run(t.Context(), Local(3, Options{}), func(ctx context.Context, r *shard.Rank) error {
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

func TestAnErrorOfOpeningEndsAllRanks(t *testing.T) {
	l := libraries(t)
	if err := l.Fault("cuStreamCreate:2:after=3"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err := shard.Run(t.Context(), Local(2, Options{}), func(ctx context.Context, _ *shard.Rank) error { return nil })
	wantWords(t, err, "cuStreamCreate")
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestTheContextEndsARun(t *testing.T) {
	libraries(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	time.AfterFunc(100*time.Millisecond, func() { cancel(enough) })
	err := shard.Run(ctx, Local(2, Options{}), func(ctx context.Context, _ *shard.Rank) error {
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
	libraries(t)
	wantWords(t, run(Local(0, Options{})), "0 ranks")
	wantWords(t, run(Local(2, Options{Timeout: -1})), "negative")
	wantWords(t, run(Local(99, Options{})), "99 ranks need as many GPUs", "launch at most")
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	wantWords(t, Require(99), `CUDA_VISIBLE_DEVICES is "0"`)
	t.Setenv("SHARDGEN_LIBNCCL", "/nowhere/libnccl.so.2")
	wantWords(t, run(Local(2, Options{})), "NCCL can't be opened", "libnccl2", "SHARDGEN_LIBNCCL")
	t.Setenv("SHARDGEN_LIBCUDA", "/nowhere/libcuda.so.1")
	wantWords(t, run(Local(2, Options{})), "the CUDA driver library can't be opened", "SHARDGEN_LIBCUDA", "nvidia-smi")
}

// A launcher that nobody launches opens nothing.
func TestNothingIsOpenedBeforeItIsNeeded(t *testing.T) {
	t.Setenv("SHARDGEN_LIBCUDA", "/nowhere/libcuda.so.1")
	for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"} {
		t.Setenv(name, "")
	}
	if Local(2, Options{}) == nil || Environment(Options{}) == nil {
		t.Fatal("no launcher")
	}
	// The environment comes before the driver.
	err := shard.Run(t.Context(), Environment(Options{}), func(context.Context, *shard.Rank) error { return nil })
	wantWords(t, err, "no launcher", "torchrun")
}

// job starts ranks as processes with roles and returns what they print.
func job(t *testing.T, roles []string, change func(rank int, vars map[string]string)) []string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	out := make([]string, len(roles))
	var wait sync.WaitGroup
	for r, role := range roles {
		vars := map[string]string{
			roleVariable: role, "RANK": fmt.Sprint(r), "WORLD_SIZE": fmt.Sprint(len(roles)), "LOCAL_RANK": fmt.Sprint(r),
			"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": fmt.Sprint(port), "SHARDGEN_TOKEN": t.Name(),
		}
		if change != nil {
			change(r, vars)
		}
		wait.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, os.Args[0])
			cmd.Env = os.Environ()
			for name, value := range vars {
				cmd.Env = append(cmd.Env, name+"="+value)
			}
			text, err := cmd.CombinedOutput()
			out[r] = fmt.Sprintf("%s(%v)", text, err)
		})
	}
	wait.Wait()
	return out
}

func TestEnvironmentRunsOneRank(t *testing.T) {
	libraries(t)
	for _, out := range job(t, []string{"work"}, nil) {
		if !strings.HasPrefix(out, "rank 0 of 1 on cuda:0") || !strings.HasSuffix(out, "(<nil>)") {
			t.Error(out)
		}
	}
	// One GPU is visible, bound to this process by its launcher.
	bound := func(_ int, vars map[string]string) {
		vars["LOCAL_RANK"], vars["RANK"], vars["WORLD_SIZE"] = "0", "0", "1"
		vars["EMU_DEVICES"], vars["CUDA_VISIBLE_DEVICES"] = "1", "3"
	}
	if out := job(t, []string{"work"}, bound)[0]; !strings.Contains(out, "on cuda:0") {
		t.Error(out)
	}
}

// The double connects ranks of one process only: these processes fail before
// NCCL has connected them, or while it waits.
func TestAProcessThatFailsEndsTheOthersWithItsReason(t *testing.T) {
	libraries(t)
	start := time.Now()
	for r, out := range job(t, []string{"work", "work", "work"}, func(r int, vars map[string]string) {
		if r == 1 {
			vars["EMU_DEVICES"] = "1"
		}
	}) {
		want := "rank 1: gpu: the local rank is 1 (LOCAL_RANK or SLURM_LOCALID), but this process sees 1 GPUs"
		if !strings.Contains(out, "error: "+want) || !strings.Contains(out, "exit status 1") {
			t.Errorf("rank %d: %s", r, out)
		}
	}
	if took := time.Since(start); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestContradictingWorldSizesAreRefusedOnAllRanks(t *testing.T) {
	libraries(t)
	for r, out := range job(t, []string{"work", "work"}, func(r int, vars map[string]string) {
		if r == 1 {
			vars["WORLD_SIZE"] = "3"
		}
	}) {
		if !strings.Contains(out, "WORLD_SIZE 3, rank 0") || !strings.Contains(out, "exit status 1") {
			t.Errorf("rank %d: %s", r, out)
		}
	}
}

func TestOneRanksErrorIsItsProcesssError(t *testing.T) {
	libraries(t)
	for role, want := range map[string]string{
		"fail":  "error: rank 0: the loss is NaN",
		"panic": "error: rank 0: panic: lost my mind",
		"exit":  "exit status 7",
	} {
		if out := job(t, []string{role}, nil)[0]; !strings.Contains(out, want) {
			t.Errorf("%s: %s", role, out)
		}
	}
}

func TestASingleBoundGPUIsUsedWhateverTheLocalRank(t *testing.T) {
	libraries(t)
	out := job(t, []string{"work", "work"}, func(r int, vars map[string]string) {
		vars["CUDA_VISIBLE_DEVICES"], vars["EMU_DEVICES"] = fmt.Sprint(r), "1"
		vars[roleVariable] = "work"
		if r == 1 { // it ends the wait: the ranks never meet in the double
			vars["SHARDGEN_LIBNCCL"] = "/nowhere/libnccl.so.2"
		}
	})
	for r, text := range out {
		if strings.Contains(text, "the local rank is") || !strings.Contains(text, "rank 1: gpu: NCCL can't be opened") {
			t.Errorf("rank %d: %s", r, text)
		}
	}
}
