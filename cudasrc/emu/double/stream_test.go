package double

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unsafe"
)

const testKernels = `
extern "C" __global__ void copyWords(unsigned* to, const unsigned* from, long long words) {
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
    to[i] = from[i];
  }
}
extern "C" __global__ void divergent(unsigned* out) {
  if (threadIdx.x < 40) {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}
`

var policies = []string{"fifo", "lazy", "random:1", "random:2", "random:3", "starve:0", "starve:1", "starve:2"}

// twoStreams fills memory on one stream and copies it on another, with an event
// between them or without, and returns what the copy has.
func twoStreams(t *testing.T, wait bool) []byte {
	t.Helper()
	const n = 4096
	first, second, e := stream(t), stream(t), event(t)
	a, b := alloc(t, n), alloc(t, n)
	ok(t, driver.MemsetD8Async(a, 7, n, first))
	ok(t, driver.EventRecord(e, first))
	if wait {
		ok(t, driver.StreamWaitEvent(second, e, 0))
	}
	ok(t, driver.MemcpyDtoDAsync(b, a, n, second))
	ok(t, driver.StreamSynchronize(second))
	got := read(t, b, n)
	ok(t, driver.StreamSynchronize(first))
	free(t, a, b)
	ok(t, driver.StreamDestroy(first))
	ok(t, driver.StreamDestroy(second))
	ok(t, driver.EventDestroy(e))
	return got
}

func TestEventsOrderStreamsUnderAllPolicies(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	sevens := bytes.Repeat([]byte{7}, 4096)
	for _, policy := range policies {
		schedule(t, policy)
		for range 10 {
			if !bytes.Equal(twoStreams(t, true), sevens) {
				t.Fatalf("%s: the copy came before what its stream waited for", policy)
			}
		}
	}
	clean(t)
}

func TestAMissingEventIsNoticed(t *testing.T) {
	for _, policy := range []string{"random:1", "starve:0", "lazy"} {
		t.Run(policy, func(t *testing.T) {
			libraries(t)
			schedule(t, policy)
			onDevice(t, 0)
			wrong := 0
			for range 10 {
				if bytes.Equal(twoStreams(t, false), bytes.Repeat([]byte{0xff}, 4096)) {
					wrong++
				}
				shared.Reset() // streams get the same indices each time
				onDevice(t, 0)
			}
			t.Logf("%d of 10 runs gave wrong bits", wrong)
			if wrong == 0 {
				t.Error("a copy that waits for nothing always came after the fill")
			}
		})
	}
}

func TestAWaitIsForTheRecordAtTheCall(t *testing.T) {
	libraries(t)
	schedule(t, "lazy")
	onDevice(t, 0)
	first, second, e := stream(t), stream(t), event(t)
	a := alloc(t, 8)
	ok(t, driver.EventQuery(e))
	ok(t, driver.StreamWaitEvent(second, e, 0)) // never recorded: no wait
	ok(t, driver.StreamSynchronize(second))
	ok(t, driver.MemsetD8Async(a, 1, 8, first))
	ok(t, driver.EventRecord(e, first))
	ok(t, driver.StreamWaitEvent(second, e, 0))
	ok(t, driver.MemsetD8Async(a, 2, 4, first))
	ok(t, driver.EventRecord(e, first)) // the wait stays with the first record
	ok(t, driver.StreamSynchronize(second))
	if got := read(t, a, 8); !bytes.Equal(got, bytes.Repeat([]byte{1}, 8)) {
		t.Errorf("memory %v: the wait was for the second record, or for none", got)
	}
	want(t, driver.EventQuery(e), 600)
	ok(t, driver.EventSynchronize(e))
	ok(t, driver.EventQuery(e))
	if got := read(t, a, 8); got[0] != 2 {
		t.Errorf("memory %v after the second record", got)
	}
	free(t, a)
	ok(t, driver.StreamDestroy(first))
	ok(t, driver.StreamDestroy(second))
	ok(t, driver.EventDestroy(e))
	clean(t)
}

func TestQueriesMakeLazyWorkProgress(t *testing.T) {
	libraries(t)
	schedule(t, "lazy")
	onDevice(t, 0)
	s, a := stream(t), alloc(t, 8)
	ok(t, driver.MemsetD8Async(a, 1, 8, s))
	status := driver.StreamQuery(s)
	for end := time.Now().Add(10 * time.Second); status == 600 && time.Now().Before(end); status = driver.StreamQuery(s) {
		time.Sleep(time.Millisecond)
	}
	ok(t, status)
	free(t, a)
	ok(t, driver.StreamDestroy(s))
	clean(t)
}

