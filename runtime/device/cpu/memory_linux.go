//go:build linux && !race

package cpu

import "syscall"

const (
	maxAllocBytes = 1 << 47
	madvHugePage  = 14      // MADV_HUGEPAGE of linux/mman.h
	hugeFromBytes = 4 << 20 // smaller ranges hold too few whole huge pages to gain
)

// reserve maps fresh pages. They are outside the Go heap: arenas would raise
// the collector's target, and with it the garbage that a trainer keeps, by
// their own size. (The race detector knows only the heap: see memory_heap.go.)
func reserve(bytes int64) ([]byte, error) {
	b, err := syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err == nil && bytes >= hugeFromBytes {
		_ = syscall.Madvise(b, madvHugePage) // a hint; kernels without huge pages refuse it
	}
	return b, err
}

func release(b []byte) error { return syscall.Munmap(b) }
