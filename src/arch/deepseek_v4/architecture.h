// DeepSeek-V4. For registry.cc and tests; everything else asks the config for its family.
#pragma once

#include "model/architecture.h"

namespace levin {

extern const Architecture kDeepseekV4;

}  // namespace levin
