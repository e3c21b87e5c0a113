// What the layers of a model cache, from its config alone: the model's caches and the memory plan both follow it.
#pragma once

#include "kv/cache.h"
#include "model/config.h"
#include "model/numerics.h"

namespace levin {

// The trunk's layers, then those that draft if `has_mtp`.
CacheLayout cache_layout(const ModelConfig& config, const Numerics& numerics, bool has_mtp);

}  // namespace levin
