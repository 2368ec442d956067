package transformer

import (
	"sync"
	"sync/atomic"
)

// task is work in numbered parts. Parts run in any order and at the same time,
// so no two of them may write to the same place.
type task interface{ part(i int) }

// team runs tasks on a fixed number of goroutines, the caller's among them.
// Starting a task allocates nothing.
type team struct {
	helpers int
	work    chan task
	parts   int64        // of the task that runs
	next    atomic.Int64 // first part that nobody has taken
	running sync.WaitGroup
}

// newTeam starts workers-1 helpers, which live until close.
func newTeam(workers int) *team {
	t := &team{helpers: workers - 1, work: make(chan task)}
	for range t.helpers {
		go t.help()
	}
	return t
}

func (t *team) help() {
	for job := range t.work {
		t.takeParts(job)
		t.running.Done()
	}
}

// run does all parts of a task and returns when the last one is done.
func (t *team) run(parts int, job task) {
	t.parts = int64(parts)
	t.next.Store(0)
	helpers := min(t.helpers, parts-1)
	t.running.Add(helpers)
	for range helpers {
		t.work <- job
	}
	t.takeParts(job)
	t.running.Wait()
}

func (t *team) takeParts(job task) {
	for i := t.next.Add(1) - 1; i < t.parts; i = t.next.Add(1) - 1 {
		job.part(int(i))
	}
}

func (t *team) close() { close(t.work) }
