// One stream of one token of gate_streams (ops/engram.h), where the contract is; one kernel for all sets.
#pragma once

#include <cstdint>

namespace levin::kernels {

struct GateStreamJob {
  float* stream = nullptr;        // [D], updated
  const float* key = nullptr;     // [D]
  const float* value = nullptr;   // [D]
  const float* weight = nullptr;  // [D]
  int64_t d = 0;
  float eps = 0;
};
void gate_stream(const GateStreamJob& a);

}  // namespace levin::kernels
