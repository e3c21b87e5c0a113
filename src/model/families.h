// The families that registry.cc lists.
#pragma once

#include "model/architecture.h"

namespace levin {

extern const Architecture kDeepseekV32;
extern const Architecture kGlmMoeDsa;
extern const Architecture kDeepseekV4;

}  // namespace levin
