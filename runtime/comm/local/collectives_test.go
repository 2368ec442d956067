package local_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/local"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
)

const soon = 20 * time.Second // longer than any test may take

func TestGatherIsExactOnDirtyMemory(t *testing.T) {
	for size := 1; size <= 8; size++ {
		for _, part := range []int64{0, 1, 31, 33, 4096, 5<<20 + 3} {
			if part > 4096 && size > 3 {
				continue // enough to cross the pieces in which copies are made
			}
			t.Run(fmt.Sprintf("ranks=%d/bytes=%d", size, part), func(t *testing.T) { checkGather(t, size, part) })
		}
	}
}

func checkGather(t *testing.T, size int, part int64) {
	g := newGroup(t, size, soon)
	dst := make([]device.Memory, size)
	want := make([]byte, int64(size)*part)
	for i := range want {
		want[i] = byte(i*7 + i>>8)
	}
	for r := range size {
		dst[r] = dirty(t, int64(size)*part)
	}
	checkAll(t, onEach(g, func(r int, c comm.Communicator) {
		src := dirty(t, part)
		copy(src.Host(), want[int64(r)*part:])
		c.AllGather("wte.weight", dst[r], src)
	}))
	for r := range size {
		if !bytes.Equal(dst[r].Host(), want) {
			t.Errorf("rank %d gathered something else", r)
		}
	}
}

func TestGatherInPlaceKeepsTheOwnPart(t *testing.T) {
	g := newGroup(t, 3, soon)
	var dst [3]device.Memory
	for r := range dst {
		dst[r] = dirty(t, 15)
		copy(dst[r].Host()[5*r:5*r+5], "abcdefghijklmno"[5*r:])
	}
	checkAll(t, onEach(g, func(r int, c comm.Communicator) {
		c.AllGather("b", dst[r], dst[r].Slice(int64(5*r), 5))
	}))
	for r := range dst {
		if got := string(dst[r].Host()); got != "abcdefghijklmno" {
			t.Errorf("rank %d has %q", r, got)
		}
	}
}

func TestALaunchIsItsCollectivesInOrder(t *testing.T) {
	g := newGroup(t, 2, soon)
	errs := onEach(g, func(r int, c comm.Communicator) {
		one, two, sum := dirty(t, 8), dirty(t, 16), dirty(t, 8)
		own := func(n int) device.Memory { return device.HostMemory(bytes.Repeat([]byte{byte('a' + r)}, n)) }
		c.AllGathers([]comm.Gather{{Subject: "one", Dst: one, Src: own(4)}, {Subject: "two", Dst: two, Src: own(8)}})
		c.ReduceScatters([]comm.Reduction{{Subject: "sum", Dst: sum, Src: own(16), Type: dtype.Uint8}})
		c.ReduceScatters([]comm.Reduction{{Subject: "good", Dst: sum, Src: own(16), Type: dtype.Uint8}, {Subject: "bad", Dst: sum, Src: own(15), Type: dtype.Uint8}})
		err := c.Synchronize(context.Background(), c.GatherStream().Record())
		if string(one.Host()) != "aaaabbbb" || string(two.Host()) != "aaaaaaaabbbbbbbb" || sum.Host()[7] != 'a'+'b' {
			t.Errorf("rank %d has %q, %q and %d, %v", r, one.Host(), two.Host(), sum.Host(), err)
		}
	})
	for r, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "reduce-scatter of bad (sequence 5)") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// 7 elements on 3 ranks, padded to 9; rank k contributes i*(k+1) at element i.
func TestReduceScatterSumsShardsOfSevenElementsOnThreeRanks(t *testing.T) {
	g := newGroup(t, 3, soon)
	var dst [3]device.Memory
	for r := range dst {
		dst[r] = dirty(t, 12)
	}
	checkAll(t, onEach(g, func(k int, c comm.Communicator) {
		src := dirty(t, 36)
		clear(src.Host())
		for i := range 7 {
			dtype.Slice[float32](src.Host())[i] = float32(i * (k + 1))
		}
		c.ReduceScatter("grad", dst[k], src, dtype.Float32)
	}))
	want := [][]float32{{0, 6, 12}, {18, 24, 30}, {36, 0, 0}}
	for r := range dst {
		if got := dtype.Slice[float32](dst[r].Host()); !slices.Equal(got, want[r]) {
			t.Errorf("rank %d has %v, expected %v", r, got, want[r])
		}
	}
}

