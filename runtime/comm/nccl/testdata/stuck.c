/* An NCCL of one rank that gets stuck where a test wants it: the second byte of
   the id says where. What is stuck returns when the communicator is aborted. The
   first four collectives connect the ranks. */
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

enum { kWorks, kInCollective, kInFinalize, kInInit, kOtherRank, kInAbort, kInFirst, kSlow };

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { int where, aborted, collectives, inside; } Comm;

static int aborts, destroys, under;
int stuck_aborts(void) { return __atomic_load_n(&aborts, __ATOMIC_SEQ_CST); }
int stuck_under(void) { return __atomic_load_n(&under, __ATOMIC_SEQ_CST); } /* aborts with a collective inside */
int stuck_destroys(void) { return __atomic_load_n(&destroys, __ATOMIC_SEQ_CST); }

static int wait_for_abort(Comm *comm) {
  for (int i = 0; i < 10000 && !__atomic_load_n(&comm->aborted, __ATOMIC_SEQ_CST); i++) usleep(1000);
  return 3;
}

int ncclGetVersion(int *version) { *version = 22707; return 0; }
int ncclGetUniqueId(ncclUniqueId *id) { *id = (ncclUniqueId){{1}}; return 0; }
const char *ncclGetErrorString(int result) { return result == 3 ? "internal error" : "another error"; }
const char *ncclGetLastError(void *comm) { (void)comm; return "as the test asked\n"; }

int ncclCommInitRank(Comm **comm, int ranks, ncclUniqueId id, int rank) {
  if (ranks != 1 || rank != 0 || id.internal[127] != 9) return 4; /* the id came in whole */
  if (id.internal[1] == kInInit) usleep(150000);
  Comm *made = calloc(1, sizeof *made);
  made->where = id.internal[1];
  *comm = made;
  return 0;
}
int ncclCommSplit(Comm *comm, int color, int key, Comm **child, void *config) {
  (void)comm; (void)color; (void)key; (void)child; (void)config;
  return 3;
}
int ncclCommFinalize(Comm *comm) { return comm->where == kInFinalize ? wait_for_abort(comm) : 0; }
int ncclCommDestroy(Comm *comm) { (void)comm; __atomic_add_fetch(&destroys, 1, __ATOMIC_SEQ_CST); return 0; }
int ncclCommAbort(Comm *comm) {
  __atomic_add_fetch(&aborts, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&under, __atomic_load_n(&comm->inside, __ATOMIC_SEQ_CST), __ATOMIC_SEQ_CST);
  if (comm->where == kInAbort) sleep(5);
  __atomic_store_n(&comm->aborted, 1, __ATOMIC_SEQ_CST); /* its memory stays: others may be in it */
  return 0;
}
int ncclCommGetAsyncError(Comm *comm, int *error) { (void)comm; *error = 0; return 0; }
int ncclCommCount(const Comm *comm, int *count) { (void)comm; *count = 1; return 0; }
int ncclCommUserRank(const Comm *comm, int *rank) { *rank = comm->where == kOtherRank ? 7 : 0; return 0; }

static int stay(Comm *comm, int first) {
  if (comm->where == kSlow && !first) return usleep(200000);
  const int stuck = first ? comm->where == kInFirst : comm->where == kInCollective || comm->where == kInAbort;
  return stuck ? wait_for_abort(comm) : 0;
}
static int enter(Comm *comm, int first) {
  __atomic_add_fetch(&comm->inside, 1, __ATOMIC_SEQ_CST);
  const int result = stay(comm, first);
  __atomic_sub_fetch(&comm->inside, 1, __ATOMIC_SEQ_CST);
  return result;
}

static __thread int depth;
static __thread Comm *grouped; /* the communicator of the calls in the thread's group */
static int collective(Comm *comm) {
  if (depth > 0) {
    grouped = comm;
    return 0;
  }
  return enter(comm, comm->collectives++ < 4);
}
int ncclGroupStart(void) { depth++; return 0; }
int ncclGroupEnd(void) {
  Comm *comm = grouped;
  depth--;
  grouped = NULL;
  return comm == NULL ? 0 : enter(comm, 0);
}
int ncclAllGather(const void *src, void *dst, size_t count, int type, Comm *comm, void *stream) {
  (void)src; (void)dst; (void)count; (void)type; (void)stream;
  return collective(comm);
}
int ncclReduceScatter(const void *src, void *dst, size_t count, int type, int op, Comm *comm, void *stream) {
  (void)src; (void)dst; (void)count; (void)type; (void)op; (void)stream;
  return collective(comm);
}
int ncclAllReduce(const void *src, void *dst, size_t count, int type, int op, Comm *comm, void *stream) {
  (void)src; (void)dst; (void)count; (void)type; (void)op; (void)stream;
  return collective(comm);
}
int ncclBroadcast(const void *src, void *dst, size_t count, int type, int root, Comm *comm, void *stream) {
  (void)src; (void)dst; (void)count; (void)type; (void)root; (void)stream;
  return collective(comm);
}
