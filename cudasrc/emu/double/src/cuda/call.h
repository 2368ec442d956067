// What all calls of the driver API begin with.
#pragma once

#include "faults.h"
#include "state.h"

namespace gpu {

// withDriver does a call that needs cuInit only; body gets the lock.
template <class Body>
CUresult withDriver(const char* name, Body body) {
  Device* device = current();
  if (const int status = enter(name, device == nullptr ? -1 : device->index)) {
    return static_cast<CUresult>(status);
  }
  Lock lock(state().mutex);
  return state().initialized ? body(lock) : CUDA_ERROR_NOT_INITIALIZED;
}

// withContext does a call that needs the caller's current context; body gets its
// device and the lock.
template <class Body>
CUresult withContext(const char* name, Body body) {
  return withDriver(name, [&](Lock& lock) {
    Device* device = current();
    if (device == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (device->retained == 0) {
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return device->sticky != CUDA_SUCCESS ? device->sticky : static_cast<CUresult>(body(*device, lock));
  });
}

// find returns what a map of handles has, or null.
template <class Map, class Handle>
auto* lookUp(const Map& map, Handle handle) {
  const auto at = map.find(reinterpret_cast<void*>(handle));
  return at == map.end() ? nullptr : &*at->second;
}

}  // namespace gpu
