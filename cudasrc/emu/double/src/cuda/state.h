// The double's world: devices with one primary context each, their memory and
// queues of work, all under one mutex. The libraries share it: libnccl.so.2
// links against libcuda.so.1.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "api.h"
#include "kernel.h"

namespace gpu {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

// Device is a GPU and its primary context, whose handle is the Device's address.
struct Device {
  int index = 0;
  int retained = 0;
  CUresult sticky = CUDA_SUCCESS;  // an asynchronous error: all later calls return it
  std::uint64_t usedBytes = 0;
  std::uint64_t streamsMade = 0;
  std::shared_ptr<struct Queue> defaultQueue;
};

// Point is a place in a queue: it is past once so many operations are done.
struct Point {
  std::shared_ptr<struct Queue> queue;
  std::uint64_t position = 0;

  bool past() const;
};

// Operation is one piece of work of a queue.
struct Operation {
  virtual ~Operation() = default;
  // ready says whether the work can be done now, and is asked only at the head of
  // a queue, with the mutex held.
  virtual bool ready() { return true; }
  // blockers adds the points that make it ready.
  virtual void blockers(std::vector<Point>&) {}
  // run does it, without the mutex; an error becomes the context's sticky one.
  virtual CUresult run() = 0;
  virtual std::string describe() const = 0;
  // ended is told, with the mutex held, that the work is done or was dropped
  // because its context is broken.
  virtual void ended() {}
};

struct Item {
  std::uint64_t order;  // over all queues
  std::unique_ptr<Operation> operation;
  Clock::time_point notBefore{};
  bool slowed = false;  // notBefore was set
};

// Queue is a stream.
struct Queue {
  Device* device;
  std::uint64_t index;     // of creation in its context
  bool ordered;            // with the default stream
  bool destroyed = false;  // and goes when it is empty
  std::deque<Item> items;
  std::uint64_t enqueued = 0, done = 0;  // operations
};

inline bool Point::past() const { return queue == nullptr || queue->done >= position; }

// Mark is one record of an event.
struct Mark {
  Point point;
  Clock::time_point when{};
};

struct Event {
  Device* device;
  bool timed;
  std::shared_ptr<Mark> mark;  // of the last record
};

// Region is mapped memory between red zones and inaccessible pages.
struct Region {
  char* mapped = nullptr;
  std::size_t mappedBytes = 0;
  char* user = nullptr;
  std::size_t bytes = 0;
};

struct Allocation {
  Device* device;
  Region region;
};

struct HostRange {
  std::size_t bytes = 0;
  bool allocated = false;  // by cuMemHostAlloc, else registered
  Region region;
};

struct Module {
  Device* device;
  void* library;
  std::map<std::string, std::unique_ptr<struct Function>> functions;
};

struct Function {
  Device* device;
  const EmuKernel* kernel;
};

// Extension is what another library adds to reset and to the search for leaks.
struct Extension {
  std::function<void()> reset;
  std::function<void(std::vector<std::string>&)> leaks;
};

struct State {
  std::mutex mutex;
  std::condition_variable changed;
  bool initialized = false;
  std::map<std::string, std::string> settings;  // in place of the environment's
  std::vector<std::unique_ptr<Device>> devices;

  std::map<std::uint64_t, Allocation> memory;   // by address
  std::map<std::uint64_t, HostRange> hostMemory;  // pinned, by address
  std::unordered_map<void*, std::shared_ptr<Queue>> streams;
  std::unordered_map<void*, std::unique_ptr<Event>> events;
  std::unordered_map<void*, std::unique_ptr<Module>> modules;
  std::unordered_map<void*, Function*> functions;

  std::vector<std::shared_ptr<Queue>> queues;  // all that may have work
  std::vector<Point> demands;                  // what threads wait for or asked after
  std::uint64_t ordered = 0;                   // operations so far
  bool running = false;                        // the scheduler is in an operation
  std::uint64_t generation = 0;                // of resets
  std::vector<Extension> extensions;
};

// state returns the one State. It is never destroyed: the scheduler uses it until
// the process ends.
EMU_EXPORT State& state();

// setting returns a setting, else the environment's variable, else what is given.
std::string setting(const char* name, const char* byDefault);

// current is the calling thread's context, or null.
EMU_EXPORT Device* current();
void setCurrent(Device*);

// note notes a fault of the program under test; it is printed too.
EMU_EXPORT void note(const std::string& what);

// Queues.
EMU_EXPORT std::shared_ptr<Queue> queueOf(CUstream stream, Device* device);
EMU_EXPORT Point enqueue(const std::shared_ptr<Queue>& queue, std::unique_ptr<Operation> operation);
// waitFor returns when a point is past, its context broken, or the world reset.
void waitFor(Lock& lock, const Point& point);
// ask makes the scheduler see to it that a point will be past.
void ask(const Point& point);
// until waits for a condition; it ends the process after EMU_DEADLINE seconds.
EMU_EXPORT void until(Lock& lock, const std::string& what, const std::function<bool()>& condition);
void startScheduler();

// Memory.
constexpr std::size_t kDeviceAlign = 256;
// onDevice returns the allocation that holds a range, or null.
EMU_EXPORT const Allocation* onDevice(std::uint64_t address, std::size_t bytes);
EMU_EXPORT bool isPinned(std::uint64_t address, std::size_t bytes);
// limitBytes is the memory of a device, and of the host to pin: EMU_MEMORY.
std::uint64_t limitBytes();
std::size_t damaged(const Region& region);
void unmapRegion(Region& region);

// Action is an operation that is a function.
struct Action : Operation {
  std::string what;
  std::function<CUresult()> body;

  Action(std::string name, std::function<CUresult()> does) : what(std::move(name)), body(std::move(does)) {}
  CUresult run() override { return body(); }
  std::string describe() const override { return what; }
};

// destroyContext frees all that a primary context holds.
void destroyContext(Device& device, std::vector<std::string>* leaks);

}  // namespace gpu
