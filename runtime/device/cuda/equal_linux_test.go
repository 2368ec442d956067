package cuda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
	emulated "github.com/shardgen/shardgen/cudasrc/emu/double"
	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/fatbin"
	"github.com/shardgen/shardgen/runtime/optim"
	"github.com/shardgen/shardgen/runtime/random"
)

// openEmulated returns a GPU that runs the kernels of generated/alldtypes on the
// CPU, and that package's code.
func openEmulated(t *testing.T) (*emulated.Libraries, *Device, device.Code) {
	t.Helper()
	if err := emu.Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	l, err := emulated.Build(t.Context(), "../../../build/emu")
	if err != nil {
		t.Fatal(err)
	}
	image := emulated.Image("alldtypes")
	const folder = "../../../generated/alldtypes"
	source, err := os.ReadFile(filepath.Join(folder, "zz_kernels.cu"))
	layout, err2 := os.ReadFile(filepath.Join(folder, "zz_layout.cuh"))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if err := l.AddKernels(t.Context(), string(source), map[string]string{"zz_layout.cuh": string(layout)}, image); err != nil {
		t.Fatal(err)
	}
	gpu, err := Open(0, Options{Library: l.CUDA})
	if err != nil {
		t.Fatal(err)
	}
	code := device.Code{Package: "alldtypes", Command: "generate", Source: "abc", Fatbin: string(fatbin.Seal(image, fatbin.Record{Origin: "alldtypes.yaml", Source: "abc"}))}
	return l, gpu, code
}

// side is a device with the ranges that both sides have.
type side struct {
	device  device.Device
	kernels device.Kernels
	stream  device.Stream
	ranges  []device.Memory
}

const (
	ranges     = 5
	rangeBytes = 64 << 10
)

// newSide fills a device's ranges with floats that are the same on all devices.
func newSide(t *testing.T, d device.Device, c device.Code) *side {
	t.Helper()
	k, err := d.Load(c)
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream("compute", false)
	if err != nil {
		t.Fatal(err)
	}
	x := &side{device: d, kernels: k, stream: s}
	rng := rand.New(rand.NewPCG(1, 2))
	for range ranges {
		content := make([]float32, rangeBytes/4)
		for i := range content {
			content[i] = float32(rng.NormFloat64())
		}
		m, err := d.Alloc(rangeBytes)
		if err == nil {
			err = d.Write(context.Background(), m, dtype.Bytes(content))
		}
		if err != nil {
			t.Fatal(err)
		}
		x.ranges = append(x.ranges, m)
	}
	return x
}

// read returns all ranges, after the stream's work.
func (x *side) read(t *testing.T) [][]byte {
	t.Helper()
	if err := x.stream.Synchronize(context.Background(), x.stream.Record()); err != nil {
		t.Fatal(err)
	}
	all := make([][]byte, ranges)
	for i, m := range x.ranges {
		all[i] = make([]byte, rangeBytes)
		if err := x.device.Read(context.Background(), all[i], m); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func (x *side) close(t *testing.T) {
	t.Helper()
	err := errors.Join(x.stream.Close(), x.kernels.Close())
	for _, m := range x.ranges {
		err = errors.Join(err, x.device.Free(m))
	}
	if err != nil {
		t.Error(err)
	}
}

// work is what both sides do with n elements.
var work = []struct {
	name string
	do   func(x *side, n int64)
}{
	{"zero", func(x *side, n int64) { x.kernels.Zero(x.stream, x.ranges[0].Slice(0, n)) }},
	{"copy", func(x *side, n int64) { x.stream.Copy(x.ranges[0].Slice(0, n), x.ranges[1].Slice(rangeBytes-n, n)) }},
	{"cast", func(x *side, n int64) { x.kernels.Cast(x.stream, x.ranges[0], bf16, x.ranges[1], f32, n) }},
	{"accumulate", func(x *side, n int64) {
		x.kernels.Accumulate(x.stream, x.ranges[0], f32, x.ranges[1], bf16, n, 3, false)
	}},
	{"store", func(x *side, n int64) {
		x.kernels.Accumulate(x.stream, x.ranges[0], f64, x.ranges[1], f64, n/2, 7, true)
	}},
	{"normal", func(x *side, n int64) {
		x.kernels.Fill(x.stream, x.ranges[0], f32, &random.Distribution{Kind: random.Normal, Mean: 0.1, Std: 0.02}, random.NewStream(7, "w"), 5, n)
	}},
	{"constant", func(x *side, n int64) {
		x.kernels.Fill(x.stream, x.ranges[0], dtype.Int16, &random.Distribution{Kind: random.Constant, Value: -3}, random.Stream{}, 0, n)
	}},
	{"norm", func(x *side, n int64) {
		x.kernels.Zero(x.stream, x.ranges[0].Slice(0, optim.NormBytes))
		x.kernels.Norm(x.stream, x.ranges[0].Slice(0, optim.NormBytes), x.ranges[1].Slice(0, optim.PartialBytes(n)), x.ranges[2], f32, n)
		x.stream.Copy(x.ranges[1], x.ranges[2]) // partial norms are a device's own
	}},
	{"scale", func(x *side, n int64) { x.kernels.Scale(x.stream, x.ranges[0], f32, n, 0.3) }},
	{"adamw", func(x *side, n int64) {
		step, _ := optim.AdamW{LR: 0.1, WeightDecay: 0.1}.Prepare(3, 0.5)
		// The second moment is a square.
		x.kernels.Fill(x.stream, x.ranges[3], f32, &random.Distribution{Kind: random.Constant, Value: 0.25}, random.Stream{}, 0, n)
		x.kernels.AdamW(x.stream, step, device.State{N: n, Type: f32, Master: x.ranges[0], Grad: x.ranges[1], Moments: [2]device.Memory{x.ranges[2], x.ranges[3]}, Copy: x.ranges[4], CopyType: bf16})
	}},
}

func TestTheGPUHasTheBitsOfTheCPU(t *testing.T) {
	l, gpu, code := openEmulated(t)
	for _, test := range work {
		for _, n := range []int64{0, 1, 16, 4097, 16000} {
			t.Run(fmt.Sprintf("%s/%d", test.name, n), func(t *testing.T) {
				host, mine := newSide(t, cpu.New(), code), newSide(t, gpu, code)
				test.do(host, n)
				test.do(mine, n)
				want, got := host.read(t), mine.read(t)
				for i := range want {
					if !bytes.Equal(got[i], want[i]) {
						t.Errorf("range %d differs", i)
					}
				}
				host.close(t)
				mine.close(t)
			})
		}
	}
	if err := gpu.Close(); err != nil {
		t.Error(err)
	}
	for _, left := range l.Check() {
		t.Error(left)
	}
}
