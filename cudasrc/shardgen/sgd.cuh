// SGD on a range of a shard: the twin, bit for bit, of Go's optim.SGDStep.
#pragma once

#include "dtype.cuh"
#include "range.cuh"

namespace shardgen {

// SGDStep is Go's optim.SGDStep, field by field.
struct SGDStep {
  double gradScale;  // the gradient is multiplied by this first
  double weightDecay;
  double momentum;
  double gain;  // 1 - dampening; 1 in the first step
  double lr;
  bool nesterov;
};

// sgd updates elements of a shard and writes the copy of the parameter in its
// own type, unless Copy is the arithmetic type itself: then the master is the
// parameter and copy is not used. Without kMomentum, buffer is not used.
// Config: Float (F32 or F64), Copy, kMomentum, kAlignBytes.
template <class Config>
__device__ inline void sgd(const SGDStep& step, typename Config::Float* __restrict__ master,
                           typename Config::Float* __restrict__ buffer, const typename Config::Float* __restrict__ gradient,
                           typename Config::Copy* __restrict__ copy, long long elements) {
  using Float = typename Config::Float;
  using Copy = typename Config::Copy;
  static_assert(Aligned<Config::kAlignBytes>::kHolds);
  static_assert(std::is_same<Float, F32>::value || std::is_same<Float, F64>::value,
                "optimizer.master: masters and momentum are f32, those of f64 parameters f64");

  const Float gradScale = static_cast<Float>(step.gradScale), weightDecay = static_cast<Float>(step.weightDecay);
  const Float momentum = static_cast<Float>(step.momentum), gain = static_cast<Float>(step.gain);
  const Float lr = static_cast<Float>(step.lr);
  const bool nesterov = step.nesterov;
  forRange<kPackElements<Float, Copy>>(elements, [=](auto count, long long at) {
    constexpr int kCount = decltype(count)::value;
    Pack<Float, kCount> p, b, g;
    p.load(master + at);
    g.load(gradient + at);
    if constexpr (Config::kMomentum) {
      b.load(buffer + at);
    }
#pragma unroll
    for (int i = 0; i < kCount; i++) {
      Float direction = g[i] * gradScale + p[i] * weightDecay;
      if constexpr (Config::kMomentum) {
        b[i] = b[i] * momentum + direction * gain;
        direction = nesterov ? direction + b[i] * momentum : b[i];
      }
      p[i] = p[i] - direction * lr;
    }
    p.store(master + at);
    if constexpr (Config::kMomentum) {
      b.store(buffer + at);
    }
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
