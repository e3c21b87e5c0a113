// The number of a token in its vocabulary.
#pragma once

#include <cstdint>

namespace levin::text {

using TokenId = int32_t;

inline constexpr TokenId kNoToken = -1;

}  // namespace levin::text
