package local

import (
	"errors"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
)

// pair returns one barrier of each of two ranks that has not run.
func pair(t *testing.T) (*Group, [2]*collective) {
	t.Helper()
	g, err := New(2, Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	var tasks [2]*collective
	for r := range tasks {
		tasks[r] = g.ranks[r].next(request{op: comm.Barrier, subject: "b"})
	}
	return g, tasks
}

// A rank that came before an abort has given up, and its memory may be gone:
// one that comes after it must not go on.
func TestACollectiveIsOffForAllRanksIfOneIsMissingAtTheAbort(t *testing.T) {
	g, tasks := pair(t)
	time.AfterFunc(5*time.Millisecond, func() { g.Abort(errors.New("now")) })
	for r, task := range tasks {
		if err := task.meet(); err == nil {
			t.Errorf("rank %d went on", r)
		}
	}
}

func TestACollectiveIsOnForAllRanksIfAllCameBeforeTheAbort(t *testing.T) {
	g, tasks := pair(t)
	g.arrived.Add(1) // rank 0 has come, and wakes up late
	if err := tasks[1].meet(); err != nil {
		t.Error(err)
	}
	g.Abort(errors.New("now"))
	if err := tasks[0].sleepUntil(2); err != nil {
		t.Errorf("rank 0, whose memory rank 1 reads, gave up: %v", err)
	}
}
