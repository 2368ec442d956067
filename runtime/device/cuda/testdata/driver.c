// A driver whose behaviour tests choose: functions can be told to fail, points of
// streams to stay ahead, and what is launched is kept. Memory is the host's, and
// copies are done at once. Its functions have the prototypes of prototypes.h,
// which is written from the table of this package.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prototypes.h"

#define SYMBOLS 64

static struct {
  const char *name;
  long calls;
  int status;
} symbols[SYMBOLS];

static long points, reached;
static struct {
  char name[128];
  unsigned grid, block, shared, count;
  uint64_t words[16];
  char first[96];
} launched;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// find returns the place of a function, with the lock held.
static int find(const char *name) {
  for (int i = 0; i < SYMBOLS; i++) {
    if (symbols[i].name == NULL) {
      symbols[i].name = strdup(name);
    }
    if (strcmp(symbols[i].name, name) == 0) {
      return i;
    }
  }
  abort();
}

// enter counts a call and returns the status that it should have.
static int enter(const char *name) {
  pthread_mutex_lock(&lock);
  const int i = find(name), status = symbols[i].status;
  symbols[i].calls++;
  pthread_mutex_unlock(&lock);
  return status;
}

#define ENTER() \
  do { \
    int status = enter(__func__); \
    if (status != 0) return status; \
  } while (0)

// What tests call.
void double_fail(const char *name, int status) {
  pthread_mutex_lock(&lock);
  symbols[find(name)].status = status;
  pthread_mutex_unlock(&lock);
}
long double_calls(const char *name) {
  pthread_mutex_lock(&lock);
  const long calls = symbols[find(name)].calls;
  pthread_mutex_unlock(&lock);
  return calls;
}
// Work is held where points are ahead. A driver's call that waits for all work would not return
// then; this one's does, and is counted.
static long waits;
long double_waits(void) { return __atomic_load_n(&waits, __ATOMIC_SEQ_CST); }
static int busy(void) { return __atomic_load_n(&points, __ATOMIC_SEQ_CST) > __atomic_load_n(&reached, __ATOMIC_SEQ_CST); }
static void wait_for_all(void) {
  if (busy()) __atomic_add_fetch(&waits, 1, __ATOMIC_SEQ_CST);
}
void double_reach(long point) { __atomic_store_n(&reached, point, __ATOMIC_SEQ_CST); }
long double_points(void) { return __atomic_load_n(&points, __ATOMIC_SEQ_CST); }
void *double_launched(void) { return &launched; }

