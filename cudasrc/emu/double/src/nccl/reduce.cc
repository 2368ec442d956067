// Reductions over ranks, in their order: f64 and f32 in their own type, narrower
// floats in f32 and rounded once, to nearest even, integers exactly.
#include <cstring>
#include <type_traits>

#include "emulator.h"
#include "work.h"

#include <shardgen/dtype.cuh>

namespace nccl {
namespace {

template <class Element>
constexpr bool kNarrow = std::is_class<Element>::value;

// Sum is the type in which elements are combined: unsigned for integers, so that
// sums wrap.
template <class Element>
auto load(const char* from) {
  Element x;
  std::memcpy(&x, from, sizeof x);
  if constexpr (kNarrow<Element>) {
    return shardgen::widen(x);
  } else {
    return x;
  }
}

template <class Element, class Sum>
void store(char* to, Sum sum) {
  Element x;
  if constexpr (kNarrow<Element>) {
    x = shardgen::narrow<Element>(sum);
  } else {
    x = sum;
  }
  std::memcpy(to, &x, sizeof x);
}

template <class Number>
Number add(Number a, Number b) {
  if constexpr (std::is_integral<Number>::value) {
    using Wide = unsigned long long;
    return static_cast<Number>(static_cast<Wide>(a) + static_cast<Wide>(b));
  } else {
    return a + b;
  }
}

template <class Number>
Number multiply(Number a, Number b) {
  if constexpr (std::is_integral<Number>::value) {
    using Wide = unsigned long long;
    return static_cast<Number>(static_cast<Wide>(a) * static_cast<Wide>(b));
  } else {
    return a * b;
  }
}

template <class Number>
Number combine(ncclRedOp_t operation, Number a, Number b) {
  switch (operation) {
    case ncclProd:
      return multiply(a, b);
    case ncclMax:
      return a < b ? b : a;
    case ncclMin:
      return b < a ? b : a;
    default:
      return add(a, b);
  }
}

template <class Element>
void reduceAs(const Call& call, std::size_t count, const std::vector<const char*>& inputs, char* to) {
  for (std::size_t i = 0; i < count; i++) {
    const std::size_t offset = i * sizeof(Element);
    auto sum = load<Element>(inputs[0] + offset);
    for (std::size_t rank = 1; rank < inputs.size(); rank++) {
      sum = combine(call.operation, sum, load<Element>(inputs[rank] + offset));
    }
    if (call.operation == ncclAvg) {
      sum = static_cast<decltype(sum)>(sum / static_cast<decltype(sum)>(inputs.size()));
    }
    store<Element>(to + offset, sum);
  }
}

}  // namespace

std::vector<char> reduce(const Call& call, std::size_t count, const std::vector<const char*>& inputs) {
  std::vector<char> result(count * bytesOf(call.type));
  using Reduce = void (*)(const Call&, std::size_t, const std::vector<const char*>&, char*);
  const Reduce byType[ncclNumTypes] = {
      reduceAs<signed char>,   reduceAs<unsigned char>, reduceAs<int>,    reduceAs<unsigned>,       reduceAs<long long>,       reduceAs<unsigned long long>,
      reduceAs<shardgen::F16>, reduceAs<float>,         reduceAs<double>, reduceAs<shardgen::BF16>, reduceAs<shardgen::F8E4M3>, reduceAs<shardgen::F8E5M2>,
  };
  byType[call.type](call, count, inputs, result.data());
  return result;
}

}  // namespace nccl
