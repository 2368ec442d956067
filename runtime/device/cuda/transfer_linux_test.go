package cuda

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/device"
)

// random bytes: a buffer that is used again too early shows.
func randomBytes(n int64) []byte {
	b, rng := make([]byte, n), rand.NewChaCha8([32]byte{byte(n)})
	_, _ = rng.Read(b)
	return b
}

func TestTransfersOfAnyLengthKeepTheirBytes(t *testing.T) {
	_, gpu := openDevice(t)
	ctx := context.Background()
	for _, n := range []int64{0, 1, stageBytes - 1, stageBytes, stageBytes + 1, 2 * stageBytes, 5*stageBytes + 17} {
		want, got, m := randomBytes(n), make([]byte, n), alloc(t, gpu, n)
		if err := errors.Join(gpu.Write(ctx, m, want), gpu.Read(ctx, got, m), gpu.Free(m)); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%d bytes: what was read is not what was written", n)
		}
	}
}

func TestManyGoroutinesTransfer(t *testing.T) {
	_, gpu := openDevice(t)
	var g sync.WaitGroup
	for i := range int64(4) {
		m := alloc(t, gpu, 100+i)
		g.Go(func() {
			want, got := randomBytes(100+i), make([]byte, 100+i)
			for range 50 {
				if err := errors.Join(gpu.Write(context.Background(), m, want), gpu.Read(context.Background(), got, m)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("goroutine %d: %v", i, err)
				}
			}
		})
	}
	g.Wait()
}

func TestTransfersEndWithTheContext(t *testing.T) {
	d, gpu := openDevice(t)
	m := alloc(t, gpu, 3*stageBytes)
	host := make([]byte, 3*stageBytes)
	cause := errors.New("enough")
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if err := gpu.Read(ended, host, m); !errors.Is(err, cause) {
		t.Errorf("an ended context: %v", err)
	}
	d.hold()
	for name, transfer := range map[string]func(context.Context) error{
		"read":  func(ctx context.Context) error { return gpu.Read(ctx, host, m) },
		"write": func(ctx context.Context) error { return gpu.Write(ctx, m, host) },
	} {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 5e6, cause)
		wantError(t, transfer(ctx), "cuda:0: "+name+" of 12582912 bytes", "enough")
		cancel()
	}
	d.reset()
	if err := gpu.Write(context.Background(), m, host); err != nil {
		t.Errorf("after a transfer that was ended: %v", err)
	}
}

func TestATransferWaitsForItsTurnNoLongerThanItsContext(t *testing.T) {
	_, gpu := openDevice(t)
	m := alloc(t, gpu, 8)
	<-gpu.staging.turn
	ctx, cancel := context.WithTimeout(context.Background(), 5e6)
	defer cancel()
	if err := gpu.Read(ctx, make([]byte, 8), m); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	gpu.staging.turn <- struct{}{}
}

func TestTransfersRefuseWhatDoesNotFit(t *testing.T) {
	d, gpu := openDevice(t)
	ctx, m := context.Background(), alloc(t, gpu, 8)
	wantError(t, gpu.Read(ctx, make([]byte, 7), m), "cuda:0: read of 8 bytes", "the host's range has 7 bytes, the device's 8")
	wantError(t, gpu.Write(ctx, device.HostMemory(make([]byte, 8)), make([]byte, 8)), "are the host's")
	d.fail("cuMemcpyHtoDAsync_v2", 700)
	wantError(t, gpu.Write(ctx, m, make([]byte, 8)), "write of 8 bytes", "cuMemcpyHtoDAsync_v2: CUDA_ERROR_OF_TEST (700)")
}

func pin(t *testing.T, gpu *Device, bytes int64) device.Memory {
	t.Helper()
	m, err := gpu.AllocPinned(bytes)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestCopiesOfPinnedMemoryKeepTheirBytes(t *testing.T) {
	d, gpu := openDevice(t)
	s := openStream(t, gpu, "batches")
	from, to, m := pin(t, gpu, 1000), pin(t, gpu, 1000), alloc(t, gpu, 1000)
	copy(from.Host(), randomBytes(1000))
	up, down := d.calls(cuMemcpyHtoDAsync), d.calls(cuMemcpyDtoHAsync)
	s.Copy(m, from)
	s.Copy(to.Slice(100, 900), m.Slice(100, 900))
	s.Copy(to.Slice(0, 100), m.Slice(0, 100))
	s.Copy(to.Slice(1000, 0), m.Slice(7, 0))
	if err := s.Synchronize(context.Background(), s.Record()); err != nil || !bytes.Equal(from.Host(), to.Host()) {
		t.Errorf("%v, or other bytes", err)
	}
	if up, down = d.calls(cuMemcpyHtoDAsync)-up, d.calls(cuMemcpyDtoHAsync)-down; up != 1 || down != 2 {
		t.Errorf("%d copies from the host and %d to it", up, down)
	}
	if err := errors.Join(gpu.Free(from), gpu.Free(to), gpu.Free(m)); err != nil {
		t.Error(err)
	}
}

func TestCopiesRefuseMemoryOfTheHostThatIsNotPinned(t *testing.T) {
	_, gpu := openDevice(t)
	_, path := openDouble(t)
	second, err := Open(1, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	m, mine, freed := alloc(t, gpu, 64), pin(t, gpu, 64), pin(t, gpu, 64)
	if err := gpu.Free(freed); err != nil {
		t.Fatal(err)
	}
	beyond := device.HostMemory(unsafe.Slice(unsafe.SliceData(mine.Host()), 65)).Slice(1, 64)
	for name, c := range map[string]struct {
		dst, src device.Memory
		want     string
	}{
		"pageable source":      {m, device.HostMemory(make([]byte, 64)), "the source's 64 bytes at"},
		"pageable destination": {device.HostMemory(make([]byte, 64)), m, "the destination's 64 bytes at"},
		"freed":                {m, freed, "not page-locked by this device"},
		"half beyond":          {m, beyond, "what AllocPinned returned and Free has not taken back"},
		"another GPU's":        {m, pin(t, second, 64), "not page-locked by this device"},
		"both the host's":      {mine, mine, "both ranges of 64 bytes are the host's"},
		"of another length":    {m, mine.Slice(0, 63), "64 bytes, the source 63"},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStream(t, gpu, "batches")
			s.Copy(c.dst, c.src)
			wantError(t, s.Err(), "cuda:0: stream batches: copy: ", c.want)
		})
	}
}

func TestPinnedMemoryIsAllocatedAndFreedOrSaysWhyNot(t *testing.T) {
	d, gpu := openDevice(t)
	if m, err := gpu.AllocPinned(0); err != nil || m.Bytes() != 0 || gpu.Free(m) != nil {
		t.Errorf("no bytes: %v, %v", m, err)
	}
	_, err := gpu.AllocPinned(-1)
	wantError(t, err, "cuda:0: allocation of -1 bytes")
	d.fail("cuMemHostAlloc", errOutOfMemory)
	_, err = gpu.AllocPinned(123)
	wantError(t, err, "cuda:0: 123 bytes of page-locked host memory: cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)")
	d.reset()
	m := pin(t, gpu, 64)
	wantError(t, gpu.Free(m.Slice(0, 32)), "not allocated by this device, or freed before")
	if err := gpu.Free(m); err != nil {
		t.Error(err)
	}
	wantError(t, gpu.Free(m), "freed before")
}
