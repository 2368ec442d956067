package double

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A test binary that is started with these variables is one rank of a test.
const (
	roleVariable  = "SHARDGEN_TEST_ROLE"
	rankVariable  = "SHARDGEN_TEST_RANK"
	ranksVariable = "SHARDGEN_TEST_RANKS"
	idVariable    = "SHARDGEN_TEST_ID"
)

func TestMain(m *testing.M) {
	if role, ok := os.LookupEnv(roleVariable); ok {
		if err := play(roles[role]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// roles are what ranks in processes of their own do.
var roles = map[string]func(*rank){
	"collectives": func(r *rank) {
		for _, k := range kinds {
			gathers(r, k)
			reductions(r, k)
			broadcasts(r, k)
		}
	},
	"streams":  streams,
	"split":    halves,
	"group":    group,
	"disagree": disagree,
	"abort":    stuckThenAbort,
	"die":      func(r *rank) { os.Exit(9) },
	"most":     most,
	"refused":  refused,
	"ahead":    ahead,
}

// play is the life of a process that is a rank.
func play(role func(*rank)) error {
	runtime.LockOSThread()
	if err := load(); err != nil {
		return err
	}
	var id uniqueID
	if _, err := hex.Decode(id.B[:], []byte(os.Getenv(idVariable))); err != nil {
		return err
	}
	r := &rank{}
	var failed [2]error
	r.rank, failed[0] = strconv.Atoi(os.Getenv(rankVariable))
	r.ranks, failed[1] = strconv.Atoi(os.Getenv(ranksVariable))
	if err := errors.Join(failed[:]...); err != nil {
		return err
	}
	r.ok("driver", driver.Init(0))
	r.begin(id)
	if r.err == nil {
		role(r)
	}
	r.end()
	if found := shared.Check(); r.err == nil && len(found) > 0 {
		return fmt.Errorf("rank %d: %q", r.rank, found)
	}
	return r.err
}

// startRanks starts a rank for each role and returns what they print, by rank, and how
// they end. Nothing stays in the folder that they share.
func startRanks(t *testing.T, variables []string, roles ...string) []string {
	t.Helper()
	libraries(t)
	var id uniqueID
	ok(t, collect.GetUniqueID(&id))
	folder := t.TempDir()
	out := make([]string, len(roles))
	var all sync.WaitGroup
	for i, role := range roles {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			command := exec.CommandContext(ctx, os.Args[0])
			command.Env = append(os.Environ(), roleVariable+"="+role, fmt.Sprintf("%s=%d", rankVariable, i), fmt.Sprintf("%s=%d", ranksVariable, len(roles)),
				idVariable+"="+hex.EncodeToString(id.B[:]), "EMU_SHARED="+folder)
			command.Env = append(command.Env, variables...)
			text, err := command.CombinedOutput()
			out[i] = fmt.Sprintf("%s(%v)", text, err)
		})
	}
	all.Wait()
	left, err := os.ReadDir(folder)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the shared folder: %v, %v", left, err)
	}
	return out
}

// startGood starts ranks of one role, which must end well.
func startGood(t *testing.T, ranks int, role string, variables ...string) {
	t.Helper()
	for r, out := range startRanks(t, variables, times(role, ranks)...) {
		if out != "(<nil>)" {
			t.Errorf("rank %d: %s", r, out)
		}
	}
}

func times(role string, ranks int) (all []string) {
	for range ranks {
		all = append(all, role)
	}
	return all
}

func TestProcessesHaveTheSameCollectives(t *testing.T) {
	for ranks := 1; ranks <= 3; ranks++ {
		startGood(t, ranks, "collectives")
	}
	startGood(t, 2, "collectives", "EMU_SCHEDULE=lazy")
}

func TestProcessesKeepTheOrderOfCollectives(t *testing.T) {
	for _, policy := range []string{"lazy", "random:2", "starve:1"} {
		startGood(t, 3, "streams", "EMU_SCHEDULE="+policy)
	}
}

func TestProcessesSplit(t *testing.T) { startGood(t, 4, "split") }

// No process waits for its own stream here: the one that does must be served.
func TestAProcessServesThoseThatWaitForIt(t *testing.T) {
	startGood(t, 2, "ahead", "EMU_SCHEDULE=lazy")
}

func TestProcessesSendAsMuchAsASeatHolds(t *testing.T) { startGood(t, 2, "most") }

func TestWhatProcessesCannotDoIsRefused(t *testing.T) { startGood(t, 2, "refused") }

func TestProcessesThatDisagreeHaveAnAsynchronousError(t *testing.T) {
	for r, out := range startRanks(t, nil, "disagree", "disagree") {
		want := "emulated NCCL: collective 0: rank 0 calls ncclAllReduce(count 2, type 7, op 0, root 0), rank 1 calls ncclAllReduce(count 3, type 7, op 0, root 0)\n(<nil>)"
		if out != want {
			t.Errorf("rank %d: %s", r, out)
		}
	}
}

func TestADeadProcessLeavesTheOthersStuckUntilTheyAbort(t *testing.T) {
	for r, out := range startRanks(t, nil, "abort", "die", "abort") {
		if want := map[bool]string{true: "(exit status 9)", false: "(<nil>)"}[r == 1]; out != want {
			t.Errorf("rank %d: %s", r, out)
		}
	}
}

