// A kernel as a package's shared library lists it: the library exports
// emu_kernels, which the driver's double calls when the package's image is
// loaded.
#pragma once

#include <cstddef>

#define EMU_EXPORT __attribute__((visibility("default")))

struct EmuKernel {
  const char* name;
  std::size_t parameters;
  const std::size_t* bytes;  // of each parameter
  // launch runs all threads of all blocks; reversed, from the last to the first.
  void (*launch)(unsigned blocks, unsigned threads, bool reversed, const void* const* parameters);
};

extern "C" EMU_EXPORT const EmuKernel* emu_kernels(std::size_t* count);
