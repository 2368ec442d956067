package nccl

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

func TestRanksAreNumberedAsAsked(t *testing.T) {
	eachSize(t, func(t *testing.T, w *world) {
		for r, c := range w.ranks {
			if c.Rank() != r || c.Size() != len(w.ranks) || c.Err() != nil {
				t.Errorf("rank %d is rank %d of %d, %v", r, c.Rank(), c.Size(), c.Err())
			}
		}
	})
}

func TestGatherIsExactOutOfPlaceAndInPlace(t *testing.T) {
	eachSize(t, func(t *testing.T, w *world) {
		for _, part := range []int{0, 1, 33, 4096} {
			want := make([]byte, part*len(w.ranks))
			for i := range want {
				want[i] = byte(i*7 + i>>8)
			}
			checkAll(t, w.onEach(func(r int, c *Communicator) {
				d := w.devices[r]
				src, dst := memory(t, d, want[r*part:(r+1)*part]), memory(t, d, make([]byte, len(want)))
				in := memory(t, d, make([]byte, len(want)))
				own := in.Slice(int64(r*part), int64(part))
				if part > 0 {
					if err := d.Write(context.Background(), own, want[r*part:(r+1)*part]); err != nil {
						t.Error(err)
					}
				}
				c.AllGather("w", dst, src)
				c.AllGather("w in place", in, own)
				if err := finished(c, c.gather); err == nil {
					wantContent(t, fmt.Sprintf("rank %d, %d bytes", r, part), d, dst, want)
					wantContent(t, fmt.Sprintf("rank %d, %d bytes in place", r, part), d, in, want)
				}
			}))
		}
	})
}

// summed are the element types that NCCL sums; small whole numbers are exact in
// all of them, in any order.
var summed = []dtype.DType{
	dtype.Float64, dtype.Float32, dtype.BFloat16, dtype.Float16, dtype.Int8, dtype.Uint8,
	dtype.Int32, dtype.Uint32, dtype.Int64, dtype.Uint64,
}

// whole returns numbers as elements of a type.
func whole(t *testing.T, d dtype.DType, values []int64) []byte {
	t.Helper()
	out := make([]byte, int64(len(values))*d.Bytes())
	if !d.IsFloat() {
		for i, v := range values {
			for k := range d.Bytes() {
				out[int64(i)*d.Bytes()+k] = byte(v >> (8 * k))
			}
		}
		return out
	}
	wide := make([]float64, len(values))
	for i, v := range values {
		wide[i] = float64(v)
	}
	aligned := dtype.Bytes(make([]uint64, len(values)))[:len(out)]
	dtype.Convert(aligned, d, dtype.Bytes(wide), dtype.Float64, int64(len(values)))
	return aligned
}

func TestSumsOfAllTypes(t *testing.T) {
	eachSize(t, func(t *testing.T, w *world) {
		size := len(w.ranks)
		for _, d := range summed {
			n := 5 * size
			input := func(r int) []int64 {
				v := make([]int64, n)
				for i := range v {
					v[i] = int64((i + 3*r) % 11)
				}
				return v
			}
			total := make([]int64, n)
			for r := range size {
				for i, v := range input(r) {
					total[i] += v
				}
			}
			checkAll(t, w.onEach(func(r int, c *Communicator) {
				gpu := w.devices[r]
				src := memory(t, gpu, whole(t, d, input(r)))
				part := src.Bytes() / int64(size)
				dst := memory(t, gpu, make([]byte, part))
				in, all := memory(t, gpu, whole(t, d, input(r))), memory(t, gpu, whole(t, d, input(r)))
				own := in.Slice(int64(r)*part, part)
				c.ReduceScatter("g", dst, src, d)
				c.ReduceScatter("g in place", own, in, d)
				c.AllReduce("norm", all, d)
				if err := finished(c, c.reduce); err != nil {
					return
				}
				name := fmt.Sprintf("rank %d, %v", r, d)
				wantContent(t, name+" scattered", gpu, dst, whole(t, d, total)[int64(r)*part:int64(r+1)*part])
				wantContent(t, name+" scattered in place", gpu, own, whole(t, d, total)[int64(r)*part:int64(r+1)*part])
				wantContent(t, name+" reduced", gpu, all, whole(t, d, total))
			}))
		}
	})
}

