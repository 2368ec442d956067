// Sum of squares of a gradient, and its count of NaNs and infinities, over fixed
// trees: the twins, bit for bit, of Go's optim.PutNorms and optim.Norm.AddAll.
//
// A range is cut into chunks of 8192 elements. The squares of a chunk are taken in
// f64 and added up pairwise: neighbours first, then neighbouring sums. That tree
// suits a warp, whose lanes read neighbouring vectors, as well as a CPU, which
// reads on and on; and it names no threads. The norms of all chunks of a step are
// then added up by one block.
#pragma once

#include "dtype.cuh"
#include "range.cuh"

namespace shardgen {

constexpr int kChunkElements = 8192;  // a block's
constexpr int kSumNorms = 1024;       // sums that norms are added to, and threads of that block
constexpr unsigned kWholeWarp = 0xffffffffu;

// Norm is Go's optim.Norm in memory: two f64, so that ranks can all-reduce it as
// such. The count is exact below 2^53.
struct alignas(16) Norm {
  double sumSquares;
  double nonFinite;  // elements that are NaN or infinite
};
static_assert(sizeof(Norm) == 2 * sizeof(double), "a norm is two f64, because ranks all-reduce it as such");

__device__ inline Norm operator+(const Norm& a, const Norm& b) {
  return {a.sumSquares + b.sumSquares, a.nonFinite + b.nonFinite};
}

__device__ inline int laneOfWarp() { return static_cast<int>(threadIdx.x) % kWarp; }

// neighbour returns what the lane at a distance, a power of two, has.
__device__ inline double neighbour(double x, int distance) { return __shfl_sync(kWholeWarp, x, laneOfWarp() ^ distance); }

// addLanes adds up the norms of a warp pairwise; all lanes get the sum.
__device__ inline Norm addLanes(Norm norm) {
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    norm = norm + Norm{neighbour(norm.sumSquares, distance), neighbour(norm.nonFinite, distance)};
  }
  return norm;
}

// Part is what a warp sums at a time: rows of a 16-byte vector for each lane. Their
// loads are of whole lines of memory, and all on their way at once.
template <class Float>
struct Part {
  static constexpr int kRows = 8;
  static constexpr int kWidth = kAccessBytes / static_cast<int>(sizeof(Float));
  static constexpr int kElements = kRows * kWarp * kWidth;

  Pack<Float, kWidth> mine[kRows];

  // load reads elements [0, count) of a gradient; zeros fill what is left.
  __device__ void load(const Float* gradient, long long count) {
    const int first = laneOfWarp() * kWidth;
    if (count >= kElements) {
#pragma unroll
      for (int r = 0; r < kRows; r++) {
        mine[r].load(gradient + first + r * kWarp * kWidth);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kRows * kWidth; i++) {
      const int at = first + i / kWidth * kWarp * kWidth + i % kWidth;
      mine[i / kWidth][i % kWidth] = at < count ? gradient[at] : 0;
    }
  }

  // sumRow adds up the squares of a vector pairwise.
  __device__ double sumRow(int r) {
    double sum[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      const double wide = mine[r][i];
      sum[i] = wide * wide;
    }
#pragma unroll
    for (int step = 1; step < kWidth; step *= 2) {
#pragma unroll
      for (int i = 0; i < kWidth; i += 2 * step) {
        sum[i] = sum[i] + sum[i + step];
      }
    }
    return sum[0];
  }

  // sum adds up the part pairwise, lanes before rows; all lanes get it. A lane
  // first has a sum of each row. It gives its neighbour half of them for half of
  // the neighbour's, then the next but one half of what is left, until it has one
  // row's, of eight lanes; so few sums are exchanged.
  __device__ double sum() {
    double sums[kRows];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      sums[r] = sumRow(r);
    }
    int held = kRows;
#pragma unroll
    for (int distance = 1; distance < kRows; distance *= 2) {
      held /= 2;
      const bool upper = (laneOfWarp() & distance) != 0;
#pragma unroll
      for (int r = 0; r < held; r++) {
        const double kept = upper ? sums[r + held] : sums[r];
        sums[r] = kept + neighbour(upper ? sums[r] : sums[r + held], distance);
      }
    }
    double sum = sums[0];
#pragma unroll
    for (int distance = kRows; distance < kWarp; distance *= 2) {
      sum = sum + neighbour(sum, distance);
    }
#pragma unroll
    for (int distance = kRows / 2; distance >= 1; distance /= 2) {  // neighbouring rows are furthest apart
      sum = sum + neighbour(sum, distance);
    }
    return sum;
  }
};

// countNonFinite returns to all lanes how many of the first count elements are NaN
// or infinite, of a part's at most.
template <class Float>
__device__ inline double countNonFinite(const Float* gradient, long long count) {
  int mine = 0;
#pragma unroll 1  // hardly ever needed
  for (int i = laneOfWarp(); i < Part<Float>::kElements && i < count; i += kWarp) {
    mine += gradient[i] - gradient[i] == 0 ? 0 : 1;
  }
  return addLanes({0, static_cast<double>(mine)}).nonFinite;
}

// normOfPart returns to all lanes the norm of the first count elements, of a
// part's at most. A finite sum has nothing to count.
template <class Float>
__device__ inline Norm normOfPart(const Float* gradient, long long count) {
  Part<Float> part;
  part.load(gradient, count);
  const double sum = part.sum();
  return {sum, sum - sum == 0 ? 0 : countNonFinite(gradient, count)};
}

// normChunks writes the norm of each chunk to partials, which holds
// ceil(elements/8192). Blocks have kThreads. Config: Float (F32 or F64),
// kAlignBytes.
template <class Config>
__device__ inline void normChunks(Norm* __restrict__ partials, const typename Config::Float* __restrict__ gradient,
                                  long long elements) {
  using Float = typename Config::Float;
  constexpr int kPartElements = Part<Float>::kElements, kParts = kChunkElements / kPartElements;
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  static_assert(kParts <= kWarp, "norm: a warp adds up the parts of a chunk");

  __shared__ Norm parts[kParts];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = laneOfWarp();
  for (long long chunk = blockIdx.x; chunk * kChunkElements < elements; chunk += gridDim.x) {
    for (int i = warp; i < kParts; i += kThreads / kWarp) {
      const long long first = chunk * kChunkElements + i * kPartElements;
      const Norm part = normOfPart(gradient + first, elements - first);
      if (lane == 0) {
        parts[i] = part;
      }
    }
    __syncthreads();
    if (warp == 0) {
      const Norm whole = addLanes(lane < kParts ? parts[lane] : Norm{0, 0});
      if (lane == 0) {
        partials[chunk] = whole;
      }
    }
    __syncthreads();  // before parts is written again
  }
}

// normTotal adds norms to total: norm i to sum i mod 1024, in order of i, then the
// sums pairwise. It is for one block of kSumNorms threads.
__device__ inline void normTotal(Norm* __restrict__ total, const Norm* __restrict__ norms, long long count) {
  static_assert(kSumNorms == kWarp * kWarp, "norm: a warp adds up the sums of all warps");
  __shared__ Norm sums[kWarp];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = laneOfWarp();
  Norm sum = {0, 0};
#pragma unroll 4  // loads on their way at once
  for (long long i = threadIdx.x; i < count; i += kSumNorms) {
    sum = sum + norms[i];
  }
  sum = addLanes(sum);
  if (lane == 0) {
    sums[warp] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    sum = addLanes(sums[lane]);
    if (lane == 0) {
      *total = *total + sum;
    }
  }
}

}  // namespace shardgen
