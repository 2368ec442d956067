// Zero fill of a range of bytes.
#pragma once

#include "range.cuh"

namespace shardgen {

// zero clears bytes [0, bytes) of target. Config: kAlignBytes.
template <class Config>
__device__ inline void zero(void* target, long long bytes) {
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  auto* const to = static_cast<unsigned char*>(target);
  forRange<kAccessBytes>(bytes, [=](auto count, long long at) {
    Pack<unsigned char, decltype(count)::value> zeros = {};
    zeros.store(to + at);
  });
}

}  // namespace shardgen