func TestBroadcastReplacesAllButTheRoots(t *testing.T) {
	eachSize(t, func(t *testing.T, w *world) {
		for root := range w.ranks {
			checkAll(t, w.onEach(func(r int, c *Communicator) {
				buf := memory(t, w.devices[r], fmt.Appendf(nil, "rank%d", r))
				c.Broadcast("b", buf, root)
				if finished(c, c.gather) == nil {
					wantContent(t, fmt.Sprint("rank ", r), w.devices[r], buf, fmt.Appendf(nil, "rank%d", root))
				}
			}))
		}
	})
}

func TestBarrierHoldsBackUntilAllHaveCome(t *testing.T) {
	libraries(t)
	w := newWorld(t, 2, long)
	var late time.Time
	checkAll(t, w.onEach(func(r int, c *Communicator) {
		if r == 1 {
			time.Sleep(50 * time.Millisecond)
			late = time.Now()
		}
		c.Barrier("start")
		if finished(c, c.gather) == nil && r == 0 && time.Now().Before(late) {
			t.Error("rank 0 passed before rank 1 came")
		}
	}))
}

// Two streams, no event between them: the order of the calls is NCCL's.
func TestRandomCollectivesOnBothStreamsMatchAnOracle(t *testing.T) {
	eachSize(t, func(t *testing.T, w *world) {
		size := len(w.ranks)
		kinds := make([]int, 150)
		rng := rand.New(rand.NewPCG(1, uint64(size)))
		for i := range kinds {
			kinds[i] = rng.IntN(4)
		}
		checkAll(t, w.onEach(func(r int, c *Communicator) {
			var host []byte
			at := make([]int64, len(kinds)+1)
			for i, kind := range kinds {
				host = append(host, before(i, kind, r, size)...)
				at[i+1] = int64(len(host))
			}
			m := memory(t, w.devices[r], host)
			for i, kind := range kinds {
				call(c, m.Slice(at[i], at[i+1]-at[i]), i, kind)
			}
			if finished(c, c.gather) != nil || finished(c, c.reduce) != nil {
				return
			}
			got := content(t, w.devices[r], m)
			for i, kind := range kinds {
				if want := expected(i, kind, r, size); !bytes.HasPrefix(got[at[i]:], want) {
					t.Errorf("rank %d, collective %d of kind %d: %x, expected %x", r, i, kind, got[at[i]:at[i+1]], want)
				}
			}
		}))
	})
}

// before is the memory of collective i: room for the result, and behind it the
// input, where that isn't in place.
func before(i, kind, r, size int) []byte {
	own := bytes.Repeat([]byte{byte(i + r)}, 8*(1+i%5))
	switch kind {
	case 0:
		return append(make([]byte, len(own)*size), own...)
	case 1:
		return append(make([]byte, len(own)), bytes.Repeat(own, size)...)
	default:
		return own
	}
}

// call puts collective i on its stream.
func call(c *Communicator, m device.Memory, i, kind int) {
	n, subject := int64(8*(1+i%5)), fmt.Sprint("collective ", i)
	switch kind {
	case 0:
		c.AllGather(subject, m.Slice(0, m.Bytes()-n), m.Slice(m.Bytes()-n, n))
	case 1:
		c.ReduceScatter(subject, m.Slice(0, n), m.Slice(n, m.Bytes()-n), dtype.Uint8)
	case 2:
		c.AllReduce(subject, m, dtype.Uint8)
	default:
		c.Broadcast(subject, m, i%c.Size())
	}
}

