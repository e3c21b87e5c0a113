// GLM-5.3-Flash in words and as JSON.
#include "model/describe.h"

#include <fmt/format.h>

#include <utility>

#include "arch/glm_next/config.h"
#include "arch/glm_next/parts.h"

namespace levin::glm_next {

std::string describe(const ModelConfig& c) {
  const GlmNextConfig& o = own(c);
  return fmt::format(
      "streams     {}, mixed in {} Sinkhorn steps, their mean at the end\n"
      "linear      {} layers, {} heads of {}, convolutions of {} tokens\n"
      "attention   {} layers, {} heads of {} (value {}), latent {}, query latent {}, no positions\n"
      "indexer     {} heads of {}, top-k {} pools of {} tokens{}\n"
      "{}, dense width {} in {} layers\n",
      c.n_streams, c.n_sinkhorn_steps, c.n_layers - c.n_indexers(), o.n_linear_heads, o.d_linear_head, o.n_taps,
      c.n_indexers(), c.n_heads, c.d_nope, c.d_value, c.d_latent, c.d_q_lora, c.n_index_heads, c.d_index, o.n_pool_topk,
      o.n_pool, c.share_topk_across_drafts ? ", which drafts share" : "", experts_text(c), c.d_dense, c.n_dense_layers);
}

void describe_json(const ModelConfig& c, io::JsonObject* out) {
  const GlmNextConfig& o = own(c);
  out->set("n_streams", c.n_streams);
  out->set("n_dense_layers", c.n_dense_layers);
  out->set("d_value", c.d_value);
  out->set("d_latent", c.d_latent);
  out->set("d_dense", c.d_dense);
  out->set("n_linear_heads", o.n_linear_heads);
  out->set("d_linear_head", o.d_linear_head);
  out->set("n_taps", o.n_taps);
  out->set("index_topk", o.n_pool_topk * o.n_pool);  // n_topk counts the tokens of an incomplete pool too
  out->set("n_pool", o.n_pool);
  out->set("n_pool_topk", o.n_pool_topk);
  io::JsonArray index_layers;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (c.has_indexer(layer)) index_layers.emplace_back(layer);
  }
  out->set("index_layers", std::move(index_layers));
}

}  // namespace levin::glm_next
