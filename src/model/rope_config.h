// The rotary part of a config.json, in either spelling. For config.cc.
#pragma once

#include <string>
#include <vector>

#include "io/json.h"
#include "model/config.h"

namespace levin {

// Official spelling: rope_theta and rope_scaling {type, factor, ...}. transformers 5: rope_parameters {rope_type,
// rope_theta, factor, ...}. Both may be present if they agree. Fills rope_theta and yarn; max_position must be set
// already.
Status parse_rope_config(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings);

}  // namespace levin
