// Which work comes first: EMU_SCHEDULE.
#pragma once

#include <string>

#include "state.h"

namespace gpu {

// usePolicy sets the policy from random:<seed>, starve:<k>, fifo or lazy; it
// returns what is wrong with the text. The mutex is held.
std::string usePolicy(const std::string& text);

// Choice is what a policy makes of the work at hand.
struct Choice {
  Queue* queue = nullptr;         // runs next; null for none
  Clock::duration hold{};         // where none: how long the policy wants to wait for more, 0 until something changes
};

// choose picks one of the queues whose heads can run; wanted are those among
// them that a waiting thread depends on. holding says that the policy's time to
// wait is over.
Choice choose(const std::vector<Queue*>& runnable, const std::vector<Queue*>& wanted, bool held);

// reversedThreads says whether the next kernel runs its threads from the last to
// the first.
bool reversedThreads();

}  // namespace gpu
