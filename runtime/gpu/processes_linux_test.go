package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/generated/tiny"
	"github.com/shardgen/shardgen/internal/emulated"
	shard "github.com/shardgen/shardgen/runtime"
	"github.com/shardgen/shardgen/runtime/gpu"
)

// A test binary that is started with these variables is a rank of a job.
const (
	roleVariable    = "SHARDGEN_TEST_ROLE"
	timeoutVariable = "SHARDGEN_TEST_TIMEOUT"
	folderVariable  = "SHARDGEN_TEST_FOLDER" // of the job's own
)

// roles are what ranks do.
var roles = map[string]func(context.Context, *shard.Rank) error{
	"name": func(_ context.Context, r *shard.Rank) error {
		fmt.Printf("rank %d of %d on %s\n", r.Rank(), r.Size(), r.Device().Name())
		return nil
	},
	"work":  work,
	"wait":  inPass(waits),
	"fail":  inPass(ends(func() error { return errors.New("the loss is NaN") })),
	"panic": inPass(ends(func() error { panic("lost my mind") })),
	"exit":  inPass(ends(func() error { os.Exit(7); return nil })),
	"die":   inPass(ends(die)),
	"sleep": inPass(ends(sleep)),
}

func TestMain(m *testing.M) {
	if role, ok := os.LookupEnv(roleVariable); ok {
		if err := play(roles[role]); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play is a rank in a process of its own.
func play(role func(context.Context, *shard.Rank) error) error {
	timeout, err := time.ParseDuration(os.Getenv(timeoutVariable))
	if err != nil {
		return err
	}
	return shard.Run(context.Background(), gpu.Environment(gpu.Options{Timeout: timeout}), role)
}

// job is ranks that run as processes.
type job struct {
	roles   []string
	timeout time.Duration                               // of the ranks' launcher, 20 s for 0
	change  func(rank int, variables map[string]string) // of one process; nil for none
}

// ended is what a process said and how it ended.
type ended struct {
	text   string // what it printed
	status error
	took   time.Duration
}

func (e ended) String() string { return fmt.Sprintf("%s(%v)", e.text, e.status) }

// processWait is longer than any process takes that ends by itself.
const processWait = 40 * time.Second

// run starts the processes with the environment of torchrun and waits for them.
func (j job) run(t *testing.T) []ended {
	t.Helper()
	folder, err := emulated.Folder()
	if err != nil {
		t.Fatal(err)
	}
	port, own := freePort(t), t.TempDir()
	all := make([]ended, len(j.roles))
	var wait sync.WaitGroup
	for r, role := range j.roles {
		variables := map[string]string{
			roleVariable: role, timeoutVariable: "20s", folderVariable: own, "EMU_SHARED": own,
			"EMU_IMAGES": filepath.Join(folder, "images"),
			"RANK":       fmt.Sprint(r), "WORLD_SIZE": fmt.Sprint(len(j.roles)), "LOCAL_RANK": fmt.Sprint(r), "LOCAL_WORLD_SIZE": fmt.Sprint(len(j.roles)),
			"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": fmt.Sprint(port), "TORCHELASTIC_RUN_ID": t.Name(),
		}
		if j.timeout != 0 {
			variables[timeoutVariable] = j.timeout.String()
		}
		if j.change != nil {
			j.change(r, variables)
		}
		wait.Go(func() { all[r] = process(variables) })
	}
	wait.Wait()
	return all
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// process runs this test binary as a rank. A value "-" takes a variable away.
func process(variables map[string]string) ended {
	ctx, cancel := context.WithTimeout(context.Background(), processWait)
	defer cancel()
	start := time.Now()
	cmd := exec.CommandContext(ctx, os.Args[0])
	for _, entry := range os.Environ() {
		if name, _, _ := strings.Cut(entry, "="); !strings.HasPrefix(name, "SLURM_") && variables[name] != "-" {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	for name, value := range variables {
		if value != "-" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	text, err := cmd.CombinedOutput()
	return ended{string(text), errors.Join(err, ctx.Err()), time.Since(start)}
}

func repeat(role string, n int) []string { return strings.Fields(strings.Repeat(role+" ", n)) }

func TestEnvironmentRunsOneRank(t *testing.T) {
	emulated.Require(t)
	for _, e := range (job{roles: repeat("name", 1)}).run(t) {
		if !strings.HasPrefix(e.text, "rank 0 of 1 on cuda:0") || e.status != nil {
			t.Error(e)
		}
	}
}

// visibleDriver compiles the driver of testdata/visible.c.
func visibleDriver(t *testing.T) string {
	t.Helper()
	cuda := emulated.Require(t).CUDA()
	path := filepath.Join(t.TempDir(), "visible.so")
	out, err := exec.Command("g++", "-x", "c", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Wno-stringop-truncation", "-Werror", "-o", path,
		"testdata/visible.c", "-x", "none", "-Wl,--no-as-needed", cuda, "-Wl,-rpath,"+filepath.Dir(cuda)).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// boundTo is the environment of processes that see one GPU each, by its name.
func boundTo(driver string, names ...string) func(int, map[string]string) {
	return func(r int, variables map[string]string) {
		variables["SHARDGEN_LIBCUDA"], variables["EMU_DEVICES"], variables["CUDA_VISIBLE_DEVICES"] = driver, "1", names[r]
	}
}

// A launcher may bind each process to a GPU, or to a part of one.
func TestProcessesThatSeeOneGPUEachComputeOnIt(t *testing.T) {
	driver := visibleDriver(t)
	for _, names := range [][]string{{"0", "1"}, {"MIG-9b1c-7", "MIG-9b1c-8"}} {
		for r, e := range (job{roles: repeat("name", 2), change: boundTo(driver, names...)}).run(t) {
			if !strings.HasPrefix(e.text, fmt.Sprintf("rank %d of 2 on cuda:0", r)) || e.status != nil {
				t.Error(e)
			}
		}
	}
}

func TestTwoProcessesOnOneGPUAreRefusedOnAllRanks(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	driver := visibleDriver(t)
	for name, c := range map[string]struct {
		change     func(int, map[string]string)
		one, other string
	}{
		"local ranks": {func(_ int, variables map[string]string) { variables["LOCAL_RANK"] = "1" },
			"rank 0 (local rank 1, GPU 1 of pid ", "rank 2 (local rank 1, GPU 1 of pid "},
		"visible devices": {boundTo(driver, "0", "1", "0"), "rank 0 (local rank 0, GPU 0 of pid ", "rank 2 (local rank 2, GPU 0 of pid "},
	} {
		t.Run(name, func(t *testing.T) {
			for r, e := range (job{roles: repeat("name", 3), change: c.change}).run(t) {
				for _, words := range []string{c.one, c.other, "on " + host + ") have the same GPU, UUID ", "LOCAL_RANK or SLURM_LOCALID", "CUDA_VISIBLE_DEVICES"} {
					if !strings.Contains(e.text, words) || e.status == nil {
						t.Errorf("rank %d does not say %q: %v", r, words, e)
					}
				}
			}
		})
	}
}

// onCPU returns what the ranks print when they are goroutines on the CPU.
func onCPU(t *testing.T, ranks int) []string {
	t.Helper()
	out := make([]string, ranks)
	err := shard.Run(t.Context(), shard.Local(ranks), func(ctx context.Context, r *shard.Rank) error {
		sum, err := trained(ctx, r)
		out[r.Rank()] = fmt.Sprintf("rank %d of %d: %s\n", r.Rank(), r.Size(), sum)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// withKernels compiles the model's kernels for the emulated machine.
func withKernels(t *testing.T) {
	t.Helper()
	m := emulated.Require(t)
	own := tiny.Descriptor().Code
	if made := m.AddPackage(t, filepath.Join("..", "..", "generated", "tiny"), own); made != own {
		t.Fatal("generated/tiny has no compiled kernels; generate it with CUDA")
	}
}

func TestProcessesTrainTheBitsOfTheCPU(t *testing.T) {
	withKernels(t)
	for ranks := 1; ranks <= 3; ranks++ {
		want := onCPU(t, ranks)
		for r, e := range (job{roles: repeat("work", ranks)}).run(t) {
			if e.text != want[r] || e.status != nil {
				t.Errorf("%d ranks: %vexpected\n%s", ranks, e, want[r])
			}
		}
	}
}

// Slurm's tasks find each other by the host list and the job's number.
func TestSlurmsTasksTrainTheBitsOfTheCPU(t *testing.T) {
	withKernels(t)
	name := slurmHost(t)
	number := fmt.Sprint(rand.IntN(1 << 30))
	slurm := func(r int, variables map[string]string) {
		for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"} {
			variables[name] = "-"
		}
		variables["SLURM_PROCID"], variables["SLURM_LOCALID"], variables["SLURM_NTASKS"] = fmt.Sprint(r), fmt.Sprint(r), "2"
		variables["SLURM_JOB_ID"], variables["SLURM_STEP_NODELIST"], variables["SLURM_JOB_NODELIST"] = number, name, "elsewhere[1-4]"
	}
	want := onCPU(t, 2)
	for r, e := range (job{roles: repeat("work", 2), change: slurm}).run(t) {
		if e.text != want[r] || e.status != nil {
			t.Errorf("%vexpected\n%s", e, want[r])
		}
	}
}

// slurmHost returns a name of this machine as Slurm would give it.
func slurmHost(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err == nil {
		_, err = net.LookupHost(name)
	}
	if err == nil {
		return name
	}
	if _, local := net.LookupHost("localhost"); local != nil {
		emu.Need(t, fmt.Errorf("this machine knows neither its own name nor localhost: %w, %w", err, local))
	}
	return "localhost"
}

// waited is what a rank's own error says that waits for another one.
var waited = regexp.MustCompile(`in the pass: .*rank [02]: all-gather of h\.2/f32 \(sequence \d+\): `)

// checkWaiting checks what a rank says that waited for one that ended.
func checkWaiting(t *testing.T, r int, e ended, words string) {
	t.Helper()
	if !strings.Contains(e.text, words) || e.status == nil || e.status.Error() != "exit status 1" {
		t.Errorf("rank %d does not say %q: %v", r, words, e)
	}
	if !waited.MatchString(e.text) {
		t.Errorf("rank %d does not name the collective: %v", r, e)
	}
	if e.took > 15*time.Second {
		t.Errorf("rank %d: it took %v", r, e.took)
	}
}

func TestWhateverEndsAProcessEndsTheOthersWithItsReason(t *testing.T) {
	withKernels(t)
	for role, c := range map[string]struct {
		own, others string // in what they print
		status      string
	}{
		"fail":  {"error: rank 1: the loss is NaN", "error: rank 1: the loss is NaN", "exit status 1"},
		"panic": {"error: rank 1: panic: lost my mind", "error: rank 1: panic: lost my mind", "exit status 1"},
		"exit":  {"", "error: rank 1: its process (", "exit status 7"},
		"die":   {"", "error: rank 1: its process (", "signal: killed"},
	} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			all := job{roles: []string{"wait", role, "wait"}}.run(t)
			checkWaiting(t, 0, all[0], c.others)
			checkWaiting(t, 2, all[2], c.others)
			if !strings.Contains(all[1].text, c.own) || all[1].status == nil || all[1].status.Error() != c.status {
				t.Errorf("rank 1: %v", all[1])
			}
		})
	}
}

func TestARankThatSleepsIsNamedAtTheDeadline(t *testing.T) {
	withKernels(t)
	all := job{roles: []string{"wait", "sleep", "wait"}, timeout: 3 * time.Second}.run(t)
	const named = "no sign of ranks [1] before the deadline"
	checkWaiting(t, 0, all[0], named)
	checkWaiting(t, 2, all[2], named)
	if !strings.Contains(all[1].text, named+"; ranks [1] have not returned within 5s after it and are left behind") || all[1].status == nil {
		t.Errorf("rank 1: %v", all[1])
	}
}

func TestAProcessThatHasNoGPUEndsTheOthersWithItsReason(t *testing.T) {
	emulated.Require(t)
	for r, e := range (job{roles: repeat("name", 3), change: func(r int, variables map[string]string) {
		if r == 1 {
			variables["EMU_DEVICES"] = "1"
		}
	}}).run(t) {
		want := "error: rank 1: gpu: the local rank is 1 (LOCAL_RANK or SLURM_LOCALID), but this process sees 1 GPUs"
		if !strings.Contains(e.text, want) || e.status == nil {
			t.Errorf("rank %d: %v", r, e)
		}
	}
}

func TestContradictingWorldSizesAreRefusedOnAllRanks(t *testing.T) {
	emulated.Require(t)
	for r, e := range (job{roles: repeat("name", 2), change: func(r int, variables map[string]string) {
		if r == 1 {
			variables["WORLD_SIZE"], variables["LOCAL_WORLD_SIZE"] = "3", "3"
		}
	}}).run(t) {
		if !regexp.MustCompile(`WORLD_SIZE 3, rank 0 .*\b2\b`).MatchString(e.text) || e.status == nil {
			t.Errorf("rank %d: %v", r, e)
		}
	}
}

func TestAWorldSizeThatIsNotPlannedIsRefusedOnAllRanks(t *testing.T) {
	withKernels(t)
	for r, e := range (job{roles: repeat("work", 5)}).run(t) {
		want := "the communicator has 5 ranks, but the package is generated for 1, 2, 3, 4, 8; add 5 to topology.world"
		if !strings.Contains(e.text, want) || e.status == nil {
			t.Errorf("rank %d: %v", r, e)
		}
	}
}
