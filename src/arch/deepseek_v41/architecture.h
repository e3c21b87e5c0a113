// DeepSeek-V4.1, text alone. For registry.cc and tests; everything else asks the config for its family.
#pragma once

#include "model/architecture.h"

namespace levin {

extern const Architecture kDeepseekV41;

}  // namespace levin
