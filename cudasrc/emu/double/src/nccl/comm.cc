// Making, splitting and ending communicators.
#include "comm.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "board.h"
#include "group.h"

namespace nccl {
namespace {

constexpr int kVersion = 22707;
constexpr unsigned kConfigMagic = 0xcafebeefu;

struct Registry {
  std::map<ncclComm_t, std::shared_ptr<ncclComm>> comms;
  std::map<std::string, std::shared_ptr<Clique>> gathering;  // by id
  std::uint64_t ids = 0;
};

Registry& registry() {
  static Registry& all = *new Registry;
  return all;
}

void resetAll() {
  for (auto& entry : registry().comms) {
    entry.second->aborted = true;
    entry.second->clique->collectives.clear();
    entry.second->clique->channels.clear();
  }
  registry().comms.clear();
  registry().gathering.clear();
  leaveBoards();
}

void leaksOf(std::vector<std::string>& list) {
  if (!registry().comms.empty()) {
    list.push_back(std::to_string(registry().comms.size()) + " communicators never destroyed");
  }
}

const bool extended = [] {
  const gpu::Lock lock(gpu::state().mutex);
  gpu::state().extensions.push_back({resetAll, leaksOf});
  return true;
}();

std::string& lastError() {
  static std::string& text = *new std::string;
  return text;
}

// seat makes a rank of a clique.
std::shared_ptr<ncclComm> seat(const std::shared_ptr<Clique>& clique, int rank, gpu::Device* device, bool blocking) {
  auto comm = std::make_shared<ncclComm>();
  comm->clique = clique;
  comm->rank = rank;
  comm->device = device;
  comm->blocking = blocking;
  clique->members[static_cast<std::size_t>(rank)] = comm;
  clique->joined++;
  registry().comms[comm.get()] = comm;
  gpu::state().changed.notify_all();
  return comm;
}

// checkSeat says why a rank can't join; what is wrong with all fails all.
ncclResult_t checkSeat(Clique& clique, int ranks, int rank, const gpu::Device* device) {
  if (clique.ranks() != ranks) {
    return refuse(ncclInvalidArgument, "ncclCommInitRank: ranks disagree on their number");
  }
  for (const auto& member : clique.members) {
    if (member != nullptr && member->rank == rank) {
      return refuse(ncclInvalidArgument, "ncclCommInitRank: rank " + std::to_string(rank) + " came twice");
    }
    if (member != nullptr && member->device == device) {
      clique.failure = ncclInvalidUsage;
      gpu::state().changed.notify_all();
      return refuse(ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(rank) + " and rank " + std::to_string(member->rank));
    }
  }
  return ncclSuccess;
}

// isBlocking reads a configuration, which may be absent. NCCL's environment
// variable comes before it.
ncclResult_t isBlocking(const ncclConfig_t* config, bool* blocking) {
  if (config != nullptr && config->magic != kConfigMagic) {
    return refuse(ncclInvalidArgument, "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
  }
  if (config != nullptr) {
    *blocking = config->blocking != 0;  // undefined (INT_MIN) means blocking
  }
  if (const char* said = std::getenv("NCCL_COMM_BLOCKING")) {
    *blocking = std::string(said) != "0";
  }
  return ncclSuccess;
}

ncclResult_t join(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  if (comm == nullptr || ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse(ncclInvalidArgument, "ncclCommInitRank: rank " + std::to_string(rank) + " of " + std::to_string(ranks));
  }
  bool blocking = true;
  if (const ncclResult_t status = isBlocking(config, &blocking)) {
    return status;
  }
  gpu::Lock lock(gpu::state().mutex);
  gpu::Device* device = gpu::current();
  if (device == nullptr || device->retained == 0) {
    return refuse(ncclUnhandledCudaError, "ncclCommInitRank: the calling thread has no current context");
  }
  const std::string key(id.internal, sizeof id.internal);
  auto& clique = registry().gathering[key];
  if (clique == nullptr) {
    clique = std::make_shared<Clique>(ranks);
  }
  ncclResult_t status = checkSeat(*clique, ranks, rank, device);
  status = status == ncclSuccess ? sitDown(clique, boardName(key), rank) : status;
  if (status != ncclSuccess) {
    return status;
  }
  const auto made = seat(clique, rank, device, blocking);
  *comm = made.get();
  if (made->clique->complete()) {
    registry().gathering.erase(key);  // an id serves once
  }
  if (!blocking) {
    return ncclInProgress;
  }
  return finishInGroup(made) ? ncclSuccess : finish(lock, made);
}

// endWait takes a communicator that never came about out of the registry.
ncclResult_t endWait(const std::shared_ptr<ncclComm>& comm, ncclResult_t status) {
  registry().comms.erase(comm.get());
  return status;
}

// form makes the cliques of a split in the order of keys, then of ranks.
void form(Split& split) {
  std::map<int, std::vector<std::pair<int, int>>> byColor;
  for (std::size_t rank = 0; rank < split.wishes.size(); rank++) {
    byColor[split.wishes[rank].color].push_back({split.wishes[rank].key, static_cast<int>(rank)});
  }
  for (const auto& entry : byColor) {
    split.cliques[entry.first] = std::make_shared<Clique>(static_cast<int>(entry.second.size()));
  }
}

// placeIn returns a rank's place among those of its color.
int placeIn(const Split& split, int rank) {
  const Split::Wish& own = split.wishes[static_cast<std::size_t>(rank)];
  int place = 0;
  for (std::size_t other = 0; other < split.wishes.size(); other++) {
    const Split::Wish& wish = split.wishes[other];
    const bool before = wish.key < own.key || (wish.key == own.key && static_cast<int>(other) < rank);
    place += wish.color == own.color && before ? 1 : 0;
  }
  return place;
}

// meet waits for all ranks to ask for a split.
bool meet(gpu::Lock& lock, const ncclComm& comm, std::uint64_t number, Split& split) {
  if (comm.clique->board != nullptr) {
    if (exchangeWishes(lock, comm, number, split) && split.cliques.empty()) {
      form(split);
    }
    return !split.cliques.empty();
  }
  if (++split.made == comm.clique->ranks()) {
    form(split);
    gpu::state().changed.notify_all();
  }
  gpu::until(lock, "ncclCommSplit", [&] { return !split.cliques.empty() || comm.aborted || comm.async != ncclSuccess; });
  return !split.cliques.empty();
}

ncclResult_t splitComm(gpu::Lock& lock, const std::shared_ptr<ncclComm>& comm, int color, int key, bool blocking, ncclComm_t* made) {
  const std::uint64_t number = comm->splits++;
  auto& slot = comm->clique->splits[number];
  if (slot == nullptr) {
    slot = std::make_shared<Split>();
    slot->wishes.resize(comm->clique->members.size());
  }
  const std::shared_ptr<Split> split = slot;
  split->wishes[static_cast<std::size_t>(comm->rank)] = {true, color, key};
  if (!meet(lock, *comm, number, *split)) {
    return comm->aborted ? ncclInternalError : comm->async;
  }
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) {
    return ncclSuccess;
  }
  const int place = placeIn(*split, comm->rank);
  const std::shared_ptr<Clique>& clique = split->cliques[color];
  if (const ncclResult_t status = sitDown(clique, comm->clique->name + "." + std::to_string(number) + "." + std::to_string(color), place)) {
    return status;
  }
  const auto child = seat(clique, place, comm->device, blocking);
  *made = child.get();
  return blocking ? finish(lock, child) : ncclInProgress;
}

const char* textOf(ncclResult_t status) {
  switch (status) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

}  // namespace

void fail(Clique& clique, ncclResult_t status, const std::string& why) {
  std::fprintf(stderr, "emulated NCCL: %s\n", why.c_str());
  lastError() = why;
  for (const auto& member : clique.members) {
    if (member != nullptr && member->async == ncclSuccess) {
      member->async = status;
    }
  }
  gpu::state().changed.notify_all();
}

ncclResult_t refuse(ncclResult_t status, const std::string& why) {
  lastError() = why;
  return status;
}

std::shared_ptr<ncclComm> communicator(ncclComm_t handle) {
  const auto at = registry().comms.find(handle);
  return at == registry().comms.end() ? nullptr : at->second;
}

ncclResult_t finish(gpu::Lock& lock, const std::shared_ptr<ncclComm>& comm) {
  const Clique& clique = *comm->clique;
  const auto over = [&] { return clique.complete() || clique.failure != ncclSuccess || comm->aborted; };
  std::int64_t milliseconds = 0;
  if (gpu::standing("nccl_init", "rank", comm->rank, &milliseconds)) {
    gpu::state().changed.wait_for(lock, std::chrono::milliseconds(milliseconds), over);
    if (!over()) {
      return endWait(comm, static_cast<ncclResult_t>(gpu::firing("nccl_init", "rank", comm->rank)));
    }
  }
  gpu::until(lock, "ncclCommInitRank, rank " + std::to_string(comm->rank), over);
  if (clique.failure != ncclSuccess) {
    return endWait(comm, clique.failure);
  }
  return comm->aborted ? ncclInternalError : ncclSuccess;
}

ncclResult_t usable(const ncclComm& comm) {
  if (!comm.clique->complete()) {
    return refuse(ncclInvalidArgument, "the communicator is used before it is complete");
  }
  if (comm.finalized) {
    return refuse(ncclInvalidUsage, "the communicator is used after ncclCommFinalize");
  }
  return comm.async;
}

}  // namespace nccl

using namespace nccl;

extern "C" {

EMU_EXPORT ncclResult_t ncclGetVersion(int* version) {
  if (const int status = gpu::enter("ncclGetVersion", currentIndex())) {
    return static_cast<ncclResult_t>(status);
  }
  if (version == nullptr) {
    return ncclInvalidArgument;
  }
  *version = kVersion;
  return ncclSuccess;
}

EMU_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  if (const int status = gpu::enter("ncclGetUniqueId", currentIndex())) {
    return static_cast<ncclResult_t>(status);
  }
  if (id == nullptr) {
    return ncclInvalidArgument;
  }
  const gpu::Lock lock(gpu::state().mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  std::random_device entropy;
  std::snprintf(id->internal, sizeof id->internal, "emulated %llu %08x%08x", static_cast<unsigned long long>(++registry().ids), entropy(), entropy());
  return ncclSuccess;
}

EMU_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  if (const int status = gpu::enter("ncclCommInitRank", currentIndex())) {
    return static_cast<ncclResult_t>(status);
  }
  return join(comm, ranks, id, rank, nullptr);
}

EMU_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (const int status = gpu::enter("ncclCommInitRankConfig", currentIndex())) {
    return static_cast<ncclResult_t>(status);
  }
  return join(comm, ranks, id, rank, config);
}

