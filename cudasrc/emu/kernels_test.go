package emu

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shardgen/shardgen/runtime/device"
	"github.com/shardgen/shardgen/runtime/device/cpu"
	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/kernel"
	"github.com/shardgen/shardgen/runtime/optim"
)

// sizes are those at which warps, blocks and tiles end, and primes.
var sizes = []int64{0, 1, 2, 3, 7, 8, 31, 32, 33, 127, 128, 129, 255, 256, 257, 997, 12289}

// grid is small, so that threads go round more than once.
var grid = Grid{3, 64}

var floats = []dtype.DType{dtype.Float64, dtype.Float32, dtype.BFloat16, dtype.Float16, dtype.Float8E4M3, dtype.Float8E5M2}

var states = []dtype.DType{dtype.Float32, dtype.Float64}

// host does one piece of work on the CPU device.
func host(t *testing.T, work func(device.Kernels, device.Stream)) {
	t.Helper()
	s, err := cpu.New().NewStream("test", true)
	if err != nil {
		t.Fatal(err)
	}
	work(cpu.Kernels(), s)
	if err := s.Synchronize(context.Background(), s.Record()); err != nil {
		t.Fatal(err)
	}
}

// room returns bytes that any element type can be read from.
func room(bytes int64) []byte { return dtype.Bytes(make([]uint64, (bytes+7)/8))[:bytes:bytes] }

func clone(b []byte) []byte {
	c := room(int64(len(b)))
	copy(c, b)
	return c
}

// numbers returns n elements of a float type: mostly of moderate size, some
// tiny, huge or zero.
func numbers(random *rand.Rand, t dtype.DType, n int64) []byte {
	wide := make([]float64, n)
	for i := range wide {
		wide[i] = random.NormFloat64() * math.Ldexp(1, random.IntN(12)-8)
		switch random.IntN(40) {
		case 0:
			wide[i] = math.Copysign(0, wide[i])
		case 1:
			wide[i] *= 0x1p-140
		case 2:
			wide[i] *= 0x1p30
		}
	}
	b := room(n * t.Bytes())
	dtype.Convert(b, t, dtype.Bytes(wide), dtype.Float64, n)
	return b
}

// same compares what a kernel left with what the CPU device did.
func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(got), got[i], want[i])
		}
	}
}

func launch(t *testing.T, r *Process, kernel string, arguments ...Argument) {
	t.Helper()
	if err := r.Launch(kernel, grid, arguments...); err != nil {
		t.Fatal(err)
	}
}

func generator(n int64) *rand.Rand { return rand.New(rand.NewPCG(1, uint64(n))) }

func TestZeroClearsAllBytesAndNoMore(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		for _, n := range sizes {
			b := bytes.Repeat([]byte{0xa5}, int(n)+16)
			launch(t, r, "zero", Buffer(b), Value(n))
			same(t, fmt.Sprint(n), b, append(make([]byte, n), bytes.Repeat([]byte{0xa5}, 16)...))
		}
	})
}

func TestCastsOfAllSizesHaveTheBitsOfTheHost(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		eachPair(func(from, to dtype.DType) {
			for _, n := range sizes {
				checkCast(t, r, from, to, numbers(generator(n), from, n))
			}
		})
	})
}

func eachPair(visit func(from, to dtype.DType)) {
	for _, from := range floats {
		for _, to := range floats {
			if from != to {
				visit(from, to)
			}
		}
	}
}

func checkCast(t *testing.T, r *Process, from, to dtype.DType, source []byte) {
	t.Helper()
	n := int64(len(source)) / from.Bytes()
	want, got := room(n*to.Bytes()), room(n*to.Bytes())
	host(t, func(k device.Kernels, s device.Stream) {
		k.Cast(s, device.HostMemory(want), to, device.HostMemory(source), from, n)
	})
	name := fmt.Sprintf("cast_%s_%s", from, to)
	launch(t, r, name, Buffer(got), Buffer(source), Value(n))
	same(t, fmt.Sprintf("%s of %d", name, n), got, want)
}

