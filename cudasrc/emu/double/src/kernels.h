// What a package's .cu is followed by, so that it becomes a shared library of
// emulated kernels: a list of EmuKernel.
#pragma once

#include <tuple>
#include <utility>

#include "kernel.h"

namespace emu {

// Launch is a kernel whose parameters come as the driver API has them: a pointer
// to each.
template <auto kKernel, class... Parameters>
struct Launch {
  static constexpr std::size_t kCount = sizeof...(Parameters);
  static constexpr std::size_t kBytes[kCount + 1] = {sizeof(Parameters)..., 0};

  template <class T>
  static T load(const void* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  static void thread(void* arguments) { std::apply(kKernel, *static_cast<std::tuple<Parameters...>*>(arguments)); }

  template <std::size_t... kIndex>
  static void spread(unsigned blocks, unsigned threads, const void* const* from, std::index_sequence<kIndex...>) {
    std::tuple<Parameters...> arguments{load<Parameters>(from[kIndex])...};
    launch(blocks, threads, &thread, &arguments);
  }

  static void run(unsigned blocks, unsigned threads, bool reversed, const void* const* from) {
    block.reversed = reversed;
    spread(blocks, threads, from, std::index_sequence_for<Parameters...>{});
  }
};

template <auto kKernel, class... Parameters>
EmuKernel kernelOf(const char* name, void (*)(Parameters...)) {
  using Of = Launch<kKernel, Parameters...>;
  return {name, Of::kCount, Of::kBytes, &Of::run};
}

}  // namespace emu

#define EMU_KERNEL(kernel) emu::kernelOf<&::kernel>(#kernel, &::kernel)
