// What launches of ranks in one process and in several have in common.
#pragma once

#include "work.h"

namespace nccl {

// Collective is what the ranks ask for with launches of the same number.
struct Collective {
  struct Slot {
    bool present = false, arrived = false;
    Launch launch;
    gpu::Point point;
  };
  std::vector<Slot> slots;  // by rank
  bool finished = false;
};

// resultOf returns what the i-th collective of a launch gives: what all ranks
// receive, or, one after another, what each does.
std::vector<char> resultOf(const Collective& all, std::size_t i);

// deliver copies a rank's part of such a result to where the rank wants it.
void deliver(const Collective& all, std::size_t i, const std::vector<char>& result, std::size_t rank);

// agree says whether all ranks ask for the same; else it fails the ranks of this
// process.
bool agree(const Collective& all, std::uint64_t number, Clique& clique);

std::string text(const Launch& launch);

// putRemote is putLaunch for a communicator of several processes.
void putRemote(const std::shared_ptr<gpu::Queue>& queue, const std::shared_ptr<ncclComm>& comm, const Launch& launch);

}  // namespace nccl
