// Modules and kernels. A module is a shared library in the folder EMU_IMAGES,
// built from a package's .cu with the emulator: <hash>.so for an image of
// machine code, where the hash is FNV-1a of the image's bytes in 16 hexadecimal
// digits, or <name>.so for the image "EMU0<name>\n".
#include <cstdio>
#include <cstring>

#include <dlfcn.h>

#include "call.h"
#include "policy.h"

namespace gpu {
namespace {

constexpr std::uint32_t kFatbinMagic = 0xba55ed50u;
constexpr char kTextMagic[] = "EMU0";
constexpr std::size_t kMaxName = 128;

// fatbinBytes returns the length of a fatbin: its header says its own length and
// that of what follows.
std::size_t fatbinBytes(const unsigned char* image) {
  std::uint16_t header = 0;
  std::uint64_t rest = 0;
  std::memcpy(&header, image + 6, sizeof header);
  std::memcpy(&rest, image + 8, sizeof rest);
  return header + rest;
}

std::string hashName(const unsigned char* image, std::size_t bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (std::size_t i = 0; i < bytes; i++) {
    hash = (hash ^ image[i]) * 0x100000001b3ull;
  }
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash));
  return name;
}

// textName returns the name in a text image, "" if there is none.
std::string textName(const char* image) {
  std::string name;
  for (const char* at = image + sizeof kTextMagic - 1; name.size() < kMaxName; at++) {
    if (*at == '\n') {
      return name;
    }
    if (*at == '\0' || *at == '/') {
      return "";
    }
    name += *at;
  }
  return "";
}

// nameOf returns the name of an image's library without the suffix, "" for what
// is no image. It reads no further than the image goes.
std::string nameOf(const void* image) {
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic == kFatbinMagic) {
    const auto* bytes = static_cast<const unsigned char*>(image);
    return hashName(bytes, fatbinBytes(bytes));
  }
  return std::memcmp(&magic, kTextMagic, sizeof magic) == 0 ? textName(static_cast<const char*>(image)) : "";
}

CUresult load(Device& device, CUmodule* module, const void* image) {
  if (module == nullptr || image == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::string name = nameOf(image), path = setting("EMU_IMAGES", ".") + "/" + name + ".so";
  void* library = name.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "emulated GPU: no kernels for an image: %s\n", name.empty() ? "it is none" : dlerror());
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  const auto list = reinterpret_cast<decltype(&emu_kernels)>(dlsym(library, "emu_kernels"));
  if (list == nullptr) {
    dlclose(library);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  auto made = std::make_unique<Module>(Module{&device, library, {}});
  std::size_t count = 0;
  const EmuKernel* kernels = list(&count);
  for (std::size_t i = 0; i < count; i++) {
    auto function = std::make_unique<Function>(Function{&device, &kernels[i]});
    state().functions[function.get()] = function.get();
    made->functions[kernels[i].name] = std::move(function);
  }
  *module = reinterpret_cast<CUmodule>(made.get());
  state().modules[made.get()] = std::move(made);
  return CUDA_SUCCESS;
}

// Launch is a kernel with the arguments that it had at the call.
struct Launch : Operation {
  const EmuKernel* kernel;
  int device;
  unsigned blocks, threads;
  bool reversed;
  std::vector<std::vector<unsigned char>> arguments;

  CUresult run() override {
    if (const int code = firing("launch", "device", device)) {
      return static_cast<CUresult>(code);
    }
    std::vector<const void*> pointers;
    for (const auto& argument : arguments) {
      pointers.push_back(argument.data());
    }
    kernel->launch(blocks, threads, reversed, pointers.data());
    return CUDA_SUCCESS;
  }

  std::string describe() const override { return std::string("kernel ") + kernel->name; }
};

struct Shape {
  unsigned x, y, z;
};

bool isEmpty(Shape s) { return s.x == 0 || s.y == 0 || s.z == 0; }

// checkLaunch checks what a driver does and what the emulator can't do.
CUresult checkLaunch(const Function& function, Shape grid, Shape block, unsigned sharedBytes, void** parameters, void** extra) {
  if (isEmpty(grid) || isEmpty(block) || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      static_cast<std::uint64_t>(block.x) * block.y * block.z > 1024 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (extra != nullptr || (parameters == nullptr && function.kernel->parameters > 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool flat = grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1;
  return flat && sharedBytes == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

std::unique_ptr<Launch> makeLaunch(const Function& function, unsigned blocks, unsigned threads, void** parameters) {
  auto launch = std::make_unique<Launch>();
  launch->kernel = function.kernel;
  launch->device = function.device->index;
  launch->blocks = blocks;
  launch->threads = threads;
  launch->reversed = reversedThreads();
  for (std::size_t i = 0; i < function.kernel->parameters; i++) {
    const auto* first = static_cast<const unsigned char*>(parameters[i]);
    launch->arguments.emplace_back(first, first + function.kernel->bytes[i]);
  }
  return launch;
}

}  // namespace
}  // namespace gpu

using namespace gpu;

extern "C" {

EMU_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return withContext("cuModuleLoadData", [&](Device& device, Lock&) { return load(device, module, image); });
}

EMU_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return withContext("cuModuleLoadDataEx", [&](Device& device, Lock&) { return load(device, module, image); });
}

EMU_EXPORT CUresult cuModuleUnload(CUmodule handle) {
  return withContext("cuModuleUnload", [&](Device& device, Lock&) {
    const auto at = state().modules.find(handle);
    if (at == state().modules.end() || at->second->device != &device) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const auto& entry : at->second->functions) {
      state().functions.erase(entry.second.get());
    }
    // The library stays: a queue may still hold a launch.
    state().modules.erase(at);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule handle, const char* name) {
  return withContext("cuModuleGetFunction", [&](Device& device, Lock&) {
    const Module* module = lookUp(state().modules, handle);
    if (module == nullptr || module->device != &device) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (function == nullptr || name == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto at = module->functions.find(name);
    if (at == module->functions.end()) {
      return CUDA_ERROR_NOT_FOUND;
    }
    *function = reinterpret_cast<CUfunction>(at->second.get());
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction function) {
  return withContext("cuFuncGetAttribute", [&](Device&, Lock&) {
    if (lookUp(state().functions, function) == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    switch (which) {
      case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
      case CU_FUNC_ATTRIBUTE_NUM_REGS:
        *value = 32;
        break;
      case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = 90;
        break;
      default:
        *value = 0;
    }
    return CUDA_SUCCESS;
  });
}

// The emulator has no dynamic shared memory: only what a driver refuses, too, is.
EMU_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
  return withContext("cuFuncSetAttribute", [&](Device&, Lock&) {
    if (lookUp(state().functions, function) == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const bool right = which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= 232448;
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

EMU_EXPORT CUresult cuLaunchKernel(CUfunction handle, unsigned gridX, unsigned gridY, unsigned gridZ, unsigned blockX, unsigned blockY,
                                   unsigned blockZ, unsigned sharedBytes, CUstream stream, void** parameters, void** extra) {
  return withContext("cuLaunchKernel", [&](Device& device, Lock&) {
    const Function* function = lookUp(state().functions, handle);
    const auto queue = queueOf(stream, &device);
    if (function == nullptr || queue == nullptr || function->device != &device || queue->device != &device) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const CUresult status = checkLaunch(*function, {gridX, gridY, gridZ}, {blockX, blockY, blockZ}, sharedBytes, parameters, extra);
    if (status == CUDA_SUCCESS) {
      enqueue(queue, makeLaunch(*function, gridX, blockX, parameters));
    }
    return status;
  });
}

}  // extern "C"
