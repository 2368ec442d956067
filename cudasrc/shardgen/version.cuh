// The version that generated CUDA and these headers agree on; it is that of Go's
// package runtime/abi.
#pragma once

namespace shardgen {

constexpr int kVersion = 1;

}  // namespace shardgen
