// Devices and their primary contexts.
//
// A device looks like a small GPU of compute capability 9.0: it has few
// multiprocessors, because each block that a grid has for one is emulated.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <dlfcn.h>

#include "call.h"
#include "policy.h"
#include "release.h"

namespace gpu {
namespace {

constexpr int kDriverVersion = 13000;
constexpr int kMultiprocessors = 2;

thread_local Device* currentDevice = nullptr;

// attribute returns what a device has, 0 for what only graphics and graphs need.
int attribute(const Device& device, CUdevice_attribute which) {
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      return 65535;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      return kMultiprocessors;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      return 2048;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
      return 3;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return 0;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 232448;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      return device.index + 1;
    default:
      return 0;
  }
}

// withDevice does a call on a device that is named by its number.
template <class Body>
CUresult withDevice(const char* name, CUdevice number, Body body) {
  return withDriver(name, [&](Lock&) {
    const auto& devices = state().devices;
    return number < 0 || number >= static_cast<int>(devices.size()) ? CUDA_ERROR_INVALID_DEVICE : body(*devices[static_cast<std::size_t>(number)]);
  });
}

CUresult initialize() {
  State& world = state();
  const long long count = std::atoll(setting("EMU_DEVICES", "8").c_str());
  if (count < 1) {
    return CUDA_ERROR_NO_DEVICE;
  }
  if (const std::string wrong = usePolicy(setting("EMU_SCHEDULE", "random:1")); !wrong.empty()) {
    std::fprintf(stderr, "emulated GPU: %s\n", wrong.c_str());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  for (long long i = 0; i < count; i++) {
    world.devices.push_back(std::make_unique<Device>());
    world.devices.back()->index = static_cast<int>(i);
  }
  startScheduler();
  world.initialized = true;
  return CUDA_SUCCESS;
}

// eraseOf erases the entries of a map that are a device's, after a visit.
template <class Map, class DeviceOf, class Visit>
void eraseOf(Map& map, const Device& device, DeviceOf deviceOf, Visit visit) {
  for (auto at = map.begin(); at != map.end();) {
    if (deviceOf(at->second) != &device) {
      ++at;
      continue;
    }
    visit(at->second);
    at = map.erase(at);
  }
}

// dropWork ends all queues of a device; whoever waits for them goes on.
void dropWork(Device& device) {
  auto& queues = state().queues;
  for (std::size_t i = 0; i < queues.size();) {
    if (queues[i]->device != &device) {
      i++;
      continue;
    }
    for (Item& item : queues[i]->items) {
      item.operation->ended();
    }
    queues[i]->items.clear();
    queues[i]->done = queues[i]->enqueued;
    queues.erase(queues.begin() + static_cast<std::ptrdiff_t>(i));
  }
  device.defaultQueue = nullptr;
}

}  // namespace

Device* current() { return currentDevice; }
void setCurrent(Device* device) { currentDevice = device; }

void destroyContext(Device& device, std::vector<std::string>* leaks) {
  State& world = state();
  const std::string of = " of GPU " + std::to_string(device.index) + " was never freed";
  const auto leak = [&](const std::string& what) {
    if (leaks != nullptr) {
      leaks->push_back(what + of);
    }
  };
  dropWork(device);
  eraseOf(world.streams, device, [](const auto& q) { return q->device; }, [&](const auto&) { leak("a stream"); });
  eraseOf(world.events, device, [](const auto& e) { return e->device; }, [&](const auto&) { leak("an event"); });
  eraseOf(world.memory, device, [](const auto& a) { return a.device; }, [&](Allocation& a) {
    leak("device memory (" + std::to_string(a.region.bytes) + " bytes)");
    releaseMemory(a);
  });
  eraseOf(world.modules, device, [](const auto& m) { return m->device; }, [&](const auto& m) {
    leak("a module");
    dlclose(m->library);
  });
  eraseOf(world.functions, device, [](Function* f) { return f->device; }, [](Function* f) { delete f; });
  device.sticky = CUDA_SUCCESS;
  device.streamsMade = 0;
  world.changed.notify_all();
}

}  // namespace gpu

using namespace gpu;

extern "C" {

EMU_EXPORT CUresult cuInit(unsigned flags) {
  if (const int status = enter("cuInit", -1)) {
    return static_cast<CUresult>(status);
  }
  const Lock lock(state().mutex);
  if (flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return state().initialized ? CUDA_SUCCESS : initialize();
}

// It is one of the calls that work before cuInit.
EMU_EXPORT CUresult cuDriverGetVersion(int* version) {
  if (const int status = enter("cuDriverGetVersion", -1)) {
    return static_cast<CUresult>(status);
  }
  if (version == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

EMU_EXPORT CUresult cuDeviceGetCount(int* count) {
  return withDriver("cuDeviceGetCount", [&](Lock&) {
    *count = static_cast<int>(state().devices.size());
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return withDevice("cuDeviceGet", ordinal, [&](const Device&) {
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice number) {
  return withDevice("cuDeviceGetName", number, [&](const Device&) {
    if (name == nullptr || length <= 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::snprintf(name, static_cast<std::size_t>(length), "Emulated GPU");
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice number) {
  return withDevice("cuDeviceGetAttribute", number, [&](const Device& device) {
    if (value == nullptr || static_cast<int>(which) <= 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *value = attribute(device, which);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice number) {
  return withDevice("cuDeviceTotalMem_v2", number, [&](const Device&) {
    *bytes = limitBytes();
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice number) {
  return withDevice("cuDeviceGetUuid_v2", number, [&](const Device&) {
    std::memcpy(uuid->bytes, "emulated GPU   ", 16);
    uuid->bytes[15] = static_cast<char>(number);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice number) {
  return withDevice("cuDeviceGetPCIBusId", number, [&](const Device& device) {
    if (id == nullptr || length < 13) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", static_cast<unsigned>(device.index + 1) & 0xffu);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice number) {
  return withDevice("cuDevicePrimaryCtxRetain", number, [&](Device& device) {
    if (context == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    device.retained++;
    *context = reinterpret_cast<CUcontext>(&device);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice number) {
  return withDriver("cuDevicePrimaryCtxRelease_v2", [&](Lock& lock) {
    if (number < 0 || number >= static_cast<int>(state().devices.size())) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    Device& device = *state().devices[static_cast<std::size_t>(number)];
    if (device.retained == 0) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (--device.retained > 0) {
      return CUDA_SUCCESS;
    }
    until(lock, "the end of an operation", [] { return !state().running; });
    std::vector<std::string> leaks;
    destroyContext(device, &leaks);
    for (const std::string& leak : leaks) {
      note(leak + " before its context was released");
    }
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
  return withDriver("cuCtxSetCurrent", [&](Lock&) {
    Device* device = nullptr;
    for (const auto& each : state().devices) {
      if (reinterpret_cast<CUcontext>(each.get()) == context && each->retained > 0) {
        device = each.get();
      }
    }
    if (context != nullptr && device == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    setCurrent(device);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
  return withDriver("cuCtxGetCurrent", [&](Lock&) {
    *context = reinterpret_cast<CUcontext>(current());
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
