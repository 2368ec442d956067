// Communicators: the ranks that share an id are a clique. All of this is under
// the mutex of the driver's State.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "api.h"
#include "cuda/faults.h"
#include "cuda/state.h"

namespace nccl {

// A Message is one side of a transfer between two ranks; partner is the other.
struct Message {
  std::shared_ptr<ncclComm> owner;
  bool isSend = false, done = false, dropped = false;
  int peer = 0;
  std::uint64_t address = 0;
  std::size_t bytes = 0;
  std::shared_ptr<Message> partner;
};

// Channel holds what waits for its partner on the way from one rank to another.
struct Channel {
  std::deque<std::shared_ptr<Message>> sends, receives;
};

// Split is one call of ncclCommSplit by all ranks.
struct Split {
  struct Wish {
    bool made = false;
    int color = 0, key = 0;
  };
  std::vector<Wish> wishes;
  int made = 0;
  std::map<int, std::shared_ptr<struct Clique>> cliques;  // by color, when all have come
};

// Clique is the ranks of an id; those in other processes stay null. It and its ranks keep each other alive: a test's
// process ends before that matters.
struct Clique {
  std::vector<std::shared_ptr<ncclComm>> members;  // by rank; null until it comes
  int joined = 0;                                  // of this process
  ncclResult_t failure = ncclSuccess;
  std::map<std::uint64_t, std::shared_ptr<struct Collective>> collectives;  // not finished, by number
  std::map<std::uint64_t, std::shared_ptr<Split>> splits;
  std::map<std::pair<int, int>, Channel> channels;  // by sender and receiver
  struct Board* board = nullptr;                    // where ranks are in other processes
  std::string name;                                 // of the board

  explicit Clique(int ranks) : members(static_cast<std::size_t>(ranks)) {}
  int ranks() const { return static_cast<int>(members.size()); }
  bool complete() const;
};

// fail sets an asynchronous error on all ranks and prints why.
void fail(Clique& clique, ncclResult_t status, const std::string& why);

// refuse keeps a message for ncclGetLastError and returns a status.
ncclResult_t refuse(ncclResult_t status, const std::string& why);
const char* lastRefusal();

// communicator returns what a handle stands for, or null.
std::shared_ptr<ncclComm> communicator(ncclComm_t handle);

// finish waits for a communicator to be complete.
ncclResult_t finish(gpu::Lock& lock, const std::shared_ptr<ncclComm>& comm);

// ready says whether work can be put on a communicator.
ncclResult_t usable(const ncclComm& comm);

inline int currentIndex() { return gpu::current() == nullptr ? -1 : gpu::current()->index; }

// withComm does a call on a communicator.
template <class Body>
ncclResult_t withComm(const char* name, ncclComm_t handle, Body body) {
  if (const int status = gpu::enter(name, currentIndex())) {
    return static_cast<ncclResult_t>(status);
  }
  gpu::Lock lock(gpu::state().mutex);
  const std::shared_ptr<ncclComm> comm = communicator(handle);
  if (comm == nullptr) {
    return refuse(ncclInvalidArgument, std::string(name) + ": no communicator");
  }
  return static_cast<ncclResult_t>(body(comm, lock));
}

}  // namespace nccl

// ncclComm is a rank of a clique.
struct ncclComm {
  std::shared_ptr<nccl::Clique> clique;
  int rank = 0;
  gpu::Device* device = nullptr;
  bool blocking = true, aborted = false, finalized = false;
  ncclResult_t async = ncclSuccess;
  std::uint64_t issued = 0, completed = 0;      // operations
  std::uint64_t collectives = 0, splits = 0;    // issued
  std::uint64_t demanded = 0;                   // operations before this one were, for other processes
  std::map<std::uint64_t, gpu::Point> pending;  // of the operations that are not completed, by number
};
