// Calls are counted, and fail where a fault was set: see emu_fault.
#pragma once

#include <cstdint>
#include <string>

#include "kernel.h"

namespace gpu {

// enter counts a call and returns the status of a fault set for it, 0 if none.
// device is that of the caller's context, -1 without.
EMU_EXPORT int enter(const char* name, int device);

// firing returns the code of a fault of a kind that is set for a rank or stream
// and fires now, 0 if none; each call is one chance.
EMU_EXPORT int firing(const char* kind, const char* key, std::int64_t value);

// standing says whether a fault that holds for good is set for a rank or stream,
// and its key ms if it has one.
EMU_EXPORT bool standing(const char* kind, const char* key, std::int64_t value, std::int64_t* milliseconds);

// setFault reads a fault; it returns what is wrong with it.
std::string setFault(const std::string& spec);
void clearFaults();
std::int64_t callsOf(const std::string& name);

}  // namespace gpu
