// Ranks in different processes. With EMU_SHARED, a folder, in the environment the
// ranks of an id meet on a board: memory that their processes share. It is a file
// in that folder until all have come; from then on it has no name, so nothing of
// it is left when the processes end.
//
// What a rank asks for, a launch with its inputs or a split, it puts into its
// seat once all ranks have read what was there before. When all have put theirs,
// each computes the result for itself.
//
// A rank whose process dies puts nothing more: the others wait until they abort.
#pragma once

#include <atomic>

#include "work.h"

namespace nccl {

constexpr int kMostSeats = 16;
constexpr std::size_t kSeatBytes = std::size_t{64} << 20;  // of a rank's inputs
constexpr std::size_t kMostTogether = 16;                  // collectives in a launch

// Turns counts the requests of a kind that a rank has put into its seat, and of
// how many it has read all ranks' seats.
struct Turns {
  std::atomic<std::uint64_t> put, read;
};

struct Seat {
  std::atomic<bool> taken;
  Turns collectives, splits;
  std::size_t together;  // collectives in its launch
  Call calls[kMostTogether];
  std::size_t bytes[kMostTogether];  // of their inputs, which lie one behind the other
  Split::Wish wish;
};

// Board begins as zeros, which are no ranks.
struct Board {
  std::atomic<int> ranks, joined;
  Seat seats[kMostSeats];
  alignas(4096) char inputs[kMostSeats][kSeatBytes];

  // mayPut says whether all ranks have read what came before their number-th.
  bool mayPut(Turns Seat::*kind, std::uint64_t number) const;
  // allPut says whether all have put their number-th.
  bool allPut(Turns Seat::*kind, std::uint64_t number) const;
};

// sitDown gives a rank its seat on the clique's board, where the environment asks
// for boards; name is that of the board.
ncclResult_t sitDown(const std::shared_ptr<Clique>& clique, const std::string& name, int rank);

// boardName returns the name of an id's board.
std::string boardName(const std::string& id);

// exchangeWishes does its rank's part of a split; it returns false where the
// communicator ends before all have come.
bool exchangeWishes(gpu::Lock& lock, const ncclComm& comm, std::uint64_t number, Split& split);

// leaveBoards forgets all boards.
void leaveBoards();

}  // namespace nccl
