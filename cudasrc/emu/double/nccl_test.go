package double

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/shardgen/shardgen/runtime/dtype"
)

type uniqueID struct{ B [128]byte }

// collectives are the calls of NCCL that the tests make.
type collectives struct {
	GetUniqueID   func(*uniqueID) int32
	InitRank      func(*handle, int32, uniqueID, int32) int32
	Split         func(handle, int32, int32, *handle, unsafe.Pointer) int32
	Destroy       func(handle) int32
	Abort         func(handle) int32
	AsyncError    func(handle, *int32) int32
	Rank, Count   func(handle, *int32) int32
	LastError     func(handle) string
	AllGather     func(send, receive uint64, count uintptr, kind int32, comm, stream handle) int32
	ReduceScatter func(send, receive uint64, count uintptr, kind, operation int32, comm, stream handle) int32
	AllReduce     func(send, receive uint64, count uintptr, kind, operation int32, comm, stream handle) int32
	Broadcast     func(send, receive uint64, count uintptr, kind, root int32, comm, stream handle) int32
	Send, Recv    func(buffer uint64, count uintptr, kind, peer int32, comm, stream handle) int32
	GroupStart    func() int32
	GroupEnd      func() int32
}

func (c *collectives) table() map[string]any {
	return map[string]any{
		"ncclGetUniqueId": &c.GetUniqueID, "ncclCommInitRank": &c.InitRank, "ncclCommSplit": &c.Split, "ncclCommDestroy": &c.Destroy,
		"ncclCommAbort": &c.Abort, "ncclCommGetAsyncError": &c.AsyncError, "ncclCommUserRank": &c.Rank, "ncclCommCount": &c.Count,
		"ncclGetLastError": &c.LastError, "ncclAllGather": &c.AllGather, "ncclReduceScatter": &c.ReduceScatter,
		"ncclAllReduce": &c.AllReduce, "ncclBroadcast": &c.Broadcast, "ncclSend": &c.Send, "ncclRecv": &c.Recv,
		"ncclGroupStart": &c.GroupStart, "ncclGroupEnd": &c.GroupEnd,
	}
}

// rank is what a goroutine of a test has: a device, a stream, a communicator.
// The first status that is not zero stays in err.
type rank struct {
	rank, ranks  int
	comm, stream handle
	err          error
	allocated    []uint64
}

func (r *rank) ok(what string, status int32) {
	if status != 0 && r.err == nil {
		r.err = fmt.Errorf("rank %d of %d: %s: status %d: %s", r.rank, r.ranks, what, status, collect.LastError(0))
	}
}

// memory returns device memory with a content.
func (r *rank) memory(b []byte) (address uint64) {
	r.ok("cuMemAlloc", driver.MemAlloc(&address, uintptr(len(b))))
	r.ok("copy", driver.MemcpyHtoDAsync(address, unsafe.Pointer(&b[0]), uintptr(len(b)), r.stream))
	r.ok("wait", driver.StreamSynchronize(r.stream))
	r.allocated = append(r.allocated, address)
	return address
}

// content reads device memory behind all work of the rank's stream.
func (r *rank) content(address uint64, bytes int) []byte {
	b := make([]byte, bytes)
	r.ok("copy", driver.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), address, uintptr(bytes), r.stream))
	r.ok("wait", driver.StreamSynchronize(r.stream))
	return b
}

func (r *rank) begin(id uniqueID) {
	var context handle
	r.ok("retain", driver.DevicePrimaryCtxRetain(&context, int32(r.rank)))
	r.ok("current", driver.CtxSetCurrent(context))
	r.ok("stream", driver.StreamCreate(&r.stream, 1))
	r.ok("init", collect.InitRank(&r.comm, int32(r.ranks), id, int32(r.rank)))
}

