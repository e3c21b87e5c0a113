// DeepSeek-V3.2 and GLM-5 in words and as JSON.
#include "model/describe.h"

#include <fmt/format.h>

#include <utility>

#include "arch/deepseek_v3/mla.h"

namespace levin::mla {
namespace {

// Empty when every layer selects for itself.
std::string sharing_text(const ModelConfig& c) {
  if (c.n_indexers() == c.n_layers) return "";
  return fmt::format("; in {} layers, the others share their indices{}", c.n_indexers(),
                     c.share_topk_across_drafts ? ", and so do drafts" : "");
}

}  // namespace

std::string describe(const ModelConfig& c) {
  return fmt::format(
      "attention   {} heads of {} + {} (value {}), latent {}, query latent {}\n"
      "indexer     {} heads of {}, top-k {}{}\n"
      "{}, {} of {} groups, dense width {}\n"
      "rope        {}\n",
      c.n_heads, c.d_nope, c.d_rope, c.d_value, c.d_latent, c.d_q_lora, c.n_index_heads, c.d_index, c.n_topk,
      sharing_text(c), experts_text(c), c.n_groups_kept, c.n_groups, c.d_dense, rope_text(c.rope_theta, c.yarn));
}

void describe_json(const ModelConfig& c, io::JsonObject* out) {
  out->set("n_dense_layers", c.n_dense_layers);
  out->set("d_value", c.d_value);
  out->set("d_latent", c.d_latent);
  out->set("d_dense", c.d_dense);
  out->set("n_groups", c.n_groups);
  out->set("n_groups_kept", c.n_groups_kept);
  io::JsonArray index_layers;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (c.has_indexer(layer)) index_layers.emplace_back(layer);
  }
  out->set("index_layers", std::move(index_layers));
  if (c.yarn) out->set("yarn_factor", c.yarn->factor);
}

}  // namespace levin::mla
