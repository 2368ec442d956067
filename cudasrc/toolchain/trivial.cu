// A trivial kernel, to prove that the compilers and their headers are complete.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void trivial(__half* to, const __nv_bfloat16* from) {
  to[threadIdx.x] = __float2half(__bfloat162float(from[threadIdx.x]));
}
