// Sum of squares of a gradient, and its count of NaNs and infinities, over a
// fixed tree: the twin, bit for bit, of Go's optim.Norm.
//
// A range is cut into chunks of 4096 elements. In a chunk, element i is squared
// in f64 and added to lane i mod 8, in order of i; the lanes add up as
// ((0+4)+(2+6))+((1+5)+(3+7)); the sums of chunks are added in order.
#pragma once

#include "dtype.cuh"
#include "range.cuh"

namespace shardgen {

constexpr int kChunkElements = 4096;
constexpr int kLanes = 8;
constexpr unsigned kWholeWarp = 0xffffffffu;

// Norm is Go's optim.Norm in memory: two f64, so that ranks can all-reduce it as
// such. The count is exact below 2^53.
struct alignas(16) Norm {
  double sumSquares;
  double nonFinite;  // elements that are NaN or infinite
};
static_assert(sizeof(Norm) == 2 * sizeof(double), "a norm is two f64, because ranks all-reduce it as such");

// LaneSums are the sums of the neighbouring lanes that one thread adds up.
template <class Float>
struct LaneSums {
  static constexpr int kWidth = kAccessBytes / static_cast<int>(sizeof(Float));
  double sum[kWidth] = {};
  int nonFinite = 0;

  __device__ void add(int lane, Float x) {
    const double wide = x;
    sum[lane] = sum[lane] + wide * wide;
    nonFinite += x - x == 0 ? 0 : 1;
  }
};

// addChunk adds the lanes from `lane` on of a chunk: whole rows of eight by
// 16-byte accesses, then what there is of the last row.
template <class Float>
__device__ inline void addChunk(LaneSums<Float>& sums, const Float* chunk, int elements, int lane) {
  constexpr int kWidth = LaneSums<Float>::kWidth;
  const int rows = elements / kLanes;
#pragma unroll 4
  for (int row = 0; row < rows; row++) {
    Pack<Float, kWidth> values;
    values.load(chunk + row * kLanes + lane);
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      sums.add(i, values[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; i++) {
    if (rows * kLanes + lane + i < elements) {
      sums.add(i, chunk[rows * kLanes + lane + i]);
    }
  }
}

// addLanes adds up the lanes of the kTeam neighbouring threads of a chunk; the
// first of them returns the whole.
template <class Float>
__device__ inline Norm addLanes(LaneSums<Float>& sums) {
  constexpr int kWidth = LaneSums<Float>::kWidth;
#pragma unroll
  for (int distance = kLanes / kWidth / 2; distance >= 1; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kWidth; i++) {
      sums.sum[i] = sums.sum[i] + __shfl_down_sync(kWholeWarp, sums.sum[i], distance);
    }
    sums.nonFinite += __shfl_down_sync(kWholeWarp, sums.nonFinite, distance);
  }
#pragma unroll
  for (int half = kWidth / 2; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; i++) {
      sums.sum[i] = sums.sum[i] + sums.sum[i + half];
    }
  }
  return Norm{sums.sum[0], static_cast<double>(sums.nonFinite)};
}

// normChunks writes the norm of each chunk to partials, which holds
// ceil(elements/4096). Blocks are whole warps. Config: Float (F32 or F64),
// kAlignBytes.
template <class Config>
__device__ inline void normChunks(Norm* __restrict__ partials, const typename Config::Float* __restrict__ gradient,
                                  long long elements) {
  using Float = typename Config::Float;
  constexpr int kTeam = kLanes / LaneSums<Float>::kWidth;  // threads that share a chunk
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  static_assert(kWarp % kTeam == 0, "norm: a chunk's threads are in one warp");
  static_assert(kChunkElements % kLanes == 0, "norm: a chunk is whole rows of lanes");

  const long long chunks = (elements + kChunkElements - 1) / kChunkElements;
  const int inWarp = static_cast<int>(threadIdx.x) % kWarp, member = inWarp % kTeam;
  // All threads of a warp go round together, because they exchange sums.
  for (long long first = (threadOfGrid() - inWarp) / kTeam; first < chunks; first += threadsOfGrid() / kTeam) {
    const long long chunk = first + inWarp / kTeam;
    LaneSums<Float> sums;
    if (chunk < chunks) {
      const long long left = elements - chunk * kChunkElements;
      addChunk(sums, gradient + chunk * kChunkElements, static_cast<int>(left < kChunkElements ? left : kChunkElements),
               member * LaneSums<Float>::kWidth);
    }
    const Norm whole = addLanes(sums);
    if (chunk < chunks && member == 0) {
      partials[chunk] = whole;
    }
  }
}

// normTotal adds the partial norms, in order, to total. It is for one warp.
__device__ inline void normTotal(Norm* __restrict__ total, const Norm* __restrict__ partials, long long chunks) {
  const int lane = static_cast<int>(threadIdx.x);
  Norm sum = *total;
  for (long long first = 0; first < chunks; first += kWarp) {
    const Norm mine = first + lane < chunks ? partials[first + lane] : Norm{0, 0};
    const int count = static_cast<int>(chunks - first < kWarp ? chunks - first : kWarp);
    for (int i = 0; i < count; i++) {
      sum.sumSquares = sum.sumSquares + __shfl_sync(kWholeWarp, mine.sumSquares, i);
      sum.nonFinite = sum.nonFinite + __shfl_sync(kWholeWarp, mine.nonFinite, i);
    }
  }
  if (chunks > 0 && lane == 0) {
    *total = sum;
  }
}

}  // namespace shardgen
