#include "group.h"

#include "board.h"

namespace nccl {
namespace {

struct Group {
  std::uint64_t generation = 0;  // of resets; a reset ends all groups
  int depth = 0;
  ncclResult_t failure = ncclSuccess;
  std::vector<Issue> issues;
  std::vector<std::shared_ptr<ncclComm>> joining;
};

int& openGroups() {
  static int groups = 0;  // of all threads
  return groups;
}

const bool groupsExtended = [] {
  const gpu::Lock lock(gpu::state().mutex);
  gpu::state().extensions.push_back({[] { openGroups() = 0; }, [](std::vector<std::string>& list) {
                                       if (openGroups() > 0) {
                                         list.push_back(std::to_string(openGroups()) + " groups never ended");
                                       }
                                     }});
  return true;
}();

// group is that of the calling thread. The caller holds the driver's mutex.
Group& group() {
  thread_local Group own;
  if (own.generation != gpu::state().generation) {
    own = Group{};
    own.generation = gpu::state().generation;
  }
  return own;
}

// Share is what a group has for one communicator.
struct Share {
  std::shared_ptr<ncclComm> comm;
  std::shared_ptr<gpu::Queue> queue;
  Launch launch;
  std::vector<std::shared_ptr<Message>> messages;
};

Share& shareOf(std::vector<Share>& shares, const Issue& issue) {
  for (Share& share : shares) {
    if (share.comm == issue.comm) {
      return share;
    }
  }
  shares.push_back({issue.comm, issue.queue, {}, {}});
  return shares.back();
}

// divide makes a group's shares. With NCCL a communicator's calls may be on several
// streams, which it then joins: the double has one.
ncclResult_t divide(const std::vector<Issue>& issues, std::vector<Share>& shares) {
  for (const Issue& issue : issues) {
    Share& share = shareOf(shares, issue);
    if (share.queue != issue.queue) {
      return refuse(ncclInvalidUsage, "ncclGroupEnd: a communicator's calls are on several streams, the double wants one");
    }
    if (issue.message == nullptr) {
      share.launch.push_back(issue.request);
    } else {
      share.messages.push_back(issue.message);
    }
  }
  return ncclSuccess;
}

ncclResult_t checkShare(const Share& share) {
  if (communicator(share.comm.get()) == nullptr) {
    gpu::note("ncclGroupEnd uses a communicator that was aborted or destroyed since the call");
    return refuse(ncclInvalidUsage, "ncclGroupEnd: a communicator is gone");
  }
  if (share.comm->clique->board == nullptr) {
    return ncclSuccess;
  }
  std::size_t bytes = 0;
  for (const Request& request : share.launch) {
    bytes += request.buffers.sendBytes;
  }
  if (bytes > kSeatBytes || share.launch.size() > kMostTogether) {
    return refuse(ncclInvalidArgument, "ncclGroupEnd: " + std::to_string(share.launch.size()) + " collectives of " + std::to_string(bytes) +
                                           " bytes, between processes the double takes " + std::to_string(kMostTogether) + " of " +
                                           std::to_string(kSeatBytes));
  }
  return ncclSuccess;
}

void start(const Share& share) {
  if (!share.launch.empty()) {
    putLaunch(share.queue, share.comm, share.launch);
  }
  if (!share.messages.empty()) {
    putExchange(share.queue, share.messages);
  }
}

// allBlocking says whether the communicators of a group block, all or none.
ncclResult_t allBlocking(const std::vector<Share>& shares, bool* blocking) {
  *blocking = shares.empty() || shares[0].comm->blocking;
  for (const Share& share : shares) {
    if (share.comm->blocking != *blocking) {
      return refuse(ncclInvalidArgument, "Blocking and nonblocking communicators are not allowed in the same group");
    }
  }
  return ncclSuccess;
}

ncclResult_t finishAll(gpu::Lock& lock, const std::vector<std::shared_ptr<ncclComm>>& joining) {
  for (const auto& comm : joining) {
    if (const ncclResult_t status = finish(lock, comm)) {
      return status;
    }
  }
  return ncclSuccess;
}

ncclResult_t endGroup(gpu::Lock& lock) {
  const Group ending = std::move(group());
  group() = Group{};
  openGroups()--;
  if (ending.failure != ncclSuccess) {
    return ending.failure;
  }
  if (!ending.joining.empty() && !ending.issues.empty()) {
    return refuse(ncclInvalidUsage, "ncclGroupEnd: communicators are made and used in the same group");
  }
  std::vector<Share> shares;
  bool blocking = true;
  ncclResult_t status = divide(ending.issues, shares);
  status = status == ncclSuccess ? allBlocking(shares, &blocking) : status;
  for (const Share& share : shares) {
    status = status == ncclSuccess ? checkShare(share) : status;
  }
  if (status != ncclSuccess) {
    return status;
  }
  for (const Share& share : shares) {
    start(share);
  }
  return blocking ? finishAll(lock, ending.joining) : ncclInProgress;
}

}  // namespace

void submit(Issue issue) {
  if (group().depth > 0) {
    group().issues.push_back(std::move(issue));
    return;
  }
  Share alone{issue.comm, issue.queue, {}, {}};
  if (issue.message == nullptr) {
    alone.launch.push_back(issue.request);
  } else {
    alone.messages.push_back(issue.message);
  }
  start(alone);
}

bool finishInGroup(const std::shared_ptr<ncclComm>& comm) {
  if (group().depth > 0) {
    group().joining.push_back(comm);
  }
  return group().depth > 0;
}

ncclResult_t failInGroup(ncclResult_t status) {
  const gpu::Lock lock(gpu::state().mutex);
  if (group().depth > 0 && group().failure == ncclSuccess) {
    group().failure = status;
  }
  return status;
}

}  // namespace nccl

using namespace nccl;

extern "C" {

EMU_EXPORT ncclResult_t ncclGroupStart() {
  if (const int status = gpu::enter("ncclGroupStart", currentIndex())) {
    return static_cast<ncclResult_t>(status);
  }
  const gpu::Lock lock(gpu::state().mutex);
  openGroups() += group().depth++ == 0 ? 1 : 0;
  return ncclSuccess;
}

EMU_EXPORT ncclResult_t ncclGroupEnd() {
  (void)failInGroup(static_cast<ncclResult_t>(gpu::enter("ncclGroupEnd", currentIndex())));
  gpu::Lock lock(gpu::state().mutex);
  if (group().depth == 0) {
    return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  }
  return --group().depth > 0 ? ncclSuccess : endGroup(lock);
}

}  // extern "C"
