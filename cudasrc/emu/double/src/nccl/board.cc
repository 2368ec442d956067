#include "board.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace nccl {
namespace {

constexpr auto kBoardPoll = std::chrono::microseconds(200);

std::vector<std::shared_ptr<Clique>>& onBoards() {
  static auto& all = *new std::vector<std::shared_ptr<Clique>>;
  return all;
}

// demandNext makes the scheduler do a rank's next work if another rank is ahead
// of it: what another process waits for is demanded here, too.
void demandNext(const Clique& clique, ncclComm& comm) {
  if (comm.pending.empty() || comm.pending.begin()->first < comm.demanded) {
    return;
  }
  const std::uint64_t own = clique.board->seats[comm.rank].collectives.put;
  for (int rank = 0; rank < clique.ranks(); rank++) {
    if (clique.board->seats[rank].collectives.put > own) {
      gpu::state().demands.push_back(comm.pending.begin()->second);
      comm.demanded = comm.pending.begin()->first + 1;
      return;
    }
  }
}

// poll wakes all waits again and again, since other processes can't.
void poll() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  for (;;) {
    std::this_thread::sleep_for(kBoardPoll);
    const gpu::Lock lock(gpu::state().mutex);
    for (const auto& clique : onBoards()) {
      for (const auto& comm : clique->members) {
        if (comm != nullptr) {
          demandNext(*clique, *comm);
        }
      }
    }
    if (!onBoards().empty()) {
      gpu::state().changed.notify_all();
    }
  }
}

Board* mapBoard(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) {
    return nullptr;
  }
  void* mapped = MAP_FAILED;
  if (ftruncate(file, sizeof(Board)) == 0) {
    mapped = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  }
  close(file);
  return mapped == MAP_FAILED ? nullptr : static_cast<Board*>(mapped);
}

// take takes a seat; the last to come takes the board's name away.
ncclResult_t take(Board& board, const std::string& path, int ranks, int rank) {
  int none = 0;
  if (!board.ranks.compare_exchange_strong(none, ranks) && none != ranks) {
    return refuse(ncclInvalidArgument, "ncclCommInitRank: ranks disagree on their number: " + std::to_string(none) + " and " + std::to_string(ranks));
  }
  if (board.seats[rank].taken.exchange(true)) {
    return refuse(ncclInvalidArgument, "ncclCommInitRank: rank " + std::to_string(rank) + " came twice");
  }
  if (++board.joined == ranks) {
    unlink(path.c_str());
  }
  return ncclSuccess;
}

bool isOver(const ncclComm& comm) { return comm.aborted || comm.async != ncclSuccess; }

}  // namespace

bool Clique::complete() const { return (board == nullptr ? joined : board->joined.load()) == ranks(); }

bool Board::mayPut(Turns Seat::*kind, std::uint64_t number) const {
  for (int rank = 0; rank < ranks; rank++) {
    if ((seats[rank].*kind).read < number) {
      return false;
    }
  }
  return true;
}

bool Board::allPut(Turns Seat::*kind, std::uint64_t number) const {
  for (int rank = 0; rank < ranks; rank++) {
    if ((seats[rank].*kind).put <= number) {
      return false;
    }
  }
  return true;
}

ncclResult_t sitDown(const std::shared_ptr<Clique>& clique, const std::string& name, int rank) {
  const char* folder = std::getenv("EMU_SHARED");
  if (folder == nullptr || *folder == '\0' || clique->ranks() == 1) {
    return ncclSuccess;
  }
  const std::string path = std::string(folder) + "/" + name;
  if (clique->ranks() > kMostSeats) {
    return refuse(ncclInvalidArgument, "ncclCommInitRank: " + std::to_string(clique->ranks()) + " ranks share a board of " + std::to_string(kMostSeats));
  }
  if (clique->board == nullptr) {
    clique->name = name;
    clique->board = mapBoard(path);
    if (clique->board == nullptr) {
      return refuse(ncclSystemError, "ncclCommInitRank: " + path + " (EMU_SHARED) can't be shared");
    }
    static std::thread& polling = *new std::thread(poll);
    (void)polling;
    onBoards().push_back(clique);
  }
  return take(*clique->board, path, clique->ranks(), rank);
}

std::string boardName(const std::string& id) {
  char name[32];
  std::snprintf(name, sizeof name, "nccl-%016zx", std::hash<std::string>()(id));
  return name;
}

bool exchangeWishes(gpu::Lock& lock, const ncclComm& comm, std::uint64_t number, Split& split) {
  Board& board = *comm.clique->board;
  Seat& own = board.seats[comm.rank];
  gpu::until(lock, "ncclCommSplit", [&] { return board.mayPut(&Seat::splits, number) || isOver(comm); });
  if (isOver(comm)) {
    return false;
  }
  own.wish = split.wishes[static_cast<std::size_t>(comm.rank)];
  own.splits.put = number + 1;
  gpu::until(lock, "ncclCommSplit", [&] { return board.allPut(&Seat::splits, number) || isOver(comm); });
  if (!board.allPut(&Seat::splits, number)) {
    return false;
  }
  for (std::size_t rank = 0; rank < split.wishes.size(); rank++) {
    split.wishes[rank] = board.seats[rank].wish;
  }
  own.splits.read = number + 1;
  return true;
}

void leaveBoards() { onBoards().clear(); }

}  // namespace nccl