func (r *rank) end() {
	if r.err != nil {
		return
	}
	for _, address := range r.allocated {
		r.ok("free", driver.MemFree(address))
	}
	r.ok("destroy", collect.Destroy(r.comm))
	r.ok("stream", driver.StreamDestroy(r.stream))
	driver.CtxSetCurrent(0)
	r.ok("release", driver.DevicePrimaryCtxRelease(int32(r.rank)))
}

// run runs ranks as goroutines on threads of their own and returns their errors.
func run(t *testing.T, ranks int, body func(*rank)) []error {
	t.Helper()
	var id uniqueID
	ok(t, collect.GetUniqueID(&id))
	errs := make([]error, ranks)
	var all sync.WaitGroup
	for i := range ranks {
		all.Go(func() {
			runtime.LockOSThread()
			r := &rank{rank: i, ranks: ranks}
			r.begin(id)
			if r.err == nil {
				body(r)
			}
			r.end()
			errs[i] = r.err
		})
	}
	all.Wait()
	return errs
}

func runAll(t *testing.T, ranks int, body func(*rank)) {
	t.Helper()
	if err := errors.Join(run(t, ranks, body)...); err != nil {
		t.Fatal(err)
	}
}

// elementKind is a type of nccl.h.
type elementKind struct {
	code int32
	name string
	size int
	wide dtype.DType // for floats; f64 and f32 in themselves
	bits int         // for integers
}

var kinds = []elementKind{
	{0, "i8", 1, dtype.Invalid, 8}, {1, "u8", 1, dtype.Invalid, 8}, {2, "i32", 4, dtype.Invalid, 32}, {3, "u32", 4, dtype.Invalid, 32},
	{4, "i64", 8, dtype.Invalid, 64}, {5, "u64", 8, dtype.Invalid, 64}, {6, "f16", 2, dtype.Float16, 0}, {7, "f32", 4, dtype.Float32, 0},
	{8, "f64", 8, dtype.Float64, 0}, {9, "bf16", 2, dtype.BFloat16, 0}, {10, "f8e4m3", 1, dtype.Float8E4M3, 0}, {11, "f8e5m2", 1, dtype.Float8E5M2, 0},
}

