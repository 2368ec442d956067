// Division of a reduced gradient and its addition into a gradient shard.
#pragma once

#include "dtype.cuh"
#include "range.cuh"

namespace shardgen {

// accumulate makes sum = source/divisor, or adds that to sum, with the one true
// division in the sum's type. Config: Sum (F32 or F64), Source, kStore,
// kAlignBytes.
template <class Config>
__device__ inline void accumulate(typename Config::Sum* __restrict__ sum, const typename Config::Source* __restrict__ source,
                                  long long elements, double divisor) {
  using Sum = typename Config::Sum;
  using Source = typename Config::Source;
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  static_assert(std::is_same<Sum, F32>::value || std::is_same<Sum, F64>::value,
                "gradients: they are accumulated in f32, those of f64 parameters in f64");

  const Sum by = static_cast<Sum>(divisor);
  forRange<kPackElements<Sum, Source>>(elements, [=](auto count, long long at) {
    constexpr int kCount = decltype(count)::value;
    Pack<Source, kCount> from;
    Pack<Sum, kCount> to;
    from.load(source + at);
    if constexpr (!Config::kStore) {
      to.load(sum + at);
    }
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      const Sum share = convert<Sum>(from[i]) / by;
      if constexpr (Config::kStore) {
        to[i] = share;
      } else {
        to[i] = to[i] + share;
      }
    }
    to.store(sum + at);
  });
}

}  // namespace shardgen
