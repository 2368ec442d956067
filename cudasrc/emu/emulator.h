// The part of CUDA that kernels use, on a CPU: a fiber for each thread of a
// block, which runs until it meets a barrier or a shuffle. Blocks run one after
// another. Threads take turns in the order of their numbers, or the reverse,
// which shows a missing barrier.
//
// A barrier or shuffle that not all threads meet, or that they meet at
// different lines, ends the process with the block, the threads and the lines.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if !defined(__x86_64__)
#error "the emulator switches fibers by x86-64 assembly: run it on such a machine"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __syncthreads() emu::meet(emu::Wait::kBarrier, __LINE__)
#define __shfl_sync(mask, value, lane) emu::shuffle(mask, value, lane, false, __LINE__)
#define __shfl_down_sync(mask, value, distance) emu::shuffle(mask, value, distance, true, __LINE__)

struct Index3 {
  unsigned x, y, z;
};

inline Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {

template <class To, class From>
inline To bitCast(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}

constexpr unsigned kWarpThreads = 32;
constexpr std::size_t kStackBytes = 256 << 10;

// Wait says what a fiber waits for.
enum class Wait { kNothing, kBarrier, kShuffle, kEnd };

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Fiber {
  void* stackPointer;
  std::unique_ptr<char, Free> stack;
  Wait wait;
  int line;
  unsigned shuffles;           // met so far
  unsigned long long word[2];  // what the last two shuffles of this thread offered
};

struct Block {
  std::vector<Fiber> fibers;
  unsigned current;
  void* schedulerStack;
  void (*body)(void*);
  void* argument;
  bool reversed;
};

inline Block block;

// emuSwitch saves the caller's registers on its stack, the stack's place in
// *from, and goes on where `to` was saved.
extern "C" void emuSwitch(void** from, void* to);
asm(R"(
.text
.type emuSwitch, @function
emuSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emuSwitch, . - emuSwitch
)");

#if defined(__SANITIZE_ADDRESS__)
inline const void* schedulerBottom;
inline std::size_t schedulerBytes;

// clean makes the end of a stack usable again: the frames of a fiber that ended
// there have not returned.
inline void clean(Fiber& fiber) { ASAN_UNPOISON_MEMORY_REGION(fiber.stack.get() + kStackBytes - 4096, 4096); }

// enter tells the sanitizer that a fiber has begun to run.
inline void enter() { __sanitizer_finish_switch_fiber(nullptr, &schedulerBottom, &schedulerBytes); }

inline void toScheduler(Fiber& fiber) {
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(fiber.wait == Wait::kEnd ? nullptr : &fake, schedulerBottom, schedulerBytes);
  emuSwitch(&fiber.stackPointer, block.schedulerStack);
  __sanitizer_finish_switch_fiber(fake, &schedulerBottom, &schedulerBytes);
}

inline void toFiber(Fiber& fiber) {
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber.stack.get(), kStackBytes);
  emuSwitch(&block.schedulerStack, fiber.stackPointer);
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
}
#else
inline void clean(Fiber&) {}
inline void enter() {}
inline void toScheduler(Fiber& fiber) { emuSwitch(&fiber.stackPointer, block.schedulerStack); }
inline void toFiber(Fiber& fiber) { emuSwitch(&block.schedulerStack, fiber.stackPointer); }
#endif

// fiberMain is where every fiber begins.
inline void fiberMain() {
  enter();
  block.body(block.argument);
  block.fibers[block.current].wait = Wait::kEnd;
  toScheduler(block.fibers[block.current]);
  std::abort();  // an ended fiber is never continued
}

// meet stops the running thread until the others that it waits for are there.
inline void meet(Wait wait, int line) {
  Fiber& fiber = block.fibers[block.current];
  fiber.wait = wait;
  fiber.line = line;
  toScheduler(fiber);
}

// shuffle returns the value of another lane of the warp: of `lane`, or of the
// one that is so much further down; its own where there is none.
template <class T>
inline T shuffle(unsigned mask, T value, int lane, bool down, int line) {
  static_assert(sizeof(T) <= sizeof(unsigned long long));
  if (mask != 0xffffffffu) {
    std::fprintf(stderr, "emulator: a shuffle of part of a warp, mask %#x, line %d: only whole warps are emulated\n", mask, line);
    std::abort();
  }
  const unsigned self = block.current, first = self / kWarpThreads * kWarpThreads;
  const unsigned turn = block.fibers[self].shuffles++ % 2;
  std::memcpy(&block.fibers[self].word[turn], &value, sizeof value);
  meet(Wait::kShuffle, line);
  const unsigned target = down ? self % kWarpThreads + static_cast<unsigned>(lane) : static_cast<unsigned>(lane) % kWarpThreads;
  const unsigned from = target < kWarpThreads ? first + target : self;
  T result;
  std::memcpy(&result, &block.fibers[from].word[turn], sizeof result);
  return result;
}

