// Memory of devices and pinned memory of the host.
//
// Fresh memory holds garbage. Around each allocation lie a red zone, which is
// looked at when it is freed and by emu_check, and pages that can't be accessed.
// Freed memory can't be accessed either, and its addresses are not used again.
// Addresses of device memory are multiples of 256 and of no more, which is all
// that CUDA promises.
//
// An asynchronous copy reads and writes host memory when it runs, also where
// that is pageable: NVIDIA's driver may read pageable memory at the call, but
// only promises to do so by the time that the copy is done.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#include "call.h"
#include "release.h"

namespace gpu {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kZoneBytes = 4096;  // at least, on either side
constexpr unsigned char kGarbage = 0xff, kZone = 0xfd;

std::size_t roundUp(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

// mapRegion maps `bytes` at an address that is an odd multiple of align.
Region mapRegion(std::size_t bytes, std::size_t align) {
  Region region;
  const std::size_t inner = kZoneBytes + align + roundUp(bytes + kZoneBytes, kPageBytes);
  region.mappedBytes = roundUp(inner, kPageBytes) + 2 * kPageBytes;
  void* mapped = mmap(nullptr, region.mappedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return {};
  }
  region.mapped = static_cast<char*>(mapped);
  region.bytes = bytes;
  char* first = region.mapped + kPageBytes;
  const std::size_t usable = region.mappedBytes - 2 * kPageBytes;
  if (mprotect(first, usable, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped, region.mappedBytes);
    return {};
  }
  region.user = first + kZoneBytes + align % kPageBytes;
  std::memset(first, kZone, usable);
  std::memset(region.user, kGarbage, bytes);
  return region;
}

std::size_t countOther(const char* from, const char* to) {
  return static_cast<std::size_t>(std::count_if(from, to, [](char c) { return static_cast<unsigned char>(c) != kZone; }));
}

// holds returns the entry of a map by address that holds a range, or null.
template <class Map, class Bytes>
auto* holding(Map& map, std::uint64_t address, std::size_t bytes, Bytes bytesOf) {
  auto at = map.upper_bound(address);
  if (at == map.begin()) {
    return static_cast<decltype(&at->second)>(nullptr);
  }
  --at;
  const std::uint64_t offset = address - at->first, length = bytesOf(at->second);
  return offset <= length && bytes <= length - offset ? &at->second : nullptr;
}

std::string rangeText(std::uint64_t address, std::size_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%zu bytes at %#llx", bytes, static_cast<unsigned long long>(address));
  return text;
}

void checkZones(const Region& region, const char* kind) {
  if (const std::size_t bytes = damaged(region)) {
    note(std::to_string(bytes) + " bytes were written beside " + kind + " of " + rangeText(reinterpret_cast<std::uint64_t>(region.user), region.bytes));
  }
}

// Copy moves bytes when it runs. Device ranges must be live then.
struct Copy : Operation {
  std::string name;
  std::uint64_t to, from;
  std::size_t bytes;
  bool toDevice, fromDevice;

  CUresult run() override {
    {
      const Lock lock(state().mutex);
      for (const auto& [isDevice, address] : {std::pair(toDevice, to), std::pair(fromDevice, from)}) {
        if (isDevice && onDevice(address, bytes) == nullptr) {
          note(describe() + ": " + rangeText(address, bytes) + " was freed before the copy ran");
          return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
      }
    }
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    return CUDA_SUCCESS;
  }

  std::string describe() const override { return name + " of " + std::to_string(bytes) + " bytes"; }
};

bool valid(bool isDevice, std::uint64_t address, std::size_t bytes) {
  return isDevice ? onDevice(address, bytes) != nullptr : address != 0 && onDevice(address, 1) == nullptr;
}

CUresult copyAsync(const char* name, std::uint64_t to, bool toDevice, std::uint64_t from, bool fromDevice, std::size_t bytes, CUstream stream) {
  return withContext(name, [&](Device& device, Lock&) {
    const auto queue = queueOf(stream, &device);
    if (queue == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (bytes == 0) {
      return CUDA_SUCCESS;
    }
    if (!valid(toDevice, to, bytes) || !valid(fromDevice, from, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (to < from + bytes && from < to + bytes) {
      note(std::string(name) + ": source and destination overlap: " + rangeText(from, bytes) + ", " + rangeText(to, bytes));
    }
    auto copy = std::make_unique<Copy>();
    copy->name = name;
    copy->to = to;
    copy->from = from;
    copy->bytes = bytes;
    copy->toDevice = toDevice;
    copy->fromDevice = fromDevice;
    enqueue(queue, std::move(copy));
    return CUDA_SUCCESS;
  });
}

template <class Word>
CUresult fillAsync(const char* name, std::uint64_t to, Word word, std::size_t count, CUstream stream) {
  return withContext(name, [&](Device& device, Lock&) {
    const auto queue = queueOf(stream, &device);
    if (queue == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (to % sizeof(Word) != 0 || count > SIZE_MAX / sizeof(Word) || onDevice(to, count * sizeof(Word)) == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    enqueue(queue, std::make_unique<Action>(name, [to, word, count] {
              std::fill_n(reinterpret_cast<Word*>(to), count, word);
              return CUDA_SUCCESS;
            }));
    return CUDA_SUCCESS;
  });
}

CUresult allocate(Device& device, CUdeviceptr* address, std::size_t bytes) {
  if (address == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::uint64_t limit = limitBytes();
  if (bytes > limit || device.usedBytes > limit - bytes) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const Region region = mapRegion(bytes, kDeviceAlign);
  if (region.user == nullptr) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = reinterpret_cast<std::uint64_t>(region.user);
  device.usedBytes += bytes;
  state().memory[*address] = {&device, region};
  return CUDA_SUCCESS;
}

}  // namespace

std::uint64_t limitBytes() { return std::strtoull(setting("EMU_MEMORY", "8589934592").c_str(), nullptr, 10); }

std::size_t damaged(const Region& region) {
  const char* first = region.mapped + kPageBytes;
  const char* last = region.mapped + region.mappedBytes - kPageBytes;
  return countOther(first, region.user) + countOther(region.user + region.bytes, last);
}

// unmapRegion gives the memory back and keeps its addresses out of use.
void unmapRegion(Region& region) {
  mmap(region.mapped, region.mappedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

const Allocation* onDevice(std::uint64_t address, std::size_t bytes) {
  return holding(state().memory, address, bytes, [](const Allocation& a) { return a.region.bytes; });
}

bool isPinned(std::uint64_t address, std::size_t bytes) {
  return holding(state().hostMemory, address, bytes, [](const HostRange& r) { return r.bytes; }) != nullptr;
}

void releaseMemory(Allocation& allocation) {
  checkZones(allocation.region, "device memory");
  allocation.device->usedBytes -= allocation.region.bytes;
  unmapRegion(allocation.region);
}

void releaseHost(HostRange& range) {
  if (range.allocated) {
    checkZones(range.region, "pinned memory");
    unmapRegion(range.region);
  }
}

}  // namespace gpu

using namespace gpu;

extern "C" {

EMU_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
  return withContext("cuMemAlloc_v2", [&](Device& device, Lock&) { return allocate(device, address, bytes); });
}

EMU_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
  return withContext("cuMemFree_v2", [&](Device&, Lock&) {
    const auto at = state().memory.find(address);
    if (address == 0) {
      return CUDA_SUCCESS;
    }
    if (at == state().memory.end()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    releaseMemory(at->second);
    state().memory.erase(at);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  return withContext("cuMemGetInfo_v2", [&](Device& device, Lock&) {
    const std::uint64_t limit = limitBytes();
    *free = limit < device.usedBytes ? 0 : limit - device.usedBytes;
    *total = limit;
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuMemHostAlloc(void** address, size_t bytes, unsigned flags) {
  return withContext("cuMemHostAlloc", [&](Device&, Lock&) {
    if (address == nullptr || bytes == 0 || flags > 7) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > limitBytes()) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    HostRange range;
    range.bytes = bytes;
    range.allocated = true;
    range.region = mapRegion(bytes, kPageBytes);
    if (range.region.user == nullptr) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = range.region.user;
    state().hostMemory[reinterpret_cast<std::uint64_t>(*address)] = range;
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuMemFreeHost(void* address) {
  return withContext("cuMemFreeHost", [&](Device&, Lock&) {
    const auto at = state().hostMemory.find(reinterpret_cast<std::uint64_t>(address));
    if (at == state().hostMemory.end() || !at->second.allocated) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    releaseHost(at->second);
    state().hostMemory.erase(at);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags) {
  return withContext("cuMemHostRegister_v2", [&](Device&, Lock&) {
    const auto first = reinterpret_cast<std::uint64_t>(address);
    if (address == nullptr || bytes == 0 || flags > 15) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& [other, range] : state().hostMemory) {
      if (first < other + range.bytes && other < first + bytes) {
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
      }
    }
    HostRange range;
    range.bytes = bytes;
    state().hostMemory[first] = range;
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuMemHostUnregister(void* address) {
  return withContext("cuMemHostUnregister", [&](Device&, Lock&) {
    const auto at = state().hostMemory.find(reinterpret_cast<std::uint64_t>(address));
    if (at == state().hostMemory.end() || at->second.allocated) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    state().hostMemory.erase(at);
    return CUDA_SUCCESS;
  });
}

EMU_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  return copyAsync("cuMemcpyHtoDAsync_v2", to, true, reinterpret_cast<std::uint64_t>(from), false, bytes, stream);
}

EMU_EXPORT CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copyAsync("cuMemcpyDtoHAsync_v2", reinterpret_cast<std::uint64_t>(to), false, from, true, bytes, stream);
}

EMU_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copyAsync("cuMemcpyDtoDAsync_v2", to, true, from, true, bytes, stream);
}

EMU_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
  return fillAsync<unsigned char>("cuMemsetD8Async", to, value, count, stream);
}

EMU_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
  return fillAsync<unsigned>("cuMemsetD32Async", to, value, count, stream);
}

}  // extern "C"
