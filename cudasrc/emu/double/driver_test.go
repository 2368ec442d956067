package double

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/shardgen/shardgen/cudasrc/emu"
)

// buildWait bounds compilation.
const buildWait = 3 * time.Minute

// The cache of compiled libraries, which the repository ignores.
const cache = "../../../build/emu"

type handle = uintptr

// nvidia are the driver's calls that the tests make.
type nvidia struct {
	Init                    func(flags uint32) int32
	DeviceGetCount          func(*int32) int32
	DevicePrimaryCtxRetain  func(*handle, int32) int32
	DevicePrimaryCtxRelease func(int32) int32
	CtxSetCurrent           func(handle) int32
	CtxSynchronize          func() int32
	MemAlloc                func(*uint64, uintptr) int32
	MemFree                 func(uint64) int32
	MemGetInfo              func(free, total *uintptr) int32
	MemHostAlloc            func(*unsafe.Pointer, uintptr, uint32) int32
	MemFreeHost             func(unsafe.Pointer) int32
	MemcpyHtoDAsync         func(uint64, unsafe.Pointer, uintptr, handle) int32
	MemcpyDtoHAsync         func(unsafe.Pointer, uint64, uintptr, handle) int32
	MemcpyDtoDAsync         func(to, from uint64, bytes uintptr, stream handle) int32
	MemsetD8Async           func(uint64, uint8, uintptr, handle) int32
	MemsetD32Async          func(uint64, uint32, uintptr, handle) int32
	StreamCreate            func(*handle, uint32) int32
	StreamDestroy           func(handle) int32
	StreamSynchronize       func(handle) int32
	StreamQuery             func(handle) int32
	StreamWaitEvent         func(stream, event handle, flags uint32) int32
	EventCreate             func(*handle, uint32) int32
	EventDestroy            func(handle) int32
	EventRecord             func(event, stream handle) int32
	EventQuery              func(handle) int32
	EventSynchronize        func(handle) int32
	EventElapsedTime        func(*float32, handle, handle) int32
	ModuleLoadData          func(*handle, unsafe.Pointer) int32
	ModuleUnload            func(handle) int32
	ModuleGetFunction       func(*handle, handle, string) int32
	LaunchKernel            func(function handle, gx, gy, gz, bx, by, bz, shared uint32, stream handle, parameters unsafe.Pointer, extra uintptr) int32
	GetErrorName            func(int32, *unsafe.Pointer) int32
	GetProcAddress          func(symbol string, address *uintptr, version int32, flags uint64, result *int32) int32
}

func (n *nvidia) table() map[string]any {
	return map[string]any{
		"cuInit": &n.Init, "cuDeviceGetCount": &n.DeviceGetCount, "cuDevicePrimaryCtxRetain": &n.DevicePrimaryCtxRetain,
		"cuDevicePrimaryCtxRelease_v2": &n.DevicePrimaryCtxRelease, "cuCtxSetCurrent": &n.CtxSetCurrent, "cuCtxSynchronize": &n.CtxSynchronize,
		"cuMemAlloc_v2": &n.MemAlloc, "cuMemFree_v2": &n.MemFree, "cuMemGetInfo_v2": &n.MemGetInfo, "cuMemHostAlloc": &n.MemHostAlloc,
		"cuMemFreeHost": &n.MemFreeHost, "cuMemcpyHtoDAsync_v2": &n.MemcpyHtoDAsync, "cuMemcpyDtoHAsync_v2": &n.MemcpyDtoHAsync,
		"cuMemcpyDtoDAsync_v2": &n.MemcpyDtoDAsync, "cuMemsetD8Async": &n.MemsetD8Async, "cuMemsetD32Async": &n.MemsetD32Async,
		"cuStreamCreate": &n.StreamCreate, "cuStreamDestroy_v2": &n.StreamDestroy, "cuStreamSynchronize": &n.StreamSynchronize,
		"cuStreamQuery": &n.StreamQuery, "cuStreamWaitEvent": &n.StreamWaitEvent, "cuEventCreate": &n.EventCreate,
		"cuEventDestroy_v2": &n.EventDestroy, "cuEventRecord": &n.EventRecord, "cuEventQuery": &n.EventQuery,
		"cuEventSynchronize": &n.EventSynchronize, "cuEventElapsedTime_v2": &n.EventElapsedTime, "cuModuleLoadData": &n.ModuleLoadData,
		"cuModuleUnload": &n.ModuleUnload, "cuModuleGetFunction": &n.ModuleGetFunction, "cuLaunchKernel": &n.LaunchKernel,
		"cuGetErrorName": &n.GetErrorName, "cuGetProcAddress_v2": &n.GetProcAddress,
	}
}

