// Lines of `levin inspect` that describe the same part of every family. For what families describe themselves with.
#pragma once

#include <optional>
#include <string>

#include "model/config.h"

namespace levin {

std::string rope_text(double theta, const std::optional<Yarn>& yarn);  // without label
std::string experts_text(const ModelConfig& config);                   // with label, without line end

}  // namespace levin