func TestSumsRunInRankOrder(t *testing.T) {
	inputs := [][]float32{{1e8}, {1}, {-1e8}, {1}, {0.5}, {1e-8}, {-0.25}, {3}, {7}}
	for size := 1; size <= len(inputs); size++ {
		var want float32
		for i := range size {
			want += inputs[i][0]
		}
		for _, n := range []int{1, 7, 8, 9, 1024, 1025, 5000} {
			for r, got := range reduceAll(t, size, n, inputs) {
				if slices.ContainsFunc(got, func(x float32) bool { return x != want }) {
					t.Fatalf("%d ranks, %d elements: rank %d has %v..., expected %v", size, n, r, got[0], want)
				}
			}
		}
	}
}

// reduceAll sums n copies of each rank's input and returns every rank's result.
func reduceAll(t *testing.T, size, n int, inputs [][]float32) [][]float32 {
	t.Helper()
	g := newGroup(t, size, soon)
	results := make([][]float32, size)
	bufs := make([]device.Memory, size)
	for r := range size {
		bufs[r] = dirty(t, int64(4*n))
		results[r] = dtype.Slice[float32](bufs[r].Host())
		for i := range results[r] {
			results[r][i] = inputs[r][0]
		}
	}
	checkAll(t, onEach(g, func(r int, c comm.Communicator) { c.AllReduce("norm", bufs[r], dtype.Float32) }))
	return results
}

// 1 + 1/256 + 1/256 in bf16 is 1 if each sum is rounded (to even), but 1 + 1/128 if only
// the last is.
func TestHalvesAreRoundedOnce(t *testing.T) {
	for _, d := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		step := map[dtype.DType]float32{dtype.BFloat16: 1. / 256, dtype.Float16: 1. / 2048}[d]
		g := newGroup(t, 3, soon)
		var got [3]float32
		checkAll(t, onEach(g, func(r int, c comm.Communicator) {
			value, buf := []float32{step}, dirty(t, 2)
			if r == 0 {
				value[0] = 1
			}
			dtype.Convert(buf.Host(), d, dtype.Bytes(value), dtype.Float32, 1)
			c.AllReduce("x", buf, d)
			_ = c.Synchronize(context.Background(), c.GatherStream().Record())
			dtype.Convert(dtype.Bytes(got[r:r+1]), dtype.Float32, buf.Host(), d, 1)
		}))
		if want := 1 + 2*step; got != [3]float32{want, want, want} {
			t.Errorf("%v: the ranks have %v, expected %v", d, got, want)
		}
	}
}

func TestReduceScatterInPlaceSumsLikeOutOfPlace(t *testing.T) {
	const size, n = 6, 3000
	g := newGroup(t, size, soon)
	var srcs [size]device.Memory
	var want [size][]byte
	for r := range srcs {
		srcs[r] = dirty(t, 8*size*n)
		for i := range dtype.Slice[float64](srcs[r].Host()) {
			dtype.Slice[float64](srcs[r].Host())[i] = rand.NormFloat64()
		}
	}
	run := func(inPlace bool) {
		checkAll(t, onEach(g, func(r int, c comm.Communicator) {
			dst := dirty(t, 8*n)
			if inPlace {
				dst = srcs[r].Slice(int64(8*n*r), 8*n)
			}
			c.ReduceScatter("g", dst, srcs[r], dtype.Float64)
			_ = c.Synchronize(context.Background(), c.GatherStream().Record())
			if !inPlace {
				want[r] = dst.Host()
			} else if !bytes.Equal(dst.Host(), want[r]) {
				t.Errorf("rank %d: in place gives another sum", r)
			}
		}))
	}
	run(false)
	run(true)
}

