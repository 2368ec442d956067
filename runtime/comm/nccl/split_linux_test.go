package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
)

func TestAGroupsEndIsThatOfItsSplits(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	halves := make([]comm.Communicator, 2)
	errs := w.onEach(func(r int, c *Communicator) {
		half, err := c.Split(context.Background(), "all again", 0, r)
		if err != nil {
			t.Error(err)
			return
		}
		halves[r] = half
		if r == 0 {
			half.Barrier("in the split")
			time.AfterFunc(20*time.Millisecond, func() { c.Abort(errors.New("over")) })
			wantWords(t, finished(half, half.GatherStream()), "barrier of in the split", "over")
		}
	})
	checkAll(t, errs)
	for _, half := range halves {
		_ = half.Close()
	}
	inTime(t, start)
}

func TestASplitThatARankDoesNotJoinNamesIt(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 3, long), time.Now()
	go w.overdue(1, 0, 1)
	w.onEach(func(r int, c *Communicator) {
		if r == 2 {
			return
		}
		_, err := c.Split(context.Background(), "experts", 0, 0)
		wantWords(t, err, "splitting the group", "all-gather of experts", "no sign of ranks [2]")
	})
	inTime(t, start)
}

func TestTheContextEndsASplit(t *testing.T) {
	libraries(t)
	w, start := newWorld(t, 2, long), time.Now()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err := w.ranks[0].Split(ctx, "experts", 0, 0)
	wantWords(t, err, "enough")
	inTime(t, start)
}
