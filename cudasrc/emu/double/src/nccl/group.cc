#include "group.h"

namespace nccl {
namespace {

struct Group {
  int depth = 0;
  ncclResult_t failure = ncclSuccess;
  std::vector<Issue> issues;
  std::vector<std::shared_ptr<ncclComm>> joining;
};

Group& group() {
  thread_local Group own;
  return own;
}

void launch(const Issue& issue) {
  if (issue.message == nullptr) {
    putCollective(issue.queue, issue.comm, issue.call, issue.buffers);
  } else {
    putExchange(issue.queue, {issue.message});
  }
}

// launchAll puts the collectives of a group on their streams in order, then one
// exchange for each communicator that has messages.
void launchAll(const std::vector<Issue>& issues) {
  std::vector<std::pair<const Issue*, std::vector<std::shared_ptr<Message>>>> exchanges;
  for (const Issue& issue : issues) {
    if (issue.message == nullptr) {
      launch(issue);
      continue;
    }
    auto at = exchanges.begin();
    while (at != exchanges.end() && at->first->comm != issue.comm) {
      ++at;
    }
    if (at == exchanges.end()) {
      exchanges.push_back({&issue, {issue.message}});
    } else {
      at->second.push_back(issue.message);
    }
  }
  for (const auto& exchange : exchanges) {
    putExchange(exchange.first->queue, exchange.second);
  }
}

ncclResult_t endGroup() {
  const Group ending = std::move(group());
  group() = Group{};
  if (ending.failure != ncclSuccess) {
    return ending.failure;
  }
  gpu::Lock lock(gpu::state().mutex);
  for (const auto& comm : ending.joining) {
    if (const ncclResult_t status = finish(lock, comm)) {
      return status;
    }
  }
  launchAll(ending.issues);
  return ncclSuccess;
}

}  // namespace

void submit(Issue issue) {
  if (group().depth > 0) {
    group().issues.push_back(std::move(issue));
  } else {
    launch(issue);
  }
}

bool finishInGroup(const std::shared_ptr<ncclComm>& comm) {
  if (group().depth > 0) {
    group().joining.push_back(comm);
  }
  return group().depth > 0;
}

ncclResult_t failInGroup(ncclResult_t status) {
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
  group().depth++;
  return ncclSuccess;
}

EMU_EXPORT ncclResult_t ncclGroupEnd() {
  if (const int status = gpu::enter("ncclGroupEnd", currentIndex())) {
    return static_cast<ncclResult_t>(status);
  }
  if (group().depth == 0) {
    return refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  }
  return --group().depth > 0 ? ncclSuccess : endGroup();
}

}  // extern "C"
