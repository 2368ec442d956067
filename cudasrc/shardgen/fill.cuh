// Initial values of a parameter: the twins, bit for bit, of the distributions
// of Go's package runtime/random.
#pragma once

#include "dtype.cuh"
#include "normal.cuh"
#include "philox.cuh"
#include "range.cuh"

namespace shardgen {

// Distribution is a family of random distributions, as a spec calls it.
enum class Distribution { kNormal, kTruncatedNormal, kUniform };

// Sampler holds what all elements of a parameter share. A uniform number u
// becomes base + u*width.
struct Sampler {
  double mean, std;     // normal, truncated_normal
  double cut;           // truncated_normal, in units of std; base is the probability below -cut
  double base, width;   // truncated_normal, uniform
  double lower, upper;  // uniform: bounds on the result
  RandomStream stream;
  bool bounded;
};

// sample returns the value of an element, before it is rounded to its type.
template <Distribution kFamily>
__device__ inline double sample(const Sampler& s, unsigned long long element) {
  const double u = s.stream.uniform(element);
  if constexpr (kFamily == Distribution::kNormal) {
    return s.std * quantile(u) + s.mean;
  } else if constexpr (kFamily == Distribution::kTruncatedNormal) {
    const double z = quantile(u * s.width + s.base);
    const double below = z < s.cut ? z : s.cut;
    return s.std * (below > -s.cut ? below : -s.cut) + s.mean;
  } else {
    const double x = u * s.width + s.base;
    if (!s.bounded) {
      return x;
    }
    const double below = x < s.upper ? x : s.upper;
    return below > s.lower ? below : s.lower;
  }
}

// sampleAs rounds a value to f32 and that to its type, so that a low-precision
// parameter is its f32 master rounded; f64 keeps it.
template <class Element, Distribution kFamily>
__device__ inline Element sampleAs(const Sampler& s, unsigned long long element) {
  const double x = sample<kFamily>(s, element);
  if constexpr (std::is_same<Element, F64>::value) {
    return x;
  } else {
    return narrow<Element>(roundToFloat(x));
  }
}

// fillRandom writes elements [first, first+elements) of a parameter over target.
// Config: Element, kFamily, kAlignBytes.
template <class Config>
__device__ inline void fillRandom(typename Config::Element* __restrict__ target, const Sampler& sampler, long long first,
                                  long long elements) {
  using Element = typename Config::Element;
  constexpr int kElementBits = 8 * static_cast<int>(sizeof(Element));
  static_assert(Aligned<Config::kAlignBytes>::kHolds);

  forRange<kPackElements<Element>>(elements, [=](auto count, long long at) {
    if constexpr (decltype(count)::value == 1) {
      target[at] = sampleAs<Element, Config::kFamily>(sampler, static_cast<unsigned long long>(first + at));
    } else {
      Pack<unsigned long long, 2> words = {};
#pragma unroll 1  // once the arithmetic of an element is enough code
      for (int i = 0; i < decltype(count)::value; i++) {
        const Element x = sampleAs<Element, Config::kFamily>(sampler, static_cast<unsigned long long>(first + at + i));
        const unsigned long long bits = bitsOf(x) << i * kElementBits % 64;
        words[0] |= i * kElementBits < 64 ? bits : 0;
        words[1] |= i * kElementBits < 64 ? 0 : bits;
      }
      words.store(reinterpret_cast<unsigned long long*>(target + at));
    }
  });
}

// fillConstant writes an element of kElementBytes with the given bits over each
// of elements. Config: kElementBytes, kAlignBytes.
template <class Config>
__device__ inline void fillConstant(void* __restrict__ target, unsigned long long bits, long long elements) {
  constexpr int kElementBytes = Config::kElementBytes;
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  static_assert(kElementBytes == 1 || kElementBytes == 2 || kElementBytes == 4 || kElementBytes == 8,
                "dtype: an element has 1, 2, 4 or 8 bytes");

  unsigned long long word = bits;
#pragma unroll
  for (int width = kElementBytes; width < 8; width *= 2) {
    word |= word << 8 * width;
  }
  auto* const to = static_cast<unsigned char*>(target);
  forRange<kAccessBytes>(elements * kElementBytes, [=](auto count, long long at) {
    if constexpr (decltype(count)::value == 1) {
      to[at] = static_cast<unsigned char>(word >> 8 * (at % 8));
    } else {
      Pack<unsigned long long, 2> words = {};
      words[0] = word;
      words[1] = word;
      words.store(reinterpret_cast<unsigned long long*>(to + at));
    }
  });
}

}  // namespace shardgen
