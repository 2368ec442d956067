package dynlib

import "testing"

func BenchmarkCall(b *testing.B) {
	h, err := Open(libc)
	if err != nil {
		b.Fatal(err)
	}
	abs, err := h.Symbol("labs")
	if err != nil {
		b.Fatal(err)
	}
	arguments := []uintptr{1}
	b.ReportAllocs()
	for b.Loop() {
		Call(abs, arguments...)
	}
}
