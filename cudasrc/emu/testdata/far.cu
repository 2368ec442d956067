// Kernels at elements past 2^33: the last block of a grid of millions does at the
// end of a range what a grid of one block does at the start of a short one. Memory
// is mapped without being there, so only what a block touches takes room.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <shardgen/accumulate.cuh>
#include <shardgen/adamw.cuh>
#include <shardgen/cast.cuh>
#include <shardgen/fill.cuh>
#include <shardgen/norm.cuh>
#include <shardgen/zero.cuh>

using namespace shardgen;

constexpr long long kFar = 1ll << 33;  // elements before those that are looked at
constexpr long long kTail = 3;         // elements behind the last pack
constexpr long long kRoomBytes = 8 << 20;

// sparse returns memory of its own for each id, for more than kFar elements.
template <int kId>
char* sparse() {
  static char* const memory = [] {
    void* const at = mmap(nullptr, kFar * 4 + kRoomBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
      std::perror("mmap");
      std::exit(2);
    }
    return static_cast<char*>(at);
  }();
  return memory;
}

// Range is elements of a type: a short range, and the end of a long one.
template <class Element, int kId>
struct Range {
  Element* nearby() const { return reinterpret_cast<Element*>(sparse<2 * kId>()); }
  Element* distant() const { return reinterpret_cast<Element*>(sparse<2 * kId + 1>()); }

  // scatter writes the same numbers to both.
  void scatter(long long first, long long elements) const {
    for (long long i = 0; i < elements; i++) {
      const auto x = static_cast<float>((i * 2654435761u) % 1000 + 1) / 64;
      nearby()[i] = convert<Element>(x);
      distant()[first + i] = convert<Element>(x);
    }
  }

  // differences counts the bytes that differ; bytes that are all zero count too.
  long long differences(long long first, long long elements, bool zeros) const {
    const auto* const a = reinterpret_cast<const unsigned char*>(nearby());
    const auto* const b = reinterpret_cast<const unsigned char*>(distant() + first);
    long long count = 0, other = 0;
    for (long long i = 0; i < elements * static_cast<long long>(sizeof(Element)); i++) {
      count += a[i] != b[i];
      other += a[i] != 0;
    }
    return count + (other == 0 && !zeros ? 1 : 0);
  }
};

// as makes the running block one of a grid.
void as(long long block, long long blocks) {
  blockIdx.x = static_cast<unsigned>(block);
  gridDim.x = static_cast<unsigned>(blocks);
}

// onBoth runs a kernel of packs of so many elements on both ranges: run(distant,
// elements). Block 0 has the tail too.
template <class Run>
void onBoth(long long pack, long long tail, Run run) {
  const long long small = pack * blockDim.x, before = kFar / small;
  as(0, 1);
  run(false, small + tail);
  __syncthreads();
  as(before, before + 1);
  run(true, kFar + small + tail);
  __syncthreads();
  as(0, before + 1);
  run(true, kFar + small + tail);
  __syncthreads();
}

struct Plan { static constexpr long long kAlignBytes = 16; };
struct Narrow : Plan { using Source = F32; using Target = BF16; };
struct Add : Plan { using Source = BF16; using Sum = F32; static constexpr bool kStore = true; };
struct Gradient : Plan { using Float = F32; };
struct Update : Plan { using Float = F32; using Copy = BF16; };
struct Uniform : Plan { using Element = F32; static constexpr Distribution kFamily = Distribution::kUniform; };

extern "C" __global__ void far_zero(long long* different) {
  const Range<unsigned char, 0> range;
  const long long elements = 16 * blockDim.x + kTail;
  if (threadIdx.x == 0) {
    std::memset(range.nearby(), 0xa5, static_cast<std::size_t>(elements + 1));
    std::memset(range.distant() + kFar, 0xa5, static_cast<std::size_t>(elements + 1));
  }
  __syncthreads();
  onBoth(16, kTail, [=](bool distant, long long n) { zero<Plan>(distant ? range.distant() : range.nearby(), n); });
  *different = range.differences(kFar, elements, true) + (range.distant()[kFar + elements - 1] != 0) + (range.distant()[kFar + elements] != 0xa5);
}

