// Groups: what a thread calls between ncclGroupStart and ncclGroupEnd. Nothing of it
// starts before the end, and then all of it does, or, after a call that failed,
// nothing.
#pragma once

#include "work.h"

namespace nccl {

// Issue is a call that is to be put on a stream: a collective, or a message.
struct Issue {
  std::shared_ptr<ncclComm> comm;
  std::shared_ptr<gpu::Queue> queue;
  Request request;
  std::shared_ptr<Message> message;  // null for a collective
};

// submit puts a call on its stream, at the end of the group where there is one. The
// caller of this and of finishInGroup holds the driver's mutex.
void submit(Issue issue);

// finishInGroup leaves the wait for a communicator to the end of the group; it
// returns false outside of groups.
bool finishInGroup(const std::shared_ptr<ncclComm>& comm);

// failInGroup makes the end of the group return a call's error, and returns it.
ncclResult_t failInGroup(ncclResult_t status);

}  // namespace nccl
