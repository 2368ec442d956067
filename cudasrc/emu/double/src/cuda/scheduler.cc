// The scheduler: one thread that does all work of all queues of all devices, one
// operation at a time.
//
// A memory access of an operation that hits no live memory breaks the context
// with CUDA_ERROR_ILLEGAL_ADDRESS, as a GPU does, and is noted.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>

#include <pthread.h>

#include "faults.h"
#include "policy.h"
#include "state.h"

namespace gpu {
namespace {

constexpr auto kSlowPoll = std::chrono::milliseconds(1);

// What the signal handler needs.
pthread_t schedulerThread;
sigjmp_buf recovery;
volatile std::sig_atomic_t recoverable = 0;
void* volatile faultAddress = nullptr;
struct sigaction previous[2];  // of SIGSEGV and SIGBUS, that were installed before

// onFault brings the scheduler back from an operation; faults of other threads
// are left to the handler that was there before.
void onFault(int signal, siginfo_t* info, void* context) {
  if (recoverable != 0 && pthread_equal(pthread_self(), schedulerThread)) {
    faultAddress = info->si_addr;
    recoverable = 0;
    siglongjmp(recovery, 1);
  }
  const struct sigaction& before = previous[signal == SIGBUS ? 1 : 0];
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
    return;
  }
  std::signal(signal, SIG_DFL);
}

void installHandlers() {
  struct sigaction action = {};
  action.sa_sigaction = onFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &previous[0]);
  sigaction(SIGBUS, &action, &previous[1]);
  // The emulator aborts on a kernel that can't work: with the message it has
  // printed, not with a list of goroutines.
  std::signal(SIGABRT, SIG_DFL);
}

// runGuarded runs an operation; a bad access ends it.
CUresult runGuarded(Operation& operation) {
  if (sigsetjmp(recovery, 1) != 0) {
    char text[64];
    std::snprintf(text, sizeof text, ": access to %p, which is no live memory", faultAddress);
    note(operation.describe() + text);
    return CUDA_ERROR_ILLEGAL_ADDRESS;
  }
  recoverable = 1;
  const CUresult status = operation.run();
  recoverable = 0;
  return status;
}

// slowed says whether a fault delays the head of a queue now.
bool slowed(const Queue& queue, Item& item) {
  std::int64_t milliseconds = 2;
  if (!item.slowed && standing("slow", "stream", static_cast<std::int64_t>(queue.index), &milliseconds)) {
    item.slowed = true;
    item.notBefore = Clock::now() + std::chrono::milliseconds(milliseconds);
  }
  return item.slowed && Clock::now() < item.notBefore;
}

// addOlder adds the points of other queues that the default stream, or a stream
// that is ordered with it, waits for.
void addOlder(const Queue& queue, std::vector<Point>& points) {
  const bool isDefault = &queue == queue.device->defaultQueue.get();
  for (const auto& other : state().queues) {
    if (other.get() == &queue || other->device != queue.device || other->items.empty()) {
      continue;
    }
    const bool related = isDefault ? other->ordered : queue.ordered && other == queue.device->defaultQueue;
    if (related && other->items.front().order < queue.items.front().order) {
      points.push_back({other, other->done + 1});
    }
  }
}

bool headReady(Queue& queue) {
  Item& item = queue.items.front();
  if (queue.device->sticky != CUDA_SUCCESS) {
    return true;  // to be dropped
  }
  std::vector<Point> older;
  addOlder(queue, older);
  return older.empty() && !slowed(queue, item) && item.operation->ready();
}

// wantedQueues are those whose heads must run before the demanded points.
std::set<const Queue*> wantedQueues() {
  State& world = state();
  std::vector<Point> rest;
  for (const Point& point : world.demands) {
    if (!point.past()) {
      rest.push_back(point);
    }
  }
  world.demands = rest;
  std::set<const Queue*> wanted;
  while (!rest.empty()) {
    const Point point = rest.back();
    rest.pop_back();
    if (point.past() || point.queue->items.empty() || !wanted.insert(point.queue.get()).second) {
      continue;
    }
    addOlder(*point.queue, rest);
    point.queue->items.front().operation->blockers(rest);
  }
  return wanted;
}