// input returns a rank's elements.
func (k elementKind) input(rank, n int) []byte {
	random := rand.New(rand.NewPCG(uint64(rank), uint64(k.code)))
	b := dtype.Bytes(make([]uint64, n))[:n*k.size]
	if k.wide == dtype.Invalid {
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	values := make([]float64, n)
	for i := range values {
		values[i] = random.NormFloat64() * 3
	}
	dtype.Convert(b, k.wide, dtype.Bytes(values), dtype.Float64, int64(n))
	return b
}

// sum adds up in the order of ranks: integers in their bits, f64 and f32 in their
// own type, other floats in f32 and rounded once.
func (k elementKind) sum(inputs [][]byte) []byte {
	n := len(inputs[0]) / k.size
	out := dtype.Bytes(make([]uint64, n))[:n*k.size]
	if k.wide == dtype.Invalid {
		for at := 0; at < len(out); at += k.size {
			var total uint64
			for _, in := range inputs {
				word := make([]byte, 8)
				copy(word, in[at:at+k.size])
				total += binary.LittleEndian.Uint64(word)
			}
			word := binary.LittleEndian.AppendUint64(nil, total)
			copy(out[at:at+k.size], word)
		}
		return out
	}
	if k.wide == dtype.Float64 {
		total := make([]float64, n)
		for r, in := range inputs {
			for i, x := range dtype.Slice[float64](in) {
				total[i] = map[bool]float64{true: x, false: total[i] + x}[r == 0]
			}
		}
		return dtype.Bytes(total)
	}
	total, x := make([]float32, n), make([]float32, n)
	for r, in := range inputs {
		dtype.Convert(dtype.Bytes(x), dtype.Float32, in, k.wide, int64(n))
		for i := range total {
			total[i] = map[bool]float32{true: x[i], false: total[i] + x[i]}[r == 0]
		}
	}
	dtype.Convert(out, k.wide, dtype.Bytes(total), dtype.Float32, int64(n))
	return out
}

const elements = 37

func inputs(k elementKind, ranks, n int) (all [][]byte) {
	for r := range ranks {
		all = append(all, k.input(r, n))
	}
	return all
}

func (r *rank) equal(what string, got, want []byte) {
	if r.err == nil && !bytes.Equal(got, want) {
		r.err = fmt.Errorf("rank %d of %d: %s: got %x, want %x", r.rank, r.ranks, what, got, want)
	}
}

// eachWorld runs a test of every type in worlds of one to four ranks.
func eachWorld(t *testing.T, body func(r *rank, k elementKind)) {
	libraries(t)
	for ranks := 1; ranks <= 4; ranks++ {
		runAll(t, ranks, func(r *rank) {
			for _, k := range kinds {
				body(r, k)
			}
		})
	}
	clean(t)
}

func TestAllGatherPutsRanksInOrder(t *testing.T) { eachWorld(t, gathers) }

func gathers(r *rank, k elementKind) {
	want := bytes.Join(inputs(k, r.ranks, elements), nil)
	own := r.memory(k.input(r.rank, elements))
	all := r.memory(make([]byte, len(want)))
	r.ok("gather", collect.AllGather(own, all, elements, k.code, r.comm, r.stream))
	r.equal("gather "+k.name, r.content(all, len(want)), want)
	place := bytes.Repeat([]byte{0xaa}, len(want))
	copy(place[r.rank*elements*k.size:], k.input(r.rank, elements))
	all = r.memory(place)
	r.ok("gather", collect.AllGather(all+uint64(r.rank*elements*k.size), all, elements, k.code, r.comm, r.stream))
	r.equal("gather in place "+k.name, r.content(all, len(want)), want)
}

func TestReductionsSumInTheOrderOfRanks(t *testing.T) { eachWorld(t, reductions) }

func reductions(r *rank, k elementKind) {
	total := k.sum(inputs(k, r.ranks, elements*r.ranks))
	in := r.memory(k.input(r.rank, elements*r.ranks))
	part := elements * k.size
	out := r.memory(make([]byte, part))
	r.ok("scatter", collect.ReduceScatter(in, out, elements, k.code, 0, r.comm, r.stream))
	r.equal("scatter "+k.name, r.content(out, part), total[r.rank*part:(r.rank+1)*part])
	r.ok("reduce", collect.AllReduce(in, in, uintptr(elements*r.ranks), k.code, 0, r.comm, r.stream))
	r.equal("reduce in place "+k.name, r.content(in, len(total)), total)
}

func TestOtherReductions(t *testing.T) {
	libraries(t)
	runAll(t, 3, func(r *rank) {
		own := []float64{float64(r.rank + 1), 0 - float64(r.rank), 6}
		for i, want := range [][]float64{{6, 0, 216}, {3, 0, 6}, {1, -2, 6}, {2, -1, 6}} {
			in, out := r.memory(bytes.Clone(dtype.Bytes(own))), r.memory(make([]byte, 24))
			r.ok("reduce", collect.AllReduce(in, out, 3, 8, int32(i+1), r.comm, r.stream))
			r.equal(fmt.Sprint("operation ", i+1), r.content(out, 24), dtype.Bytes(want))
		}
	})
	clean(t)
}

func TestBroadcastCopiesTheRoot(t *testing.T) { eachWorld(t, broadcasts) }

func broadcasts(r *rank, k elementKind) {
	for root := range r.ranks {
		buffer := r.memory(k.input(r.rank, elements))
		r.ok("broadcast", collect.Broadcast(buffer, buffer, elements, k.code, int32(root), r.comm, r.stream))
		r.equal("broadcast "+k.name, r.content(buffer, elements*k.size), k.input(root, elements))
	}
}

func TestMessagesOfAGroupPassEachOther(t *testing.T) {
	libraries(t)
	for _, policy := range policies {
		schedule(t, policy)
		runAll(t, 3, func(r *rank) {
			in, out := r.memory([]byte{byte(r.rank), 10, 20}), r.memory(make([]byte, 9))
			r.ok("start", collect.GroupStart())
			for peer := range r.ranks {
				r.ok("send", collect.Send(in, 3, 1, int32(peer), r.comm, r.stream))
				r.ok("receive", collect.Recv(out+uint64(3*peer), 3, 1, int32(peer), r.comm, r.stream))
			}
			r.ok("end", collect.GroupEnd())
			r.equal("messages", r.content(out, 9), []byte{0, 10, 20, 1, 10, 20, 2, 10, 20})
		})
	}
	clean(t)
}

// The order of a communicator's collectives is that of the calls, whatever the
// streams, and it is the ranks' that orders streams, not time.
func TestCollectivesOfOneCommunicatorKeepTheirOrder(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} { // the second: as in different processes
		t.Setenv("EMU_SHARED", folder)
		libraries(t)
		for _, policy := range policies {
			schedule(t, policy)
			runAll(t, 3, streams)
		}
		clean(t)
	}
}