EMU_EXPORT ncclResult_t ncclCommSplit(ncclComm_t handle, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  return withComm("ncclCommSplit", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock& lock) {
    bool blocking = comm->blocking;
    if (made == nullptr || color < NCCL_SPLIT_NOCOLOR) {
      return ncclInvalidArgument;
    }
    ncclResult_t status = usable(*comm);
    status = status == ncclSuccess ? isBlocking(config, &blocking) : status;
    return status == ncclSuccess ? splitComm(lock, comm, color, key, blocking, made) : status;
  });
}

EMU_EXPORT ncclResult_t ncclCommCount(const ncclComm_t handle, int* count) {
  return withComm("ncclCommCount", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    *count = comm->clique->ranks();
    return ncclSuccess;
  });
}

EMU_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  return withComm("ncclCommUserRank", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    *rank = comm->rank;
    return ncclSuccess;
  });
}

EMU_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t handle, int* device) {
  return withComm("ncclCommCuDevice", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    *device = comm->device->index;
    return ncclSuccess;
  });
}

EMU_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t handle) {
  return withComm("ncclCommFinalize", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    const ncclResult_t status = usable(*comm);
    comm->finalized = true;
    return status;
  });
}

// Work that is queued is still done after ncclCommDestroy.
EMU_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  return withComm("ncclCommDestroy", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    registry().comms.erase(comm.get());
    return ncclSuccess;
  });
}

EMU_EXPORT ncclResult_t ncclCommAbort(ncclComm_t handle) {
  return withComm("ncclCommAbort", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    comm->aborted = true;
    registry().comms.erase(comm.get());
    gpu::state().changed.notify_all();
    return ncclSuccess;
  });
}

EMU_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* status) {
  return withComm("ncclCommGetAsyncError", handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    const Clique& clique = *comm->clique;
    *status = clique.failure != ncclSuccess ? clique.failure : !clique.complete() ? ncclInProgress : comm->async;
    return ncclSuccess;
  });
}

EMU_EXPORT const char* ncclGetErrorString(ncclResult_t status) {
  (void)gpu::enter("ncclGetErrorString", currentIndex());
  return textOf(status);
}

EMU_EXPORT const char* ncclGetLastError(ncclComm_t) {
  (void)gpu::enter("ncclGetLastError", currentIndex());
  const gpu::Lock lock(gpu::state().mutex);
  thread_local std::string kept;
  kept = lastError();
  return kept.c_str();
}

}  // extern "C"
