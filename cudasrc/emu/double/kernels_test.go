package double

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/shardgen/shardgen/runtime/dtype"
	"github.com/shardgen/shardgen/runtime/optim"
)

// generated loads the kernels of a committed generated package.
func generated(t *testing.T) handle {
	t.Helper()
	const folder = "../../../generated/alldtypes"
	source, err := os.ReadFile(filepath.Join(folder, "zz_kernels.cu"))
	if err != nil {
		t.Fatal(err)
	}
	layout, err := os.ReadFile(filepath.Join(folder, "zz_layout.cuh"))
	if err != nil {
		t.Fatal(err)
	}
	return kernels(t, "alldtypes", string(source), map[string]string{"zz_layout.cuh": string(layout)})
}

func floats(n int, scale float32) []byte {
	random := rand.New(rand.NewPCG(3, uint64(n)))
	values := make([]float32, n)
	for i := range values {
		values[i] = float32(random.NormFloat64()) * scale
	}
	return dtype.Bytes(values)
}

// filled returns device memory with a content.
func filled(t *testing.T, b []byte) uint64 {
	t.Helper()
	a := alloc(t, len(b))
	write(t, a, b)
	return a
}

func TestAGeneratedCastHasTheBitsOfTheHost(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	module, s := generated(t), stream(t)
	for _, n := range []int{1, 7, 256, 4097} {
		in := floats(n, 100)
		want := make([]byte, 2*n)
		dtype.Convert(want, dtype.BFloat16, in, dtype.Float32, int64(n))
		from, to := filled(t, in), alloc(t, 2*n)
		ok(t, start(t, module, "shardgen_cast_f32_bf16", 4, 256, s, to, from, int64(n)))
		ok(t, driver.StreamSynchronize(s))
		if !bytes.Equal(read(t, to, 2*n), want) {
			t.Errorf("%d elements differ from the host's", n)
		}
		free(t, from, to)
	}
	ok(t, driver.ModuleUnload(module))
	ok(t, driver.StreamDestroy(s))
	clean(t)
}

func TestAGeneratedAdamWHasTheBitsOfTheHost(t *testing.T) {
	libraries(t)
	onDevice(t, 0)
	const n = 5001
	module, s := generated(t), stream(t)
	step, err := optim.AdamW{LR: 1e-3, WeightDecay: 0.1}.Prepare(3, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	scalars, err := binary.Append(nil, binary.LittleEndian, step)
	if err != nil {
		t.Fatal(err)
	}
	state := [4][]byte{floats(n, 1), floats(n, 0.1), bytes.Repeat([]byte{0, 0, 0, 0x3f}, n), floats(n, 2)} // master, moments, gradient
	var at [4]uint64
	for i, b := range state {
		at[i] = filled(t, b)
	}
	ok(t, start(t, module, "shardgen_adamw_f32", 4, 256, s, scalars, at[0], at[1], at[2], at[3], int64(n)))
	ok(t, driver.StreamSynchronize(s))
	step.Update(dtype.Slice[float32](state[0]), dtype.Slice[float32](state[1]), dtype.Slice[float32](state[2]), dtype.Slice[float32](state[3]))
	for i, name := range []string{"master", "first moment", "second moment"} {
		if !bytes.Equal(read(t, at[i], 4*n), state[i]) {
			t.Errorf("%s differs from the host's", name)
		}
	}
	free(t, at[:]...)
	ok(t, driver.ModuleUnload(module))
	ok(t, driver.StreamDestroy(s))
	clean(t)
}
