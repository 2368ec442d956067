// Faults that tests inject, and counts of calls.
//
// A fault is `name:code:key=value...`; what it does depends on its name:
//
//   cuMemAlloc_v2:2:after=3   a call: its 4th from now on returns status 2
//   launch:719:after=10       a kernel: the 11th from now breaks its context
//   nccl_async:code=6:rank=1  a collective: the next of rank 1 gets stuck, with an asynchronous error
//   nccl_init:code=6:ms=50    the next rank whose communicator is not complete after 50 ms gives up with status 6
//   dead:rank=2               rank 2's collectives never arrive
//   mixed                     ranks whose collectives differ hang, as with NCCL, and no error says why
//   slow:stream=1:ms=5        operations of streams of index 1 start 5 ms late (all streams without the key)
//
// code=N is the same as N alone. Keys of the first four: after=N (chances passed over, 0), times=N (how often
// it fires, 1), device=N (only with that device's context), rank=N.
#include "faults.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

namespace gpu {
namespace {

struct Fault {
  std::string name;
  std::map<std::string, std::int64_t> numbers;
  std::int64_t seen = 0, fired = 0;

  std::int64_t number(const std::string& key, std::int64_t absent) const {
    const auto at = numbers.find(key);
    return at == numbers.end() ? absent : at->second;
  }

  bool concerns(const std::string& kind, const std::string& key, std::int64_t value) const {
    return name == kind && number(key, value) == value;
  }

  // fire takes a chance; it returns the code if the fault fires.
  int fire() {
    const bool due = seen++ >= number("after", 0) && fired < number("times", 1);
    fired += due ? 1 : 0;
    return due ? static_cast<int>(number("code", 0)) : 0;
  }
};

struct Faults {
  std::mutex mutex;
  std::vector<Fault> set;
  std::map<std::string, std::int64_t> calls;
};

Faults& faults() {
  static Faults& all = *new Faults;
  return all;
}

int fireFirst(Faults& all, const std::string& kind, const std::string& key, std::int64_t value) {
  int code = 0;
  for (Fault& fault : all.set) {
    if (fault.concerns(kind, key, value)) {
      const int fired = fault.fire();
      code = code == 0 ? fired : code;
    }
  }
  return code;
}

bool isNumber(const std::string& text, std::int64_t* number) {
  char* end = nullptr;
  *number = std::strtoll(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0';
}

// readPart reads what is between two colons: a code, key=value, or a bare key.
bool readPart(const std::string& part, Fault& fault) {
  const auto equals = part.find('=');
  if (equals != std::string::npos) {
    return isNumber(part.substr(equals + 1), &fault.numbers[part.substr(0, equals)]);
  }
  std::int64_t code = 0;
  if (isNumber(part, &code)) {
    fault.numbers["code"] = code;
    return true;
  }
  return part == "stream";  // slow:stream, all of them
}

bool isKnown(const std::string& name) {
  for (const char* kind : {"launch", "nccl_async", "nccl_init", "dead", "mixed", "slow"}) {
    if (name == kind) {
      return true;
    }
  }
  return name.rfind("cu", 0) == 0 || name.rfind("nccl", 0) == 0;
}

bool needsCode(const std::string& name) { return name != "dead" && name != "mixed" && name != "slow"; }

const char* const kKeys[] = {"code", "after", "times", "device", "rank", "stream", "ms"};

std::string wrongKey(const Fault& fault) {
  for (const auto& entry : fault.numbers) {
    bool known = false;
    for (const char* key : kKeys) {
      known = known || entry.first == key;
    }
    if (!known) {
      return entry.first;
    }
  }
  return "";
}

}  // namespace

int enter(const char* name, int device) {
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.calls[name]++;
  return fireFirst(all, name, "device", device);
}

int firing(const char* kind, const char* key, std::int64_t value) {
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return fireFirst(all, kind, key, value);
}

bool standing(const char* kind, const char* key, std::int64_t value, std::int64_t* milliseconds) {
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const Fault& fault : all.set) {
    if (fault.concerns(kind, key, value)) {
      *milliseconds = fault.number("ms", *milliseconds);
      return true;
    }
  }
  return false;
}

std::string setFault(const std::string& spec) {
  Fault fault;
  std::size_t start = 0;
  for (bool first = true; start <= spec.size(); first = false) {
    std::size_t end = spec.find(':', start);
    end = end == std::string::npos ? spec.size() : end;
    const std::string part = spec.substr(start, end - start);
    start = end + 1;
    if (first) {
      fault.name = part;
    } else if (!readPart(part, fault)) {
      return "fault " + spec + ": " + part + " is neither a status nor key=number";
    }
  }
  if (!isKnown(fault.name)) {
    return "fault " + spec + ": unknown name " + fault.name;
  }
  if (const std::string key = wrongKey(fault); !key.empty()) {
    return "fault " + spec + ": unknown key " + key;
  }
  if (needsCode(fault.name) && fault.number("code", 0) == 0) {
    return "fault " + spec + ": it has no status";
  }
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.set.push_back(fault);
  return "";
}

void clearFaults() {
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.set.clear();
  all.calls.clear();
}

std::int64_t callsOf(const std::string& name) {
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto at = all.calls.find(name);
  return at == all.calls.end() ? 0 : at->second;
}

}  // namespace gpu