func TestTheDefaultStreamIsOrderedWithBlockingStreams(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	var blocking handle
	ok(t, driver.StreamCreate(&blocking, 0))
	a, b := alloc(t, 64), alloc(t, 64)
	for i := range 20 {
		ok(t, driver.MemsetD8Async(a, byte(i), 64, blocking))
		ok(t, driver.MemcpyDtoDAsync(b, a, 64, 0))
		ok(t, driver.MemsetD8Async(a, 0xee, 64, blocking))
		ok(t, driver.StreamSynchronize(0))
		if got := read(t, b, 64); got[0] != byte(i) || got[63] != byte(i) {
			t.Fatalf("round %d: the default stream saw %v", i, got)
		}
	}
	ok(t, driver.CtxSynchronize())
	free(t, a, b)
	ok(t, driver.StreamDestroy(blocking))
	clean(t)
}

// A stream that is destroyed does its work first.
func TestADestroyedStreamsWorkIsDone(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	s, e, a := stream(t), event(t), alloc(t, 8)
	ok(t, driver.MemsetD8Async(a, 5, 8, s))
	ok(t, driver.EventRecord(e, s))
	ok(t, driver.StreamDestroy(s))
	ok(t, driver.EventSynchronize(e))
	if got := read(t, a, 8); got[0] != 5 {
		t.Errorf("memory %v", got)
	}
	free(t, a)
	ok(t, driver.EventDestroy(e))
	clean(t)
}

func TestAKernelGetsTheArgumentsOfTheCall(t *testing.T) {
	libraries(t)
	schedule(t, "lazy")
	onDevice(t, 0)
	module := kernels(t, "tests", testKernels, nil)
	s, a, b := stream(t), alloc(t, 400), alloc(t, 400)
	source := make([]byte, 400)
	for i := range 100 {
		binary.LittleEndian.PutUint32(source[4*i:], uint32(i))
	}
	write(t, a, source)
	ok(t, start(t, module, "copyWords", 3, 32, s, b, a, int64(100)))
	ok(t, driver.StreamSynchronize(s))
	if !bytes.Equal(read(t, b, 400), source) {
		t.Error("the kernel copied something else")
	}
	want(t, start(t, module, "copyWords", 1, 1025, s, b, a, int64(100)), 1)
	want(t, start(t, module, "copyWords", 0, 32, s, b, a, int64(100)), 1)
	var function handle
	want(t, driver.ModuleGetFunction(&function, module, "missing"), 500)
	free(t, a, b)
	ok(t, driver.ModuleUnload(module))
	ok(t, driver.StreamDestroy(s))
	clean(t)
}

func TestWritesBesideMemoryAreFound(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	module := kernels(t, "tests", testKernels, nil)
	s, a, b := stream(t), alloc(t, 40), alloc(t, 40)
	ok(t, start(t, module, "copyWords", 1, 32, s, b, a, int64(11)))
	ok(t, driver.StreamSynchronize(s))
	// What is copied from behind the source is its own red zone, which differs from
	// none: so it is written one byte off.
	ok(t, start(t, module, "copyWords", 1, 32, s, b-4, a, int64(1)))
	ok(t, driver.StreamSynchronize(s))
	found := func() bool {
		return strings.Contains(strings.Join(shared.Check(), "\n"), "4 bytes were written beside device memory of 40 bytes")
	}
	if !found() {
		t.Errorf("findings %q", shared.Check())
	}
	free(t, b)
	if !strings.Contains(strings.Join(shared.Check(), "\n"), "4 bytes were written beside device memory") {
		t.Errorf("findings after it was freed: %q", shared.Check())
	}
	shared.Reset()
	clean(t)
}

