package cuda

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/device"
)

// hurry shortens how long Close and Free wait.
func hurry(t *testing.T, limit time.Duration) {
	t.Helper()
	usual, late := closeLimit, lateLimit
	closeLimit, lateLimit = limit, time.Millisecond
	t.Cleanup(func() { closeLimit, lateLimit = usual, late })
}

// openStuck returns a GPU with a stream whose work is never done, until reset.
func openStuck(t *testing.T) (*double, *Device, *Stream) {
	t.Helper()
	d, path := openDouble(t)
	gpu, err := Open(0, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	s, err := gpu.OpenStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	d.hold()
	s.Record()
	return d, gpu, s
}

// noWaits checks that no call was made in which the driver waits for stuck work.
func noWaits(t *testing.T, d *double, before uintptr) {
	t.Helper()
	if n := d.call("double_waits") - before; n != 0 {
		t.Errorf("%d calls wait for stuck work without end", n)
	}
}

func TestCloseLeavesWhatAStuckKernelMayUse(t *testing.T) {
	hurry(t, 50*time.Millisecond)
	d, gpu, s := openStuck(t)
	waits := d.call("double_waits")
	alloc(t, gpu, 1<<20)
	pin(t, gpu, 64)
	wantError(t, gpu.Close(), `cuda:0: Close: the work of streams ["transfer" "compute"] is not done after 50ms, a kernel may be stuck`,
		"the context, 1048576 bytes of the GPU's and 8388672 of page-locked host memory stay allocated until the process ends")
	noWaits(t, d, waits)
	if err := errors.Join(gpu.Close(), s.Close()); err != nil {
		t.Errorf("the second Close: %v", err)
	}
	_, err := gpu.Alloc(64)
	wantError(t, err, "cuda:0: use after Close")
}

func TestFreeLeavesWhatAStuckKernelMayUse(t *testing.T) {
	hurry(t, 300*time.Millisecond)
	d, gpu, _ := openStuck(t)
	waits := d.call("double_waits")
	m, host := alloc(t, gpu, 64), pin(t, gpu, 64)
	module, err := gpu.LoadModule([]byte("own\n"))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for range 20 {
		wantError(t, gpu.Free(m), "free of 64 bytes at", `"compute"] is not done after`, "the memory stays allocated")
		wantError(t, gpu.Free(host), "the memory stays allocated")
	}
	wantError(t, module.Close(), "unloading a module: ", "is not done after 1ms, a kernel may be stuck")
	if took := time.Since(start); took > 4*time.Second {
		t.Errorf("it took %v: every call waits as long as the first", took)
	}
	noWaits(t, d, waits)
	d.reset()
	if err := errors.Join(gpu.Free(m), gpu.Free(host), gpu.Close()); err != nil {
		t.Errorf("when the work is done: %v", err)
	}
}

func TestAStreamThatWasStuckGoesWithItsDevice(t *testing.T) {
	hurry(t, 20*time.Millisecond)
	d, path := openDouble(t)
	check := balance(t, d, given)
	gpu, err := Open(0, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	s, err := gpu.OpenStream("compute")
	if err != nil {
		t.Fatal(err)
	}
	m := alloc(t, gpu, 64)
	d.hold()
	e := s.Record()
	wantError(t, s.Close(), "cuda:0: stream compute: Close: its work is not done after 20ms, a kernel may be stuck")
	wantError(t, s.Synchronize(context.Background(), e), "a kernel may be stuck")
	wantError(t, gpu.Free(m), `["transfer" "compute"]`)
	d.reset()
	if err := gpu.Close(); err != nil {
		t.Error(err)
	}
	check()
}

func TestFreeEndsThoughAStreamIsNeverEmpty(t *testing.T) {
	hurry(t, 20*time.Second)
	d, gpu := openDevice(t)
	s, m := openStream(t, gpu, "compute"), alloc(t, gpu, 64)
	d.fail("cuStreamQuery", errNotReady)
	freed := make(chan error, 1)
	go func() { freed <- gpu.Free(m) }()
	for {
		select {
		case err := <-freed:
			d.reset()
			if err != nil {
				t.Error(err)
			}
			return
		default:
			s.Record()
			gpu.staging.stream.Record()
			time.Sleep(time.Millisecond)
		}
	}
}

func TestStreamsAndTheirDeviceCloseAtTheSameTime(t *testing.T) {
	d, path := openDouble(t)
	misused := d.call("double_misused")
	for range 50 {
		check := balance(t, d, given)
		gpu, err := Open(0, Options{Library: path})
		if err != nil {
			t.Fatal(err)
		}
		alloc(t, gpu, 64)
		var begin, end sync.WaitGroup
		begin.Add(6)
		meet := func(f func() error) {
			end.Go(func() {
				begin.Done()
				begin.Wait()
				if err := f(); err != nil {
					t.Error(err)
				}
			})
		}
		for _, name := range []string{"a", "b"} {
			s, err := gpu.OpenStream(name)
			if err != nil {
				t.Fatal(err)
			}
			e := s.Record()
			meet(s.Close)
			meet(func() error { return s.Synchronize(context.Background(), e) })
		}
		meet(gpu.Close)
		meet(gpu.Close)
		end.Wait()
		check()
	}
	if n := d.call("double_misused") - misused; n != 0 {
		t.Errorf("%d uses of what was destroyed", n)
	}
}

func TestTransfersAndCloseAtTheSameTime(t *testing.T) {
	_, path := openDouble(t)
	for range 20 {
		gpu, err := Open(0, Options{Library: path})
		if err != nil {
			t.Fatal(err)
		}
		m := alloc(t, gpu, 3*stageBytes)
		var end sync.WaitGroup
		for range 3 {
			end.Go(func() {
				err := gpu.Write(context.Background(), m, make([]byte, 3*stageBytes))
				if err != nil {
					wantError(t, err, "after Close")
				}
			})
		}
		if err := gpu.Close(); err != nil {
			t.Error(err)
		}
		end.Wait()
	}
}

func TestNothingIsMadeWhileADeviceCloses(t *testing.T) {
	d, gpu := openDevice(t)
	gpu.mu.Lock()
	gpu.ending = true
	gpu.mu.Unlock()
	check := balance(t, d, given[1:])
	for _, open := range []func() error{
		func() error { _, err := gpu.Alloc(64); return err },
		func() error { _, err := gpu.AllocPinned(64); return err },
		func() error { _, err := gpu.OpenStream("late"); return err },
	} {
		wantError(t, open(), "cuda:0: ", "use after Close")
	}
	check()
}

func TestANilStreamIsOneThatFailed(t *testing.T) {
	_, gpu := openDevice(t)
	k, other := load(t, gpu, everyKernel), openStream(t, gpu, "gather")
	var s *Stream
	m := alloc(t, gpu, 64)
	s.Copy(m, m)
	s.Wait(other.Record())
	s.Fail(errors.New("it had failed"))
	k.Zero(s, m)
	e := s.Record()
	other.Wait(e)
	_, pollErr := other.Done(e)
	one := [3]uint32{1, 1, 1}
	for name, err := range map[string]error{
		"err": s.Err(), "launch": s.Launch(Function{}, one, one, 0), "the other": other.Err(), "done": pollErr,
		"synchronize": s.Synchronize(context.Background(), e), "through another": other.Synchronize(context.Background(), device.Event{Stream: s}),
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, err, "the stream is a nil *cuda.Stream: opening it returned an error")
		})
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
