//go:build ignore

// A driver that agrees to everything and does nothing, as fast as a function can
// return: what a caller costs by itself is measured over it. Build it with
// `gcc -shared -fPIC -O2 -Wl,-soname,libcuda.so.1`.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long Address;

#define NOTHING(name, ...) \
  int name(__VA_ARGS__) { return 0; }

// Handles differ, so that none is mistaken for null.
static size_t handles = 0x1000;
#define HANDLE(name, ...) \
  int name(void **handle, ##__VA_ARGS__) { \
    *handle = (void *)(handles += 0x10); \
    return 0; \
  }

NOTHING(cuInit, unsigned flags)
NOTHING(cuDevicePrimaryCtxRelease_v2, int device)
NOTHING(cuCtxSetCurrent, void *context)
NOTHING(cuMemFree_v2, Address address)
NOTHING(cuMemcpyDtoDAsync_v2, Address to, Address from, size_t bytes, void *stream)
NOTHING(cuMemcpyHtoDAsync_v2, Address to, const void *from, size_t bytes, void *stream)
NOTHING(cuMemcpyDtoHAsync_v2, void *to, Address from, size_t bytes, void *stream)
NOTHING(cuStreamDestroy_v2, void *stream)
NOTHING(cuStreamQuery, void *stream)
NOTHING(cuStreamWaitEvent, void *stream, void *event, unsigned flags)
NOTHING(cuEventDestroy_v2, void *event)
NOTHING(cuEventRecord, void *event, void *stream)
NOTHING(cuEventQuery, void *event)
NOTHING(cuThreadExchangeStreamCaptureMode, int *mode)
NOTHING(cuFuncSetAttribute, void *function, int attribute, int value)
NOTHING(cuModuleUnload, void *module)
NOTHING(cuLaunchKernel, void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
        unsigned shared, void *stream, void **parameters, void **extra)

HANDLE(cuDevicePrimaryCtxRetain, int device)
HANDLE(cuStreamCreate, unsigned flags)
HANDLE(cuStreamCreateWithPriority, unsigned flags, int priority)
HANDLE(cuEventCreate, unsigned flags)
HANDLE(cuModuleLoadDataEx, const void *image, unsigned count, int *options, void **values)
HANDLE(cuModuleGetFunction, void *module, const char *name)

static int number(int *to, int value) {
  *to = value;
  return 0;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) { return number(least, 0) + number(greatest, -5); }
int cuDriverGetVersion(int *version) { return number(version, 13000); }
int cuDeviceGetCount(int *count) { return number(count, 1); }
int cuDeviceGet(int *device, int ordinal) { return number(device, ordinal); }

// An H100: compute capability 9.0 (attributes 75 and 76), 132 multiprocessors.
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  return number(value, attribute == 75 ? 9 : attribute == 76 ? 0 : 132);
}

int cuDeviceGetName(char *name, int length, int device) {
  (void)device;
  strncpy(name, "idle", (size_t)length);
  return 0;
}

int cuDeviceGetUuid_v2(char *uuid, int device) {
  memset(uuid, device, 16);
  return 0;
}

static int text(const char **to) {
  *to = "nothing fails here";
  return 0;
}

int cuGetErrorName(int code, const char **name) { return ((void)code, text(name)); }
int cuGetErrorString(int code, const char **description) { return ((void)code, text(description)); }

int cuMemGetInfo_v2(size_t *free, size_t *total) {
  *free = *total = (size_t)80 << 30;
  return 0;
}

// Memory is addresses only; the host's is real, because callers use it.
int cuMemAlloc_v2(Address *address, size_t bytes) {
  static Address next = 1ull << 40;
  *address = next;
  next += (bytes + (2 << 20) - 1) >> 21 << 21;
  return 0;
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  (void)flags;
  *address = malloc(bytes);
  return *address == NULL ? 2 : 0;
}

int cuMemFreeHost(void *address) {
  free(address);
  return 0;
}
