package cuda

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
)

var _ device.Stream = (*Stream)(nil)

func done(t *testing.T, s *Stream, e device.Event) bool {
	t.Helper()
	past, err := s.Done(e)
	if err != nil {
		t.Error(err)
	}
	return past
}

func TestCopyMovesBytesInOrder(t *testing.T) {
	_, gpu := openDevice(t)
	ctx, s := context.Background(), openStream(t, gpu, "compute")
	a, b, got := alloc(t, gpu, 1000), alloc(t, gpu, 1000), make([]byte, 1000)
	if err := gpu.Write(ctx, a, bytes.Repeat([]byte("x"), 1000)); err != nil {
		t.Fatal(err)
	}
	s.Copy(b, a)
	s.Copy(b.Slice(0, 0), a.Slice(5, 0))
	if err := errors.Join(s.Synchronize(ctx, s.Record()), gpu.Read(ctx, got, b)); err != nil || bytes.Count(got, []byte("x")) != 1000 {
		t.Errorf("%q, %v", got, err)
	}
}

func TestEventsArePastWhenTheirWorkIs(t *testing.T) {
	d, gpu := openDevice(t)
	s := openStream(t, gpu, "compute")
	held := d.call("double_points")
	d.hold()
	first, second := s.Record(), s.Record()
	if done(t, s, first) || done(t, s, second) || !done(t, s, device.Event{}) {
		t.Error("an event is past before its work, or the zero event is not")
	}
	d.reach(held, 1)
	if !done(t, s, first) || done(t, s, second) {
		t.Error("the first event should be past, and no other")
	}
	d.reach(held, 2)
	if !done(t, s, second) {
		t.Error("the second event should be past")
	}
	queries := d.calls(cuEventQuery)
	if !done(t, s, first) || d.calls(cuEventQuery) != queries {
		t.Error("the driver was asked for what is known")
	}
}

func TestAnOverwrittenEventIsWaitedForThroughTheOldestKept(t *testing.T) {
	d, gpu := openDevice(t)
	s := openStream(t, gpu, "compute")
	held := d.call("double_points")
	d.hold()
	first := s.Record()
	var last device.Event
	for range ringEvents {
		last = s.Record() // the last of these takes the first one's place
	}
	d.reach(held, 1)
	if done(t, s, first) {
		t.Error("the first event is past, though its own place is overwritten and the oldest kept is not past")
	}
	d.reach(held, 2)
	if !done(t, s, first) || done(t, s, last) {
		t.Error("the first event should be past with the second, the last should not")
	}
	d.reach(held, ringEvents+1)
	if !done(t, s, last) {
		t.Error("the last event should be past")
	}
}

func TestAnEventThatIsNotRecordedIsRefused(t *testing.T) {
	_, gpu := openDevice(t)
	s, other := openStream(t, gpu, "gather"), openStream(t, gpu, "compute")
	wantError(t, s.Synchronize(context.Background(), device.Event{Stream: s, Seq: 7}), "cuda:0: stream gather: wait for point 7, but only 0 are recorded")
	other.Wait(device.Event{Stream: s, Seq: 7})
	wantError(t, other.Err(), "stream compute", "point 7 of stream gather")
}

func TestSynchronizeEndsWithTheContextsCause(t *testing.T) {
	d, gpu := openDevice(t)
	s := openStream(t, gpu, "gather")
	held := d.call("double_points")
	d.hold()
	e, cause := s.Record(), errors.New("the trainer gave up")
	ctx, cancel := context.WithCancelCause(context.Background())
	time.AfterFunc(5*time.Millisecond, func() { cancel(cause) })
	err := s.Synchronize(ctx, e)
	wantError(t, err, "cuda:0: stream gather: wait for its work: the trainer gave up")
	if !errors.Is(err, cause) || s.Err() != nil {
		t.Errorf("%v, and the stream has %v", err, s.Err())
	}
	d.reach(held, 1)
	if err := s.Synchronize(ctx, e); err != nil {
		t.Errorf("work that is done: %v", err)
	}
}

