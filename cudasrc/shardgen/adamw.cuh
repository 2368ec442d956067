// AdamW on a range of a shard: the twin, bit for bit, of Go's optim.AdamWStep.
#pragma once

#include "dtype.cuh"
#include "range.cuh"

namespace shardgen {

// AdamWStep is Go's optim.AdamWStep, field by field.
struct AdamWStep {
  double gradScale;  // the gradient is multiplied by this first
  double keep;       // 1 - lr*weight_decay
  double gain1;      // 1 - beta1
  double keep1;      // 1 - gain1, used where gain1 >= 0.5
  double beta2;
  double gain2;     // 1 - beta2
  double stepSize;  // lr / (1 - beta1^step)
  double root2;     // sqrt(1 - beta2^step)
  double eps;
};

// squareRoot is rounded to nearest in the argument's type.
__device__ inline float squareRoot(float x) { return sqrtf(x); }
__device__ inline double squareRoot(double x) { return sqrt(x); }

// AdamWScalars are a step's scalars in the arithmetic type.
template <class Float>
struct AdamWScalars {
  Float gradScale, keep, gain1, keep1, beta2, gain2, stepSize, root2, eps;
  bool nearOld;  // the first moment moves by less than half of the way

  __device__ explicit AdamWScalars(const AdamWStep& s)
      : gradScale(static_cast<Float>(s.gradScale)), keep(static_cast<Float>(s.keep)), gain1(static_cast<Float>(s.gain1)),
        keep1(static_cast<Float>(s.keep1)), beta2(static_cast<Float>(s.beta2)), gain2(static_cast<Float>(s.gain2)),
        stepSize(static_cast<Float>(s.stepSize)), root2(static_cast<Float>(s.root2)), eps(static_cast<Float>(s.eps)),
        nearOld(s.gain1 < 0.5) {}

  // update changes one element. Products that feed sums are not fused: the
  // compilers are told so.
  __device__ void update(Float& p, Float& m, Float& v, Float gradient) const {
    const Float g = gradient * gradScale;
    m = nearOld ? m + (g - m) * gain1 : g - (g - m) * keep1;
    v = v * beta2 + (g * g) * gain2;
    const Float denominator = squareRoot(v) / root2 + eps;
    p = p * keep - (m * stepSize) / denominator;
  }
};

// adamw updates elements of a shard and writes the copy of the parameter in its
// own type, unless Copy is the arithmetic type itself: then the master is the
// parameter and copy is not used. Config: Float (F32 or F64), Copy, kAlignBytes.
template <class Config>
__device__ inline void adamw(const AdamWStep& step, typename Config::Float* __restrict__ master,
                             typename Config::Float* __restrict__ moment1, typename Config::Float* __restrict__ moment2,
                             const typename Config::Float* __restrict__ gradient, typename Config::Copy* __restrict__ copy,
                             long long elements) {
  using Float = typename Config::Float;
  using Copy = typename Config::Copy;
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  static_assert(std::is_same<Float, F32>::value || std::is_same<Float, F64>::value,
                "optimizer.master: masters and moments are f32, those of f64 parameters f64");

  const AdamWScalars<Float> scalars(step);
  forRange<kPackElements<Float, Copy>>(elements, [=](auto count, long long at) {
    constexpr int kCount = decltype(count)::value;
    Pack<Float, kCount> p, m, v, g;
    p.load(master + at);
    m.load(moment1 + at);
    v.load(moment2 + at);
    g.load(gradient + at);
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      scalars.update(p[i], m[i], v[i], g[i]);
    }
    p.store(master + at);
    m.store(moment1 + at);
    v.store(moment2 + at);
    if constexpr (!std::is_same<Float, Copy>::value) {
      Pack<Copy, kCount> rounded;
#pragma unroll
      for (int i = 0; i < kCount; i++) {
        rounded[i] = convert<Copy>(p[i]);
      }
      rounded.store(copy + at);
    }
  });
}

}  // namespace shardgen
