package dtype

import (
	"fmt"
	"unsafe"
)

// Element is the set of Go types that store one element each of the [DType]s.
type Element interface {
	float64 | float32 | BF16 | F16 | F8E4M3 | F8E5M2 |
		int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | bool
}

// Of returns the element type that T stores.
func Of[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case float64:
		return Float64
	case float32:
		return Float32
	case BF16:
		return BFloat16
	case F16:
		return Float16
	case F8E4M3:
		return Float8E4M3
	case F8E5M2:
		return Float8E5M2
	case bool:
		return Bool
	}
	return ofInteger(any(zero))
}

func ofInteger(zero any) DType {
	switch zero.(type) {
	case int8:
		return Int8
	case int16:
		return Int16
	case int32:
		return Int32
	case int64:
		return Int64
	case uint8:
		return Uint8
	case uint16:
		return Uint16
	case uint32:
		return Uint32
	case uint64:
		return Uint64
	}
	return Invalid
}

// Slice views bytes as elements in host order, without copying. It panics if
// the length is not a multiple of the element size or the first byte is not
// aligned to it: those are programming errors. Bytes viewed as bool must be 0
// or 1.
func Slice[T Element](b []byte) []T {
	var zero T
	size := int64(unsafe.Sizeof(zero))
	n := int64(len(b))
	if n%size != 0 {
		panic(fmt.Sprintf("dtype: Slice: %d bytes are no multiple of the %d bytes of a %s", n, size, Of[T]()))
	}
	if n == 0 {
		return nil
	}
	first := unsafe.Pointer(unsafe.SliceData(b))
	// The address is printed as a number: a pointer there would send every
	// caller's buffer to the heap.
	if address := uintptr(first); address%uintptr(size) != 0 {
		panic(fmt.Sprintf("dtype: Slice: the bytes at %#x are not aligned to the %d bytes of a %s", address, size, Of[T]()))
	}
	return unsafe.Slice((*T)(first), n/size)
}

// Bytes views elements as their bytes in host order, without copying.
func Bytes[T Element](s []T) []byte {
	var zero T
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(zero)))
}