var (
	once    sync.Once
	shared  *Libraries
	failed  error
	driver  nvidia
	collect collectives
)

func load() error {
	ctx, cancel := context.WithTimeout(context.Background(), buildWait)
	defer cancel()
	var err error
	if shared, err = Build(ctx, cache); err != nil {
		return err
	}
	if err := shared.Set("EMU_DEADLINE", "20"); err != nil { // below the test's own
		return err
	}
	for path, table := range map[string]map[string]any{shared.CUDA: driver.table(), shared.NCCL: collect.table()} {
		library, err := purego.Dlopen(path, purego.RTLD_NOW)
		if err != nil {
			return err
		}
		for name, function := range table {
			purego.RegisterLibFunc(function, library, name)
		}
	}
	return nil
}

// libraries returns the doubles as a fresh process has them; the test must leave
// nothing behind. It skips where they can't be built, except in CI.
func libraries(t *testing.T) *Libraries {
	t.Helper()
	emu.Require(t)
	once.Do(func() { failed = load() })
	if failed != nil {
		t.Fatal(failed)
	}
	shared.Reset()
	schedule(t, "random:1")
	ok(t, driver.Init(0))
	return shared
}

// clean fails a test that did something wrong or left something behind.
func clean(t *testing.T) {
	t.Helper()
	for _, finding := range shared.Check() {
		t.Error(finding)
	}
}

func schedule(t *testing.T, policy string) {
	t.Helper()
	if err := shared.Set("EMU_SCHEDULE", policy); err != nil {
		t.Fatal(err)
	}
}

func fault(t *testing.T, spec string) {
	t.Helper()
	if err := shared.Fault(spec); err != nil {
		t.Fatal(err)
	}
}

func ok(t *testing.T, status int32) {
	t.Helper()
	want(t, status, 0)
}

func want(t *testing.T, status, expected int32) {
	t.Helper()
	if status != expected {
		t.Fatalf("status %d, want %d", status, expected)
	}
}

// onDevice makes a device's context current for the test's thread until the test
// ends, and releases it then.
func onDevice(t *testing.T, device int32) {
	t.Helper()
	runtime.LockOSThread()
	var context handle
	ok(t, driver.DevicePrimaryCtxRetain(&context, device))
	ok(t, driver.CtxSetCurrent(context))
	t.Cleanup(func() {
		driver.CtxSetCurrent(0)
		driver.DevicePrimaryCtxRelease(device)
		runtime.UnlockOSThread()
	})
}

func alloc(t *testing.T, bytes int) uint64 {
	t.Helper()
	var address uint64
	ok(t, driver.MemAlloc(&address, uintptr(bytes)))
	return address
}

func stream(t *testing.T) handle {
	t.Helper()
	var s handle
	ok(t, driver.StreamCreate(&s, 1))
	return s
}

func event(t *testing.T) handle {
	t.Helper()
	var e handle
	ok(t, driver.EventCreate(&e, 2))
	return e
}

// write and read copy on a stream of their own and wait.
func write(t *testing.T, to uint64, b []byte) {
	t.Helper()
	s := stream(t)
	ok(t, driver.MemcpyHtoDAsync(to, unsafe.Pointer(&b[0]), uintptr(len(b)), s))
	ok(t, driver.StreamSynchronize(s))
	ok(t, driver.StreamDestroy(s))
	runtime.KeepAlive(b)
}