func TestSplitOrdersByKey(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} { // the second: as in different processes
		t.Setenv("EMU_SHARED", folder)
		libraries(t)
		runAll(t, 4, halves)
		clean(t)
	}
}

// halves splits four ranks in two, and once into nothing.
func halves(r *rank) {
	var half handle
	r.ok("split", collect.Split(r.comm, int32(r.rank%2), int32(-r.rank), &half, nil))
	var place, count int32
	r.ok("rank", collect.Rank(half, &place))
	r.ok("count", collect.Count(half, &count))
	if r.err == nil && (count != 2 || place != int32(1-r.rank/2)) {
		r.err = fmt.Errorf("rank %d is %d of %d in its half", r.rank, place, count)
	}
	own, all := r.memory([]byte{byte(r.rank)}), r.memory(make([]byte, 2))
	r.ok("gather", collect.AllGather(own, all, 1, 1, half, r.stream))
	r.equal("half", r.content(all, 2), []byte{byte(2 + r.rank%2), byte(r.rank % 2)})
	r.ok("destroy", collect.Destroy(half))
	var none handle
	r.ok("split", collect.Split(r.comm, -1, 0, &none, nil))
	if none != 0 {
		r.err = errors.New("a rank without color got a communicator")
	}
}

func TestDifferentCallsAreAnErrorOnAllRanks(t *testing.T) {
	libraries(t)
	runAll(t, 3, func(r *rank) {
		a := r.memory(make([]byte, 16))
		count := uintptr(2)
		if r.rank == 1 {
			count = 3
		}
		r.ok("reduce", collect.AllReduce(a, a, count, 7, 0, r.comm, r.stream))
		if status := awaitAsync(r); status != 5 {
			r.err = fmt.Errorf("rank %d: asynchronous error %d, want 5", r.rank, status)
		}
		if text := collect.LastError(0); !strings.Contains(text, "rank 1 calls ncclAllReduce(count 3, type 7") {
			r.err = fmt.Errorf("last error %q", text)
		}
		abort(r)
		r.ok("wait", driver.StreamSynchronize(r.stream)) // what was queued is dropped
	})
	clean(t)
}

// awaitAsync asks for a stream's work and waits for an asynchronous error.
func awaitAsync(r *rank) (status int32) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil && status == 0 {
		driver.StreamQuery(r.stream)
		r.ok("async error", collect.AsyncError(r.comm, &status))
		time.Sleep(time.Millisecond)
	}
	return status
}

// abort aborts the communicator of a rank and gives it a new one to destroy.
func abort(r *rank) {
	r.ok("abort", collect.Abort(r.comm))
	var id uniqueID
	r.ok("id", collect.GetUniqueID(&id))
	r.ok("init", collect.InitRank(&r.comm, 1, id, 0))
}

