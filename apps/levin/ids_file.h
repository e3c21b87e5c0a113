// Files of token ids, as trace and run take them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/options.h"

namespace levin::app {

// Token ids separated by white space: at least one, each of the vocabulary that the model's config states.
// So that a mistake in the file is found in milliseconds, call it before the model is loaded. Errors of the file
// (kUsage) name it and the word that is at fault.
Result<std::vector<int32_t>> read_ids_file(const std::string& path, const EngineOptions& options);

}  // namespace levin::app