func TestALateAccessBreaksTheContext(t *testing.T) {
	for _, kind := range []string{"copy", "kernel"} {
		t.Run(kind, func(t *testing.T) {
			libraries(t)
			schedule(t, "lazy")
			onDevice(t, 0)
			module := kernels(t, "tests", testKernels, nil)
			s, a, b := stream(t), alloc(t, 64), alloc(t, 64)
			if kind == "copy" {
				ok(t, driver.MemcpyDtoDAsync(b, a, 64, s))
			} else {
				ok(t, start(t, module, "copyWords", 2, 32, s, b, a, int64(16)))
			}
			free(t, a)
			want(t, driver.StreamSynchronize(s), 700)
			want(t, driver.MemFree(b), 700) // for good
			if got := shared.Check(); len(got) == 0 || !strings.Contains(got[0], map[string]string{"copy": "was freed before the copy ran", "kernel": "kernel copyWords: access to"}[kind]) {
				t.Errorf("findings %q", got)
			}
			shared.Reset()
			onDevice(t, 0)
			free(t, alloc(t, 8)) // the device works again
			clean(t)
		})
	}
}

// A barrier that not all threads meet ends the process, so it has one of its own.
func TestADivergentBarrierEndsTheProcess(t *testing.T) {
	libraries(t)
	const variable = "EMU_DOUBLE_TEST_DIVERGENT"
	if os.Getenv(variable) != "" {
		onDevice(t, 0)
		module, s, a := kernels(t, "tests", testKernels, nil), stream(t), alloc(t, 4*64)
		ok(t, start(t, module, "divergent", 1, 64, s, a))
		driver.StreamSynchronize(s)
		return
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestADivergentBarrierEndsTheProcess$")
	command.Env = append(os.Environ(), variable+"=1")
	out, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "emulator: block 0: threads wait for each other: thread 0 waits at a barrier") {
		t.Errorf("error %v, output %s", err, out)
	}
}

func TestInjectedFaultsFireWhenTheySay(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	fault(t, "cuMemAlloc_v2:2:after=3")
	var address uint64
	for i := range 6 {
		status := driver.MemAlloc(&address, 8)
		if want := map[bool]int32{true: 2}[i == 3]; status != want {
			t.Fatalf("call %d: status %d, want %d", i, status, want)
		}
		if status == 0 {
			free(t, address)
		}
	}
	if got := shared.Calls("cuMemAlloc_v2"); got != 6 {
		t.Errorf("%d calls of cuMemAlloc_v2, want 6", got)
	}
	fault(t, "cuStreamCreate:999:device=1")
	ok(t, driver.StreamDestroy(stream(t)))
	for _, wrong := range []string{"", "cuInit", "cuInit:x", "cuInit:1:when=3", "lunch:719", "dead:rank="} {
		if err := shared.Fault(wrong); err == nil {
			t.Errorf("fault %q is accepted", wrong)
		}
	}
	clean(t)
}

func TestAFailingKernelBreaksItsContextOnly(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	module := kernels(t, "tests", testKernels, nil)
	s, a := stream(t), alloc(t, 64)
	fault(t, "launch:719:after=1")
	ok(t, start(t, module, "copyWords", 1, 32, s, a, a+32, int64(8)))
	ok(t, driver.StreamSynchronize(s))
	ok(t, start(t, module, "copyWords", 1, 32, s, a, a+32, int64(8)))
	want(t, driver.StreamSynchronize(s), 719)
	var e handle
	want(t, driver.EventCreate(&e, 0), 719)
	t.Run("another device", func(t *testing.T) {
		onDevice(t, 1)
		free(t, alloc(t, 8))
	})
	shared.Reset()
	clean(t)
}

func TestSlowStreamsAreLateAndRight(t *testing.T) {
	libraries(t)
	schedule(t, "fifo")
	onDevice(t, 0)
	fault(t, "slow:stream:ms=20")
	s, a := stream(t), alloc(t, 8)
	begin := time.Now()
	ok(t, driver.MemsetD8Async(a, 3, 8, s))
	ok(t, driver.StreamSynchronize(s))
	if late := time.Since(begin); late < 20*time.Millisecond {
		t.Errorf("the work took %v", late)
	}
	free(t, a)
	ok(t, driver.StreamDestroy(s))
	clean(t)
}

func TestPinnedMemoryIsCheckedToo(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	var p unsafe.Pointer
	ok(t, driver.MemHostAlloc(&p, 100, 0))
	b := unsafe.Slice((*byte)(p), 101)
	if b[0] != 0xff {
		t.Errorf("fresh memory holds %#x", b[0])
	}
	b[100] = 0
	ok(t, driver.MemFreeHost(p))
	if got := fmt.Sprint(shared.Check()); !strings.Contains(got, "1 bytes were written beside pinned memory") {
		t.Errorf("findings %s", got)
	}
	shared.Reset()
}