func TestCastsOfAllNarrowCodes(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		eachPair(func(from, to dtype.DType) {
			if from.Bytes() <= 2 {
				checkCast(t, r, from, to, allCodes(from))
			}
		})
	})
}

// allCodes returns an element of each bit pattern.
func allCodes(t dtype.DType) []byte {
	count := int64(1) << (8 * t.Bytes())
	b := room(count * t.Bytes())
	for i := range count {
		if t.Bytes() == 1 {
			b[i] = byte(i)
		} else {
			binary.LittleEndian.PutUint16(b[2*i:], uint16(i))
		}
	}
	return b
}

// TestCastsRoundAsTheHostAroundEveryBoundary narrows the neighbours of each
// value of a narrow type and of the middle between two.
func TestCastsRoundAsTheHostAroundEveryBoundary(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		eachPair(func(from, to dtype.DType) {
			if from.Bytes() > 2 && to.Bytes() <= 2 {
				checkCast(t, r, from, to, boundaries(from, to))
			}
		})
	})
}

func boundaries(from, to dtype.DType) []byte {
	codes := allCodes(to)
	n := int64(len(codes)) / to.Bytes()
	values := make([]float64, n)
	dtype.Convert(dtype.Bytes(values), dtype.Float64, codes, to, n)
	var around []float64
	for i, x := range values {
		middle := x + (values[(i+1)%len(values)]-x)/2
		for _, y := range []float64{x, middle} {
			around = append(around, y, math.Nextafter(y, math.Inf(1)), math.Nextafter(y, math.Inf(-1)),
				float64(math.Nextafter32(float32(y), float32(math.Inf(1)))), float64(math.Nextafter32(float32(y), float32(math.Inf(-1)))))
		}
	}
	count := int64(len(around))
	b := room(count * from.Bytes())
	dtype.Convert(b, from, dtype.Bytes(around), dtype.Float64, count)
	return b
}

func TestCastsKeepNaNs(t *testing.T) {
	singles := []uint32{0x7f800001, 0x7fc00000, 0xffc12345, 0x7fffffff, 0xff800001, 0x7f802000, 0x7f800000, 0xff800000}
	doubles := []uint64{0x7ff0000000000001, 0x7ff8000000000000, 0xfff8123456789abc, 0x7fffffffffffffff, 0xfff0000020000000, 0x7ff0000000000000}
	variants(t, func(t *testing.T, r *Process) {
		eachPair(func(from, to dtype.DType) {
			switch from {
			case dtype.Float32:
				checkCast(t, r, from, to, dtype.Bytes(singles))
			case dtype.Float64:
				checkCast(t, r, from, to, dtype.Bytes(doubles))
			}
		})
	})
}

func TestAccumulateDividesOnceAndStoresOrAdds(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		for _, to := range states {
			for _, from := range floats[:4] {
				for _, divisor := range []float64{1, 3, 8} {
					for _, n := range sizes {
						checkAccumulate(t, r, to, from, n, divisor)
					}
				}
			}
		}
	})
}

func checkAccumulate(t *testing.T, r *Process, to, from dtype.DType, n int64, divisor float64) {
	t.Helper()
	for _, store := range []bool{true, false} {
		mode := map[bool]string{true: "store", false: "add"}[store]
		source, got := numbers(generator(n), from, n), numbers(generator(n+1), to, n)
		want := clone(got)
		host(t, func(k device.Kernels, s device.Stream) {
			k.Accumulate(s, device.HostMemory(want), to, device.HostMemory(source), from, n, divisor, store)
		})
		name := fmt.Sprintf("accumulate_%s_%s_%s", from, to, mode)
		launch(t, r, name, Buffer(got), Buffer(source), Value(n), Value(divisor))
		same(t, fmt.Sprintf("%s of %d by %g", name, n, divisor), got, want)
	}
}

func TestScaleIsWhatAnOptimizerDoesFirst(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		for _, f := range states {
			for _, n := range sizes {
				got := numbers(generator(n), f, n)
				want := clone(got)
				if f == dtype.Float32 {
					for i, x := range dtype.Slice[float32](want) {
						dtype.Slice[float32](want)[i] = x * float32(0.1)
					}
				} else {
					for i, x := range dtype.Slice[float64](want) {
						dtype.Slice[float64](want)[i] = x * 0.1
					}
				}
				launch(t, r, "scale_"+f.String(), Buffer(got), Value(n), Value(0.1))
				same(t, fmt.Sprintf("scale %s of %d", f, n), got, want)
			}
		}
	})
}

