// The calls that put collectives and messages on streams, and what they check.
#include "board.h"
#include "group.h"

namespace nccl {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 46;  // of a buffer; more than any host has

// reachable says whether a rank's GPU can use memory: its own, or pinned.
bool reachable(const ncclComm& comm, std::uint64_t address, std::size_t bytes) {
  const gpu::Allocation* allocation = gpu::onDevice(address, bytes);
  return allocation != nullptr ? allocation->device == comm.device : gpu::isPinned(address, bytes);
}

bool overlap(const Buffers& b) { return b.send < b.receive + b.receiveBytes && b.receive < b.send + b.sendBytes; }

// inPlace says whether overlapping buffers are where NCCL allows it: the shorter
// is the rank's own part of the longer.
bool inPlace(const Buffers& b, int rank) {
  const auto own = static_cast<std::uint64_t>(rank);
  if (b.sendBytes < b.receiveBytes) {
    return b.send == b.receive + own * b.sendBytes;
  }
  return b.receive == b.send + (b.sendBytes > b.receiveBytes ? own * b.receiveBytes : 0);
}

ncclResult_t checkBuffers(const char* name, const ncclComm& comm, const Buffers& b) {
  const bool sends = b.sendBytes == 0 || reachable(comm, b.send, b.sendBytes);
  if (!sends || !reachable(comm, b.receive, b.receiveBytes)) {
    return refuse(ncclInvalidArgument, std::string(name) + ": a buffer is not memory of the communicator's GPU");
  }
  if (b.sendBytes > 0 && overlap(b) && !inPlace(b, comm.rank)) {
    return refuse(ncclInvalidArgument, std::string(name) + ": the buffers overlap and are not in place");
  }
  if (comm.clique->board != nullptr && b.sendBytes > kSeatBytes) {
    return refuse(ncclInvalidArgument, std::string(name) + ": " + std::to_string(b.sendBytes) + " bytes, between processes the double sends " +
                                           std::to_string(kSeatBytes));
  }
  return ncclSuccess;
}

ncclResult_t checkCall(const char* name, const ncclComm& comm, const Call& call) {
  const std::size_t most = kMaxBytes / bytesOf(call.type) / static_cast<std::size_t>(comm.clique->ranks());
  if (call.type < 0 || call.type >= ncclNumTypes || call.operation < 0 || call.operation > ncclAvg || call.root < 0 ||
      call.root >= comm.clique->ranks() || call.count > most) {
    return refuse(ncclInvalidArgument, std::string(name) + ": type, operation, root or count out of range");
  }
  return ncclSuccess;
}

ncclResult_t queueFor(CUstream stream, const ncclComm& comm, std::shared_ptr<gpu::Queue>* queue) {
  *queue = gpu::queueOf(stream, comm.device);
  const bool own = *queue != nullptr && (*queue)->device == comm.device;
  return own ? ncclSuccess : refuse(ncclUnhandledCudaError, "the stream is not one of the communicator's GPU");
}

Buffers buffersOf(const Call& call, const ncclComm& comm, const void* send, void* receive) {
  const std::size_t bytes = call.count * bytesOf(call.type), all = bytes * static_cast<std::size_t>(comm.clique->ranks());
  Buffers b{reinterpret_cast<std::uint64_t>(send), reinterpret_cast<std::uint64_t>(receive), bytes, bytes};
  if (call.kind == Kind::kAllGather) {
    b.receiveBytes = all;
  }
  if (call.kind == Kind::kReduceScatter) {
    b.sendBytes = all;
  }
  if (call.kind == Kind::kBroadcast && comm.rank != call.root) {
    b.sendBytes = 0;
  }
  return b;
}

ncclResult_t collective(const char* name, const Call& call, const void* send, void* receive, ncclComm_t handle, CUstream stream) {
  return failInGroup(withComm(name, handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    Issue issue;
    issue.comm = comm;
    issue.request.call = call;
    ncclResult_t status = usable(*comm);
    status = status == ncclSuccess ? checkCall(name, *comm, call) : status;
    status = status == ncclSuccess ? queueFor(stream, *comm, &issue.queue) : status;
    if (status != ncclSuccess || call.count == 0) {
      return status;
    }
    issue.request.buffers = buffersOf(call, *comm, send, receive);
    status = checkBuffers(name, *comm, issue.request.buffers);
    if (status == ncclSuccess) {
      submit(std::move(issue));
    }
    return status;
  }));
}

ncclResult_t message(const char* name, bool isSend, std::uint64_t address, std::size_t count, ncclDataType_t type, int peer, ncclComm_t handle,
                     CUstream stream) {
  return failInGroup(withComm(name, handle, [&](const std::shared_ptr<ncclComm>& comm, gpu::Lock&) {
    Issue issue;
    issue.comm = comm;
    ncclResult_t status = usable(*comm);
    status = status == ncclSuccess ? checkCall(name, *comm, {Kind::kBroadcast, count, type, ncclSum, peer}) : status;
    status = status == ncclSuccess ? queueFor(stream, *comm, &issue.queue) : status;
    if (status == ncclSuccess && comm->clique->board != nullptr) {
      status = refuse(ncclInvalidUsage, std::string(name) + ": the double sends no messages between processes");
    }
    if (status != ncclSuccess || count == 0) {
      return status;
    }
    const std::size_t bytes = count * bytesOf(type);
    if (!reachable(*comm, address, bytes)) {
      return refuse(ncclInvalidArgument, std::string(name) + ": the buffer is not memory of the communicator's GPU");
    }
    issue.message = std::make_shared<Message>();
    issue.message->owner = comm;
    issue.message->isSend = isSend;
    issue.message->peer = peer;
    issue.message->address = address;
    issue.message->bytes = bytes;
    submit(std::move(issue));
    return ncclSuccess;
  }));
}

}  // namespace
}  // namespace nccl

using namespace nccl;

extern "C" {

EMU_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclAllGather", {Kind::kAllGather, count, type, ncclSum, 0}, send, receive, comm, stream);
}

EMU_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                                          ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclReduceScatter", {Kind::kReduceScatter, count, type, operation, 0}, send, receive, comm, stream);
}

EMU_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm,
                                      cudaStream_t stream) {
  return collective("ncclAllReduce", {Kind::kAllReduce, count, type, operation, 0}, send, receive, comm, stream);
}

EMU_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
  return collective("ncclBroadcast", {Kind::kBroadcast, count, type, ncclSum, root}, send, receive, comm, stream);
}

EMU_EXPORT ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective("ncclBcast", {Kind::kBroadcast, count, type, ncclSum, root}, buffer, buffer, comm, stream);
}

EMU_EXPORT ncclResult_t ncclSend(const void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return message("ncclSend", true, reinterpret_cast<std::uint64_t>(buffer), count, type, peer, comm, stream);
}

EMU_EXPORT ncclResult_t ncclRecv(void* buffer, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return message("ncclRecv", false, reinterpret_cast<std::uint64_t>(buffer), count, type, peer, comm, stream);
}

}  // extern "C"
