// What all work of communicators has in common.
#include "work.h"

namespace nccl {

bool Work::ready() {
  if (comm->aborted) {
    return true;
  }
  std::int64_t unused = 0;
  if (comm->async != ncclSuccess || number != comm->completed || gpu::standing("dead", "rank", comm->rank, &unused)) {
    return false;
  }
  return arrive();
}

void Work::blockers(std::vector<gpu::Point>& points) {
  for (const auto& entry : comm->pending) {
    if (entry.first < number) {
      points.push_back(entry.second);
    }
  }
  addPeers(points);
}

CUresult Work::run() {
  if (!comm->aborted) {
    perform();
  }
  return CUDA_SUCCESS;
}

void Work::ended() {
  comm->completed = number + 1;
  comm->pending.erase(number);
}

gpu::Point put(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, std::unique_ptr<Work> work) {
  const std::uint64_t number = comm->issued++;
  work->comm = comm;
  work->number = number;
  const gpu::Point point = gpu::enqueue(queue, std::move(work));
  comm->pending[number] = point;
  return point;
}

std::size_t bytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

}  // namespace nccl