extern "C" __global__ void far_cast(long long* different) {
  const Range<F32, 1> source;
  const Range<BF16, 2> target;
  const long long elements = 8 * blockDim.x + kTail;
  if (threadIdx.x == 0) {
    source.scatter(kFar, elements);
  }
  __syncthreads();
  onBoth(8, kTail, [=](bool distant, long long n) {
    cast<Narrow>(distant ? target.distant() : target.nearby(), distant ? source.distant() : source.nearby(), n);
  });
  *different = target.differences(kFar, elements, false);
}

extern "C" __global__ void far_accumulate(long long* different) {
  const Range<BF16, 3> source;
  const Range<F32, 4> sum;
  const long long elements = 8 * blockDim.x + kTail;
  if (threadIdx.x == 0) {
    source.scatter(kFar, elements);
  }
  __syncthreads();
  onBoth(8, kTail, [=](bool distant, long long n) {
    accumulate<Add>(distant ? sum.distant() : sum.nearby(), distant ? source.distant() : source.nearby(), n, 3);
  });
  *different = sum.differences(kFar, elements, false);
}

extern "C" __global__ void far_adamw(long long* different) {
  const Range<F32, 5> master;
  const Range<F32, 6> moment1;
  const Range<F32, 7> moment2;
  const Range<BF16, 8> copy;
  const Range<F32, 9> gradient;
  const long long elements = 8 * blockDim.x;
  if (threadIdx.x == 0) {
    moment1.scatter(kFar, elements);
    moment2.scatter(kFar, elements);
    gradient.scatter(kFar, elements);
  }
  __syncthreads();
  const AdamWStep step = {1, 1, 0.1, 0.9, 0.99, 0.01, 1e-2, 1, 1e-8};
  onBoth(8, 0, [=](bool distant, long long n) {
    adamw<Update>(step, distant ? master.distant() : master.nearby(), distant ? moment1.distant() : moment1.nearby(),
                  distant ? moment2.distant() : moment2.nearby(), distant ? gradient.distant() : gradient.nearby(), distant ? copy.distant() : copy.nearby(), n);
  });
  *different = master.differences(kFar, elements, false) + moment1.differences(kFar, elements, false) +
               moment2.differences(kFar, elements, false) + copy.differences(kFar, elements, false);
}

// The values of a parameter's elements from 2^33 on: `first` says the near ones
// where they are.
extern "C" __global__ void far_fill(long long* different) {
  const Range<F32, 10> target;
  const Sampler sampler = {0, 0, 0, 0.5, 1, 0, 0, {7, 11}, false};
  const long long elements = 4 * blockDim.x + kTail;
  onBoth(4, kTail, [=](bool distant, long long n) {
    fillRandom<Uniform>(distant ? target.distant() : target.nearby(), sampler, distant ? 0 : kFar, n);
  });
  *different = target.differences(kFar, elements, false);
}

// A block has a chunk.
extern "C" __global__ void far_norm(long long* different) {
  const Range<F32, 11> gradient;
  if (threadIdx.x == 0) {
    gradient.scatter(kFar, kChunkElements);
  }
  __syncthreads();
  auto* const nearby = reinterpret_cast<Norm*>(sparse<24>());
  auto* const distant = reinterpret_cast<Norm*>(sparse<25>());
  onBoth(kChunkElements / kThreads, 0, [=](bool far, long long n) { normChunks<Gradient>(far ? distant : nearby, far ? gradient.distant() : gradient.nearby(), n); });
  *different = nearby[0].sumSquares > 0 && nearby[0].sumSquares == distant[kFar / kChunkElements].sumSquares ? 0 : 1;
}

// range_of reports what each thread of a block in a grid is given of a range:
// count and place, for packs of 8 and for what is behind them.
extern "C" __global__ void range_of(long long* at, long long block, long long blocks, long long elements) {
  as(block, blocks);
  long long* const mine = at + 4 * threadIdx.x;
  forRange<8>(elements, [=](auto count, long long place) {
    long long* const to = decltype(count)::value == 8 ? mine : mine + 2;
    to[0] += 1;
    to[1] = place;
  });
}
