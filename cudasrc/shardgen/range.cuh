// How the threads of a grid share a range of elements: 16-byte accesses, 64-bit
// offsets, any number of blocks.
#pragma once

#include <type_traits>

namespace shardgen {

constexpr int kAccessBytes = 16;  // the widest access of a thread
constexpr int kThreads = 256;     // of a block, in all kernels but those that say otherwise
constexpr int kBlocks = 4;        // of a multiprocessor at least, so a thread has up to 64 registers
constexpr int kWarp = 32;

// Pack is kCount neighbouring elements in registers. It is loaded and stored by
// 16-byte accesses where it is that long, which needs addresses that are
// multiples of 16.
template <class Element, int kCount>
struct Pack {
  static constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  static constexpr int kPerAccess = kCount * kElementBytes < kAccessBytes ? kCount : kAccessBytes / kElementBytes;
  static_assert(kCount % kPerAccess == 0, "a pack is a whole number of accesses");

  struct alignas(kPerAccess * kElementBytes) Access {
    Element lane[kPerAccess];
  };
  Access access[kCount / kPerAccess];

  __device__ Element& operator[](int i) { return access[i / kPerAccess].lane[i % kPerAccess]; }

  __device__ void load(const Element* from) {
#pragma unroll
    for (int i = 0; i < kCount / kPerAccess; i++) {
      access[i] = reinterpret_cast<const Access*>(from)[i];
    }
  }

  __device__ void store(Element* to) const {
#pragma unroll
    for (int i = 0; i < kCount / kPerAccess; i++) {
      reinterpret_cast<Access*>(to)[i] = access[i];
    }
  }
};

// kPackElements is how many elements a thread handles at a time, so that its
// accesses to the smaller of two types are 16 bytes.
template <class First, class Second = First>
constexpr int kPackElements = kAccessBytes / static_cast<int>(sizeof(First) < sizeof(Second) ? sizeof(First) : sizeof(Second));

__device__ inline long long threadOfGrid() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ inline long long threadsOfGrid() { return static_cast<long long>(gridDim.x) * blockDim.x; }

// forRange calls body(count, at) for packs of kCount elements from `at` on and
// for single elements behind the last whole pack; count is a type, so that the
// body's Pack<Element, count> is of fixed size.
template <int kCount, class Body>
__device__ inline void forRange(long long elements, Body body) {
  const long long packs = elements / kCount;
  for (long long i = threadOfGrid(); i < packs; i += threadsOfGrid()) {
    body(std::integral_constant<int, kCount>{}, i * kCount);
  }
#pragma unroll 1  // fewer than kCount elements are left for the whole grid
  for (long long i = packs * kCount + threadOfGrid(); i < elements; i += threadsOfGrid()) {
    body(std::integral_constant<int, 1>{}, i);
  }
}

// Aligned states what all kernels assume of a plan.
template <long long kAlignBytes>
struct Aligned {
  static constexpr bool kHolds = true;
  static_assert(kAlignBytes >= kAccessBytes && kAlignBytes % kAccessBytes == 0,
                "shard.align_bytes: a multiple of 16, because kernels use 16-byte accesses");
};

}  // namespace shardgen
