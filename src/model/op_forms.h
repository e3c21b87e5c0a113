// The forms in which a model calls the ops that kernels may refuse, for choose_kernels() (ops/kernel_registry.h).
#pragma once

#include <vector>

#include "io/safetensors.h"
#include "model/config.h"
#include "model/numerics.h"
#include "ops/kernel_registry.h"

namespace levin {

// Each form once, in the order of the forward pass; then the products, in that of the weights. Types of matrices are those of
// the checkpoint, which may be null or contain names only: then those of a release.
std::vector<OpForm> op_forms(const ModelConfig& config, const Numerics& numerics,
                             const io::Checkpoint* checkpoint = nullptr);

}  // namespace levin
