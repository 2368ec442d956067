package device

import "unsafe"

// hostAddr returns where b starts, 0 for an empty slice.
func hostAddr(b []byte) Addr {
	return Addr(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
