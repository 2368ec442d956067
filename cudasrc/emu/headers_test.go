package emu

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
)

// The headers of the pinned compilers.
const cudaHeaders = "../../build/cuda/nvidia/cu13/include"

func TestConversionsAreThoseOfCUDAsHeaders(t *testing.T) {
	t.Parallel()
	Require(t)
	if _, err := os.Stat(cudaHeaders + "/cuda_fp16.h"); err != nil {
		Need(t, fmt.Errorf("%w; run `make cuda-toolchain`", err))
	}
	source, err := os.ReadFile("testdata/headers.cu")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	p, err := Build(ctx, t.TempDir(), string(source), Options{System: []string{cudaHeaders}})
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, p, false)
	for kernel, least := range map[string]int64{"narrowing": 650_000, "widening": 1<<16 + 1<<8} {
		differences, compared := make([]int64, 4), make([]int64, 1)
		if err := r.Launch(kernel, Grid{1, 1}, Buffer(dtype.Bytes(differences)), Buffer(dtype.Bytes(compared))); err != nil {
			t.Fatal(err)
		}
		if compared[0] < least {
			t.Errorf("%s: only %d numbers were compared", kernel, compared[0])
		}
		for i, name := range []string{"bf16", "f16", "f8e4m3", "f8e5m2"} {
			if differences[i] != 0 {
				t.Errorf("%s: %d of %d %s differ from CUDA's", kernel, differences[i], compared[0], name)
			}
		}
	}
}
