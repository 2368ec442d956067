// Faults, counts, findings, settings, and the State itself.
#include "control.h"

#include <cstdio>
#include <cstdlib>

#include "call.h"
#include "policy.h"
#include "release.h"

namespace gpu {

State& state() {
  static State& one = *new State;
  return one;
}

namespace {

// A leaf mutex of its own: findings are noted with the State's held or not.
struct Findings {
  std::mutex mutex;
  std::vector<std::string> list, checked;
};

Findings& findings() {
  static Findings& all = *new Findings;
  return all;
}

// kept returns text that stays until the thread's next call.
const char* kept(const std::string& text) {
  thread_local std::string last;
  last = text;
  return last.c_str();
}

void addLeaks(std::vector<std::string>& list) {
  State& world = state();
  const auto add = [&](std::size_t count, const char* what) {
    if (count > 0) {
      list.push_back(std::to_string(count) + " " + what + " never freed");
    }
  };
  add(world.memory.size(), "ranges of device memory");
  add(world.hostMemory.size(), "ranges of pinned memory");
  add(world.streams.size(), "streams");
  add(world.events.size(), "events");
  add(world.modules.size(), "modules");
  for (const Extension& extension : world.extensions) {
    extension.leaks(list);
  }
}

void addDamage(std::vector<std::string>& list) {
  const auto add = [&](const Region& region, const char* kind) {
    if (const std::size_t bytes = damaged(region)) {
      list.push_back(std::to_string(bytes) + " bytes were written beside " + kind + " of " + std::to_string(region.bytes) + " bytes");
    }
  };
  for (const auto& entry : state().memory) {
    add(entry.second.region, "device memory");
  }
  for (const auto& entry : state().hostMemory) {
    if (entry.second.allocated) {
      add(entry.second.region, "pinned memory");
    }
  }
}

void resetAll(Lock& lock) {
  State& world = state();
  until(lock, "the end of an operation", [&] { return !world.running; });
  for (const auto& device : world.devices) {
    destroyContext(*device, nullptr);
    device->retained = 0;
  }
  for (auto& entry : world.hostMemory) {
    releaseHost(entry.second);
  }
  world.hostMemory.clear();
  world.demands.clear();
  for (const Extension& extension : world.extensions) {
    extension.reset();
  }
  world.generation++;
  world.changed.notify_all();
}

}  // namespace

std::string setting(const char* name, const char* byDefault) {
  const auto at = state().settings.find(name);
  if (at != state().settings.end()) {
    return at->second;
  }
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? byDefault : value;
}

void note(const std::string& what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
  const std::lock_guard<std::mutex> lock(findings().mutex);
  findings().list.push_back(what);
}

}  // namespace gpu

using namespace gpu;

extern "C" {

const char* emu_fault(const char* spec) { return kept(setFault(spec)); }

const char* emu_set(const char* name, const char* value) {
  const std::string key = name;
  const Lock lock(state().mutex);
  if (key == "EMU_SCHEDULE") {
    if (const std::string wrong = usePolicy(value); !wrong.empty()) {
      return kept(wrong);
    }
  } else if (key != "EMU_DEVICES" && key != "EMU_MEMORY" && key != "EMU_IMAGES" && key != "EMU_DEADLINE") {
    return kept("no setting " + key);
  }
  state().settings[key] = value;
  state().changed.notify_all();
  return "";
}

long long emu_calls(const char* name) { return callsOf(name); }

long long emu_check() {
  const Lock lock(state().mutex);
  const std::lock_guard<std::mutex> leaf(findings().mutex);
  findings().checked = findings().list;
  addDamage(findings().checked);
  addLeaks(findings().checked);
  return static_cast<long long>(findings().checked.size());
}

const char* emu_finding(long long i) {
  const std::lock_guard<std::mutex> leaf(findings().mutex);
  const bool inside = i >= 0 && i < static_cast<long long>(findings().checked.size());
  return kept(inside ? findings().checked[static_cast<std::size_t>(i)] : "");
}

void emu_reset() {
  Lock lock(state().mutex);
  resetAll(lock);
  clearFaults();
  const std::lock_guard<std::mutex> leaf(findings().mutex);
  findings().list.clear();
  findings().checked.clear();
}

}  // extern "C"