func TestAnAbortFreesStreamsThatWaitForADeadPeer(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} { // the second: as in different processes
		t.Setenv("EMU_SHARED", folder)
		for _, policy := range []string{"fifo", "lazy", "random:4"} {
			libraries(t)
			schedule(t, policy)
			fault(t, "dead:rank=2")
			runAll(t, 3, func(r *rank) {
				a := r.memory([]byte{1})
				r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
				waited := make(chan int32)
				var context handle
				r.ok("retain", driver.DevicePrimaryCtxRetain(&context, int32(r.rank)))
				go func() {
					runtime.LockOSThread()
					driver.CtxSetCurrent(context)
					waited <- driver.StreamSynchronize(r.stream)
				}()
				select {
				case status := <-waited:
					r.err = fmt.Errorf("rank %d: the collective ended with %d", r.rank, status)
				case <-time.After(20 * time.Millisecond):
				}
				abort(r)
				r.ok("wait", <-waited)
				r.equal("memory of a collective that was dropped", r.content(a, 1), []byte{1})
				r.ok("release", driver.DevicePrimaryCtxRelease(int32(r.rank)))
			})
			clean(t)
		}
	}
}

func TestAnAsynchronousErrorIsOfOneRank(t *testing.T) {
	for _, folder := range []string{"", t.TempDir()} { // the second: as in different processes
		t.Setenv("EMU_SHARED", folder)
		libraries(t)
		fault(t, "nccl_async:6:rank=1:after=2")
		runAll(t, 2, func(r *rank) {
			a := r.memory([]byte{1})
			for range 2 {
				r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
			}
			r.equal("memory", r.content(a, 1), []byte{4})
			r.ok("reduce", collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream))
			if r.rank == 1 {
				if status := awaitAsync(r); status != 6 {
					r.err = fmt.Errorf("asynchronous error %d, want 6", status)
				}
				if status := collect.AllReduce(a, a, 1, 1, 0, r.comm, r.stream); status != 6 {
					r.err = fmt.Errorf("a later call returns %d, want 6", status)
				}
			}
			abort(r)
			r.ok("wait", driver.StreamSynchronize(r.stream)) // what was queued is dropped
		})
		clean(t)
	}
}

func TestCommunicatorsThatCannotBe(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	var id uniqueID
	var comm handle
	ok(t, collect.GetUniqueID(&id))
	want(t, collect.InitRank(&comm, 2, id, 2), 4)
	want(t, collect.AllReduce(0, 0, 1, 7, 0, 4711, 0), 4)
	want(t, collect.GroupEnd(), 5)
	fault(t, "nccl_init:6:ms=20")
	want(t, collect.InitRank(&comm, 2, id, 0), 6)
	shared.Reset()
	onDevice(t, 0)
	ok(t, collect.GetUniqueID(&id))
	ok(t, collect.InitRank(&comm, 1, id, 0))
	a, host := alloc(t, 64), make([]byte, 8)
	for name, status := range map[string]int32{
		"host memory": collect.AllReduce(uint64(uintptr(unsafe.Pointer(&host[0]))), a, 1, 8, 0, comm, 0),
		"too long":    collect.AllReduce(a, a, 9, 8, 0, comm, 0),
		"type":        collect.AllReduce(a, a, 1, 12, 0, comm, 0),
		"root":        collect.Broadcast(a, a, 1, 7, 1, comm, 0),
		"overlap":     collect.AllReduce(a, a+8, 2, 8, 0, comm, 0),
		"huge":        collect.AllReduce(a, a, ^uintptr(0)>>1, 8, 0, comm, 0),
	} {
		if status != 4 {
			t.Errorf("%s: status %d, want 4", name, status)
		}
	}
	if got := shared.Check(); len(got) != 2 || got[1] != "1 communicators never destroyed" {
		t.Errorf("findings %q, want memory and a communicator", got)
	}
	ok(t, collect.Destroy(comm))
	free(t, a)
	clean(t)
}
