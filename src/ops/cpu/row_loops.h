// What the loops over rows of the CPU's ops share. Internal to ops/cpu.
#pragma once

#include <cstdint>

#include "tensor/view.h"

namespace levin {

// How many rows a thread takes at least in a loop over n_rows rows of `width` values each: all of them where waking
// another thread would take longer.
constexpr int64_t kFewValues = 16 * 1024;
inline int64_t row_grain(int64_t n_rows, int64_t width) { return n_rows * width <= kFewValues ? n_rows : 1; }

// Row status (ops/context.h).
inline void mark_fault(const View& faults, int64_t row) {
  if (!faults.empty()) faults.data<int32_t>()[row] = 1;
}

}  // namespace levin