// norm runs both kernels of a norm and returns what they add to a total.
func norm(t *testing.T, r *Process, f dtype.DType, gradient []byte, total optim.Norm) optim.Norm {
	t.Helper()
	n := int64(len(gradient)) / f.Bytes()
	partials := room(optim.PartialBytes(n))
	if err := r.Launch("norm_"+f.String(), Grid{3, kernel.ThreadsPerBlock}, Buffer(partials), Buffer(gradient), Value(n)); err != nil {
		t.Fatal(err)
	}
	return normTotal(t, r, partials, total)
}

// normTotal returns a total after the kernel that adds norms to it.
func normTotal(t *testing.T, r *Process, partials []byte, total optim.Norm) optim.Norm {
	t.Helper()
	out := room(optim.NormBytes)
	total.Put(out)
	if err := r.Launch("norm_total", Grid{1, kernel.TotalThreads}, Buffer(out), Buffer(partials), Value(int64(len(partials)/optim.NormBytes))); err != nil {
		t.Fatal(err)
	}
	return optim.NormOf(out)
}

func TestNormAddsUpTheTreeOfTheHost(t *testing.T) {
	longer := append([]int64{5, 9, 15, 511, 512, 513, 1023, 1025, 8191, 8192, 8193, 8192*4 + 1024, 100_003}, sizes...)
	variants(t, func(t *testing.T, r *Process) {
		for _, f := range states {
			for _, n := range longer {
				gradient := numbers(generator(n), f, n)
				before := optim.Norm{SumSquares: 0.1, NonFinite: 3}
				total, partials := room(optim.NormBytes), device.HostMemory(room(optim.PartialBytes(n)))
				before.Put(total)
				host(t, func(k device.Kernels, s device.Stream) {
					k.Norm(s, partials, device.HostMemory(gradient), f, n)
					k.NormTotal(s, device.HostMemory(total), partials)
				})
				want := optim.NormOf(total)
				if got := norm(t, r, f, gradient, before); got != want {
					t.Fatalf("norm of %d %s: %v, want %v", n, f, got, want)
				}
			}
		}
	})
}

func TestNormsOfManyChunksAddUpAsOnTheHost(t *testing.T) {
	random := generator(1)
	variants(t, func(t *testing.T, r *Process) {
		for _, n := range []int{0, 1, 31, 1023, 1024, 1025, 7000} {
			partials := room(int64(n) * optim.NormBytes)
			for i := range n {
				optim.Norm{SumSquares: random.ExpFloat64(), NonFinite: int64(i % 3)}.Put(partials[i*optim.NormBytes:])
			}
			before := optim.Norm{SumSquares: 0.1, NonFinite: 3}
			want := before
			want.AddAll(partials)
			if got := normTotal(t, r, partials, before); got != want {
				t.Errorf("%d norms add up to %v, want %v", n, got, want)
			}
		}
	})
}

func TestNormCountsNaNsAndInfinities(t *testing.T) {
	variants(t, func(t *testing.T, r *Process) {
		for _, f := range states {
			for _, at := range [][]int64{{0}, {8191}, {8192}, {9000}, {7, 8, 4100, 8999}} {
				gradient := numbers(generator(9001), f, 9001)
				for i, place := range at {
					x := [...]float64{math.NaN(), math.Inf(1), math.Inf(-1)}[i%3]
					dtype.Convert(gradient[place*f.Bytes():], f, dtype.Bytes([]float64{x}), dtype.Float64, 1)
				}
				got := norm(t, r, f, gradient, optim.Norm{})
				if got.NonFinite != int64(len(at)) || got.Finite() || got.SumSquares-got.SumSquares == 0 {
					t.Fatalf("%s with NaN or Inf at %v: %v", f, at, got)
				}
			}
		}
	})
}
