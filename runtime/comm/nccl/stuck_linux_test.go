package nccl

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/internal/dynlib"
)

// Where testdata/stuck.c gets stuck.
const (
	nowhere = iota
	inCollective
	inFinalize
	inInit
	atOtherRank
	inAbort
	inFirst
	slow // 200 ms in each collective
)

var stuckLibrary struct {
	once sync.Once
	path string
	err  error
}

// stuck makes NCCL that of testdata/stuck.c, and returns how to join a
// communicator of one rank that gets stuck somewhere.
func stuck(t *testing.T) (join func(where byte, timeout time.Duration) (*Communicator, error), count func(symbol string) int) {
	t.Helper()
	need(t, "gcc")
	libraries(t)
	stuckLibrary.once.Do(func() {
		// It stays open, so it is not in a folder of the test.
		stuckLibrary.path = filepath.Join(built.libraries.Images, "..", "stuck.so")
		_, stuckLibrary.err = exec.Command("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", stuckLibrary.path, "testdata/stuck.c").Output()
	})
	if stuckLibrary.err != nil {
		t.Fatal(stuckLibrary.err)
	}
	t.Setenv(libraryVariable, stuckLibrary.path)
	w := openDevices(t, 1)
	join = func(where byte, timeout time.Duration) (*Communicator, error) {
		return New(context.Background(), Options{Device: w.devices[0], Size: 1, ID: ID{1, where, IDBytes - 1: 9}, Timeout: timeout})
	}
	h, err := dynlib.Open(dynlib.Library{Candidates: []string{stuckLibrary.path}})
	if err != nil {
		t.Fatal(err)
	}
	return join, func(symbol string) int {
		f, err := h.Symbol(symbol)
		if err != nil {
			t.Fatal(err)
		}
		return int(int32(dynlib.Call(f)))
	}
}

// shorten makes one of the package's waits short until the test ends.
func shorten(t *testing.T, wait *time.Duration) {
	t.Helper()
	before := *wait
	*wait = 50 * time.Millisecond
	t.Cleanup(func() { *wait = before })
}

func TestACollectiveThatNeverReturnsIsEndedByTheAbort(t *testing.T) {
	shorten(t, &callWait)
	join, count := stuck(t)
	c, err := join(inCollective, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	start, before, under := time.Now(), count("stuck_aborts"), count("stuck_under")
	c.Barrier("step 1") // returns when the watchdog has aborted it
	wantRankError(t, finished(c, c.gather), 0, "barrier of step 1 (sequence 1)", "it is not done after 100ms",
		"the communicator was aborted under it", "end this process")
	if got := count("stuck_aborts") - before; got != 1 {
		t.Errorf("%d aborts", got)
	}
	if got := count("stuck_under") - under; got != 1 {
		t.Errorf("%d aborts under the collective", got)
	}
	_ = c.Close()
	inTime(t, start)
}

func TestAnAbortWaitsForACallThatReturns(t *testing.T) {
	join, count := stuck(t)
	c, err := join(slow, long)
	if err != nil {
		t.Fatal(err)
	}
	aborts, under := count("stuck_aborts"), count("stuck_under")
	time.AfterFunc(50*time.Millisecond, func() { c.Abort(errors.New("the loss is NaN")) })
	c.Barrier("step 1")
	<-c.watched
	if a, u := count("stuck_aborts")-aborts, count("stuck_under")-under; a != 1 || u != 0 {
		t.Errorf("%d aborts, %d of them under the collective", a, u)
	}
	err = finished(c, c.gather)
	wantWords(t, err, "the loss is NaN")
	if strings.Contains(err.Error(), "end this process") {
		t.Error(err)
	}
	_ = c.Close()
}

func TestAFirstConnectionThatNeverComesFailsNew(t *testing.T) {
	shorten(t, &callWait)
	join, count := stuck(t)
	start, before := time.Now(), count("stuck_aborts")
	_, err := join(inFirst, 100*time.Millisecond)
	wantWords(t, err, "rank 0 of 1 joins the communicator: connecting the ranks", "NCCL_DEBUG=INFO", "all-gather of the first connection", "not done after 100ms")
	if got := count("stuck_aborts") - before; got != 1 {
		t.Errorf("%d aborts", got)
	}
	inTime(t, start)
}

func TestAnAbortThatNeverReturnsIsLeftBehind(t *testing.T) {
	shorten(t, &abortWait)
	shorten(t, &callWait)
	join, _ := stuck(t)
	c, err := join(inAbort, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	go c.Barrier("step 1")
	for c.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	<-c.watched
	inTime(t, start)
}

func TestAFinalizeThatNeverReturnsEndsInAnAbort(t *testing.T) {
	join, count := stuck(t)
	c, err := join(inFinalize, 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	start, before := time.Now(), count("stuck_aborts")
	wantWords(t, c.Close(), "rank 0 closes the communicator", "ncclCommFinalize did not return within 100ms", "end this process")
	if got := count("stuck_aborts") - before; got != 1 {
		t.Errorf("%d aborts", got)
	}
	inTime(t, start)
}

func TestAnInitThatComesTooLateIsAborted(t *testing.T) {
	join, count := stuck(t)
	start, before := time.Now(), count("stuck_aborts")
	_, err := join(inInit, 50*time.Millisecond)
	wantWords(t, err, "rank 0 of 1 joins the communicator", "did not connect with all others within 50ms")
	for count("stuck_aborts") == before && time.Since(start) < 5*time.Second {
		time.Sleep(5 * time.Millisecond)
	}
	if got := count("stuck_aborts") - before; got != 1 {
		t.Errorf("%d aborts", got)
	}
	inTime(t, start)
}

func TestAnotherRankThanAskedForIsRefused(t *testing.T) {
	join, count := stuck(t)
	before := count("stuck_aborts")
	_, err := join(atOtherRank, long)
	wantWords(t, err, "NCCL made it rank 7 of 1, expected 0 of 1")
	if got := count("stuck_aborts") - before; got != 1 {
		t.Errorf("%d aborts", got)
	}
}

func TestACommunicatorThatWorksIsDestroyedOnce(t *testing.T) {
	join, count := stuck(t)
	c, err := join(nowhere, long)
	if err != nil {
		t.Fatal(err)
	}
	aborts, destroys := count("stuck_aborts"), count("stuck_destroys")
	c.Barrier("step 1")
	if err := finished(c, c.gather); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if a, d := count("stuck_aborts")-aborts, count("stuck_destroys")-destroys; a != 0 || d != 1 {
		t.Errorf("%d aborts, %d destroys", a, d)
	}
}

func TestASplitThatNCCLRefusesEndsTheGroup(t *testing.T) {
	join, _ := stuck(t)
	c, err := join(nowhere, long)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Split(context.Background(), "experts", 0, 0)
	wantWords(t, err, "splitting the group for experts", "ncclCommSplit: internal error (3): as the test asked")
	if c.Err() == nil {
		t.Error("the group works on, though its other ranks may wait in NCCL")
	}
	_ = c.Close()
}
