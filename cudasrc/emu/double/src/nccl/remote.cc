// Collectives of ranks in different processes: a rank's inputs go onto the board
// when its stream comes to the launch; what comes out is computed from all inputs by
// the same code as in one process.
#include <cstring>

#include "board.h"
#include "collective.h"

namespace nccl {
namespace {

// Step is one of the two operations of a launch.
struct Step : Work {
  Launch launch;
  std::uint64_t collective = 0;  // the launch's number among the communicator's

  Board& board() const { return *comm->clique->board; }
  Seat& seat() const { return board().seats[comm->rank]; }
  void addPeers(std::vector<gpu::Point>&) const override {}
  std::string describe() const override { return text(launch) + " of rank " + std::to_string(comm->rank) + ", with other processes"; }
};

// Offer puts the inputs onto the board.
struct Offer : Step {
  int failWith = 0;  // an injected asynchronous error

  bool arrive() override {
    if (failWith != 0) {
      comm->async = static_cast<ncclResult_t>(failWith);
      return false;
    }
    return board().mayPut(&Seat::collectives, collective);
  }

  void perform() override {
    char* to = board().inputs[comm->rank];
    seat().together = launch.size();
    for (std::size_t i = 0; i < launch.size(); i++) {
      const Buffers& own = launch[i].buffers;
      seat().calls[i] = launch[i].call;
      seat().bytes[i] = own.sendBytes;
      std::memcpy(to, reinterpret_cast<const void*>(own.send), own.sendBytes);
      to += own.sendBytes;
    }
    seat().collectives.put = collective + 1;
  }
};

// Fetch computes the results from all inputs.
struct Fetch : Step {
  bool arrive() override { return board().allPut(&Seat::collectives, collective) && agree(onBoard(), collective, *comm->clique); }

  Collective onBoard() const {
    Collective all;
    all.slots.resize(comm->clique->members.size());
    for (std::size_t rank = 0; rank < all.slots.size(); rank++) {
      const Seat& from = board().seats[rank];
      auto input = reinterpret_cast<std::uint64_t>(board().inputs[rank]);
      for (std::size_t i = 0; i < from.together; i++) {
        all.slots[rank].launch.push_back({from.calls[i], {input, 0, from.bytes[i], 0}});
        input += from.bytes[i];
      }
    }
    Launch& own = all.slots[static_cast<std::size_t>(comm->rank)].launch;
    for (std::size_t i = 0; i < own.size(); i++) {
      own[i].buffers.receive = launch[i].buffers.receive;
      own[i].buffers.receiveBytes = launch[i].buffers.receiveBytes;
    }
    return all;
  }

  void perform() override {
    const Collective all = onBoard();
    for (std::size_t i = 0; i < launch.size(); i++) {
      deliver(all, i, resultOf(all, i), static_cast<std::size_t>(comm->rank));
    }
    seat().collectives.read = collective + 1;
  }
};

}  // namespace

void putRemote(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, const Launch& launch) {
  auto offer = std::make_unique<Offer>();
  auto fetch = std::make_unique<Fetch>();
  for (Step* step : {static_cast<Step*>(offer.get()), static_cast<Step*>(fetch.get())}) {
    step->launch = launch;
    step->collective = comm->collectives;
  }
  comm->collectives++;
  offer->failWith = gpu::firing("nccl_async", "rank", comm->rank);
  put(queue, comm, std::move(offer));
  put(queue, comm, std::move(fetch));
}

}  // namespace nccl
