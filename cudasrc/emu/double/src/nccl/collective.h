// What collectives of ranks in one process and in several have in common.
#pragma once

#include "work.h"

namespace nccl {

// Collective is what the ranks ask for with the same call.
struct Collective {
  struct Slot {
    bool present = false, arrived = false;
    Call call;
    Buffers buffers;
    gpu::Point point;
  };
  std::vector<Slot> slots;  // by rank
  bool finished = false;
};

// resultOf returns what a collective gives: what all ranks receive, or, one after
// another, what each does.
std::vector<char> resultOf(const Collective& all);

// deliver copies a rank's part of the result to where the rank wants it.
void deliver(const Collective& all, const std::vector<char>& result, std::size_t rank);

// agree says whether all ranks ask for the same; else it fails the ranks of this
// process.
bool agree(const Collective& all, std::uint64_t number, Clique& clique);

std::string text(const Call& call);

// putRemote is putCollective for a communicator of several processes.
void putRemote(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, const Call& call, const Buffers& buffers);

}  // namespace nccl
