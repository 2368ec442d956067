package cpu_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

// task is a function as a cpu.Task.
type task func(failed error) error

func (f task) Run(failed error) error { return f(failed) }

// both runs a test on an inline and on a queued stream.
func both(t *testing.T, test func(t *testing.T, s *cpu.Stream)) {
	for name, inline := range map[string]bool{"inline": true, "queued": false} {
		t.Run(name, func(t *testing.T) {
			s := cpu.NewStream("compute", inline)
			defer s.Close()
			test(t, s)
		})
	}
}

func synchronize(t *testing.T, s device.Stream) {
	t.Helper()
	if err := s.Synchronize(context.Background(), s.Record()); err != nil {
		t.Fatal(err)
	}
}

func TestWorkIsDoneInOrder(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		var got []int
		for i := range 3 * cpu.QueueLength {
			s.Do(task(func(error) error { got = append(got, i); return nil }))
		}
		synchronize(t, s)
		if len(got) != 3*cpu.QueueLength || !slices.IsSorted(got) {
			t.Errorf("the order was %v", got)
		}
	})
}

func TestTheFirstErrorSticks(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		m := device.HostMemory([]byte("untouched"))
		before := s.Record()
		first, told := errors.New("first"), error(nil)
		s.Do(task(func(error) error { return first }))
		kernels.Zero(s, m)
		s.Do(task(func(failed error) error { told = failed; return errors.New("second") }))
		if err := s.Synchronize(context.Background(), s.Record()); err != first {
			t.Errorf("Synchronize returned %v", err)
		}
		if err := s.Synchronize(context.Background(), before); err != nil {
			t.Errorf("what was before the error failed with %v", err)
		}
		if told != first || s.Err() != first {
			t.Errorf("the task was told %v, Err says %v", told, s.Err())
		}
		if string(m.Host()) != "untouched" {
			t.Error("work after the error was done")
		}
	})
}

func TestSynchronizeEndsWithTheContext(t *testing.T) {
	s := cpu.NewStream("compute", false)
	defer s.Close()
	hold := make(chan bool)
	s.Do(task(func(error) error { <-hold; return nil }))
	ctx, cancel := context.WithTimeoutCause(context.Background(), 10*time.Millisecond, errors.New("enough"))
	defer cancel()
	err := s.Synchronize(ctx, s.Record())
	if err == nil || !strings.Contains(err.Error(), "stream compute") || !strings.Contains(err.Error(), "enough") {
		t.Errorf("Synchronize returned %v", err)
	}
	close(hold)
	synchronize(t, s)
}

func TestWaitOrdersTwoStreams(t *testing.T) {
	both(t, func(t *testing.T, second *cpu.Stream) {
		first := cpu.NewStream("first", false)
		defer first.Close()
		var done atomic.Bool
		for range 200 {
			done.Store(false)
			first.Do(task(func(error) error { time.Sleep(50 * time.Microsecond); done.Store(true); return nil }))
			second.Wait(first.Record())
			second.Do(task(func(error) error {
				if !done.Load() {
					return errors.New("it did not wait")
				}
				return nil
			}))
			synchronize(t, second)
		}
	})
}

func TestWaitingForFailedWorkFails(t *testing.T) {
	both(t, func(t *testing.T, second *cpu.Stream) {
		first := cpu.NewStream("first", false)
		defer first.Close()
		good := first.Record()
		cause := errors.New("broken")
		first.Do(task(func(error) error { return cause }))
		second.Wait(good)
		synchronize(t, second)
		second.Wait(first.Record())
		if err := second.Synchronize(context.Background(), second.Record()); !errors.Is(err, cause) {
			t.Errorf("the second stream says %v", err)
		}
	})
}

func TestEventsThatNeedNoWait(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		s.Wait(device.Event{})
		s.Wait(s.Record())
		if err := s.Synchronize(context.Background(), device.Event{}); err != nil {
			t.Error(err)
		}
		other := cpu.NewStream("other", true)
		if err := other.Synchronize(context.Background(), s.Record()); err != nil {
			t.Error(err)
		}
	})
}

