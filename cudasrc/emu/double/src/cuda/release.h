// Giving memory back, with a look at its red zones. The mutex is held.
#pragma once

#include "state.h"

namespace gpu {

void releaseMemory(Allocation& allocation);
void releaseHost(HostRange& range);

}  // namespace gpu
