// Conversion of a range from one element type to another.
#pragma once

#include "dtype.cuh"
#include "range.cuh"

namespace shardgen {

// cast converts elements of source into target, rounding to nearest even; the
// ranges do not overlap. Config: Target, Source, kAlignBytes.
template <class Config>
__device__ inline void cast(typename Config::Target* __restrict__ target, const typename Config::Source* __restrict__ source,
                            long long elements) {
  using Target = typename Config::Target;
  using Source = typename Config::Source;
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  static_assert(!std::is_same<Target, Source>::value, "cast: equal types are copied, not cast");

  forRange<kPackElements<Target, Source>>(elements, [=](auto count, long long at) {
    constexpr int kCount = decltype(count)::value;
    Pack<Source, kCount> from;
    Pack<Target, kCount> to;
    from.load(source + at);
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      to[i] = convert<Target>(from[i]);
    }
    to.store(target + at);
  });
}

}  // namespace shardgen