// fail ends the process and says where the threads of a group are.
[[noreturn]] inline void fail(unsigned first, unsigned count, const char* what) {
  std::fprintf(stderr, "emulator: block %u: %s:", blockIdx.x, what);
  for (unsigned i = first; i < first + count; i++) {
    const Fiber& fiber = block.fibers[i];
    if (i > first && fiber.wait == block.fibers[i - 1].wait && fiber.line == block.fibers[i - 1].line) {
      continue;
    }
    const char* const names[] = {"runs", "waits at a barrier", "waits at a shuffle", "has ended"};
    std::fprintf(stderr, " thread %u %s (line %d);", i, names[static_cast<int>(fiber.wait)], fiber.line);
  }
  std::fprintf(stderr, "\n");
  std::abort();
}

// release lets a group of threads go on if all wait for the same; it returns
// whether it did. A group of which some wait for other things fails.
inline bool release(unsigned first, unsigned count, Wait wait) {
  unsigned waiting = 0;
  for (unsigned i = first; i < first + count; i++) {
    waiting += block.fibers[i].wait == wait ? 1 : 0;
  }
  if (waiting == 0 || (wait == Wait::kBarrier && waiting < count)) {
    return false;
  }
  for (unsigned i = first; i < first + count; i++) {
    if (block.fibers[i].wait != wait || block.fibers[i].line != block.fibers[first].line) {
      fail(first, count, "not all threads meet");
    }
  }
  for (unsigned i = first; i < first + count; i++) {
    block.fibers[i].wait = Wait::kNothing;
  }
  return true;
}

// runOnce runs every thread that waits for nothing until it waits or ends.
inline void runOnce() {
  const unsigned count = static_cast<unsigned>(block.fibers.size());
  for (unsigned i = 0; i < count; i++) {
    block.current = block.reversed ? count - 1 - i : i;
    threadIdx = {block.current, 0, 0};
    if (block.fibers[block.current].wait == Wait::kNothing) {
      toFiber(block.fibers[block.current]);
    }
  }
}

// releaseAll lets all groups go on that are complete; it returns whether the
// block has threads that have not ended.
inline bool releaseAll() {
  const unsigned count = static_cast<unsigned>(block.fibers.size());
  bool any = release(0, count, Wait::kBarrier);
  bool ended = true;
  for (unsigned first = 0; first < count; first += kWarpThreads) {
    const unsigned threads = count - first < kWarpThreads ? count - first : kWarpThreads;
    any = release(first, threads, Wait::kShuffle) || any;
  }
  for (const Fiber& fiber : block.fibers) {
    ended = ended && fiber.wait == Wait::kEnd;
  }
  if (!any && !ended) {
    fail(0, count, "threads wait for each other");
  }
  return !ended;
}

inline void prepare(Fiber& fiber) {
  if (fiber.stack == nullptr) {
    fiber.stack.reset(static_cast<char*>(std::aligned_alloc(16, kStackBytes)));
  }
  clean(fiber);
  // What emuSwitch pops: six registers, then where to go. That leaves the stack as
  // a call does, 8 bytes below a multiple of 16.
  auto** top = reinterpret_cast<void**>(fiber.stack.get() + kStackBytes - 8);
  *--top = reinterpret_cast<void*>(&fiberMain);
  for (int i = 0; i < 6; i++) {
    *--top = nullptr;
  }
  fiber.stackPointer = top;
  fiber.wait = Wait::kNothing;
  fiber.line = 0;
  fiber.shuffles = 0;
}

// launch runs body(argument) in every thread of every block.
inline void launch(unsigned blocks, unsigned threads, void (*body)(void*), void* argument) {
  block.fibers.resize(threads);
  block.body = body;
  block.argument = argument;
  gridDim = {blocks, 1, 1};
  blockDim = {threads, 1, 1};
  for (unsigned i = 0; i < blocks; i++) {
    blockIdx = {block.reversed ? blocks - 1 - i : i, 0, 0};
    for (Fiber& fiber : block.fibers) {
      prepare(fiber);
    }
    do {
      runOnce();
    } while (releaseAll());
  }
}

}  // namespace emu

inline unsigned __float_as_uint(float x) { return emu::bitCast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emu::bitCast<float>(x); }
inline long long __double_as_longlong(double x) { return emu::bitCast<long long>(x); }
inline double __longlong_as_double(long long x) { return emu::bitCast<double>(x); }
