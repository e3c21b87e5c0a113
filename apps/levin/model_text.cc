#include "apps/levin/model_text.h"

#include <fmt/core.h>

#include <map>
#include <optional>
#include <utility>

namespace levin::app {
namespace {

std::string rope_text(double theta, const std::optional<Yarn>& yarn) {
  std::string text = fmt::format("theta {}", theta);
  if (yarn) text += fmt::format(", YaRN factor {} from {} positions", yarn->factor, yarn->original_max_position);
  return text;
}

std::string experts_text(const ModelConfig& c) {
  return fmt::format("experts     {} ({} chosen, {} shared) of width {}", c.n_experts, c.n_active, c.n_shared_experts,
                     c.d_expert);
}

// Layers by what they attend to beside their window.
using Kinds = std::map<std::pair<Compression, int64_t>, int>;
Kinds kinds_of(const ModelConfig& c) {
  Kinds kinds;
  for (int i = 0; i < c.n_layers; ++i) {
    const LayerCompression& layer = c.compression[static_cast<size_t>(i)];
    ++kinds[{layer.kind, layer.ratio}];
  }
  return kinds;
}

std::string compression_text(const ModelConfig& c) {
  std::string text;
  for (const auto& [kind, n] : kinds_of(c)) {
    text += fmt::format("{}{} layer{} ", text.empty() ? "" : ", ", n, n == 1 ? "" : "s");
    if (kind.first == Compression::kNone) text += "without";
    if (kind.first == Compression::kIndexed) text += fmt::format("by {}, picked", kind.second);
    if (kind.first == Compression::kAll) text += fmt::format("by {}", kind.second);
  }
  return text;
}

// Empty when every layer picks for itself.
std::string sharing_text(const ModelConfig& c) {
  if (c.n_indexers() == c.n_layers) return "";
  return fmt::format("; in {} layers, the others share their picks{}", c.n_indexers(),
                     c.share_picks_across_drafts ? ", and so do drafts" : "");
}

std::string mla_text(const ModelConfig& c) {
  return fmt::format(
      "attention   {} heads of {} + {} (value {}), latent {}, query latent {}\n"
      "indexer     {} heads of {}, picks {}{}\n"
      "{}, {} of {} groups, dense width {}\n"
      "rope        {}\n",
      c.n_heads, c.d_nope, c.d_rope, c.d_value, c.d_latent, c.d_q_lora, c.n_index_heads, c.d_index, c.n_picks,
      sharing_text(c), experts_text(c), c.n_groups_kept, c.n_groups, c.d_dense, rope_text(c.rope_theta, c.yarn));
}

std::string deepseek_v4_text(const ModelConfig& c) {
  return fmt::format(
      "streams     {}, mixed in {} Sinkhorn steps\n"
      "attention   {} heads of {} + {} over one key-value row, query latent {}, output {} groups of {}\n"
      "window      {} tokens; compressed: {}\n"
      "indexer     {} heads of {}, picks {}\n"
      "{}, by token id in {} layers\n"
      "rope        {}; compressed: {}\n",
      c.n_streams, c.n_sinkhorn_steps, c.n_heads, c.d_nope, c.d_rope, c.d_q_lora, c.n_out_groups, c.d_out_lora,
      c.n_window, compression_text(c), c.n_index_heads, c.d_index, c.n_picks, experts_text(c), c.n_hash_layers,
      rope_text(c.rope_theta, c.yarn), rope_text(c.compressed_rope_theta, c.compressed_yarn));
}

void add_mla(const ModelConfig& c, io::JsonObject& out) {
  out.set("n_dense_layers", c.n_dense_layers);
  out.set("d_value", c.d_value);
  out.set("d_latent", c.d_latent);
  out.set("d_dense", c.d_dense);
  out.set("n_groups", c.n_groups);
  out.set("n_groups_kept", c.n_groups_kept);
  io::JsonArray index_layers;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (c.has_indexer(layer)) index_layers.emplace_back(layer);
  }
  out.set("index_layers", std::move(index_layers));
  if (c.yarn) out.set("yarn_factor", c.yarn->factor);
}

void add_deepseek_v4(const ModelConfig& c, io::JsonObject& out) {
  io::JsonArray ratios;
  for (const LayerCompression& layer : c.compression) ratios.emplace_back(layer.ratio);
  out.set("n_streams", c.n_streams);
  out.set("n_window", c.n_window);
  out.set("compress_ratios", std::move(ratios));
  out.set("n_out_groups", c.n_out_groups);
  out.set("d_out_latent", c.d_out_lora);
  out.set("n_hash_layers", c.n_hash_layers);
  out.set("compressed_rope_theta", c.compressed_rope_theta);
  if (c.compressed_yarn) out.set("compressed_yarn_factor", c.compressed_yarn->factor);
}

}  // namespace

std::string model_text(const ModelConfig& c) {
  return fmt::format("width       {}, vocabulary {}, positions {}\n", c.d_model, c.n_vocab, c.max_position) +
         (c.family == ModelFamily::kDeepseekV4 ? deepseek_v4_text(c) : mla_text(c));
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
      {"n_picks", c.n_picks},
      {"n_experts", c.n_experts},
      {"n_experts_per_token", c.n_active},
      {"n_shared_experts", c.n_shared_experts},
      {"d_expert", c.d_expert},
      {"rope_theta", c.rope_theta},
  };
  if (c.family == ModelFamily::kDeepseekV4) {
    add_deepseek_v4(c, out);
  } else {
    add_mla(c, out);
  }
  return out;
}

}  // namespace levin::app
