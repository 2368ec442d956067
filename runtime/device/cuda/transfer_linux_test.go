package cuda

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

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