func TestProcessesThatDisagreeOnTheirNumberAreRefused(t *testing.T) {
	libraries(t)
	t.Setenv("EMU_SHARED", t.TempDir())
	onDevice(t, 0)
	var id uniqueID
	var comm handle
	ok(t, collect.GetUniqueID(&id))
	fault(t, "nccl_init:6:ms=1:times=2")
	want(t, collect.InitRank(&comm, 2, id, 0), 6)
	shared.Reset() // as another process: it knows nothing but the folder
	onDevice(t, 0)
	for ranks, text := range map[int32]string{3: "disagree on their number: 2 and 3", 2: "rank 0 came twice", 17: "17 ranks share a board of 16"} {
		want(t, collect.InitRank(&comm, ranks, id, 0), 4)
		if got := collect.LastError(0); !strings.Contains(got, text) {
			t.Errorf("%d ranks: %q", ranks, got)
		}
		shared.Reset()
		onDevice(t, 0)
	}
	t.Setenv("EMU_SHARED", "/nowhere")
	want(t, collect.InitRank(&comm, 2, id, 0), 2)
	shared.Reset()
}

// streams puts collectives of one communicator on two streams in turn.
func streams(r *rank) {
	var other handle
	r.ok("stream", driver.StreamCreate(&other, 1))
	a := r.memory([]byte{1})
	for i := range 6 {
		s := r.stream
		if i%2 == 1 {
			s = other
		}
		r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, s))
	}
	r.ok("wait", driver.StreamSynchronize(other))
	r.equal("six sums over three ranks", r.content(a, 1), []byte{217}) // 3^6 mod 256
	r.ok("stream", driver.StreamDestroy(other))
}

func disagree(r *rank) {
	a := r.memory(make([]byte, 16))
	r.ok("reduce", collect.AllReduce(a, a, uintptr(2+r.rank), 7, 0, r.comm, r.stream))
	if status := awaitAsync(r); status != 5 {
		r.err = fmt.Errorf("rank %d: asynchronous error %d, want 5", r.rank, status)
	}
	abort(r)
	r.ok("wait", driver.StreamSynchronize(r.stream)) // what was queued is dropped
}

func stuckThenAbort(r *rank) {
	a := r.memory([]byte{1})
	r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
	var status int32
	for range 10 {
		if driver.StreamQuery(r.stream) == 0 {
			r.err = fmt.Errorf("rank %d: the collective is done without rank 1", r.rank)
		}
		time.Sleep(5 * time.Millisecond)
	}
	r.ok("async error", collect.AsyncError(r.comm, &status))
	if status != 0 {
		r.err = fmt.Errorf("rank %d: asynchronous error %d of a rank that is only stuck", r.rank, status)
	}
	abort(r)
	r.ok("wait", driver.StreamSynchronize(r.stream))
	r.equal("memory of a collective that was dropped", r.content(a, 1), []byte{1})
}

// These are kSeatBytes and kMostTogether of board.h.
const (
	seatBytes    = 64 << 20
	mostTogether = 16
)

func most(r *rank) {
	buffer := r.memory(bytes.Repeat([]byte{byte(5 + r.rank)}, seatBytes))
	r.ok("broadcast", collect.Broadcast(buffer, buffer, seatBytes, 1, 1, r.comm, r.stream))
	if got := r.content(buffer, seatBytes); r.err == nil && bytes.Count(got, []byte{6}) != seatBytes {
		r.err = fmt.Errorf("rank %d received something else", r.rank)
	}
}

func refused(r *rank) {
	a := r.memory(make([]byte, 64))
	big := r.memory(make([]byte, seatBytes+1))
	for what, status := range map[string]int32{
		"send":     collect.Send(a, 1, 1, 0, r.comm, r.stream) - 5,
		"receive":  collect.Recv(a, 1, 1, 0, r.comm, r.stream) - 5,
		"too much": collect.AllReduce(big, big, seatBytes+1, 1, 0, r.comm, r.stream) - 4,
	} {
		r.ok("the status of "+what, status)
	}
	r.ok("start", collect.GroupStart())
	for i := range uint64(mostTogether + 1) {
		r.ok("reduce", collect.AllReduce(a+i, a+i, 1, 1, 0, r.comm, r.stream))
	}
	r.ok("the status of too many", collect.GroupEnd()-4)
	r.ok("reduce", collect.AllReduce(a, a, 64, 1, 0, r.comm, r.stream)) // it works on
	r.content(a, 64)
}

// ahead makes rank 0 wait for a collective that rank 1 has only queued, until it
// sees that rank 0 is done with it.
func ahead(r *rank) {
	a := r.memory([]byte{byte(1 + r.rank)})
	r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
	done := os.Getenv("EMU_SHARED") + "/done"
	if r.rank == 0 {
		r.equal("sum", r.content(a, 1), []byte{3})
		if err := os.WriteFile(done, nil, 0o600); err != nil {
			r.err = err
		}
		return
	}
	for start := time.Now(); r.err == nil; time.Sleep(time.Millisecond) {
		if err := os.Remove(done); err == nil {
			return
		}
		if time.Since(start) > 10*time.Second {
			r.err = errors.New("rank 0 waits for rank 1, whose work nothing starts")
		}
	}
}
