// Files of token ids, as trace and run take them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace levin::app {

// Token ids separated by white space. Errors (kUsage) name the file and the word that is none.
Result<std::vector<int32_t>> read_ids_file(const std::string& path);

}  // namespace levin::app