func TestAnEventThatIsNotRecordedIsRefused(t *testing.T) {
	s := cpu.NewStream("compute", false)
	defer s.Close()
	err := s.Synchronize(context.Background(), device.Event{Stream: s, Seq: 5})
	if err == nil || !strings.Contains(err.Error(), "event 5, but only 0") {
		t.Errorf("Synchronize returned %v", err)
	}
}

func TestManyWaitForOneStream(t *testing.T) {
	s := cpu.NewStream("compute", false)
	defer s.Close()
	const waiters = 20
	errs := make(chan error, waiters)
	for range 50 {
		s.Do(task(func(error) error { time.Sleep(100 * time.Microsecond); return nil }))
	}
	events := make([]device.Event, waiters)
	for i := range events {
		events[i] = device.Event{Stream: s, Seq: uint64(50 - i)}
		go func() { errs <- s.Synchronize(context.Background(), events[i]) }()
	}
	for range waiters {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestCloseDoesTheWorkAndEndsTheGoroutine(t *testing.T) {
	before, n := runtime.NumGoroutine(), 0
	for range 10 {
		s := cpu.NewStream("compute", false)
		for range 20 {
			s.Do(task(func(error) error { n++; return nil }))
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
	if n != 200 {
		t.Errorf("%d of 200 tasks were done", n)
	}
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 100 {
			t.Fatalf("%d goroutines before, %d after Close", before, runtime.NumGoroutine())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestAWaitForWorkThatAClosedStreamRefusedFails(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		dst := device.HostMemory([]byte{1})
		kernels.Zero(s, dst)
		if err := errors.Join(s.Synchronize(context.Background(), s.Record()), s.Close()); err != nil {
			t.Fatal(err)
		}
		s.Copy(dst, device.HostMemory([]byte{2}))
		if err := s.Synchronize(context.Background(), s.Record()); err == nil || !strings.Contains(err.Error(), "copy after Close") {
			t.Errorf("the wait returned %v", err)
		}
	})
}

func TestCloseReturnsAnErrorThatNobodyHasSeen(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		cause := errors.New("broken")
		s.Do(task(func(error) error { return cause }))
		if err := s.Close(); err != cause {
			t.Errorf("Close returned %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close returned it twice: %v", err)
		}
	})
	both(t, func(t *testing.T, s *cpu.Stream) {
		s.Do(task(func(error) error { return errors.New("broken") }))
		_ = s.Synchronize(context.Background(), s.Record())
		if err := s.Close(); err != nil {
			t.Errorf("Close returned what Synchronize had: %v", err)
		}
	})
}

func TestWorkAfterCloseIsAnError(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		_ = s.Close()
		kernels.Zero(s, device.Memory{})
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), "zero after Close") {
			t.Errorf("the stream says %v", err)
		}
	})
}

func TestStreamsDoNotAllocate(t *testing.T) {
	both(t, func(t *testing.T, s *cpu.Stream) {
		other := cpu.NewStream("other", false)
		defer other.Close()
		m := device.HostMemory(make([]byte, 64))
		n := testing.AllocsPerRun(500, func() {
			for range 10 {
				kernels.Zero(other, m)
				s.Wait(other.Record())
				s.Copy(m, m)
				other.Wait(s.Record())
			}
			_ = other.Synchronize(context.Background(), other.Record())
		})
		if n >= 1 {
			t.Errorf("%v allocations in 40 commands", n)
		}
	})
}

func BenchmarkQueuedCommand(b *testing.B) {
	s := cpu.NewStream("compute", false)
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		kernels.Zero(s, device.Memory{})
		_ = s.Synchronize(context.Background(), s.Record())
	}
}

func BenchmarkInlineCommand(b *testing.B) {
	s := cpu.NewStream("compute", true)
	b.ReportAllocs()
	for b.Loop() {
		kernels.Zero(s, device.Memory{})
	}
}
