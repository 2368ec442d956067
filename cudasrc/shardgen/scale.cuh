// Multiplication of a gradient shard by one factor: unscaling and clipping.
#pragma once

#include "dtype.cuh"
#include "range.cuh"

namespace shardgen {

// scale multiplies each element by factor, rounded once to the element's type.
// Config: Float (F32 or F64), kAlignBytes.
template <class Config>
__device__ inline void scale(typename Config::Float* __restrict__ gradient, long long elements, double factor) {
  using Float = typename Config::Float;
  static_assert(Aligned<Config::kAlignBytes>::kHolds);

  const Float by = static_cast<Float>(factor);
  forRange<kPackElements<Float>>(elements, [=](auto count, long long at) {
    constexpr int kCount = decltype(count)::value;
    Pack<Float, kCount> values;
    values.load(gradient + at);
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      values[i] = values[i] * by;
    }
    values.store(gradient + at);
  });
}

}  // namespace shardgen
