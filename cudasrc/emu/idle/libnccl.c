//go:build ignore

// An NCCL that agrees to everything and moves nothing, as fast as a function can
// return: what a caller costs by itself is measured over it, with libcuda.c as the
// driver. Build it with `gcc -shared -fPIC -O2 -Wl,-soname,libnccl.so.2`.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  char bytes[128];
} Id;

typedef struct {
  int rank, ranks;
} Comm;

int ncclGetVersion(int *version) {
  *version = 22707;
  return 0;
}

int ncclGetUniqueId(Id *id) {
  memset(id, 1, sizeof *id);
  return 0;
}

const char *ncclGetErrorString(int result) {
  (void)result;
  return "nothing fails here";
}

const char *ncclGetLastError(void *comm) {
  (void)comm;
  return "";
}

int ncclCommInitRank(Comm **comm, int ranks, Id id, int rank) {
  (void)id;
  *comm = malloc(sizeof **comm);
  if (*comm == NULL) {
    return 2;
  }
  **comm = (Comm){rank, ranks};
  return 0;
}

// Every rank is alone in its part.
int ncclCommSplit(Comm *comm, int color, int key, Comm **child, void *config) {
  (void)comm, (void)color, (void)key, (void)config;
  return ncclCommInitRank(child, 1, (Id){{0}}, 0);
}

int ncclCommDestroy(Comm *comm) {
  free(comm);
  return 0;
}

int ncclCommAbort(Comm *comm) { return ncclCommDestroy(comm); }

int ncclCommFinalize(Comm *comm) {
  (void)comm;
  return 0;
}

int ncclCommGetAsyncError(Comm *comm, int *error) {
  (void)comm;
  *error = 0;
  return 0;
}

int ncclCommCount(const Comm *comm, int *count) {
  *count = comm->ranks;
  return 0;
}

int ncclCommUserRank(const Comm *comm, int *rank) {
  *rank = comm->rank;
  return 0;
}

int ncclGroupStart(void) { return 0; }
int ncclGroupEnd(void) { return 0; }

#define NOTHING(name, ...) \
  int name(const void *from, void *to, size_t count, int type, __VA_ARGS__) { return 0; }

NOTHING(ncclAllGather, Comm *comm, void *stream)
NOTHING(ncclReduceScatter, int operation, Comm *comm, void *stream)
NOTHING(ncclAllReduce, int operation, Comm *comm, void *stream)
NOTHING(ncclBroadcast, int root, Comm *comm, void *stream)
