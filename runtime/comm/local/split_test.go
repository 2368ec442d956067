package local_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/local"
	"github.com/shardgen/shardgen/runtime/device"
)

// splitAll lets every rank split the group and use its part.
func splitAll(g *local.Group, choose func(rank int) (color, key int), use func(rank int, part comm.Communicator) error) []error {
	errs := make([]error, g.Size())
	var wait sync.WaitGroup
	for r := range errs {
		wait.Go(func() {
			color, key := choose(r)
			part, err := g.Communicator(r).Split(context.Background(), "part", color, key)
			if err != nil {
				errs[r] = err
				return
			}
			errs[r] = errors.Join(use(r, part), part.Close())
		})
	}
	wait.Wait()
	return errs
}

// ranksOf gathers the parent's ranks over a part.
func ranksOf(rank int, part comm.Communicator) ([]byte, error) {
	all := make([]byte, part.Size())
	part.AllGather("ranks", device.HostMemory(all), device.HostMemory([]byte{byte(rank)}))
	return all, part.Synchronize(context.Background(), part.GatherStream().Record())
}

func TestSplitNumbersRanksByKeyThenRank(t *testing.T) {
	for _, c := range []struct {
		size   int
		choose func(rank int) (color, key int)
		want   [][]byte // by rank
	}{
		{1, func(int) (int, int) { return -7, 1 << 30 }, [][]byte{{0}}},
		{4, func(r int) (int, int) { return r % 2, 0 }, [][]byte{{0, 2}, {1, 3}, {0, 2}, {1, 3}}},
		{4, func(r int) (int, int) { return 1, -r }, [][]byte{{3, 2, 1, 0}, {3, 2, 1, 0}, {3, 2, 1, 0}, {3, 2, 1, 0}}},
		{3, func(r int) (int, int) { return r / 2, 5 }, [][]byte{{0, 1}, {0, 1}, {2}}},
	} {
		for range 2 { // a group can be split again
			g := newGroup(t, c.size, soon)
			checkAll(t, splitAll(g, c.choose, func(rank int, part comm.Communicator) error {
				got, err := ranksOf(rank, part)
				if err == nil && (!slices.Equal(got, c.want[rank]) || int(got[part.Rank()]) != rank) {
					err = fmt.Errorf("rank %d is %d of %v, want %v", rank, part.Rank(), got, c.want[rank])
				}
				return err
			}))
		}
	}
}

func TestPartsRunBesideEachOtherAndTheGroup(t *testing.T) {
	g := newGroup(t, 4, soon)
	checkAll(t, splitAll(g, func(r int) (int, int) { return r / 2, 0 }, func(rank int, part comm.Communicator) error {
		for range 50 {
			if _, err := ranksOf(rank, part); err != nil {
				return err
			}
			if rank < 2 {
				continue // parts are at different collectives
			}
			if _, err := ranksOf(rank, part); err != nil {
				return err
			}
		}
		_, err := ranksOf(rank, g.Communicator(rank))
		return err
	}))
}

func TestAPartFailsWithItsGroup(t *testing.T) {
	for name, end := range map[string]func(g *local.Group, rank int){
		"a rank leaves with an error": func(g *local.Group, rank int) { g.Leave(rank, errors.New("a reason")) },
		"the group is aborted":        func(g *local.Group, _ int) { g.Abort(errors.New("a reason")) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, 4, soon)
			start := time.Now()
			errs := splitAll(g, func(r int) (int, int) { return r % 2, 0 }, func(rank int, part comm.Communicator) error {
				if rank == 2 {
					end(g, rank)
					return nil
				}
				if rank%2 == 1 {
					return nil
				}
				_, err := ranksOf(rank, part)
				return err
			})
			if errs[0] == nil || !strings.Contains(errs[0].Error(), "a reason") {
				t.Errorf("rank 0: %v", errs[0])
			}
			if spent := time.Since(start); spent > soon/2 {
				t.Errorf("it took %v", spent)
			}
		})
	}
}

func TestSplitOfAGroupThatFailedIsAnError(t *testing.T) {
	g := newGroup(t, 2, 50*time.Millisecond)
	if _, err := g.Communicator(0).Split(context.Background(), "part", 0, 0); err == nil || !strings.Contains(err.Error(), "no sign of ranks [1]") {
		t.Errorf("error %v", err)
	}
	if _, err := g.Communicator(1).Split(context.Background(), "part", 0, 0); err == nil {
		t.Error("the late rank got no error")
	}
}
