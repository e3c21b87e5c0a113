// The keys of a model's GGUF file. For gguf_export.cc.
#pragma once

#include <string>

#include "io/gguf.h"
#include "model/config.h"

namespace levin {

// Sizes, rotations and schedules of `config`, with `architecture` before each key; `with_mtp`: the MTP layer is in the
// file.
void set_gguf_keys(const ModelConfig& config, const std::string& architecture, bool with_mtp, io::GgufWriter* file);

}  // namespace levin