func TestFailEndsWaitsAndLaterWork(t *testing.T) {
	d, gpu := openDevice(t)
	s, compute := openStream(t, gpu, "gather"), openStream(t, gpu, "compute")
	past := s.Record()
	if err := s.Synchronize(context.Background(), past); err != nil {
		t.Fatal(err)
	}
	d.hold()
	e := s.Record()
	compute.Wait(e)
	mine := compute.Record()
	stuck := errors.New("rank 3 is behind")
	time.AfterFunc(5*time.Millisecond, func() { s.Fail(stuck); s.Fail(errors.New("later")) })
	var g sync.WaitGroup
	for _, stream := range []*Stream{s, compute} {
		g.Go(func() {
			if err := stream.Synchronize(context.Background(), map[*Stream]device.Event{s: e, compute: mine}[stream]); !errors.Is(err, stuck) {
				t.Errorf("%s: %v", stream.Name(), err)
			}
		})
	}
	g.Wait()
	d.call("double_reach", forever) // as when the work is ended: it looks done
	if _, err := s.Done(e); !errors.Is(err, stuck) {
		t.Errorf("the spoiled event: %v", err)
	}
	if !done(t, s, past) {
		t.Error("the event before is not past any more")
	}
	copies := d.calls(cuMemcpyDtoDAsync)
	s.Copy(device.DeviceMemory(4096, 4), device.DeviceMemory(8192, 4))
	if err := s.Synchronize(context.Background(), s.Record()); !errors.Is(err, stuck) || d.calls(cuMemcpyDtoDAsync) != copies {
		t.Errorf("work after the failure: %v, %d copies", err, d.calls(cuMemcpyDtoDAsync)-copies)
	}
	wantError(t, s.Err(), "cuda:0: stream gather: rank 3 is behind")
}

func TestWaitingForFailedWorkFails(t *testing.T) {
	_, gpu := openDevice(t)
	a, b, c := openStream(t, gpu, "a"), openStream(t, gpu, "b"), openStream(t, gpu, "c")
	good := a.Record()
	a.Copy(device.DeviceMemory(4096, 4), device.DeviceMemory(8192, 5))
	bad := a.Record()
	c.Wait(good)
	b.Wait(bad)
	wantError(t, b.Err(), "stream a: copy: the destination has 4 bytes, the source 5")
	if c.Err() != nil {
		t.Errorf("the event before the failure spoiled a stream: %v", c.Err())
	}
}

func TestStreamsThatWaitForEachOtherFailTogether(t *testing.T) {
	d, gpu := openDevice(t)
	a, b := openStream(t, gpu, "a"), openStream(t, gpu, "b")
	d.hold()
	b.Wait(a.Record())
	a.Wait(b.Record())
	b.Fail(errors.New("broken"))
	wantError(t, a.Err(), "stream b: broken")
	wantError(t, b.Err(), "stream b: broken")
	d.reset() // what is held is waited for in Close
}

func TestAnErrorOfTheGPUFailsTheStream(t *testing.T) {
	d, gpu := openDevice(t)
	s := openStream(t, gpu, "compute")
	first, e := s.Record(), s.Record()
	if err := s.Synchronize(context.Background(), first); err != nil {
		t.Fatal(err)
	}
	d.fail("cuEventQuery", 700)
	wantError(t, s.Synchronize(context.Background(), e), "cuda:0: stream compute: cuEventQuery", "CUDA_ERROR_OF_TEST (700)")
	wantError(t, s.Err(), "(700)")
	if !done(t, s, first) {
		t.Error("what was past is not any more")
	}
	// An earlier failure that the event is before does not hide it.
	s = openStream(t, gpu, "compute")
	e = s.Record()
	s.Copy(device.DeviceMemory(4096, 4), device.DeviceMemory(8192, 5))
	wantError(t, s.Synchronize(context.Background(), e), "(700)")
}

