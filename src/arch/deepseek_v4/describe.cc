// DeepSeek-V4 in words and as JSON.
#include "model/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/parts.h"

namespace levin::deepseek_v4 {
namespace {

// Layers by what they attend to in addition to their window.
using Kinds = std::map<std::pair<Compression, int64_t>, int>;
Kinds kinds_of(const ModelConfig& c) {
  Kinds kinds;
  for (int i = 0; i < c.n_layers; ++i) {
    const LayerCompression& layer = own(c).compression_of(i);
    ++kinds[{layer.kind, layer.ratio}];
  }
  return kinds;
}

std::string compression_text(const ModelConfig& c) {
  std::string text;
  for (const auto& [kind, n] : kinds_of(c)) {
    text += fmt::format("{}{} layer{} ", text.empty() ? "" : ", ", n, n == 1 ? "" : "s");
    if (kind.first == Compression::kNone) text += "without";
    if (kind.first == Compression::kIndexed) text += fmt::format("by {}, selected", kind.second);
    if (kind.first == Compression::kAll) text += fmt::format("by {}", kind.second);
  }
  return text;
}

std::string dspark_text(const ModelConfig& c) {
  if (!own(c).dspark) return "";
  const DsparkConfig& d = *own(c).dspark;
  return fmt::format("drafter     DSpark: blocks of {}, {} stages on layers {}, Markov rank {}\n", c.n_draft_block,
                     c.n_mtp_layers, fmt::join(d.target_layers, ", "), d.d_markov);
}

}  // namespace

std::string describe(const ModelConfig& c) {
  return fmt::format(
      "streams     {}, mixed in {} Sinkhorn steps\n"
      "attention   {} heads of {} + {} over one key-value row, query latent {}, output {} groups of {}\n"
      "window      {} tokens; compressed: {}\n"
      "indexer     {} heads of {}, top-k {}\n"
      "{}, by token id in {} layers\n"
      "rope        {}; compressed: {}\n"
      "{}",
      c.n_streams, c.n_sinkhorn_steps, c.n_heads, c.d_nope, c.d_rope, c.d_q_lora, own(c).n_out_groups,
      own(c).d_out_lora, c.n_window, compression_text(c), c.n_index_heads, c.d_index, c.n_topk, experts_text(c),
      own(c).n_hash_layers, rope_text(c.rope_theta, c.yarn),
      rope_text(own(c).compressed_rope_theta, own(c).compressed_yarn), dspark_text(c));
}

void describe_json(const ModelConfig& c, io::JsonObject* out) {
  io::JsonArray ratios;
  for (const LayerCompression& layer : own(c).compression) ratios.emplace_back(layer.ratio);
  out->set("n_streams", c.n_streams);
  out->set("n_window", c.n_window);
  out->set("compress_ratios", std::move(ratios));
  out->set("n_out_groups", own(c).n_out_groups);
  out->set("d_out_latent", own(c).d_out_lora);
  out->set("n_hash_layers", own(c).n_hash_layers);
  out->set("compressed_rope_theta", own(c).compressed_rope_theta);
  if (own(c).compressed_yarn) out->set("compressed_yarn_factor", own(c).compressed_yarn->factor);
  if (!own(c).dspark) return;
  const DsparkConfig& d = *own(c).dspark;
  out->set("dspark_block", c.n_draft_block);
  out->set("dspark_markov_rank", d.d_markov);
  out->set("dspark_target_layers", io::JsonArray(d.target_layers.begin(), d.target_layers.end()));
}

}  // namespace levin::deepseek_v4
