// Sends and receives. All of a group's on one communicator are one exchange,
// which posts its messages when it is at the head of its stream and ends when
// all have met their partners: the n-th send from a rank to another meets the
// n-th receive there.
#include <cstring>

#include "work.h"

namespace nccl {
namespace {

void dropFrom(std::deque<std::shared_ptr<Message>>& messages) {
  while (!messages.empty() && messages.front()->dropped) {
    messages.pop_front();
  }
}

// post finds a message's partner or leaves the message for it.
void post(Clique& clique, const std::shared_ptr<Message>& message) {
  const int own = message->owner->rank;
  Channel& channel = clique.channels[message->isSend ? std::pair(own, message->peer) : std::pair(message->peer, own)];
  auto& others = message->isSend ? channel.receives : channel.sends;
  dropFrom(others);
  if (others.empty()) {
    (message->isSend ? channel.sends : channel.receives).push_back(message);
    return;
  }
  message->partner = others.front();
  message->partner->partner = message;
  others.pop_front();
  if (message->partner->bytes != message->bytes) {
    fail(clique, ncclInvalidUsage, "ranks " + std::to_string(own) + " and " + std::to_string(message->peer) + " send and receive " +
                                       std::to_string(message->bytes) + " and " + std::to_string(message->partner->bytes) + " bytes");
  }
}

void transfer(Message& one) {
  const Message &from = one.isSend ? one : *one.partner, &to = one.isSend ? *one.partner : one;
  std::memmove(reinterpret_cast<void*>(to.address), reinterpret_cast<const void*>(from.address), to.bytes);
  one.done = one.partner->done = true;
}

struct Exchange : Work {
  std::vector<std::shared_ptr<Message>> messages;
  bool posted = false;

  bool arrive() override {
    if (!posted) {
      posted = true;
      for (const auto& message : messages) {
        post(*comm->clique, message);
      }
    }
    for (const auto& message : messages) {
      if (message->partner == nullptr) {
        return false;
      }
    }
    return comm->async == ncclSuccess;
  }

  void perform() override {
    for (const auto& message : messages) {
      if (!message->done) {
        transfer(*message);
      }
    }
  }

  // What the peers have to do first is on any of their streams.
  void addPeers(std::vector<gpu::Point>& points) const override {
    for (const auto& message : messages) {
      for (const auto& entry : comm->clique->members[static_cast<std::size_t>(message->peer)]->pending) {
        points.push_back(entry.second);
      }
    }
  }

  void ended() override {
    Work::ended();
    for (const auto& message : messages) {
      message->dropped = !message->done;
      if (message->partner != nullptr && !message->done) {
        message->partner->partner = nullptr;  // it waits for good
      }
      message->partner = nullptr;
    }
  }

  std::string describe() const override {
    return "exchange of " + std::to_string(messages.size()) + " messages of rank " + std::to_string(comm->rank);
  }
};

}  // namespace

void putExchange(const std::shared_ptr<gpu::Queue>& queue, const std::vector<std::shared_ptr<Message>>& messages) {
  auto exchange = std::make_unique<Exchange>();
  exchange->messages = messages;
  put(queue, messages.front()->owner, std::move(exchange));
}

}  // namespace nccl