// expected is the result of collective i.
func expected(i, kind, r, size int) []byte {
	n := 8 * (1 + i%5)
	switch kind {
	case 0:
		var all []byte
		for r := range size {
			all = append(all, bytes.Repeat([]byte{byte(i + r)}, n)...)
		}
		return all
	case 3:
		return bytes.Repeat([]byte{byte(i + i%size)}, n)
	default:
		return bytes.Repeat([]byte{byte(size*i + size*(size-1)/2)}, n)
	}
}

func TestSplitGroupsByColorAndOrdersByKey(t *testing.T) {
	for _, size := range []int{1, 2, 4} {
		l := libraries(t)
		w := newWorld(t, size, 20*time.Second)
		checkAll(t, w.onEach(func(r int, c *Communicator) {
			for round := range 2 { // two splits of one group don't mix
				half, err := c.Split(context.Background(), "experts", r%2-7, -r)
				if err != nil {
					t.Errorf("rank %d: %v", r, err)
					return
				}
				if want := (size + 1 - r%2) / 2; half.Size() != want || half.Rank() != want-1-r/2 {
					t.Errorf("rank %d is rank %d of %d", r, half.Rank(), half.Size())
				}
				dst := memory(t, w.devices[r], make([]byte, half.Size()))
				half.AllGather("h", dst, memory(t, w.devices[r], []byte{byte(10*round + r)}))
				var want []byte
				for other := size - 1; other >= 0; other-- {
					if other%2 == r%2 {
						want = append(want, byte(10*round+other))
					}
				}
				if err := finished(half, half.GatherStream()); err != nil {
					t.Error(err)
				} else {
					wantContent(t, fmt.Sprint("rank ", r), w.devices[r], dst, want)
				}
				if err := half.Close(); err != nil {
					t.Error(err)
				}
			}
			c.Barrier("the whole goes on")
		}))
		if err := w.close(); err != nil {
			t.Error(err)
		}
		if l.Calls("ncclCommSplit") != int64(2*size) {
			t.Errorf("%d splits", l.Calls("ncclCommSplit"))
		}
	}
}

func TestGathersAndReductionsHaveUrgentStreamsOfTheirOwn(t *testing.T) {
	l := libraries(t)
	w := newWorld(t, 1, long)
	c := w.ranks[0]
	if c.GatherStream() == c.ReduceStream() || c.gather.Handle() == c.reduce.Handle() {
		t.Error("gathers and reductions share a stream")
	}
	if n := l.Calls("cuStreamCreateWithPriority"); n != 2 {
		t.Errorf("%d streams have a priority, want 2", n)
	}
	if err := w.close(); err != nil {
		t.Error(err)
	}
}

func TestMoreCollectivesThanTheRingHolds(t *testing.T) {
	libraries(t)
	w := newWorld(t, 2, long)
	checkAll(t, w.onEach(func(r int, c *Communicator) {
		buf := memory(t, w.devices[r], make([]byte, 8))
		for range ringLength + 100 {
			c.AllReduce("x", buf, dtype.Float64)
			c.Broadcast("y", buf, 0)
		}
	}))
	for _, c := range w.ranks {
		if p := (member{c}).Progress(0); p.Issued != warmUps+2*(ringLength+100) {
			t.Errorf("progress %+v", p)
		}
	}
}

func TestGroupOfNumbersColors(t *testing.T) {
	all := []preference{{5, 0, 0}, {-3, 9, 1}, {5, -1, 2}, {7, 0, 3}, {-3, 9, 4}}
	for color, want := range map[int64]struct {
		members []int
		index   int
	}{5: {[]int{2, 0}, 1}, -3: {[]int{1, 4}, 0}, 7: {[]int{3}, 2}} {
		if members, index := groupOf(all, color); !slices.Equal(members, want.members) || index != want.index {
			t.Errorf("color %d: %v, %d", color, members, index)
		}
	}
}

var _ comm.Communicator = (*Communicator)(nil)
