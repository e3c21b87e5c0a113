// What vectorized loads and bulk copies ask of an address.
#pragma once

#include <cstdint>

namespace levin::cuda {

inline bool aligned_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace levin::cuda
