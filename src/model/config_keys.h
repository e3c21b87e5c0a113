// The keys of a config.json in three lists: honoured, harmless, and known to change the mathematics. For config.cc.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "io/json.h"

namespace levin {

// Refuses keys that ask for other mathematics than is implemented, by name, value and what would be accepted; warns of
// keys in no list.
Status check_config_keys(const io::JsonFields& config, std::vector<std::string>* warnings);

// The same for quantization_config. FP8 in 128 x 128 blocks with dynamic activations, or absent.
Status check_quantization_keys(const io::JsonFields& config, std::vector<std::string>* warnings);

}  // namespace levin
