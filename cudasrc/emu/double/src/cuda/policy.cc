// The policies, all of which a GPU could follow: they differ in which of the
// operations that may run now does.
//
// Work that no thread waits for yet is held back for a moment by the policies
// that look for missing dependencies: else the scheduler would keep up with the
// host, and work would run in the order of the calls.
#include "policy.h"

#include <cstdlib>

namespace gpu {
namespace {

enum class Kind { kRandom, kStarve, kFifo, kLazy };

constexpr std::uint64_t kStarveClasses = 4;
constexpr auto kRandomHold = std::chrono::microseconds(300);
constexpr auto kStarveHold = std::chrono::milliseconds(2);

struct Policy {
  Kind kind = Kind::kRandom;
  std::uint64_t starved = 0;
  std::mt19937_64 random{1};
};

Policy& policy() {
  static Policy& one = *new Policy;
  return one;
}

Queue* oldest(const std::vector<Queue*>& queues) {
  Queue* first = nullptr;
  for (Queue* queue : queues) {
    if (first == nullptr || queue->items.front().order < first->items.front().order) {
      first = queue;
    }
  }
  return first;
}

Queue* any(const std::vector<Queue*>& queues) { return queues[policy().random() % queues.size()]; }

Choice chooseRandom(const std::vector<Queue*>& runnable, const std::vector<Queue*>& wanted, bool held) {
  if (wanted.empty() && !held) {
    return {nullptr, kRandomHold};
  }
  const bool late = !wanted.empty() && policy().random() % 4 != 0;
  return {any(late ? wanted : runnable), {}};
}

Choice chooseStarving(const std::vector<Queue*>& runnable, const std::vector<Queue*>& wanted, bool held) {
  std::vector<Queue*> fed;
  for (Queue* queue : runnable) {
    if (queue->index % kStarveClasses != policy().starved) {
      fed.push_back(queue);
    }
  }
  if (!fed.empty()) {
    return {oldest(fed), {}};
  }
  if (!wanted.empty() || held) {
    return {oldest(wanted.empty() ? runnable : wanted), {}};
  }
  return {nullptr, kStarveHold};
}

bool readNumber(const std::string& text, std::uint64_t* number) {
  char* end = nullptr;
  *number = std::strtoull(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0';
}

}  // namespace

std::string usePolicy(const std::string& text) {
  const auto colon = text.find(':');
  const std::string name = text.substr(0, colon), rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  std::uint64_t number = 0;
  if (name == "fifo" && rest.empty()) {
    policy().kind = Kind::kFifo;
  } else if (name == "lazy" && rest.empty()) {
    policy().kind = Kind::kLazy;
  } else if (name == "random" && readNumber(rest, &number)) {
    policy().kind = Kind::kRandom;
    policy().random.seed(number);
  } else if (name == "starve" && readNumber(rest, &number) && number < kStarveClasses) {
    policy().kind = Kind::kStarve;
    policy().starved = number;
  } else {
    return "schedule " + text + ": want random:<seed>, starve:<0 to 3>, fifo or lazy";
  }
  return "";
}

Choice choose(const std::vector<Queue*>& runnable, const std::vector<Queue*>& wanted, bool held) {
  if (runnable.empty()) {
    return {};
  }
  switch (policy().kind) {
    case Kind::kRandom:
      return chooseRandom(runnable, wanted, held);
    case Kind::kStarve:
      return chooseStarving(runnable, wanted, held);
    case Kind::kFifo:
      return {oldest(runnable), {}};
    case Kind::kLazy:
      return {oldest(wanted), {}};
  }
  return {};
}

bool reversedThreads() { return policy().kind == Kind::kRandom && policy().random() % 2 == 0; }

}  // namespace gpu