static int version_number = 13000;
void double_version(int value) { version_number = value; }
CUresult cuInit(unsigned int flags) { (void)flags; ENTER(); return 0; }
CUresult cuDriverGetVersion(int *version) { ENTER(); *version = version_number; return 0; }
CUresult cuGetErrorName(CUresult code, const char **name) { *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_TEST"; return code == 12345; }
CUresult cuGetErrorString(CUresult code, const char **text) { *text = code == 2 ? "out of memory" : "as the test asked"; return code == 12345; }
CUresult cuDeviceGetCount(int *count) { ENTER(); *count = 2; return 0; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { ENTER(); *device = ordinal; return 0; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device) { ENTER(); snprintf(name, length, "Double %d", device); return 0; }
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) { ENTER(); for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(0xa0 + 16 * device + i); return 0; }
static int capability = 90;
void double_capability(int value) { capability = value; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  (void)device;
  ENTER();
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : attribute == 97 ? 227 << 10 : 3;
  return 0;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { ENTER(); *context = (CUcontext)(uintptr_t)(0x100 + device); return 0; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { (void)device; ENTER(); wait_for_all(); return 0; }
CUresult cuCtxSetCurrent(CUcontext context) { (void)context; ENTER(); return 0; }
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) { ENTER(); *free = 1000; *total = 2000; return 0; }

// Streams and events that are destroyed stay, so that their use is found.
struct stream { int destroyed; };
struct event { int destroyed; long point; };
static long misused;
long double_misused(void) { return __atomic_load_n(&misused, __ATOMIC_SEQ_CST); }
static void use(int *destroyed) {
  if (__atomic_load_n(destroyed, __ATOMIC_SEQ_CST)) __atomic_add_fetch(&misused, 1, __ATOMIC_SEQ_CST);
}
static CUevent live(CUevent event) {
  use(&event->destroyed);
  return event;
}

static size_t skew;
void double_skew(long bytes) { skew = bytes; }
CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
  void *p;
  ENTER();
  if (posix_memalign(&p, 64 << 10, bytes + skew) != 0) return 2;
  *address = (uintptr_t)p + skew;
  return 0;
}
CUresult cuMemFree_v2(CUdeviceptr address) { ENTER(); wait_for_all(); free((void *)((uintptr_t)address & ~(uintptr_t)0xffff)); return 0; }
CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags) { (void)flags; ENTER(); *address = malloc(bytes); return *address ? 0 : 2; }
CUresult cuMemFreeHost(void *address) { ENTER(); wait_for_all(); free(address); return 0; }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) { ENTER(); use(&stream->destroyed); memcpy((void *)to, (void *)from, bytes); return 0; }
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) { ENTER(); use(&stream->destroyed); memcpy((void *)to, from, bytes); return 0; }
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) { ENTER(); use(&stream->destroyed); memcpy(to, (void *)from, bytes); return 0; }

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) { (void)flags; ENTER(); *stream = calloc(1, sizeof(struct stream)); return 0; }
static long priority_given;
long double_priority(void) { return priority_given; }
CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) { (void)flags; ENTER(); priority_given = priority; *stream = calloc(1, sizeof(struct stream)); return 0; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { ENTER(); *least = 0; *greatest = -3; return 0; }
CUresult cuStreamDestroy_v2(CUstream stream) { ENTER(); use(&stream->destroyed); __atomic_store_n(&stream->destroyed, 1, __ATOMIC_SEQ_CST); return 0; }
static int forbidden(void);
CUresult cuStreamQuery(CUstream stream) { if (forbidden()) return 900; ENTER(); use(&stream->destroyed); return busy() ? 600 : 0; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) { (void)flags; ENTER(); use(&stream->destroyed); live(event); return 0; }
CUresult cuEventCreate(CUevent *event, unsigned int flags) { (void)flags; ENTER(); *event = calloc(1, sizeof(struct event)); return 0; }
CUresult cuEventDestroy_v2(CUevent event) { ENTER(); __atomic_store_n(&live(event)->destroyed, 1, __ATOMIC_SEQ_CST); return 0; }
CUresult cuEventRecord(CUevent event, CUstream stream) { ENTER(); use(&stream->destroyed); live(event)->point = __atomic_add_fetch(&points, 1, __ATOMIC_SEQ_CST); return 0; }
/* A capture elsewhere forbids questions to threads that are not relaxed, and ends with the first. */
static __thread int mode_of_thread;
static int capturing, spoiled;
void double_capture(long begin) { capturing = begin; spoiled = 0; }
long double_spoiled(void) { return spoiled; }
long double_mode(void) { return mode_of_thread; }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  const int before = mode_of_thread;
  ENTER();
  mode_of_thread = *mode;
  *mode = before;
  return 0;
}
static int forbidden(void) {
  const int is = capturing && mode_of_thread != 2;
  spoiled |= is;
  return is;
}
CUresult cuEventQuery(CUevent event) { if (forbidden()) return 900; ENTER(); return live(event)->point <= __atomic_load_n(&reached, __ATOMIC_SEQ_CST) ? 0 : 600; }

// An image is a list of kernels: its text.
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options, void **values) {
  int status = enter(__func__);
  if (status != 0) {
    if (count == 2 && options[0] == 5 && options[1] == 6) snprintf(values[0], (size_t)values[1], "ptxas: line 7 is odd");
    return status;
  }
  if ((uintptr_t)image % 8 != 0) return 1;
  *module = (CUmodule)strdup(image);
  return 0;
}
CUresult cuModuleUnload(CUmodule module) { ENTER(); wait_for_all(); free(module); return 0; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  char line[160];
  ENTER();
  snprintf(line, sizeof line, "%s\n", name);
  if (strstr((const char *)module, line) == NULL) return 500;
  *function = (CUfunction)strdup(name);
  return 0;
}
static long shared_bytes_allowed = 48 << 10;
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  (void)function;
  ENTER();
  if (attribute != 8 || value > 227 << 10) return 1;
  shared_bytes_allowed = value;
  return 0;
}
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                        unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra) {
  (void)grid_y; (void)grid_z; (void)block_y; (void)block_z; (void)stream; (void)extra;
  ENTER();
  if (shared_bytes > shared_bytes_allowed) return 1;
  memset(&launched, 0, sizeof launched);
  snprintf(launched.name, sizeof launched.name, "%s", (const char *)function);
  launched.grid = grid_x;
  launched.block = block_x;
  launched.shared = shared_bytes;
  while (launched.count < 16 && parameters[launched.count] != NULL) {
    memcpy(&launched.words[launched.count], parameters[launched.count], 8);
    launched.count++;
  }
  memcpy(launched.first, parameters[0], strstr(launched.name, "adamw") ? 72 : 8);
  return 0;
}