// Adding zeros as unsigned integers moves any bits, NaN payloads included.
func TestIntegerSumsMoveBits(t *testing.T) {
	for _, d := range []dtype.DType{dtype.Uint8, dtype.Int16, dtype.Uint32, dtype.Uint64, dtype.Int64} {
		g := newGroup(t, 4, soon)
		var bufs [4]device.Memory
		want := make([]byte, 8000)
		checkAll(t, onEach(g, func(r int, c comm.Communicator) {
			bufs[r] = dirty(t, 8000)
			clear(bufs[r].Host())
			for i := r * 2000; i < (r+1)*2000; i++ {
				bufs[r].Host()[i], want[i] = byte(i*31), byte(i*31)
			}
			c.AllReduce("raw", bufs[r], d)
		}))
		for r := range bufs {
			if !bytes.Equal(bufs[r].Host(), want) {
				t.Errorf("%v: rank %d has other bits", d, r)
			}
		}
	}
}

func TestBroadcastReplacesAllButTheRoots(t *testing.T) {
	for root := range 4 {
		g := newGroup(t, 4, soon)
		var bufs [4]device.Memory
		checkAll(t, onEach(g, func(r int, c comm.Communicator) {
			bufs[r] = dirty(t, 5)
			copy(bufs[r].Host(), fmt.Sprintf("rank%d", r))
			c.Broadcast("b", bufs[r], root)
		}))
		for r := range bufs {
			if got, want := string(bufs[r].Host()), fmt.Sprintf("rank%d", root); got != want {
				t.Errorf("rank %d has %q, expected %q", r, got, want)
			}
		}
	}
}

func TestBarrierHoldsBackUntilAllHaveCome(t *testing.T) {
	g := newGroup(t, 2, soon)
	var late time.Time
	checkAll(t, onEach(g, func(r int, c comm.Communicator) {
		if r == 1 {
			time.Sleep(30 * time.Millisecond)
			late = time.Now()
		}
		c.Barrier("start")
		_ = c.Synchronize(context.Background(), c.GatherStream().Record())
		if r == 0 && time.Now().Before(late) {
			t.Error("rank 0 passed before rank 1 came")
		}
	}))
}

func TestKernelsRunBetweenCollectives(t *testing.T) {
	g := newGroup(t, 2, soon)
	var got [2][]byte
	checkAll(t, onEach(g, func(r int, c comm.Communicator) {
		src, mid, out := dirty(t, 3), dirty(t, 6), dirty(t, 6)
		copy(src.Host(), []string{"abc", "def"}[r])
		c.AllGather("x", mid, src)
		c.GatherStream().Copy(out, mid)
		cpu.Kernels().Zero(c.GatherStream(), mid)
		c.AllGather("y", mid, src)
		got[r] = out.Host()
	}))
	for r := range got {
		if string(got[r]) != "abcdef" {
			t.Errorf("rank %d copied %q", r, got[r])
		}
	}
}

// oracle is what one random collective must leave on all ranks.
type oracle struct {
	op   comm.Operation
	n    int // f32 elements of a rank's part
	root int
	in   [][]float32 // by rank
	want [][]float32
}

func newOracle(rng *rand.Rand, size int) oracle {
	o := oracle{op: comm.Operation(1 + rng.IntN(5)), n: rng.IntN(1500), root: rng.IntN(size)}
	length := o.n
	if o.op == comm.ReduceScatter {
		length = o.n * size
	}
	for range size {
		x := make([]float32, length)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		o.in = append(o.in, x)
	}
	for r := range size {
		o.want = append(o.want, o.expected(r))
	}
	return o
}

func (o *oracle) expected(r int) []float32 {
	switch o.op {
	case comm.AllGather:
		return slices.Concat(o.in...)
	case comm.ReduceScatter:
		return o.sum()[r*o.n : (r+1)*o.n]
	case comm.AllReduce:
		return o.sum()
	case comm.Broadcast:
		return o.in[o.root]
	}
	return o.in[r]
}

func (o *oracle) sum() []float32 {
	total := slices.Clone(o.in[0])
	for _, x := range o.in[1:] {
		for i := range total {
			total[i] += x[i]
		}
	}
	return total
}

