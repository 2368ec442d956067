package fake_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/runtime/comm"
	"github.com/shardgen/shardgen/runtime/comm/fake"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/dtype"
)

var _ comm.Communicator = (*fake.Communicator)(nil)

func memory(s string) device.Memory { return device.HostMemory([]byte(s)) }

func result(c comm.Communicator) error {
	return c.Synchronize(context.Background(), c.GatherStream().Record())
}

func TestCallsAreCountedAndKept(t *testing.T) {
	c := fake.New(1, 1000)
	c.Record = true
	whole, part := device.HostMemory(make([]byte, 4000)), memory("abcd")
	c.AllGather("a", whole, part)
	c.AllGathers([]comm.Gather{{Subject: "b", Dst: whole, Src: part}, {Subject: "b2", Dst: whole, Src: part}})
	c.ReduceScatter("c", part, whole, dtype.Float32)
	c.ReduceScatters([]comm.Reduction{{Subject: "c2", Dst: part, Src: whole, Type: dtype.Int8}})
	c.AllReduce("d", part, dtype.Float32)
	c.Broadcast("e", part, 999)
	c.Barrier("f")
	if err := result(c); err != nil {
		t.Fatal(err)
	}
	want := []fake.Call{
		{Operation: comm.AllGather, Subject: "a", Bytes: 4}, {Operation: comm.AllGather, Subject: "b", Bytes: 4},
		{Operation: comm.AllGather, Subject: "b2", Bytes: 4},
		{Operation: comm.ReduceScatter, Subject: "c", Bytes: 4, DType: dtype.Float32},
		{Operation: comm.ReduceScatter, Subject: "c2", Bytes: 4, DType: dtype.Int8},
		{Operation: comm.AllReduce, Subject: "d", Bytes: 4, DType: dtype.Float32},
		{Operation: comm.Broadcast, Subject: "e", Bytes: 4, Root: 999}, {Operation: comm.Barrier, Subject: "f"},
	}
	if !slices.Equal(c.Calls(), want) {
		t.Errorf("the calls were %v, expected %v", c.Calls(), want)
	}
	if got := c.Count(comm.AllGather); got != (fake.Count{Calls: 3, Bytes: 12}) {
		t.Errorf("the gathers counted %v", got)
	}
	if c.Reset(); len(c.Calls()) != 0 || c.Count(comm.Barrier) != (fake.Count{}) {
		t.Error("Reset kept something")
	}
}

func TestOnlyTheOwnPartMovesAndOnlyWhereAsked(t *testing.T) {
	for _, move := range []bool{false, true} {
		c := fake.New(1, 3)
		c.MoveOwn = move
		whole, part, shard := memory("......"), memory("ab"), memory("..")
		c.AllGather("w", whole, part)
		c.ReduceScatter("g", shard, memory("uvwxyz"), dtype.Uint8)
		if err := result(c); err != nil {
			t.Fatal(err)
		}
		want := map[bool][2]string{false: {"......", ".."}, true: {"..ab..", "wx"}}[move]
		if got := [2]string{string(whole.Host()), string(shard.Host())}; got != want {
			t.Errorf("MoveOwn %v: %q, expected %q", move, got, want)
		}
	}
}

func TestWhatIsWrongFailsTheStream(t *testing.T) {
	for name, test := range map[string]struct {
		rank int
		call func(comm.Communicator)
		want string
	}{
		"gather":   {0, func(c comm.Communicator) { c.AllGather("h.0", memory("abc"), memory("ab")) }, "all-gather of h.0 (sequence 1): a rank's part has 2 bytes, the whole has 3"},
		"scatter":  {0, func(c comm.Communicator) { c.ReduceScatter("h.0", memory("a"), memory("abc"), dtype.Uint8) }, "reduce-scatter of h.0"},
		"root":     {0, func(c comm.Communicator) { c.Broadcast("h.0", memory("a"), -1) }, "the root is rank -1"},
		"rank":     {2, func(c comm.Communicator) { c.Barrier("start") }, "rank 2 of 2 ranks"},
		"abort":    {0, func(c comm.Communicator) { c.Abort(errors.New("enough")); c.Barrier("b") }, "barrier of b (sequence 1): enough"},
		"no cause": {0, func(c comm.Communicator) { c.Abort(nil); c.Barrier("b") }, "without a cause"},
	} {
		c := fake.New(test.rank, 2)
		test.call(c)
		var e *comm.Error
		if err := result(c); !errors.As(err, &e) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, expected a comm.Error with %q", name, err, test.want)
		}
		if c.Err() == nil {
			t.Errorf("%s: the group works on", name)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	c := fake.New(0, 8)
	c.MoveOwn = true
	whole, part := device.HostMemory(make([]byte, 64)), memory("abcdefgh")
	if n := testing.AllocsPerRun(100, func() {
		c.AllGather("w", whole, part)
		c.ReduceScatter("g", part, whole, dtype.Float32)
		c.Barrier("b")
		_ = result(c)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGather(b *testing.B) {
	c := fake.New(0, 1024)
	whole, part := device.HostMemory(make([]byte, 8192)), memory("abcdefgh")
	b.ReportAllocs()
	for b.Loop() {
		c.AllGather("w", whole, part)
	}
}

func TestAllReduceActsAsIfAllRanksHadTheSame(t *testing.T) {
	c := fake.New(1, 4)
	x, y := []float64{1.5, -2}, []int32{7}
	c.AllReduce("sum", device.HostMemory(dtype.Bytes(x)), dtype.Float64)
	c.AllReduce("count", device.HostMemory(dtype.Bytes(y)), dtype.Int32)
	if x[0] != 6 || x[1] != -8 || y[0] != 7 {
		t.Errorf("sums %v, %v", x, y)
	}
}

func TestSplitGivesAGroupOfTheSameRanks(t *testing.T) {
	c := fake.New(1, 4)
	part, err := c.Split(t.Context(), "part", 3, 0)
	if err != nil || part.Rank() != 1 || part.Size() != 4 || part.Close() != nil {
		t.Errorf("part %v, %v", part, err)
	}
	c.Abort(errors.New("a reason"))
	if _, err := c.Split(t.Context(), "part", 3, 0); err == nil {
		t.Error("an aborted group was split")
	}
}
