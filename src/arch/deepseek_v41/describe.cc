// DeepSeek-V4.1 in words and as JSON.
#include "model/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "arch/deepseek_v41/config.h"
#include "arch/deepseek_v41/parts.h"

namespace levin::deepseek_v41 {
namespace {

std::vector<int> layers_that(const ModelConfig& c, bool (*does)(const ModelConfig&, int)) {
  std::vector<int> layers;
  for (int layer = 0; layer < c.n_layers; ++layer) {
    if (does(c, layer)) layers.push_back(layer);
  }
  return layers;
}

std::vector<int> entry_layers(const ModelConfig& c) { return layers_that(c, makes_entries); }
std::vector<int> index_layers(const ModelConfig& c) {
  return layers_that(c, [](const ModelConfig& m, int layer) { return m.has_indexer(layer); });
}

std::string entries_text(const ModelConfig& c) {
  std::map<int64_t, int> counts;
  for (const EntriesOfLayer& entries : own(c).entries) ++counts[entries.ratio];
  std::string text;
  for (const auto& [ratio, n] : counts) {
    text += fmt::format("{}{} layer{} ", text.empty() ? "" : ", ", n, n == 1 ? "" : "s");
    text += ratio == 0 ? "without" : fmt::format("by {}", ratio);
  }
  return text;
}

std::string candidates_text(const ModelConfig& c) {
  const CandidateBlocks& b = own(c).candidates;
  if (b.source < 0) return "";
  return fmt::format("; after layer {} in its best {} blocks of {}", b.source, b.n_blocks, b.block_size);
}

std::string engram_text(const ModelConfig& c) {
  if (!own(c).engram) return "";
  const EngramConfig& e = *own(c).engram;
  return fmt::format(
      "n-grams     2 to {} tokens of {} classes, {} hashes each, rows of {}; layers {}; tables of {} rows, "
      "in their files\n",
      e.n_gram, e.n_classes, e.n_hashes, e.d_row, fmt::join(e.layers, ", "), fmt::join(e.n_rows, ", "));
}

std::string dspark_text(const ModelConfig& c) {
  if (!own(c).dspark) return "";
  const V41DsparkConfig& d = *own(c).dspark;
  return fmt::format(
      "drafter     DSpark: blocks of {}, {} stages on layers {}, {} experts of which {}, Markov rank {}\n",
      c.n_draft_block, c.n_mtp_layers, fmt::join(d.target_layers, ", "), d.n_experts, d.n_active, d.d_markov);
}

}  // namespace

std::string describe(const ModelConfig& c) {
  return fmt::format(
      "streams     {}, mixed in {} Sinkhorn steps, read with the weights of the sublayer before\n"
      "attention   {} heads of {} + {} over one key-value row, query latent {}, output {} groups of {}\n"
      "window      {} tokens; entries: {}, made in layers {}\n"
      "indexer     {} heads of {}, top-k {} in layers {}{}\n"
      "{}\n"
      "{}"
      "rope        {}; of layers with entries: {}\n"
      "{}",
      c.n_streams, c.n_sinkhorn_steps, c.n_heads, c.d_nope, c.d_rope, c.d_q_lora, own(c).n_out_groups,
      own(c).d_out_lora, c.n_window, entries_text(c), fmt::join(entry_layers(c), ", "), c.n_index_heads, c.d_index,
      c.n_topk, fmt::join(index_layers(c), ", "), candidates_text(c), experts_text(c), engram_text(c),
      rope_text(c.rope_theta, c.yarn), rope_text(own(c).compressed_rope_theta, own(c).compressed_yarn), dspark_text(c));
}

void describe_json(const ModelConfig& c, io::JsonObject* out) {
  const auto list = [](const auto& values) { return io::JsonArray(values.begin(), values.end()); };
  io::JsonArray ratios;
  for (const EntriesOfLayer& entries : own(c).entries) ratios.emplace_back(entries.ratio);
  out->set("n_streams", c.n_streams);
  out->set("n_window", c.n_window);
  out->set("compress_ratios", std::move(ratios));
  out->set("entry_layers", list(entry_layers(c)));
  out->set("index_layers", list(index_layers(c)));
  out->set("n_out_groups", own(c).n_out_groups);
  out->set("d_out_latent", own(c).d_out_lora);
  out->set("compressed_rope_theta", own(c).compressed_rope_theta);
  if (own(c).compressed_yarn) out->set("compressed_yarn_factor", own(c).compressed_yarn->factor);
  if (const CandidateBlocks& b = own(c).candidates; b.source >= 0) {
    out->set("candidate_layer", b.source);
    out->set("n_candidate_blocks", b.n_blocks);
    out->set("candidate_block", b.block_size);
  }
  if (own(c).engram) {
    out->set("engram_layers", list(own(c).engram->layers));
    out->set("engram_rows", list(own(c).engram->n_rows));
    out->set("engram_ngram", own(c).engram->n_gram);
  }
  if (!own(c).dspark) return;
  const V41DsparkConfig& d = *own(c).dspark;
  out->set("dspark_block", c.n_draft_block);
  out->set("dspark_markov_rank", d.d_markov);
  out->set("dspark_target_layers", list(d.target_layers));
  out->set("dspark_experts", d.n_experts);
  out->set("dspark_active", d.n_active);
}

}  // namespace levin::deepseek_v41
