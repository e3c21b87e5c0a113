#include "model/cache_layout.h"

#include "model/architecture.h"

namespace levin {

CacheLayout cache_layout(const ModelConfig& config, const Numerics& numerics, bool has_mtp) {
  CacheLayout layout{.layers = {}, .n_window = config.n_window};
  const int n_layers = config.n_layers + (has_mtp ? config.n_mtp_layers : 0);
  for (int i = 0; i < n_layers; ++i) {
    layout.layers.push_back(config.family->layer_cache(config, numerics, i));
  }
  return layout;
}

}  // namespace levin
