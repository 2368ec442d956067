//go:build linux && (amd64 || arm64)

package dynlib

import (
	"runtime"

	"github.com/ebitengine/purego"
)

// open keeps the library's symbols to itself. The loader holds its message for
// the calling thread, which therefore stays the same until it is read.
func open(path string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func symbol(library uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(library, name)
}

// Call calls a C function whose arguments and result are integers or pointers
// and returns the result's register: only the bits of the function's type count.
// What pointers that are converted in the call point to is kept meanwhile. A list
// of arguments is on the heap, so frequent calls pass a slice that they keep:
// then nothing is allocated.
//
//go:uintptrescapes
func Call(function uintptr, arguments ...uintptr) uintptr {
	result, _, _ := purego.SyscallN(function, arguments...)
	return result
}

// Bind makes *f, a func variable, call a C function. It is for what [Call] can't
// pass, such as a struct by value, and allocates in each call.
func Bind(f any, function uintptr) { purego.RegisterFunc(f, function) }
