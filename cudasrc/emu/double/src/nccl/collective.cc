// Collectives: a rank's part arrives when it is at the head of its stream; when
// all have arrived, the first that the scheduler picks moves all data.
//
// The ranks' k-th collectives must be the same call: NCCL would hang or corrupt
// memory, the double reports it to all ranks as an asynchronous error. With the
// fault "mixed" it hangs, too.
#include <cstring>

#include "collective.h"

namespace nccl {
namespace {

const char* nameOf(Kind kind) {
  const char* const names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast"};
  return names[static_cast<int>(kind)];
}

char* at(std::uint64_t address) { return reinterpret_cast<char*>(address); }

// gatherAll returns what all ranks send, one after another.
std::vector<char> gatherAll(const Collective& all) {
  std::vector<char> data;
  for (const auto& slot : all.slots) {
    data.insert(data.end(), at(slot.buffers.send), at(slot.buffers.send) + slot.buffers.sendBytes);
  }
  return data;
}

std::vector<char> reduceAll(const Collective& all, const Call& call) {
  std::vector<const char*> inputs;
  for (const auto& slot : all.slots) {
    inputs.push_back(at(slot.buffers.send));
  }
  return reduce(call, all.slots[0].buffers.sendBytes / bytesOf(call.type), inputs);
}

// move does a collective: all is read before anything is written, so that
// buffers in place work.
void move(const Collective& all) {
  const std::vector<char> result = resultOf(all);
  for (std::size_t rank = 0; rank < all.slots.size(); rank++) {
    deliver(all, result, rank);
  }
}

// Part is what one rank does of a collective.
struct Part : Work {
  std::shared_ptr<Collective> whole;
  std::uint64_t collective = 0;  // its number among the communicator's
  int failWith = 0;              // an injected asynchronous error

  Collective::Slot& slot() const { return whole->slots[static_cast<std::size_t>(comm->rank)]; }

  bool arrive() override {
    if (failWith != 0) {
      comm->async = static_cast<ncclResult_t>(failWith);
      return false;
    }
    slot().arrived = true;
    return whole->finished || (allArrived() && agree(*whole, collective, *comm->clique));
  }

  bool allArrived() const {
    for (const auto& each : whole->slots) {
      if (!each.arrived) {
        return false;
      }
    }
    return true;
  }

  void addPeers(std::vector<gpu::Point>& points) const override {
    for (const auto& each : whole->slots) {
      if (each.present) {
        points.push_back(each.point);
      }
    }
  }

  void perform() override {
    if (!whole->finished) {
      move(*whole);
    }
    whole->finished = true;
  }

  void ended() override {
    Work::ended();
    if (whole->finished) {
      comm->clique->collectives.erase(collective);
    } else {
      slot().arrived = false;  // dropped: it never comes
    }
  }

  std::string describe() const override { return text(slot().call) + " of rank " + std::to_string(comm->rank); }
};

}  // namespace

std::string text(const Call& call) {
  return std::string(nameOf(call.kind)) + "(count " + std::to_string(call.count) + ", type " + std::to_string(call.type) + ", op " +
         std::to_string(call.operation) + ", root " + std::to_string(call.root) + ")";
}

std::vector<char> resultOf(const Collective& all) {
  const Call& call = all.slots[0].call;
  switch (call.kind) {
    case Kind::kAllGather:
      return gatherAll(all);
    case Kind::kBroadcast: {
      const Buffers& root = all.slots[static_cast<std::size_t>(call.root)].buffers;
      return {at(root.send), at(root.send) + root.sendBytes};
    }
    case Kind::kReduceScatter:
    case Kind::kAllReduce:
      break;
  }
  return reduceAll(all, call);
}

void deliver(const Collective& all, const std::vector<char>& result, std::size_t rank) {
  const Collective::Slot& slot = all.slots[rank];
  const std::size_t offset = slot.call.kind == Kind::kReduceScatter ? rank * slot.buffers.receiveBytes : 0;
  std::memcpy(at(slot.buffers.receive), result.data() + offset, slot.buffers.receiveBytes);
}

bool agree(const Collective& all, std::uint64_t number, Clique& clique) {
  std::int64_t unused = 0;
  const bool silent = gpu::standing("mixed", "rank", 0, &unused);
  const Call& first = all.slots[0].call;
  for (std::size_t rank = 1; rank < all.slots.size(); rank++) {
    const Call& other = all.slots[rank].call;
    if (!(first == other) && silent) {
      return false;
    }
    if (!(first == other)) {
      fail(clique, ncclInvalidUsage, "collective " + std::to_string(number) + ": rank 0 calls " + text(first) + ", rank " + std::to_string(rank) +
                                         " calls " + text(other));
      return false;
    }
  }
  return true;
}

void putCollective(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, const Call& call, const Buffers& buffers) {
  if (comm->clique->board != nullptr) {
    putRemote(queue, comm, call, buffers);
    return;
  }
  auto part = std::make_unique<Part>();
  part->collective = comm->collectives++;
  auto& whole = comm->clique->collectives[part->collective];
  if (whole == nullptr) {
    whole = std::make_shared<Collective>();
    whole->slots.resize(comm->clique->members.size());
  }
  part->whole = whole;
  part->failWith = gpu::firing("nccl_async", "rank", comm->rank);
  Collective::Slot& slot = whole->slots[static_cast<std::size_t>(comm->rank)];
  slot.present = true;
  slot.call = call;
  slot.buffers = buffers;
  slot.point = put(queue, comm, std::move(part));
}

}  // namespace nccl