func TestEventsOfOtherDevicesAreErrorsOfTheStream(t *testing.T) {
	_, gpu := openDevice(t)
	_, path := openDouble(t)
	second, err := Open(1, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	host := cpu.NewStream("host", true)
	for name, event := range map[string]device.Event{"cpu": host.Record(), "another GPU": openStream(t, second, "other").Record()} {
		s := openStream(t, gpu, "compute")
		s.Wait(event)
		t.Run(name, func(t *testing.T) {
			wantError(t, s.Err(), "stream compute: wait: the event is of a stream of another device")
		})
	}
	s := openStream(t, gpu, "compute")
	if _, err := s.Done(host.Record()); err == nil {
		t.Error("Done of an event of the CPU: no error")
	}
	if err := s.Synchronize(context.Background(), host.Record()); err != nil {
		t.Errorf("Synchronize of an event of the CPU: %v", err)
	}
}

func TestSubmissionsThatTheDriverRefusesFailTheStream(t *testing.T) {
	for symbol, work := range map[string]func(s, other *Stream){
		"cuEventRecord":        func(s, _ *Stream) { s.Record() },
		"cuMemcpyDtoDAsync_v2": func(s, _ *Stream) { s.Copy(device.DeviceMemory(4096, 4), device.DeviceMemory(8192, 4)) },
		"cuStreamWaitEvent":    func(s, other *Stream) { s.Wait(other.Record()) },
		"cuCtxSetCurrent":      func(s, _ *Stream) { s.Record() },
	} {
		t.Run(symbol, func(t *testing.T) {
			d, gpu := openDevice(t)
			s, other := openStream(t, gpu, "compute"), openStream(t, gpu, "other")
			d.fail(symbol, 700)
			work(s, other)
			wantError(t, s.Err(), "stream compute", symbol+": CUDA_ERROR_OF_TEST (700)")
			d.reset()
			wantError(t, s.Close(), symbol)
			if err := s.Close(); err != nil {
				t.Errorf("the second Close: %v", err)
			}
		})
	}
}

func TestQuestionsDoNotSpoilACaptureOfAnotherThread(t *testing.T) {
	d, gpu := openDevice(t)
	s := openStream(t, gpu, "compute")
	e := s.Record()
	d.call("double_capture", 1)
	if !done(t, s, e) {
		t.Error("the event is not past")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if d.call("double_spoiled") != 0 {
		t.Error("a question spoiled the capture")
	}
	if err := gpu.Enter(); err != nil {
		t.Fatal(err)
	}
	defer gpu.Leave()
	if mode := d.call("double_mode"); mode != 0 {
		t.Errorf("the thread has mode %d, expected its own", mode)
	}
}

func TestWhatIsBeingCapturedIsNotDone(t *testing.T) {
	for _, code := range []int{errCaptureFirst, 907, errCaptureLast} {
		d, gpu := openDevice(t)
		s := openStream(t, gpu, "compute")
		e := s.Record()
		d.fail("cuEventQuery", code)
		if done(t, s, e) || s.Err() != nil {
			t.Errorf("%d: it is done, or %v", code, s.Err())
		}
		d.reset()
		if !done(t, s, e) {
			t.Errorf("%d: it is never done", code)
		}
	}
}

func TestAnUrgentStreamHasTheHighestPriority(t *testing.T) {
	d, gpu := openDevice(t)
	s, err := gpu.OpenUrgentStream("gather")
	if err != nil {
		t.Fatal(err)
	}
	if p := int32(d.call("double_priority")); p != -3 || s.Name() != "gather" || !done(t, s, s.Record()) {
		t.Errorf("priority %d, %s", p, s.Name())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, symbol := range []string{"cuCtxGetStreamPriorityRange", "cuStreamCreateWithPriority"} {
		d.fail(symbol, 1)
		_, err := gpu.OpenUrgentStream("gather")
		wantError(t, err, "stream gather: creation: "+symbol)
		d.reset()
	}
}

func TestWorkAfterCloseIsAnError(t *testing.T) {
	_, gpu := openDevice(t)
	s := openStream(t, gpu, "compute")
	e := s.Record()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !done(t, s, e) || !done(t, s, s.Record()) {
		t.Error("Close did not wait")
	}
	s.Copy(device.DeviceMemory(4096, 4), device.DeviceMemory(8192, 4))
	wantError(t, s.Err(), "stream compute: copy: after Close")
}

func TestStreamsAreSafeWhereTheyMayBeShared(t *testing.T) {
	_, gpu := openDevice(t)
	a, b := openStream(t, gpu, "a"), openStream(t, gpu, "b")
	var g sync.WaitGroup
	for _, pair := range [][2]*Stream{{a, b}, {b, a}} {
		g.Go(func() {
			for range 2000 {
				e := pair[0].Record()
				pair[0].Wait(device.Event{Stream: pair[1], Seq: pair[1].seq.Load()})
				if err := pair[1].Synchronize(context.Background(), e); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	g.Wait()
	if err := errors.Join(a.Err(), b.Err()); err != nil {
		t.Error(err)
	}
}
