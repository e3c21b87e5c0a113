// The rotary part of a config.json, in either spelling. For read_config of families.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "model/config.h"

namespace levin {

// Official spelling: rope_theta and rope_scaling {type, factor, ...}. transformers 5: rope_parameters {rope_type,
// rope_theta, factor, ...}. Both may be present if they agree. Fills rope_theta and yarn; max_position must be set
// already.
Status parse_rope_config(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings);

// Two tables: rope_theta, and compress_rope_theta with rope_scaling. transformers 5: rope_parameters {main {...},
// compress {...}}. The sizes of a head and max_position must be set in the config already.
struct TwoRopes {
  double theta = 0;
  double compressed_theta = 0;
  std::optional<Yarn> compressed_yarn;
};
Status parse_two_rope_configs(const io::JsonFields& fields, const ModelConfig& config, TwoRopes* ropes,
                              std::vector<std::string>* warnings);

// Dr/2, f32 with the reference's roundings.
std::vector<float> rope_frequencies(double theta, const std::optional<Yarn>& yarn, int64_t d_rope);

// partial_rotary_factor must be what the sizes of a head say.
Status check_rotated_share(const io::JsonFields& fields, double rotated_share);

}  // namespace levin
