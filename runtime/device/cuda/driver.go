package cuda

import (
	"runtime"

	"github.com/shardgen/shardgen/runtime/internal/dynlib"
)

// function is a function of the driver.
type function uint8

const (
	cuInit function = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUUID
	cuDeviceGetAttribute
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuMemGetInfo
	cuMemAlloc
	cuMemFree
	cuMemHostAlloc
	cuMemFreeHost
	cuMemcpyDtoDAsync
	cuMemcpyHtoDAsync
	cuMemcpyDtoHAsync
	cuCtxGetStreamPriorityRange
	cuStreamCreate
	cuStreamCreateWithPriority
	cuStreamDestroy
	cuStreamQuery
	cuStreamWaitEvent
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuThreadExchangeStreamCaptureMode
	cuModuleLoadDataEx
	cuModuleUnload
	cuModuleGetFunction
	cuFuncSetAttribute
	cuLaunchKernel
)

// prototypes are compared with the real cuda.h, and with the calls of this
// package, by tests.
var prototypes = [...]dynlib.Prototype{
	cuInit:                            "CUresult cuInit(unsigned int flags)",
	cuDriverGetVersion:                "CUresult cuDriverGetVersion(int *version)",
	cuGetErrorName:                    "CUresult cuGetErrorName(CUresult code, const char **name)",
	cuGetErrorString:                  "CUresult cuGetErrorString(CUresult code, const char **text)",
	cuDeviceGetCount:                  "CUresult cuDeviceGetCount(int *count)",
	cuDeviceGet:                       "CUresult cuDeviceGet(CUdevice *device, int ordinal)",
	cuDeviceGetName:                   "CUresult cuDeviceGetName(char *name, int length, CUdevice device)",
	cuDeviceGetUUID:                   "CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)",
	cuDeviceGetAttribute:              "CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)",
	cuDevicePrimaryCtxRetain:          "CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)",
	cuDevicePrimaryCtxRelease:         "CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)",
	cuCtxSetCurrent:                   "CUresult cuCtxSetCurrent(CUcontext context)",
	cuMemGetInfo:                      "CUresult cuMemGetInfo_v2(size_t *free, size_t *total)",
	cuMemAlloc:                        "CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)",
	cuMemFree:                         "CUresult cuMemFree_v2(CUdeviceptr address)",
	cuMemHostAlloc:                    "CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)",
	cuMemFreeHost:                     "CUresult cuMemFreeHost(void *address)",
	cuMemcpyDtoDAsync:                 "CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)",
	cuMemcpyHtoDAsync:                 "CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)",
	cuMemcpyDtoHAsync:                 "CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)",
	cuStreamCreate:                    "CUresult cuStreamCreate(CUstream *stream, unsigned int flags)",
	cuStreamCreateWithPriority:        "CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)",
	cuCtxGetStreamPriorityRange:       "CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)",
	cuStreamDestroy:                   "CUresult cuStreamDestroy_v2(CUstream stream)",
	cuStreamQuery:                     "CUresult cuStreamQuery(CUstream stream)",
	cuStreamWaitEvent:                 "CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)",
	cuEventCreate:                     "CUresult cuEventCreate(CUevent *event, unsigned int flags)",
	cuEventDestroy:                    "CUresult cuEventDestroy_v2(CUevent event)",
	cuEventRecord:                     "CUresult cuEventRecord(CUevent event, CUstream stream)",
	cuEventQuery:                      "CUresult cuEventQuery(CUevent event)",
	cuThreadExchangeStreamCaptureMode: "CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)",
	cuModuleLoadDataEx:                "CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values)",
	cuModuleUnload:                    "CUresult cuModuleUnload(CUmodule module)",
	cuModuleGetFunction:               "CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)",
	cuFuncSetAttribute:                "CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)",
	cuLaunchKernel: "CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, " +
		"unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)",
}

// arguments returns how many a function takes.
func (f function) arguments() int { return prototypes[f].Arguments() }

// String returns the symbol.
func (f function) String() string { return prototypes[f].Symbol() }

// Values of cuda.h's enumerations and flags.
const (
	success          = 0   // CUDA_SUCCESS
	errOutOfMemory   = 2   // CUDA_ERROR_OUT_OF_MEMORY
	errInvalidImage  = 200 // CUDA_ERROR_INVALID_IMAGE
	errNoBinary      = 209 // CUDA_ERROR_NO_BINARY_FOR_GPU
	errPTXVersion    = 222 // CUDA_ERROR_UNSUPPORTED_PTX_VERSION
	errNotFound      = 500 // CUDA_ERROR_NOT_FOUND
	errNotReady      = 600 // CUDA_ERROR_NOT_READY
	errCaptureFirst  = 900 // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
	errCaptureLast   = 908 // CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
	multiprocessors  = 16  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
	capabilityMajor  = 75  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
	capabilityMinor  = 76  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
	sharedOptIn      = 97  // CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
	maxDynamicShared = 8   // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
	captureRelaxed   = 2   // CU_STREAM_CAPTURE_MODE_RELAXED
	streamNonBlock   = 1   // CU_STREAM_NON_BLOCKING
	eventNoTiming    = 2   // CU_EVENT_DISABLE_TIMING
	hostPortable     = 1   // CU_MEMHOSTALLOC_PORTABLE
	jitErrorLog      = 5   // CU_JIT_ERROR_LOG_BUFFER
	jitErrorLogBytes = 6   // CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES
)

// libraryVariable is the environment variable with the path of another libcuda.
const libraryVariable = "SHARDGEN_LIBCUDA"

// library says where the driver is.
func library(path string) dynlib.Library {
	l := dynlib.Library{
		Name: "the CUDA driver library", Variable: libraryVariable,
		Provides: "NVIDIA's driver for Linux (its packages are called nvidia-driver, libcuda1 or nvidia-compute)",
		Candidates: []string{
			"libcuda.so.1", "/usr/lib/" + multiarch() + "/libcuda.so.1", "/usr/lib64/libcuda.so.1",
			"/usr/lib/wsl/lib/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/run/opengl-driver/lib/libcuda.so.1",
		},
	}
	if path != "" {
		l.Variable, l.Candidates = "", []string{path}
	}
	return l
}

func multiarch() string {
	if runtime.GOARCH == "arm64" {
		return "aarch64-linux-gnu"
	}
	return "x86_64-linux-gnu"
}

// driver has the addresses of the functions.
type driver struct {
	functions []uintptr
}

// loadDriver opens the library and starts it.
func loadDriver(path string) (*driver, error) {
	h, err := dynlib.Open(library(path))
	if err != nil {
		return nil, err
	}
	d := &driver{}
	if d.functions, err = h.Functions(prototypes[:]); err != nil {
		return nil, err
	}
	return d, d.call(cuInit, 0)
}

// call calls a function and returns its status as an error. What a pointer that
// is converted in the call points to is kept meanwhile.
//
//go:uintptrescapes
func (d *driver) call(f function, arguments ...uintptr) error {
	return d.check(f, d.status(f, arguments...))
}

// status is call for those who look at the status themselves. Frequent calls
// pass a slice of arguments that they keep: then nothing is allocated.
//
//go:uintptrescapes
func (d *driver) status(f function, arguments ...uintptr) int32 {
	return int32(uint32(dynlib.Call(d.functions[f], arguments...))) // a CUresult has 32 bits
}
