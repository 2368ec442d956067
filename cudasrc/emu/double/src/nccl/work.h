// What communicators put on streams: collectives, and exchanges of messages.
#pragma once

#include "comm.h"

namespace nccl {

enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast };

// Call is what all ranks must ask for alike.
struct Call {
  Kind kind = Kind::kAllGather;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t operation = ncclSum;
  int root = 0;

  bool operator==(const Call& o) const {
    return kind == o.kind && count == o.count && type == o.type && operation == o.operation && root == o.root;
  }
};

// Buffers are a rank's addresses and lengths in bytes.
struct Buffers {
  std::uint64_t send = 0, receive = 0;
  std::size_t sendBytes = 0, receiveBytes = 0;
};

// Request is a rank's call of a collective.
struct Request {
  Call call;
  Buffers buffers;
};

// Launch is what a rank starts together: the collectives of a group, or one alone.
using Launch = std::vector<Request>;

// Work is an operation of a communicator: one after another in the order of
// calls, whatever the streams. An aborted communicator's is dropped.
struct Work : gpu::Operation {
  std::shared_ptr<ncclComm> comm;
  std::uint64_t number = 0;  // among the communicator's

  bool ready() final;
  void blockers(std::vector<gpu::Point>& points) final;
  CUresult run() final;
  void ended() override;

 protected:
  // arrive is ready() for a rank that lives and whose earlier work is done.
  virtual bool arrive() = 0;
  virtual void perform() = 0;
  virtual void addPeers(std::vector<gpu::Point>& points) const = 0;
};

// put queues work; its communicator's other fields are set by the caller.
gpu::Point put(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, std::unique_ptr<Work> work);

void putLaunch(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, const Launch& launch);
void putExchange(const std::shared_ptr<gpu::Queue>& queue, const std::vector<std::shared_ptr<Message>>& messages);

std::size_t bytesOf(ncclDataType_t type);

// reduce returns the elements of several buffers, combined in the order of ranks.
std::vector<char> reduce(const Call& call, std::size_t count, const std::vector<const char*>& inputs);

}  // namespace nccl
