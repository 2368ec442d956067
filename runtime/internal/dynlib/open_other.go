//go:build !(linux && (amd64 || arm64))

package dynlib

import (
	"errors"
	"runtime"
)

var errPlatform = errors.New(runtime.GOOS + "/" + runtime.GOARCH + " has no support for it, only linux/amd64 and linux/arm64 have")

func open(string) (uintptr, error) { return 0, errPlatform }

func symbol(uintptr, string) (uintptr, error) { return 0, errPlatform }

// Call is never reached: no library can be opened here.
func Call(uintptr, ...uintptr) uintptr { panic("dynlib: " + errPlatform.Error()) }

// Bind is never reached, as Call.
func Bind(any, uintptr) { panic("dynlib: " + errPlatform.Error()) }
