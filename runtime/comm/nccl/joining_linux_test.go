package nccl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/cudasrc/emu/double"
	"github.com/shardgen/shardgen/runtime/device/cuda"
)

func TestCommunicatorsThatDoNotBlockAreRefused(t *testing.T) {
	l := libraries(t)
	t.Setenv("NCCL_COMM_BLOCKING", "0")
	w, start := openDevices(t, 2), time.Now()
	for r, err := range w.join(long, w.controls) {
		wantWords(t, err, fmt.Sprintf("rank %d of 2 joins the communicator", r), "unset NCCL_COMM_BLOCKING")
	}
	double.AwaitAbandoned() // a rank that hears of the other's failure first is back before its abort is
	inTime(t, start)
	wantNoFindings(t, l, "communicators")
}

func TestAFirstConnectionThatFailsIsTheErrorOfNew(t *testing.T) {
	l := libraries(t)
	fault(t, l, "ncclReduceScatter:2:device=1")
	w, start := openDevices(t, 2), time.Now()
	errs := w.join(long, w.controls)
	wantWords(t, errs[1], "connecting the ranks")
	for r, err := range errs {
		wantWords(t, err, fmt.Sprintf("rank %d of 2 joins the communicator", r), "reduce-scatter of the first connection", "ncclReduceScatter: unhandled system error")
	}
	double.AwaitAbandoned() // as above
	inTime(t, start)
	for _, d := range w.devices {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, finding := range l.Check() {
		t.Error(finding)
	}
}

func TestTheContextEndsTheFirstConnections(t *testing.T) {
	l := libraries(t)
	fault(t, l, "dead:rank=0")
	w, start := openDevices(t, 1), time.Now()
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err = New(ctx, Options{Device: w.devices[0], Size: 1, ID: id, Timeout: long})
	wantWords(t, err, "connecting the ranks", "enough")
	inTime(t, start)
}

func TestNewRefusesWhatMakesNoSense(t *testing.T) {
	libraries(t)
	w := openDevices(t, 1)
	good := Options{Device: w.devices[0], Size: 1, ID: ID{1}}
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"device":  {func(o *Options) { o.Device = nil }, "cuda.Open"},
		"size":    {func(o *Options) { o.Size = 0 }, "0 ranks"},
		"huge":    {func(o *Options) { o.Size = maxRanks + 1 }, "expected 1 to"},
		"rank":    {func(o *Options) { o.Rank = 1 }, "rank 1 of 1"},
		"id":      {func(o *Options) { o.ID = ID{} }, "NewID"},
		"timeout": {func(o *Options) { o.Timeout = -1 }, "negative"},
		"control": {func(o *Options) { o.Size, o.Control = 2, w.controls[0] }, "the control group has 1 ranks"},
	} {
		o := good
		c.change(&o)
		_, err := New(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnIDServesOnce(t *testing.T) {
	libraries(t)
	w := openDevices(t, 1)
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		c, err := New(context.Background(), Options{Device: w.devices[0], Size: 1, ID: id, Control: w.controls[0]})
		if i == 0 && err != nil || i == 1 && (err == nil || !strings.Contains(err.Error(), "id may be used once")) {
			t.Errorf("use %d: %v", i, err)
		}
		if c != nil {
			_ = c.Close()
		}
	}
}

// Rank 2 waits inside NCCL when rank 0 comes, whose deadline is over first.
func TestARankThatDoesNotJoinIsNamed(t *testing.T) {
	l := libraries(t)
	w := openDevices(t, 3)
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	join := func(r int, timeout time.Duration) error {
		_, err := New(context.Background(), Options{Device: w.devices[r], Rank: r, Size: 3, ID: id, Timeout: timeout, Control: w.controls[r]})
		return err
	}
	second := make(chan error)
	go func() { second <- join(2, long) }()
	for l.Calls("ncclCommInitRank") == 0 {
		time.Sleep(time.Millisecond)
	}
	wantWords(t, join(0, 100*time.Millisecond), "rank 0 of 3 joins the communicator", "no sign of ranks [1] within 100ms")
	wantWords(t, <-second, "rank 2 of 3 joins the communicator", "rank 0: no sign of ranks [1] within 100ms")
	inTime(t, start)
}

func TestWhatEndsJoiningEndsItOnAllRanks(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(w *world, cancel func(error))
		want string
	}{
		"context": {func(_ *world, cancel func(error)) { cancel(errors.New("enough")) }, "enough"},
		"job":     {func(w *world, _ func(error)) { w.controls[1].Abort(errors.New("out of memory")) }, "out of memory"},
	} {
		t.Run(name, func(t *testing.T) {
			libraries(t)
			w, start := openDevices(t, 2), time.Now()
			id, err := NewID()
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			time.AfterFunc(50*time.Millisecond, func() { c.end(w, cancel) })
			_, err = New(ctx, Options{Device: w.devices[0], Rank: 0, Size: 2, ID: id, Timeout: long, Control: w.controls[0]})
			wantWords(t, err, c.want)
			inTime(t, start)
		})
	}
}

// A launcher closes the device while NCCL still waits for the other rank, which
// comes after all.
func TestAnAbandonedInitIsAbortedAlsoWhereTheDeviceIsClosed(t *testing.T) {
	l := libraries(t)
	w, start := openDevices(t, 2), time.Now()
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		for l.Calls("ncclCommInitRank") == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel(errors.New("enough"))
	}()
	_, err = New(ctx, Options{Device: w.devices[0], Rank: 0, Size: 2, ID: id, Timeout: long})
	wantWords(t, err, "enough")
	if err := w.devices[0].Close(); err != nil {
		t.Error(err)
	}
	_, err = New(context.Background(), Options{Device: w.devices[1], Rank: 1, Size: 2, ID: id, Timeout: 100 * time.Millisecond})
	wantWords(t, err, "connecting the ranks")
	double.AwaitAbandoned()
	if err := w.devices[1].Close(); err != nil {
		t.Error(err)
	}
	for _, finding := range l.Check() {
		t.Error(finding)
	}
	if held, released := l.Calls("cuDevicePrimaryCtxRetain"), l.Calls("cuDevicePrimaryCtxRelease_v2"); held != released {
		t.Errorf("contexts: %d retained, %d released", held, released)
	}
	inTime(t, start)
}

func TestAnErrorOfJoiningFailsAllRanks(t *testing.T) {
	l := libraries(t)
	fault(t, l, "nccl_init:code=6:ms=10")
	w := openDevices(t, 2)
	start := time.Now()
	id, err := NewID()
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(context.Background(), Options{Device: w.devices[0], Rank: 0, Size: 2, ID: id, Timeout: long, Control: w.controls[0]})
	var status *Error
	if !errors.As(err, &status) || status.Operation != "ncclCommInitRank" || status.Code != 6 {
		t.Errorf("%v", err)
	}
	_, err = New(context.Background(), Options{Device: w.devices[1], Rank: 1, Size: 2, ID: id, Timeout: long, Control: w.controls[1]})
	wantWords(t, err, "ncclCommInitRank")
	inTime(t, start)
}

func TestBothRanksOnOneGPUIsNCCLsError(t *testing.T) {
	libraries(t)
	w := openDevices(t, 2)
	second, err := cuda.Open(0, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w.devices[1] = second
	start := time.Now()
	for _, err := range w.join(long, w.controls) {
		wantWords(t, err, "Duplicate GPU")
	}
	inTime(t, start)
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}
