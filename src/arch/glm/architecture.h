// GLM-5. For registry.cc and tests; everything else asks the config for its family.
#pragma once

#include "model/architecture.h"

namespace levin {

extern const Architecture kGlmMoeDsa;

}  // namespace levin
