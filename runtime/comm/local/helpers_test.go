package local_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/local"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

// newGroup returns a group that is closed at the end of the test.
func newGroup(t testing.TB, size int, timeout time.Duration) *local.Group {
	t.Helper()
	g, err := local.New(size, local.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// onEach calls f for every rank, each on a goroutine, and returns what the
// ranks' streams say in the end.
func onEach(g *local.Group, f func(rank int, c comm.Communicator)) []error {
	errs := make([]error, g.Size())
	var wait sync.WaitGroup
	for r := range errs {
		wait.Go(func() {
			c := g.Communicator(r)
			f(r, c)
			errs[r] = c.Synchronize(context.Background(), c.GatherStream().Record())
		})
	}
	wait.Wait()
	return errs
}

func checkAll(t *testing.T, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// dirty returns memory that holds NaNs or, in every second word, 99.
func dirty(t testing.TB, bytes int64) device.Memory {
	t.Helper()
	d := cpu.Poisoned()
	m, err := d.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Free(m) })
	for i := 0; i+8 <= len(m.Host()); i += 8 {
		binary.LittleEndian.PutUint32(m.Host()[i:], 99)
	}
	return m
}

// gatherAndFree returns a rank's function that gathers until that fails and
// then frees what it gathered from.
func gatherAndFree(t *testing.T) func(int, comm.Communicator) {
	return func(_ int, c comm.Communicator) {
		d := cpu.New()
		src, _ := d.Alloc(32 << 10)
		dst, _ := d.Alloc(96 << 10)
		for range 1000 {
			c.AllGather("w", dst, src)
			if c.Synchronize(context.Background(), c.GatherStream().Record()) != nil {
				break
			}
		}
		clear(src.Host())
		if err := errors.Join(d.Free(src), d.Free(dst)); err != nil {
			t.Error(err)
		}
	}
}
