package cuda

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/shardgen/shardgen/runtime/device"
)

var _ device.Device = (*Device)(nil)

func TestADeviceSaysWhatItIs(t *testing.T) {
	_, gpu := openDevice(t)
	major, minor := gpu.ComputeCapability()
	if gpu.Name() != "cuda:0 (Double 0)" || gpu.Ordinal() != 0 || gpu.DriverVersion() != 13000 || major != 9 || minor != 0 || gpu.Multiprocessors() != 3 {
		t.Errorf("%s, driver %d, sm_%d%d, %d multiprocessors", gpu.Name(), gpu.DriverVersion(), major, minor, gpu.Multiprocessors())
	}
	if free, total, err := gpu.MemoryBytes(); free != 1000 || total != 2000 || err != nil {
		t.Errorf("memory: %d of %d, %v", free, total, err)
	}
}

func TestDevicesAreCountedThroughTheEnvironmentsLibrary(t *testing.T) {
	_, path := openDouble(t)
	t.Setenv(libraryVariable, path)
	if n, err := Devices(); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	t.Setenv(libraryVariable, "/nowhere/libcuda.so.1")
	_, err := Devices()
	wantError(t, err, "cuda: the CUDA driver library can't be opened", "/nowhere/libcuda.so.1", "NVIDIA's driver", "set SHARDGEN_LIBCUDA")
}

func TestOpenRefusesWhatIsMissingOrTooOldWithTheReason(t *testing.T) {
	d, path := openDouble(t)
	for name, test := range map[string]struct {
		ordinal int
		prepare func()
		want    []string
	}{
		"ordinal":    {2, func() {}, []string{"cuda:2: there are 2 GPUs", "CUDA_VISIBLE_DEVICES"}},
		"negative":   {-1, func() {}, []string{"cuda:-1: there are 2 GPUs"}},
		"driver":     {0, func() { d.call("double_version", 11080) }, []string{"cuda:0: the driver supports CUDA 11.8, but compiled kernels need 12.0 or newer", "driver 525", "580"}},
		"gpu":        {0, func() { d.call("double_capability", 75) }, []string{"Double 0 has compute capability 7.5", "8.0 (A100)"}},
		"init":       {0, func() { d.fail("cuInit", 100) }, []string{"cuda:0: cuInit: CUDA_ERROR_OF_TEST (100): as the test asked"}},
		"no name":    {0, func() { d.fail("cuInit", 12345) }, []string{"cuInit returned 12345, which this driver has no name for"}},
		"context":    {0, func() { d.fail("cuDevicePrimaryCtxRetain", 2) }, []string{"primary context: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"}},
		"pinned":     {0, func() { d.fail("cuMemHostAlloc", 2) }, []string{"4194304 bytes of page-locked host memory", "out of memory"}},
		"no events":  {0, func() { d.fail("cuEventCreate", 2) }, []string{"stream transfer: creation: cuEventCreate"}},
		"attributes": {0, func() { d.fail("cuDeviceGetAttribute", 1) }, []string{"cuDeviceGetAttribute"}},
	} {
		d.reset()
		test.prepare()
		retained, released := d.calls(cuDevicePrimaryCtxRetain), d.calls(cuDevicePrimaryCtxRelease)
		_, err := Open(test.ordinal, Options{Library: path})
		t.Run(name, func(t *testing.T) { wantError(t, err, test.want...) })
		kept := d.calls(cuDevicePrimaryCtxRetain) - retained - (d.calls(cuDevicePrimaryCtxRelease) - released)
		if kept != 0 && name != "context" {
			t.Errorf("%s: %d contexts are kept", name, kept)
		}
	}
}

func TestALibraryWithoutTheDriversFunctionsIsRefused(t *testing.T) {
	_, err := Open(0, Options{Library: "libc.so.6"})
	wantError(t, err, "the CUDA driver library (libc.so.6) has no cuInit")
}