func read(t *testing.T, from uint64, bytes int) []byte {
	t.Helper()
	b := make([]byte, bytes)
	s := stream(t)
	ok(t, driver.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), from, uintptr(bytes), s))
	ok(t, driver.StreamSynchronize(s))
	ok(t, driver.StreamDestroy(s))
	return b
}

func free(t *testing.T, addresses ...uint64) {
	t.Helper()
	for _, address := range addresses {
		ok(t, driver.MemFree(address))
	}
}

// kernels loads the kernels of a source under a name of its own.
func kernels(t *testing.T, name, source string, files map[string]string) (module handle) {
	t.Helper()
	image := Image(name)
	ctx, cancel := context.WithTimeout(t.Context(), buildWait)
	defer cancel()
	start := time.Now()
	if err := shared.AddKernels(ctx, source, files, image); err != nil {
		t.Fatal(err)
	}
	t.Logf("kernels of %s: %.1f s", name, time.Since(start).Seconds())
	ok(t, driver.ModuleLoadData(&module, unsafe.Pointer(&image[0])))
	return module
}

// start launches a kernel with 64-bit words and structs as arguments.
func start(t *testing.T, module handle, name string, blocks, threads uint32, s handle, arguments ...any) int32 {
	t.Helper()
	var function handle
	ok(t, driver.ModuleGetFunction(&function, module, name))
	var pins runtime.Pinner
	defer pins.Unpin()
	pointers := make([]unsafe.Pointer, len(arguments)+1)
	for i, a := range arguments {
		pointers[i] = pointerTo(t, a)
		pins.Pin(pointers[i])
	}
	pins.Pin(&pointers[0])
	return driver.LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, s, unsafe.Pointer(&pointers[0]), 0)
}

func pointerTo(t *testing.T, argument any) unsafe.Pointer {
	t.Helper()
	switch a := argument.(type) {
	case uint64:
		return unsafe.Pointer(&a)
	case int64:
		return unsafe.Pointer(&a)
	case []byte:
		return unsafe.Pointer(&a[0])
	}
	t.Fatalf("argument %T", argument)
	return nil
}

func TestFreshMemoryIsGarbageAlignedAsPromisedAndLimited(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	a, b := alloc(t, 1000), alloc(t, 1)
	for _, address := range []uint64{a, b} {
		if address%256 != 0 || address%512 == 0 {
			t.Errorf("address %#x: want a multiple of 256 and no more", address)
		}
	}
	if !bytes.Equal(read(t, a, 1000), bytes.Repeat([]byte{0xff}, 1000)) {
		t.Error("fresh memory holds no garbage")
	}
	var avail, total uintptr
	ok(t, driver.MemGetInfo(&avail, &total))
	if total-avail != 1001 {
		t.Errorf("%d bytes in use, want 1001", total-avail)
	}
	var c uint64
	want(t, driver.MemAlloc(&c, total), 2)
	want(t, driver.MemAlloc(&c, 0), 1)
	free(t, a, b)
	clean(t)
}

func TestCallsCheckWhatADriverChecks(t *testing.T) {
	libraries(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var address uint64
	ok(t, driver.CtxSetCurrent(0))
	want(t, driver.MemAlloc(&address, 8), 201)
	want(t, driver.CtxSetCurrent(12345), 201)
	onDevice(t, 1)
	a, s, b := alloc(t, 64), stream(t), make([]byte, 100)
	for name, c := range map[string]struct{ got, want int32 }{
		"out of range":       {driver.MemcpyHtoDAsync(a, unsafe.Pointer(&b[0]), 65, s), 1},
		"beyond the end":     {driver.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), a+60, 8, s), 1},
		"no device memory":   {driver.MemsetD8Async(8, 0, 1, s), 1},
		"a crooked word":     {driver.MemsetD32Async(a+2, 0, 1, s), 1},
		"no stream":          {driver.MemsetD8Async(a, 0, 1, 99), 400},
		"free of the middle": {driver.MemFree(a + 1), 1},
		"no event":           {driver.EventRecord(77, s), 400},
		"no bytes":           {driver.MemcpyHtoDAsync(a, unsafe.Pointer(&b[0]), 0, s), 0},
		"no host memory":     {driver.MemFreeHost(unsafe.Pointer(&b[0])), 1},
	} {
		if c.got != c.want {
			t.Errorf("%s: status %d, want %d", name, c.got, c.want)
		}
	}
	free(t, a)
	want(t, driver.MemFree(a), 1)
	want(t, driver.MemsetD8Async(a, 0, 1, s), 1)
	ok(t, driver.StreamDestroy(s))
	want(t, driver.StreamDestroy(s), 400)
	clean(t)
}

