package double

import (
	"encoding/binary"
	"testing"
)

// In lastWriter the last thread to run leaves its number.
const lastWriter = `
extern "C" __global__ void lastWriter(long long* at) { *at = threadIdx.x; }
`

// The random policy runs some kernels from the last thread to the first, so that a
// result that depends on their order differs from launch to launch.
func TestTheRandomPolicyReversesSomeKernelsAndOthersNone(t *testing.T) {
	const threads, launches = 64, 64
	libraries(t)
	onDevice(t, 0)
	module, s, at := kernels(t, "order", lastWriter, nil), stream(t), alloc(t, 8)
	for _, c := range []struct {
		policy string
		both   bool
	}{{"random:1", true}, {"random:2", true}, {"fifo", false}, {"lazy", false}, {"starve:0", false}} {
		schedule(t, c.policy)
		last := map[uint64]int{}
		for range launches {
			ok(t, start(t, module, "lastWriter", 1, threads, s, at))
			ok(t, driver.StreamSynchronize(s))
			last[binary.LittleEndian.Uint64(read(t, at, 8))]++
		}
		first, reversed := last[threads-1], last[0]
		if first+reversed != launches || first == 0 || (reversed > 0) != c.both {
			t.Errorf("%s: the last of %d threads to run, and how often: %v", c.policy, threads, last)
		}
	}
	free(t, at)
	ok(t, driver.ModuleUnload(module))
	ok(t, driver.StreamDestroy(s))
	clean(t)
}
