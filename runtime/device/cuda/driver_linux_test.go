package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shardgen/shardgen/cudasrc/emu"
	"github.com/shardgen/shardgen/runtime/internal/dynlib/dynlibtest"
)

// cudaInclude has the headers of the pinned compilers.
const cudaInclude = "../../../build/cuda/nvidia/cu13/include"

// needHeader skips a test where cuda.h or g++ is missing, except in CI.
func needHeader(t *testing.T) {
	t.Helper()
	_, err := os.Stat(cudaInclude + "/cuda.h")
	if err == nil {
		_, err = exec.LookPath("g++")
	}
	if err != nil {
		emu.Need(t, fmt.Errorf("%w; run `make cuda-toolchain`", err))
	}
}

// constants are those of cuda.h that the package has by other names.
var constants = map[string]int{
	"CUDA_SUCCESS":                                          success,
	"CUDA_ERROR_OUT_OF_MEMORY":                              errOutOfMemory,
	"CUDA_ERROR_INVALID_IMAGE":                              errInvalidImage,
	"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED":                 errCaptureFirst,
	"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD":                errCaptureLast,
	"CU_STREAM_CAPTURE_MODE_RELAXED":                        captureRelaxed,
	"CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES":       maxDynamicShared,
	"CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": sharedOptIn,
	"sizeof(CUstreamCaptureMode)":                           4,
	"sizeof(CUfunction_attribute)":                          4,
	"CUDA_ERROR_NO_BINARY_FOR_GPU":                          errNoBinary,
	"CUDA_ERROR_UNSUPPORTED_PTX_VERSION":                    errPTXVersion,
	"CUDA_ERROR_NOT_FOUND":                                  errNotFound,
	"CUDA_ERROR_NOT_READY":                                  errNotReady,
	"CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT":              multiprocessors,
	"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR":          capabilityMajor,
	"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR":          capabilityMinor,
	"CU_STREAM_NON_BLOCKING":                                streamNonBlock,
	"CU_EVENT_DISABLE_TIMING":                               eventNoTiming,
	"CU_MEMHOSTALLOC_PORTABLE":                              hostPortable,
	"CU_JIT_ERROR_LOG_BUFFER":                               jitErrorLog,
	"CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES":                    jitErrorLogBytes,
	"sizeof(CUuuid)":                                        len(UUID{}),
	"sizeof(CUresult)":                                      4,
	"sizeof(CUdevice)":                                      4,
	"sizeof(CUdeviceptr)":                                   8,
	"sizeof(CUjit_option)":                                  4,
}

func TestPrototypesAndConstantsAreThoseOfTheHeader(t *testing.T) {
	needHeader(t)
	if out, err := dynlibtest.Compile(t, dynlibtest.Header("cuda.h", prototypes[:], constants), cudaInclude); err != nil {
		t.Errorf("%v\n%.4000s", err, out)
	}
	wrong := prototypes
	wrong[cuMemAlloc] = "CUresult cuMemAlloc_v2(CUdeviceptr *address, unsigned int bytes)"
	if out, err := dynlibtest.Compile(t, dynlibtest.Header("cuda.h", wrong[:], nil), cudaInclude); err == nil || !strings.Contains(out, "cuMemAlloc_v2") {
		t.Errorf("a wrong prototype compiles: %v\n%s", err, out)
	}
}

// The header maps the name of a function to the symbol with its newest
// parameters.
func TestSymbolsAreTheNamesThatTheHeaderMapsTo(t *testing.T) {
	needHeader(t)
	b := strings.Builder{}
	b.WriteString("#include <cuda.h>\n#include <string_view>\n#define TEXT_(x) #x\n#define TEXT(x) TEXT_(x)\n")
	for _, p := range prototypes {
		plain, _, _ := strings.Cut(p.Symbol(), "_v")
		fmt.Fprintf(&b, "static_assert(std::string_view(TEXT(%s)) == \"%s\");\n", plain, p.Symbol())
	}
	if out, err := dynlibtest.Compile(t, b.String(), cudaInclude); err != nil {
		t.Errorf("%v\n%.4000s", err, out)
	}
}

func TestCallsHaveTheArgumentsOfThePrototypes(t *testing.T) {
	dynlibtest.Calls(t, prototypes[:])
}
