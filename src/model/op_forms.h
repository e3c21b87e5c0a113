// The forms in which a model calls the ops that kernels may refuse, for choose_kernels() (ops/kernel_registry.h).
#pragma once

#include <vector>

#include "model/config.h"
#include "model/numerics.h"
#include "ops/kernel_registry.h"

namespace levin {

// Each form once, in the order of the forward pass.
std::vector<OpForm> op_forms(const ModelConfig& config, const Numerics& numerics);

}  // namespace levin