// call runs the collective and returns where its result will be.
func (o *oracle) call(t *testing.T, r int, c comm.Communicator, subject string) device.Memory {
	src := dirty(t, int64(4*len(o.in[r])))
	copy(src.Host(), dtype.Bytes(o.in[r]))
	dst := dirty(t, int64(4*len(o.want[r])))
	switch o.op {
	case comm.AllGather:
		c.AllGather(subject, dst, src)
	case comm.ReduceScatter:
		c.ReduceScatter(subject, dst, src, dtype.Float32)
	case comm.AllReduce:
		c.AllReduce(subject, src, dtype.Float32)
		return src
	case comm.Broadcast:
		c.Broadcast(subject, src, o.root)
		return src
	default:
		c.Barrier(subject)
		return src
	}
	return dst
}

func TestThousandRandomCollectivesMatchASerialOracle(t *testing.T) {
	const size, count = 4, 1000
	rng := rand.New(rand.NewPCG(1, 2))
	oracles := make([]oracle, count)
	for i := range oracles {
		oracles[i] = newOracle(rng, size)
	}
	g := newGroup(t, size, soon)
	checkAll(t, onEach(g, func(r int, c comm.Communicator) {
		rng := rand.New(rand.NewPCG(3, uint64(r)))
		results := make([]device.Memory, count)
		for i := range oracles {
			if rng.IntN(20) == 0 {
				time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond)
			}
			results[i] = oracles[i].call(t, r, c, fmt.Sprint("collective ", i))
		}
		if err := c.Synchronize(context.Background(), c.GatherStream().Record()); err != nil {
			return
		}
		for i, m := range results {
			if !bytes.Equal(m.Host(), dtype.Bytes(oracles[i].want[r])) {
				t.Errorf("rank %d, collective %d: %v of %d elements differs", r, i, oracles[i].op, oracles[i].n)
			}
		}
	}))
}

func TestNothingIsAllocatedInASteadyState(t *testing.T) {
	const size, rounds = 4, 300
	g := newGroup(t, size, soon)
	var big, small [size]device.Memory
	for r := range size {
		big[r], small[r] = dirty(t, size*8192), dirty(t, 8192)
	}
	round := func(r int, c comm.Communicator) {
		c.AllGather("a", big[r], small[r])
		c.ReduceScatter("b", small[r], big[r], dtype.Float32)
		c.AllReduce("c", small[r].Slice(0, 16), dtype.Float64)
		c.AllReduce("d", small[r], dtype.BFloat16)
		c.Broadcast("e", small[r], 1)
		c.Barrier("f")
		_ = c.Synchronize(context.Background(), c.GatherStream().Record())
	}
	start, done := make(chan int), make(chan bool)
	for r := range size {
		go func() {
			for n := range start {
				for range n {
					round(r, g.Communicator(r))
				}
				done <- true
			}
		}()
	}
	defer close(start)
	run := func(n int) {
		for range size {
			start <- n
		}
		for range size {
			<-done
		}
	}
	// The runtime itself allocates for blocked goroutines until each processor
	// has met enough of them.
	var allocations uint64
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		run(rounds)
		runtime.ReadMemStats(&after)
		if allocations = after.Mallocs - before.Mallocs; allocations < rounds/10 {
			break
		}
	}
	if allocations >= rounds/10 {
		t.Errorf("%d allocations in %d collectives of each of %d ranks", allocations, 6*rounds, size)
	}
	checkAll(t, onEach(g, func(int, comm.Communicator) {}))
}

func TestCloseEndsTheGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 5 {
		g, err := local.New(8, local.Options{})
		if err != nil {
			t.Fatal(err)
		}
		checkAll(t, onEach(g, func(r int, c comm.Communicator) { c.Barrier("b") }))
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%d goroutines before, %d after Close", before, runtime.NumGoroutine())
}

func TestNewRefusesWhatMakesNoSense(t *testing.T) {
	for _, test := range []struct {
		size    int
		options local.Options
		want    string
	}{
		{0, local.Options{}, "0 ranks"},
		{-1, local.Options{}, "-1 ranks"},
		{1 << 20, local.Options{}, "expected 1 to"},
		{2, local.Options{Timeout: -time.Second}, "negative"},
	} {
		if _, err := local.New(test.size, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("New(%d, %v): %v, expected an error with %q", test.size, test.options, err, test.want)
		}
	}
}
