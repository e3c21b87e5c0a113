// GLM-5.3-Flash, text alone. For registry.cc and tests; everything else asks the config for its family.
#pragma once

#include "model/architecture.h"

namespace levin {

extern const Architecture kGlmNext;

}  // namespace levin