func TestErrorsOfTheDriverCanBeLookedInto(t *testing.T) {
	d, gpu := openDevice(t)
	d.fail("cuMemGetInfo_v2", 700)
	_, _, err := gpu.MemoryBytes()
	var e *Error
	if !errors.As(err, &e) || e.Code != 700 || e.Operation != "cuMemGetInfo_v2" || e.Name != "CUDA_ERROR_OF_TEST" || e.Text != "as the test asked" {
		t.Errorf("got %#v", err)
	}
}

func TestAGPUHasAUUID(t *testing.T) {
	d, gpu := openDevice(t)
	if u, err := gpu.UUID(); err != nil || u.String() != "a0a1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf" {
		t.Errorf("%v, %v", u, err)
	}
	d.fail("cuDeviceGetUuid_v2", 700)
	_, err := gpu.UUID()
	wantError(t, err, "cuda:0: UUID: cuDeviceGetUuid_v2: CUDA_ERROR_OF_TEST (700)")
}

func TestADriverOfCUDA12IsOldEnough(t *testing.T) {
	d, path := openDouble(t)
	d.call("double_version", 12000)
	gpu, err := Open(0, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	if gpu.DriverVersion() != 12000 {
		t.Errorf("driver %d", gpu.DriverVersion())
	}
	if err := gpu.Close(); err != nil {
		t.Error(err)
	}
}

func TestAFailedKernelsStatusSaysThatTheContextIsLost(t *testing.T) {
	for code, want := range map[int32]bool{1: false, 2: false, 600: false, 699: false, 700: true, 701: false, 710: true, 716: true, 719: true, 720: false, 721: true, 214: false, 802: false} {
		text := (&Error{Operation: "cuEventQuery", Code: code, Name: "CUDA_ERROR_OF_TEST", Text: "as the test asked"}).Error()
		for _, words := range []string{"context is lost: ", "any earlier kernel of this process, the trainer's too", "restart the process", "compute-sanitizer"} {
			if strings.Contains(text, words) != want {
				t.Errorf("%d: %s", code, text)
			}
		}
	}
}

func TestAFaultOfTheHardwareIsNotAKernels(t *testing.T) {
	for code, want := range map[int32]string{214: "look for Xid", 220: "look for Xid", 226: "look for Xid", 802: "nvidia-fabricmanager"} {
		text := (&Error{Operation: "cuEventQuery", Code: code, Name: "CUDA_ERROR_OF_TEST", Text: "as the test asked"}).Error()
		if !strings.Contains(text, want) || strings.Contains(text, "compute-sanitizer") {
			t.Errorf("%d: %s", code, text)
		}
	}
}

func TestAllocIsAlignedAlsoWhereTheDriversMemoryIsNot(t *testing.T) {
	d, gpu := openDevice(t)
	for _, skew := range []uintptr{0, 512} {
		d.call("double_skew", skew)
		for _, n := range []int64{1, 511, 1 << 20} {
			m := alloc(t, gpu, n)
			if m.Addr()%AlignBytes != 0 || m.Bytes() != n || m.Host() != nil {
				t.Errorf("%d bytes: got %d at %#x", n, m.Bytes(), m.Addr())
			}
			if err := errors.Join(gpu.Write(context.Background(), m, make([]byte, n)), gpu.Free(m)); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestFreeRefusesWhatIsNotAllocated(t *testing.T) {
	_, gpu := openDevice(t)
	m := alloc(t, gpu, 64)
	for name, err := range map[string]error{
		"a part":   gpu.Free(m.Slice(0, 32)),
		"unknown":  gpu.Free(device.DeviceMemory(4096, 64)),
		"the host": gpu.Free(device.HostMemory(make([]byte, 8))),
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, err, "cuda:0: free of", "not allocated by this device, or freed before")
		})
	}
	if err := gpu.Free(m); err != nil {
		t.Error(err)
	}
	wantError(t, gpu.Free(m), "freed before")
	if err := gpu.Free(device.Memory{}); err != nil {
		t.Error(err)
	}
}

func TestAllocSaysHowMuchIsFreeWhereItFails(t *testing.T) {
	d, gpu := openDevice(t)
	d.fail("cuMemAlloc_v2", errOutOfMemory)
	_, err := gpu.Alloc(123456)
	wantError(t, err, "cuda:0: allocation of 123456 bytes: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; 1000 of the GPU's 2000 bytes are free")
	d.fail("cuMemAlloc_v2", 700)
	if _, err = gpu.Alloc(1); err == nil || strings.Contains(err.Error(), "free") {
		t.Errorf("got %v", err)
	}
	_, err = gpu.Alloc(-1)
	wantError(t, err, "allocation of -1 bytes")
	if m, err := gpu.Alloc(0); err != nil || m.Bytes() != 0 {
		t.Errorf("no bytes: %v, %v", m, err)
	}
}

// given are the calls that make something, with those that give it back.
var given = [][2]function{{cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRelease}, {cuStreamCreate, cuStreamDestroy}, {cuEventCreate, cuEventDestroy}, {cuMemHostAlloc, cuMemFreeHost}, {cuMemAlloc, cuMemFree}}

// balance counts calls of pairs from now on. The function that it returns checks
// that all were made, the second of a pair as often as the first.
func balance(t *testing.T, d *double, pairs [][2]function) (check func()) {
	before := make([][2]int, len(pairs))
	for i, pair := range pairs {
		before[i] = [2]int{d.calls(pair[0]), d.calls(pair[1])}
	}
	return func() {
		t.Helper()
		for i, pair := range pairs {
			if made, freed := d.calls(pair[0])-before[i][0], d.calls(pair[1])-before[i][1]; made == 0 || made != freed {
				t.Errorf("%v: %d calls, %v: %d", pair[0], made, pair[1], freed)
			}
		}
	}
}

func TestCloseGivesEverythingBack(t *testing.T) {
	d, path := openDouble(t)
	check := balance(t, d, given)
	gpu, err := Open(1, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	s, err := gpu.OpenStream("left open")
	if err != nil {
		t.Fatal(err)
	}
	alloc(t, gpu, 64)
	if err := errors.Join(gpu.Close(), gpu.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	check()
	_, err = gpu.Alloc(64)
	wantError(t, err, "cuda:1: use after Close")
	_, err = gpu.NewStream("late", false)
	wantError(t, err, "use after Close")
	wantError(t, gpu.Write(context.Background(), device.DeviceMemory(4096, 4), make([]byte, 4)), "Close")
}

func TestClosesAtTheSameTimeCloseOnce(t *testing.T) {
	d, path := openDouble(t)
	for range 20 {
		check := balance(t, d, given)
		gpu, err := Open(0, Options{Library: path})
		if err != nil {
			t.Fatal(err)
		}
		alloc(t, gpu, 64)
		var begin, end sync.WaitGroup
		begin.Add(4)
		for range 4 {
			end.Go(func() {
				begin.Done()
				begin.Wait()
				if err := gpu.Close(); err != nil {
					t.Error(err)
				}
				if !gpu.closed.Load() {
					t.Error("Close returns before the device is closed")
				}
			})
		}
		end.Wait()
		check()
	}
}

func TestAHoldOutlastsTheDevice(t *testing.T) {
	d, path := openDouble(t)
	check := balance(t, d, given[:1])
	gpu, err := Open(0, Options{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	hold, err := gpu.Hold()
	if err != nil {
		t.Fatal(err)
	}
	if err := gpu.Close(); err != nil {
		t.Error(err)
	}
	wantError(t, gpu.Enter(), "use after Close")
	set := d.calls(cuCtxSetCurrent)
	if err := hold.Enter(); err != nil {
		t.Fatal(err)
	}
	hold.Leave()
	if d.calls(cuCtxSetCurrent) != set+1 {
		t.Error("the context was not made current")
	}
	if err := hold.Release(); err != nil {
		t.Error(err)
	}
	check()
	_, err = gpu.Hold()
	wantError(t, err, "cuda:0: use after Close")
}
