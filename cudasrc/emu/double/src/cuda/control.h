// What tests call. Texts stay until the thread's next call; "" says that nothing
// was wrong.
//
// Settings take the place of environment variables: EMU_DEVICES (how many, at
// cuInit), EMU_SCHEDULE (see policy.cc), EMU_MEMORY (bytes of a device),
// EMU_IMAGES (folder of kernels), EMU_DEADLINE (seconds after which a wait ends
// the process).
#pragma once

#include "kernel.h"

extern "C" {

// emu_fault injects a fault: see faults.cc. It returns what is wrong with it.
EMU_EXPORT const char* emu_fault(const char* spec);

// emu_set changes a setting. It returns what is wrong with it.
EMU_EXPORT const char* emu_set(const char* name, const char* value);

// emu_calls returns how often a call was made since the last reset.
EMU_EXPORT long long emu_calls(const char* name);

// emu_check returns how many faults of the program under test there are: damaged
// red zones, late accesses, leaks of memory, streams, events, modules and
// communicators.
EMU_EXPORT long long emu_check();

// emu_finding returns the text of one of them.
EMU_EXPORT const char* emu_finding(long long i);

// emu_reset forgets faults, counts and findings, and ends all that there is.
EMU_EXPORT void emu_reset();

}  // extern "C"
