package devicetest

import (
	"errors"

	"github.com/shardgen/shardgen/runtime/device/cuda"
	"github.com/shardgen/shardgen/runtime/kernel"
)

// notFound is the driver's name for a kernel that a module does not have.
const notFound = "CUDA_ERROR_NOT_FOUND"

// In returns which of the kernels with tests a module has, for a [Target]. An
// error is one of the driver that says something else than that.
func In(m *cuda.Module) (has func(name string) bool, err error) {
	there := map[string]bool{}
	for _, name := range Tested() {
		_, err := m.Function(name)
		var refused *cuda.Error
		switch {
		case err == nil:
			there[name] = true
		case !errors.As(err, &refused) || refused.Name != notFound:
			return nil, err
		}
	}
	return func(name string) bool { return there[name] }, nil
}

// Tested returns the names of all kernels that run in a test: those of [Kernels],
// and the second one of a norm.
func Tested() []string { return append(Kernels(), kernel.NormTotal()) }
