// Counter-based random numbers: the twin, bit for bit, of the streams of Go's
// package runtime/random.
#pragma once

namespace shardgen {

// RandomStream names the random numbers of one parameter.
struct RandomStream {
  unsigned long long seed;   // the key, low word first
  unsigned long long owner;  // hash of the owner's name: counter words 2 and 3, low word first

  // bits returns the 64 random bits of an element: half element%2 of block
  // element/2 of Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).
  __device__ unsigned long long bits(unsigned long long element) const {
    const unsigned long long index = element / 2;
    unsigned c0 = static_cast<unsigned>(index), c1 = static_cast<unsigned>(index >> 32);
    unsigned c2 = static_cast<unsigned>(owner), c3 = static_cast<unsigned>(owner >> 32);
    unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
      const unsigned long long p0 = c0 * 0xd2511f53ull, p1 = c2 * 0xcd9e8d57ull;
      c0 = static_cast<unsigned>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<unsigned>(p1);
      c2 = static_cast<unsigned>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<unsigned>(p0);
      k0 += 0x9e3779b9u;  // golden ratio
      k1 += 0xbb67ae85u;  // sqrt(3) - 1
    }
    const unsigned low = element % 2 == 0 ? c0 : c2, high = element % 2 == 0 ? c1 : c3;
    return low | static_cast<unsigned long long>(high) << 32;
  }

  // uniform returns an odd multiple of 2^-53 in (0, 1).
  __device__ double uniform(unsigned long long element) const {
    return (static_cast<double>(bits(element) >> 12) + 0.5) * 0x1p-52;
  }
};

}  // namespace shardgen
