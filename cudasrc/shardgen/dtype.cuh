// Element types of the spec and the conversions between them: the twins, bit
// for bit, of Go's package runtime/dtype.
//
// Conversions are integer arithmetic on bit patterns, so that host and device
// agree on everything, NaN payloads included. Each rounds once, to nearest,
// ties to even; a NaN stays a NaN.
#pragma once

#include <type_traits>

namespace shardgen {

using F64 = double;
using F32 = float;

// BF16 is the upper half of a binary32.
struct BF16 {
  unsigned short bits;
};

// F16 is an IEEE 754 binary16.
struct F16 {
  unsigned short bits;
};

// F8E4M3 is OCP's 8-bit E4M3 without infinities; the largest number is 448.
struct F8E4M3 {
  unsigned char bits;
};

// F8E5M2 is OCP's 8-bit E5M2, the upper byte of a binary16.
struct F8E5M2 {
  unsigned char bits;
};

// Bit patterns of binary32.
constexpr unsigned kSign32 = 0x80000000u;
constexpr unsigned kInf32 = 0x7f800000u;

// roundToFloat rounds to binary32; a NaN keeps its sign and the upper bits of
// its payload.
__device__ inline float roundToFloat(double x) {
  if (x != x) {
    const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
    const auto payload = static_cast<unsigned>(bits >> 29) & 0x3fffffu;
    return __uint_as_float((static_cast<unsigned>(bits >> 32) & kSign32) | 0x7fc00000u | payload);
  }
  return static_cast<float>(x);
}

// roundToOdd returns x if a binary32 holds it, else the one of its neighbours
// whose last bit is set. Rounding that to a format at least two bits shorter
// gives what rounding x directly gives (Boldo and Melquiond, 2008).
__device__ inline float roundToOdd(double x) {
  const float near = roundToFloat(x);
  const double back = near;
  const unsigned bits = __float_as_uint(near);
  if (x != x || back == x || (bits & 1u) == 1u) {
    return near;
  }
  return __uint_as_float(fabs(back) < fabs(x) ? bits + 1u : bits - 1u);
}

// widenDouble is exact; a NaN becomes quiet and keeps sign and payload.
__device__ inline double widenDouble(float x) {
  if (x != x) {
    const unsigned bits = __float_as_uint(x);
    const unsigned long long payload = static_cast<unsigned long long>((bits & 0x7fffffu) | 0x400000u) << 29;
    const unsigned long long sign = static_cast<unsigned long long>(bits & kSign32) << 32;
    return __longlong_as_double(static_cast<long long>(sign | 0x7ff0000000000000ull | payload));
  }
  return x;
}

// widen converts to binary32, exactly.
__device__ inline float widen(F32 x) { return x; }

__device__ inline float widen(BF16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

// In a binary32's fields the number is too small by the difference of the
// biases, 127-15; the product with 2^112 is exact, subnormals included.
__device__ inline float widen(F16 x) {
  const unsigned code = x.bits;
  unsigned bits = __float_as_uint(__uint_as_float((code & 0x7fffu) << 13) * 0x1p112f);
  if ((code & 0x7c00u) == 0x7c00u) {
    bits |= kInf32;
  }
  return __uint_as_float(bits | (code & 0x8000u) << 16);
}

__device__ inline float widen(F8E4M3 x) {
  const unsigned code = x.bits;
  unsigned bits = __float_as_uint(__uint_as_float((code & 0x7fu) << 20) * 0x1p120f);
  if ((code & 0x7fu) == 0x7fu) {
    bits = kInf32 | 1u << 22;
  }
  return __uint_as_float(bits | (code & 0x80u) << 24);
}

__device__ inline float widen(F8E5M2 x) {
  return widen(F16{static_cast<unsigned short>(static_cast<unsigned>(x.bits) << 8)});
}

// roundByAdding rounds a small positive number to a multiple of the last place
// of anchor, a power of two, and returns the multiple: the sum's own rounding
// is that of a subnormal result.
__device__ inline unsigned roundByAdding(unsigned magnitude, float anchor) {
  return __float_as_uint(__uint_as_float(magnitude) + anchor) - __float_as_uint(anchor);
}

// roundBits drops the lowest bits of a pattern, to nearest even.
template <int kDropped>
__device__ inline unsigned roundBits(unsigned pattern) {
  return (pattern + (1u << (kDropped - 1)) - 1u + (pattern >> kDropped & 1u)) >> kDropped;
}

__device__ inline unsigned narrowToBF16(float x) {
  const unsigned bits = __float_as_uint(x);
  const unsigned rounded = roundBits<16>(bits);
  return (bits & ~kSign32) > kInf32 ? bits >> 16 | 0x40u : rounded;
}

__device__ inline unsigned narrowToF16(float x) {
  const unsigned bits = __float_as_uint(x), magnitude = bits & ~kSign32;
  unsigned code = roundBits<13>(magnitude - (112u << 23));
  if (magnitude < 0x38800000u) {  // 2^-14, the smallest normal number
    code = roundByAdding(magnitude, 0.5f);
  }
  if (magnitude >= 0x477ff000u) {  // 65520, half a step above the largest number
    code = 0x7c00u;
  }
  if (magnitude > kInf32) {
    code = 0x7e00u | (magnitude >> 13 & 0x3ffu);
  }
  return (bits & kSign32) >> 16 | code;
}

__device__ inline unsigned narrowToF8E4M3(float x) {
  const unsigned bits = __float_as_uint(x), magnitude = bits & ~kSign32;
  unsigned code = roundBits<20>(magnitude - (120u << 23));
  if (magnitude < 0x3c800000u) {  // 2^-6, the smallest normal number
    code = roundByAdding(magnitude, 0x1p14f);
  }
  if (magnitude > 0x43e80000u) {  // 464, half a step above 448; a tie, to even
    code = 0x7fu;
  }
  return (bits & kSign32) >> 24 | code;
}

__device__ inline unsigned narrowToF8E5M2(float x) {
  const unsigned bits = __float_as_uint(x), magnitude = bits & ~kSign32;
  unsigned code = roundBits<21>(magnitude - (112u << 23));
  if (magnitude < 0x38800000u) {  // 2^-14, the smallest normal number
    code = roundByAdding(magnitude, 0x1p7f);
  }
  if (magnitude >= 0x47700000u) {  // 61440, half a step above the largest number
    code = 0x7cu;
  }
  if (magnitude > kInf32) {
    code = 0x7eu | (magnitude >> 21 & 3u);
  }
  return (bits & kSign32) >> 24 | code;
}

// narrow converts from binary32, rounding once; to f64 exactly.
template <class Target>
__device__ inline Target narrow(float x) {
  if constexpr (std::is_same<Target, F64>::value) {
    return widenDouble(x);
  } else if constexpr (std::is_same<Target, F32>::value) {
    return x;
  } else if constexpr (std::is_same<Target, BF16>::value) {
    return BF16{static_cast<unsigned short>(narrowToBF16(x))};
  } else if constexpr (std::is_same<Target, F16>::value) {
    return F16{static_cast<unsigned short>(narrowToF16(x))};
  } else if constexpr (std::is_same<Target, F8E4M3>::value) {
    return F8E4M3{static_cast<unsigned char>(narrowToF8E4M3(x))};
  } else {
    static_assert(std::is_same<Target, F8E5M2>::value, "dtype: only float types are converted");
    return F8E5M2{static_cast<unsigned char>(narrowToF8E5M2(x))};
  }
}

// convert is the conversion between any two float types; between equal ones it
// keeps the bits.
template <class Target, class Source>
__device__ inline Target convert(Source x) {
  if constexpr (std::is_same<Target, Source>::value) {
    return x;
  } else if constexpr (!std::is_same<Source, F64>::value) {
    return narrow<Target>(widen(x));
  } else if constexpr (std::is_same<Target, F32>::value) {
    return roundToFloat(x);
  } else {
    return narrow<Target>(roundToOdd(x));
  }
}

// bitsOf returns an element's bits.
__device__ inline unsigned long long bitsOf(F64 x) { return static_cast<unsigned long long>(__double_as_longlong(x)); }
__device__ inline unsigned long long bitsOf(F32 x) { return __float_as_uint(x); }
template <class Small>
__device__ inline unsigned long long bitsOf(Small x) {
  return x.bits;
}

}  // namespace shardgen
