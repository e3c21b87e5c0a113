// DeepSeek-V3.2. For registry.cc and tests; everything else asks the config for its family.
#pragma once

#include "model/architecture.h"

namespace levin {

extern const Architecture kDeepseekV32;

}  // namespace levin
