//go:build !race

package cuda

import "testing"

// The race detector allocates on its own account: this test counts without it.

func TestFrequentOperationsAllocateNothing(t *testing.T) {
	i := openIdle(t)
	for name, operation := range i.operations(t) {
		operation() // a stream that waits for another is noted once
		if n := testing.AllocsPerRun(100, operation); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
	if i.a.Err() != nil || i.b.Err() != nil {
		t.Error(i.a.Err(), i.b.Err())
	}
}
