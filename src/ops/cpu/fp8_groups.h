// What e4m3 makes of values with a scale to each group of them (ops/quantize.h).
#pragma once

#include <cstdint>

namespace levin {

constexpr int64_t kFp8Group = 32;  // of Operand::kFp8By32

void round_to_fp8_groups(float* x, int64_t n, int64_t group);  // in place

}  // namespace levin
