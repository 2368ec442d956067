// Collectives: a rank's launch arrives when it is at the head of its stream; when
// all have arrived, the first that the scheduler picks moves all data. The
// collectives of a group are one launch: they start together, and what one of them
// writes no other reads.
//
// The ranks' k-th launches must be the same calls: NCCL would hang or corrupt
// memory, the double reports it to all ranks as an asynchronous error. With the
// fault "mixed" it hangs, too.
#include <algorithm>
#include <cstring>

#include "collective.h"

namespace nccl {
namespace {

const char* nameOf(Kind kind) {
  const char* const names[] = {"ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclBroadcast"};
  return names[static_cast<int>(kind)];
}

std::string textOf(const Call& call) {
  return std::string(nameOf(call.kind)) + "(count " + std::to_string(call.count) + ", type " + std::to_string(call.type) + ", op " +
         std::to_string(call.operation) + ", root " + std::to_string(call.root) + ")";
}

char* at(std::uint64_t address) { return reinterpret_cast<char*>(address); }

// gatherAll returns what all ranks send, one after another.
std::vector<char> gatherAll(const Collective& all, std::size_t i) {
  std::vector<char> data;
  for (const auto& slot : all.slots) {
    const Buffers& own = slot.launch[i].buffers;
    data.insert(data.end(), at(own.send), at(own.send) + own.sendBytes);
  }
  return data;
}

std::vector<char> reduceAll(const Collective& all, std::size_t i) {
  const Request& first = all.slots[0].launch[i];
  std::vector<const char*> inputs;
  for (const auto& slot : all.slots) {
    inputs.push_back(at(slot.launch[i].buffers.send));
  }
  return reduce(first.call, first.buffers.sendBytes / bytesOf(first.call.type), inputs);
}

// move does a launch: all is read before anything is written, so that buffers in
// place work, and collectives of a group that depend on each other don't.
void move(const Collective& all) {
  std::vector<std::vector<char>> results;
  for (std::size_t i = 0; i < all.slots[0].launch.size(); i++) {
    results.push_back(resultOf(all, i));
  }
  for (std::size_t i = 0; i < results.size(); i++) {
    for (std::size_t rank = 0; rank < all.slots.size(); rank++) {
      deliver(all, i, results[i], rank);
    }
  }
}

bool same(const Launch& a, const Launch& b) {
  const auto alike = [](const Request& x, const Request& y) { return x.call == y.call; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), alike);
}

// Part is what one rank does of a launch.
struct Part : Work {
  std::shared_ptr<Collective> whole;
  std::uint64_t collective = 0;  // the launch's number among the communicator's
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

  std::string describe() const override { return text(slot().launch) + " of rank " + std::to_string(comm->rank); }
};

}  // namespace

std::string text(const Launch& launch) {
  std::string all = launch.size() == 1 ? "" : "a group of " + std::to_string(launch.size()) + ": ";
  for (const Request& request : launch) {
    all += (&request == launch.data() ? "" : ", ") + textOf(request.call);
  }
  return all;
}

std::vector<char> resultOf(const Collective& all, std::size_t i) {
  const Call& call = all.slots[0].launch[i].call;
  switch (call.kind) {
    case Kind::kAllGather:
      return gatherAll(all, i);
    case Kind::kBroadcast: {
      const Buffers& root = all.slots[static_cast<std::size_t>(call.root)].launch[i].buffers;
      return {at(root.send), at(root.send) + root.sendBytes};
    }
    case Kind::kReduceScatter:
    case Kind::kAllReduce:
      break;
  }
  return reduceAll(all, i);
}

void deliver(const Collective& all, std::size_t i, const std::vector<char>& result, std::size_t rank) {
  const Request& own = all.slots[rank].launch[i];
  const std::size_t offset = own.call.kind == Kind::kReduceScatter ? rank * own.buffers.receiveBytes : 0;
  std::memcpy(at(own.buffers.receive), result.data() + offset, own.buffers.receiveBytes);
}

bool agree(const Collective& all, std::uint64_t number, Clique& clique) {
  std::int64_t unused = 0;
  const bool silent = gpu::standing("mixed", "rank", 0, &unused);
  const Launch& first = all.slots[0].launch;
  for (std::size_t rank = 1; rank < all.slots.size(); rank++) {
    const Launch& other = all.slots[rank].launch;
    if (!same(first, other) && silent) {
      return false;
    }
    if (!same(first, other)) {
      fail(clique, ncclInvalidUsage, "collective " + std::to_string(number) + ": rank 0 calls " + text(first) + ", rank " + std::to_string(rank) +
                                         " calls " + text(other));
      return false;
    }
  }
  return true;
}

void putLaunch(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, const Launch& launch) {
  if (comm->clique->board != nullptr) {
    putRemote(queue, comm, launch);
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
  slot.launch = launch;
  slot.point = put(queue, comm, std::move(part));
}

}  // namespace nccl
