package emu

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// wait bounds every test of a process.
const wait = 2 * time.Minute

// A source is compiled once for all tests, with sanitizers and without.
type source struct {
	read func() (string, error)
	once [2]sync.Once
	made [2]*Program
	err  [2]error
}

var (
	all = source{read: func() (string, error) {
		b, err := os.ReadFile("testdata/all.cu")
		return string(b), err
	}}
	wrong = source{read: func() (string, error) { return faulty, nil }}
)

func (s *source) program(t *testing.T, sanitize bool) *Program {
	t.Helper()
	Require(t)
	which := 0
	if sanitize {
		which = 1
	}
	s.once[which].Do(func() { s.made[which], s.err[which] = s.build(sanitize) })
	if s.err[which] != nil {
		t.Fatal(s.err[which])
	}
	return s.made[which]
}

func (s *source) build(sanitize bool) (*Program, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	text, err := s.read()
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp(workspace, "")
	if err != nil {
		return nil, err
	}
	return Build(ctx, directory, text, Options{Sanitize: sanitize})
}

var workspace string

func TestMain(m *testing.M) {
	var err error
	if workspace, err = os.MkdirTemp("", "emu"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(workspace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// start runs a program until the test ends, which it must survive.
func start(t *testing.T, p *Program, reversed bool) *Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	r, err := p.Start(ctx, reversed)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// variants runs a test on each kind of process: with sanitizers, and with the
// order of threads reversed.
func variants(t *testing.T, test func(t *testing.T, r *Process)) {
	t.Run("sanitized", func(t *testing.T) {
		t.Parallel()
		test(t, start(t, all.program(t, true), false))
	})
	t.Run("reversed", func(t *testing.T) {
		t.Parallel()
		test(t, start(t, all.program(t, false), true))
	})
}

// broken launches a faulty kernel and returns what ended the process.
func broken(t *testing.T, kernel string, arguments ...Argument) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	r, err := wrong.program(t, true).Start(ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	err = r.Launch(kernel, Grid{2, 64}, arguments...)
	if err == nil {
		t.Fatal("the launch works")
	}
	if again := r.Close(); again != err {
		t.Errorf("Close returns %v, want the launch's error", again)
	}
	return err.Error()
}

const faulty = `
extern "C" __global__ void divergent(int* out) {
  if (threadIdx.x < 40) {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}
extern "C" __global__ void apart(int* out) {
  if (threadIdx.x % 32 < 7) {
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1, 0);
  } else {
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 2, 0);
  }
}
extern "C" __global__ void crossed(int* out) {
  if (blockIdx.x == 0 || threadIdx.x < 33) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}
extern "C" __global__ void partial(int* out) { out[0] = __shfl_sync(0xffu, 1, 0); }
extern "C" __global__ void beyond(int* out, int n) { out[n] = 1; }
extern "C" __global__ void overflow(int* out, int n) { out[0] = 0x7fffffff + n; }
extern "C" __global__ void shift(int* out, int n) { out[0] = static_cast<int>(1ull << n); }
`

func TestAFaultyKernelEndsWithThePlace(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kernel string
		rest   []Argument
		want   []string
	}{
		{"divergent", nil, []string{"kernel divergent", "block 0: threads wait for each other", "thread 0 waits at a barrier (line 4)", "thread 40 has ended"}},
		{"apart", nil, []string{"block 0: not all threads meet", "thread 0 waits at a shuffle (line 10)", "thread 7 waits at a shuffle (line 12)"}},
		{"crossed", nil, []string{"block 1: not all threads meet", "thread 0 waits at a barrier (line 17)", "thread 33 waits at a barrier (line 19)"}},
		{"partial", nil, []string{"a shuffle of part of a warp, mask 0xff"}},
		{"beyond", []Argument{Value(int32(64))}, []string{"heap-buffer-overflow"}},
		{"overflow", []Argument{Value(int32(64))}, []string{"runtime error: signed integer overflow"}},
		{"shift", []Argument{Value(int32(64))}, []string{"runtime error: shift exponent 64 is too large"}},
		{"beyond", []Argument{Value(int64(3))}, []string{"a parameter of 4 bytes got 8"}},
		{"beyond", nil, []string{"no entry beyond with 1 parameters"}},
		{"missing", nil, []string{"no entry missing"}},
	} {
		t.Run(c.kernel, func(t *testing.T) {
			got := broken(t, c.kernel, append([]Argument{Buffer(make([]byte, 4*64))}, c.rest...)...)
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("the error lacks %q:\n%s", want, got)
				}
			}
		})
	}
}

func TestACompilerErrorIsReported(t *testing.T) {
	t.Parallel()
	Require(t)
	_, err := Build(t.Context(), t.TempDir(), "static_assert(1 == 2, \"one is two\");\n", Options{})
	if err == nil || !strings.Contains(err.Error(), "one is two") {
		t.Errorf("error %v, want the compiler's", err)
	}
}

func TestACheckReturnsEveryError(t *testing.T) {
	t.Parallel()
	Require(t)
	messages, err := Check(t.Context(), t.TempDir(), "static_assert(1 == 2, \"one is two\");\nstatic_assert(1 == 3, \"one is three\");\n", Options{})
	if err == nil || !strings.Contains(messages, "one is two") || !strings.Contains(messages, "one is three") {
		t.Errorf("error %v with %q", err, messages)
	}
	if messages, err := Check(t.Context(), t.TempDir(), "static_assert(1 == 1, \"one is one\");\n", Options{}); err != nil || messages != "" {
		t.Errorf("error %v with %q, want none", err, messages)
	}
}

func TestEntriesAreFoundInOrder(t *testing.T) {
	got := Entries("struct A {};\nextern \"C\" __global__ void __launch_bounds__(256, f(4)) b(int n) { a(n); }\nextern \"C\" __global__ void a() {}\n// extern \"C\" __global__ void c() {}\n")
	if fmt.Sprint(got) != "[b a]" {
		t.Errorf("entries %v", got)
	}
}
