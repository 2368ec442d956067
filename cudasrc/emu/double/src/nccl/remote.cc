// Collectives of ranks in different processes: a rank's input goes onto the board
// when its stream comes to the collective; what comes out is computed from all
// inputs by the same code as in one process.
#include <cstring>

#include "board.h"
#include "collective.h"

namespace nccl {
namespace {

// Step is one of the two operations of a collective.
struct Step : Work {
  Call call;
  Buffers buffers;
  std::uint64_t collective = 0;  // its number among the communicator's

  Board& board() const { return *comm->clique->board; }
  Seat& seat() const { return board().seats[comm->rank]; }
  void addPeers(std::vector<gpu::Point>&) const override {}
  std::string describe() const override { return text(call) + " of rank " + std::to_string(comm->rank) + ", with other processes"; }
};

// Offer puts the input onto the board.
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
    seat().call = call;
    seat().bytes = buffers.sendBytes;
    std::memcpy(board().inputs[comm->rank], reinterpret_cast<const void*>(buffers.send), buffers.sendBytes);
    seat().collectives.put = collective + 1;
  }
};

// Fetch computes the result from all inputs.
struct Fetch : Step {
  bool arrive() override { return board().allPut(&Seat::collectives, collective) && agree(onBoard(), collective, *comm->clique); }

  Collective onBoard() const {
    Collective all;
    all.slots.resize(comm->clique->members.size());
    for (std::size_t rank = 0; rank < all.slots.size(); rank++) {
      const Seat& from = board().seats[rank];
      all.slots[rank].call = from.call;
      all.slots[rank].buffers.send = reinterpret_cast<std::uint64_t>(board().inputs[rank]);
      all.slots[rank].buffers.sendBytes = from.bytes;
    }
    all.slots[static_cast<std::size_t>(comm->rank)].buffers.receive = buffers.receive;
    all.slots[static_cast<std::size_t>(comm->rank)].buffers.receiveBytes = buffers.receiveBytes;
    return all;
  }

  void perform() override {
    const Collective all = onBoard();
    deliver(all, resultOf(all), static_cast<std::size_t>(comm->rank));
    seat().collectives.read = collective + 1;
  }
};

}  // namespace

void putRemote(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, const Call& call, const Buffers& buffers) {
  auto offer = std::make_unique<Offer>();
  auto fetch = std::make_unique<Fetch>();
  for (Step* step : {static_cast<Step*>(offer.get()), static_cast<Step*>(fetch.get())}) {
    step->call = call;
    step->buffers = buffers;
    step->collective = comm->collectives;
  }
  comm->collectives++;
  offer->failWith = gpu::firing("nccl_async", "rank", comm->rank);
  put(queue, comm, std::move(offer));
  put(queue, comm, std::move(fetch));
}

}  // namespace nccl
