#include "model/describe.h"

#include <fmt/format.h>

namespace levin {

std::string rope_text(double theta, const std::optional<Yarn>& yarn) {
  std::string text = fmt::format("theta {}", theta);
  if (yarn) text += fmt::format(", YaRN factor {} from {} positions", yarn->factor, yarn->original_max_position);
  return text;
}

std::string experts_text(const ModelConfig& c) {
  return fmt::format("experts     {} ({} chosen, {} shared) of width {}", c.n_experts, c.n_active, c.n_shared_experts,
                     c.d_expert);
}

}  // namespace levin
