//go:build !linux || !(amd64 || arm64)

package nccl

import (
	"fmt"
	"runtime"
)

func bindInitRank(uintptr) (func(comm *uintptr, ranks int32, id byValue, rank int32) int32, error) {
	return nil, fmt.Errorf("NCCL works on 64-bit Linux, this is %s/%s", runtime.GOOS, runtime.GOARCH)
}
