// Names of status values, and addresses of calls by name.
#include <cstdint>

#include <dlfcn.h>

#include "call.h"

namespace gpu {
namespace {

struct Status {
  CUresult value;
  const char *name, *text;
};

#define STATUS(name, text) {name, #name, text}
const Status kStatuses[] = {
    STATUS(CUDA_SUCCESS, "no error"),
    STATUS(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    STATUS(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    STATUS(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    STATUS(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    STATUS(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    STATUS(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    STATUS(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    STATUS(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    STATUS(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device"),
    STATUS(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    STATUS(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    STATUS(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution"),
    STATUS(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain."),
    STATUS(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS"),
    STATUS(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    STATUS(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    STATUS(CUDA_ERROR_NOT_READY, "device not ready"),
    STATUS(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    STATUS(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    STATUS(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated"),
    STATUS(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    STATUS(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    STATUS(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped"),
    STATUS(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"),
    STATUS(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered"),
    STATUS(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    STATUS(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    STATUS(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    STATUS(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    STATUS(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    STATUS(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination"),
    STATUS(CUDA_ERROR_UNKNOWN, "unknown error"),
};
#undef STATUS

CUresult textOf(const char* call, CUresult value, const char* Status::*field, const char** text) {
  if (const int status = enter(call, -1)) {
    return static_cast<CUresult>(status);
  }
  if (text == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *text = nullptr;
  for (const Status& status : kStatuses) {
    if (status.value == value) {
      *text = status.*field;
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// exported returns the address of a call of this library, or null.
void* exported(const std::string& name) {
  Dl_info here = {};
  if (dladdr(reinterpret_cast<void*>(&state), &here) == 0) {
    return nullptr;
  }
  void* library = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  void* address = library == nullptr ? nullptr : dlsym(library, name.c_str());
  if (library != nullptr) {
    dlclose(library);
  }
  return address;
}

}  // namespace
}  // namespace gpu

using namespace gpu;

extern "C" {

EMU_EXPORT CUresult cuGetErrorName(CUresult value, const char** name) { return textOf("cuGetErrorName", value, &Status::name, name); }

EMU_EXPORT CUresult cuGetErrorString(CUresult value, const char** text) { return textOf("cuGetErrorString", value, &Status::text, text); }

// Names come without the suffix of their version; the newest is returned.
EMU_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** address, int, cuuint64_t, CUdriverProcAddressQueryResult* result) {
  if (const int status = enter("cuGetProcAddress_v2", -1)) {
    return static_cast<CUresult>(status);
  }
  if (symbol == nullptr || address == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = exported(std::string(symbol) + "_v2");
  if (*address == nullptr) {
    *address = exported(symbol);
  }
  if (result != nullptr) {
    *result = *address == nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : CU_GET_PROC_ADDRESS_SUCCESS;
  }
  return *address == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

}  // extern "C"
