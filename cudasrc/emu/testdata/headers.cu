// Our conversions against those of CUDA's own headers, which are compiled for the
// host here: a second opinion on both.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <shardgen/dtype.cuh>

using namespace shardgen;

// patterns calls visit with floats of every upper half and some lower halves,
// middles between narrow numbers and their neighbours among them. NaNs are left
// out: CUDA's conversions do not keep their payload.
template <class Visit>
void patterns(Visit visit) {
  const unsigned lower[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff};
  for (unsigned upper = 0; upper < 1u << 16; upper++) {
    for (unsigned low : lower) {
      const float x = __uint_as_float(upper << 16 | low);
      if (x == x) {
        visit(x);
      }
    }
  }
}

extern "C" __global__ void narrowing(long long* differences, long long* compared) {
  patterns([=](float x) {
    compared[0]++;
    differences[0] += narrowToBF16(x) != __bfloat16_as_ushort(__float2bfloat16_rn(x));
    differences[1] += narrowToF16(x) != __half_as_ushort(__float2half_rn(x));
    differences[2] += narrowToF8E4M3(x) != __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3);
    differences[3] += narrowToF8E5M2(x) != __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E5M2);
  });
}

extern "C" __global__ void widening(long long* differences, long long* compared) {
  for (unsigned code = 0; code < 1u << 16; code++) {
    const auto bits = static_cast<unsigned short>(code);
    const float brain = widen(BF16{bits}), half = widen(F16{bits});
    const float theirBrain = __bfloat162float(__ushort_as_bfloat16(bits)), theirHalf = __half2float(__ushort_as_half(bits));
    compared[0]++;
    differences[0] += brain == brain ? brain != theirBrain : theirBrain == theirBrain;
    differences[1] += half == half ? half != theirHalf : theirHalf == theirHalf;
  }
  for (unsigned code = 0; code < 1u << 8; code++) {
    const auto bits = static_cast<unsigned char>(code);
    const float e4m3 = widen(F8E4M3{bits}), e5m2 = widen(F8E5M2{bits});
    const float theirE4M3 = __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
    const float theirE5M2 = __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E5M2)));
    compared[0]++;
    differences[2] += e4m3 == e4m3 ? e4m3 != theirE4M3 : theirE4M3 == theirE4M3;
    differences[3] += e5m2 == e5m2 ? e5m2 != theirE5M2 : theirE5M2 == theirE5M2;
  }
}
