//go:build linux && (amd64 || arm64)

package nccl

import "github.com/ebitengine/purego"

// bindInitRank makes a Go function of ncclCommInitRank, which takes an id of 128
// bytes by value.
func bindInitRank(address uintptr) (f func(comm *uintptr, ranks int32, id byValue, rank int32) int32, err error) {
	purego.RegisterFunc(&f, address)
	return f, nil
}