func TestHandlesOfAnotherContextAreRefused(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	module := kernels(t, "tests", testKernels, nil)
	mine, e := stream(t), event(t)
	t.Run("other", func(t *testing.T) {
		onDevice(t, 1)
		other := stream(t)
		want(t, driver.EventRecord(e, other), 400)
		ok(t, driver.StreamWaitEvent(other, e, 0))
		var function handle
		want(t, driver.ModuleGetFunction(&function, module, "copyWords"), 400)
		ok(t, driver.StreamDestroy(other))
	})
	var context handle
	ok(t, driver.DevicePrimaryCtxRetain(&context, 0))
	ok(t, driver.CtxSetCurrent(context))
	ok(t, driver.DevicePrimaryCtxRelease(0))
	ok(t, driver.StreamDestroy(mine))
	ok(t, driver.EventDestroy(e))
	ok(t, driver.ModuleUnload(module))
	clean(t)
}

func TestWhatIsLeftBehindIsFound(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	a, s, e := alloc(t, 8), stream(t), event(t)
	if got := shared.Check(); len(got) != 3 {
		t.Errorf("findings %q, want memory, stream and event", got)
	}
	free(t, a)
	ok(t, driver.StreamDestroy(s))
	ok(t, driver.EventDestroy(e))
	clean(t)
}

func TestNamesOfCallsAndStatuses(t *testing.T) {
	libraries(t)
	var text unsafe.Pointer
	ok(t, driver.GetErrorName(700, &text))
	if got := cString(text); got != "CUDA_ERROR_ILLEGAL_ADDRESS" {
		t.Errorf("status 700 is %s", got)
	}
	want(t, driver.GetErrorName(54321, &text), 1)
	var address uintptr
	var result int32
	ok(t, driver.GetProcAddress("cuMemAlloc", &address, 13000, 0, &result))
	library, err := purego.Dlopen(shared.CUDA, purego.RTLD_NOW)
	if err != nil {
		t.Fatal(err)
	}
	if direct, err := purego.Dlsym(library, "cuMemAlloc_v2"); err != nil || direct != address {
		t.Errorf("cuMemAlloc is at %#x, want %#x, %v", address, direct, err)
	}
	want(t, driver.GetProcAddress("cuNothing", &address, 13000, 0, &result), 500)
	clean(t)
}

func cString(p unsafe.Pointer) string {
	var b []byte
	for ; p != nil && *(*byte)(p) != 0; p = unsafe.Add(p, 1) {
		b = append(b, *(*byte)(p))
	}
	return string(b)
}

func TestImagesAreKnownByTheirBytes(t *testing.T) {
	libraries(t)
	long := append(Image("model"), "a record behind it"...)
	a, err := imageName(long)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := imageName(Image("model")); err != nil || a != b || len(a) != 16 {
		t.Errorf("names %s and %s, %v", a, b, err)
	}
	if name, err := imageName([]byte("EMU0model\n")); err != nil || name != "model" {
		t.Errorf("name %s, %v", name, err)
	}
	for _, wrong := range []string{"", "EMU0", "EMU0../x\n", "MZ and more than sixteen bytes", string(Image("model")[:18])} {
		if name, err := imageName([]byte(wrong)); err == nil {
			t.Errorf("%q is named %s", wrong, name)
		}
	}
	onDevice(t, 0)
	unknown, module := Image(fmt.Sprint("nobody's ", time.Now())), handle(0)
	want(t, driver.ModuleLoadData(&module, unsafe.Pointer(&unknown[0])), 209)
	clean(t)
}