void forgetEmptyQueues() {
  auto& queues = state().queues;
  for (std::size_t i = 0; i < queues.size();) {
    if (queues[i]->destroyed && queues[i]->items.empty()) {
      queues.erase(queues.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      i++;
    }
  }
}

// next waits for work; the mutex is held when it returns.
std::shared_ptr<Queue> next(Lock& lock) {
  State& world = state();
  bool holding = false;
  Clock::time_point holdEnd;
  for (;;) {
    std::vector<Queue*> runnable, wanted;
    const std::set<const Queue*> needed = wantedQueues();
    bool anySlow = false;
    for (const auto& queue : world.queues) {
      if (queue->items.empty()) {
        continue;
      }
      if (headReady(*queue)) {
        runnable.push_back(queue.get());
        if (needed.count(queue.get()) != 0) {
          wanted.push_back(queue.get());
        }
      }
      anySlow = anySlow || queue->items.front().slowed;
    }
    const Choice choice = choose(runnable, wanted, holding && Clock::now() >= holdEnd);
    if (choice.queue != nullptr) {
      for (const auto& queue : world.queues) {
        if (queue.get() == choice.queue) {
          return queue;
        }
      }
    }
    if (choice.hold.count() > 0) {
      holdEnd = holding ? holdEnd : Clock::now() + choice.hold;
      holding = true;
      world.changed.wait_until(lock, holdEnd);
    } else if (anySlow) {
      world.changed.wait_for(lock, kSlowPoll);
    } else {
      world.changed.wait(lock);
    }
  }
}

void breakContext(Device& device, CUresult status, const std::string& by) {
  if (device.sticky == CUDA_SUCCESS) {
    device.sticky = status;
    std::fprintf(stderr, "emulated GPU %d: status %d from %s\n", device.index, static_cast<int>(status), by.c_str());
  }
}

// step does the head of a queue.
void step(Lock& lock, const std::shared_ptr<Queue>& queue) {
  State& world = state();
  Operation& operation = *queue->items.front().operation;
  if (queue->device->sticky == CUDA_SUCCESS) {
    world.running = true;
    lock.unlock();
    const CUresult status = runGuarded(operation);
    lock.lock();
    world.running = false;
    if (status != CUDA_SUCCESS) {
      breakContext(*queue->device, status, operation.describe());
    }
  }
  operation.ended();
  queue->items.pop_front();
  queue->done++;
  forgetEmptyQueues();
  world.changed.notify_all();
}

void schedule() {
  sigset_t all;
  sigfillset(&all);
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    sigdelset(&all, signal);
  }
  pthread_sigmask(SIG_SETMASK, &all, nullptr);
  Lock lock(state().mutex);
  schedulerThread = pthread_self();
  for (;;) {
    step(lock, next(lock));
  }
}

// stuck ends the process, saying what the queues wait for.
[[noreturn]] void stuck(const std::string& what) {
  std::fprintf(stderr, "emulated GPU: %s: nothing came for %s s (EMU_DEADLINE)\n", what.c_str(), setting("EMU_DEADLINE", "120").c_str());
  for (const auto& queue : state().queues) {
    if (!queue->items.empty()) {
      std::fprintf(stderr, "  GPU %d, stream %llu: %zu operations, the first is %s\n", queue->device->index,
                   static_cast<unsigned long long>(queue->index), queue->items.size(), queue->items.front().operation->describe().c_str());
    }
  }
  std::abort();
}

}  // namespace

Point enqueue(const std::shared_ptr<Queue>& queue, std::unique_ptr<Operation> operation) {
  State& world = state();
  queue->items.push_back({++world.ordered, std::move(operation)});
  queue->enqueued++;
  world.changed.notify_all();
  return {queue, queue->enqueued};
}

void ask(const Point& point) {
  if (!point.past()) {
    state().demands.push_back(point);
    state().changed.notify_all();
  }
}

void until(Lock& lock, const std::string& what, const std::function<bool()>& condition) {
  const auto end = Clock::now() + std::chrono::seconds(std::atoll(setting("EMU_DEADLINE", "120").c_str()));
  while (!condition()) {
    if (Clock::now() >= end) {
      stuck(what);
    }
    state().changed.wait_until(lock, end);
  }
}

void waitFor(Lock& lock, const Point& point) {
  ask(point);
  const std::uint64_t generation = state().generation;
  until(lock, "a wait for a stream", [&] {
    return point.past() || point.queue->device->sticky != CUDA_SUCCESS || state().generation != generation;
  });
}

void startScheduler() {
  installHandlers();
  std::thread(schedule).detach();
}

}  // namespace gpu
