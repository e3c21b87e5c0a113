#include "apps/levin/model_text.h"

#include <fmt/core.h>

#include "model/architecture.h"

namespace levin::app {

std::string model_text(const ModelConfig& c) {
  const std::string shared =
      fmt::format("width       {}, vocabulary {}, positions {}\n", c.d_model, c.n_vocab, c.max_position);
  return c.family->describe == nullptr ? shared : shared + c.family->describe(c);
}

io::JsonObject model_json(const ModelConfig& c) {
  io::JsonObject out = {
      {"vocab_size", c.n_vocab},
      {"hidden_size", c.d_model},
      {"n_layers", c.n_layers},
      {"max_positions", c.max_position},
      {"n_heads", c.n_heads},
      {"d_nope", c.d_nope},
      {"d_rope", c.d_rope},
      {"d_q_latent", c.d_q_lora},
      {"n_index_heads", c.n_index_heads},
      {"d_index", c.d_index},
      {"index_topk", c.n_topk},
      {"n_experts", c.n_experts},
      {"n_experts_per_token", c.n_active},
      {"n_shared_experts", c.n_shared_experts},
      {"d_expert", c.d_expert},
      {"rope_theta", c.rope_theta},
  };
  if (c.family->describe_json != nullptr) c.family->describe_json(c, &out);
  return out;
}

}  // namespace levin::app
