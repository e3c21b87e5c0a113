// DeepSeek-V4.1 (model_spec.md 2.5), whose keys stand in text_config.
#include "arch/deepseek_v41/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include "arch/deepseek_v41/engram_hash.h"
#include "arch/deepseek_v41/parts.h"
#include "model/config_fields.h"
#include "model/rope_config.h"
#include "tensor/row_formats.h"

namespace levin::deepseek_v41 {
namespace {

using io::JsonFields;

constexpr Dim<int64_t> kDims[] = {
    {"sliding_window", &ModelConfig::n_window, 1, 1 << 20},
    {"n_shared_experts", &ModelConfig::n_shared_experts, 1, 64},
    {"hc_mult", &ModelConfig::n_streams, 1, 16},
};
constexpr Dim<int64_t, DeepseekV41Config> kOwnDims[] = {
    {"o_groups", &DeepseekV41Config::n_out_groups, 1, 4096},
    {"o_lora_rank", &DeepseekV41Config::d_out_lora, 1, 1 << 16},
};
constexpr Dim<int> kSinkhornSteps = {"hc_sinkhorn_iters", &ModelConfig::n_sinkhorn_steps, 1, 1000};
constexpr Dim<int64_t, CandidateBlocks> kCandidateDims[] = {
    {"candidate_topk_blocks", &CandidateBlocks::n_blocks, 1, 1 << 20},
    {"candidate_block_size", &CandidateBlocks::block_size, 1, 1 << 16},
};
constexpr Dim<int64_t, EngramConfig> kEngramDims[] = {
    {"engram_max_ngram_size", &EngramConfig::n_gram, 2, 16},
    {"engram_n_heads", &EngramConfig::n_hashes, 1, 64},
    {"engram_head_dim", &EngramConfig::d_row, 1, 1 << 16},
    {"engram_vocab_size", &EngramConfig::first_prime, 2, 1 << 26},
    {"engram_compressed_vocab_size", &EngramConfig::n_classes, 1, 1 << 24},  // exact in f32
};
constexpr Dim<int64_t> kDraftBlock = {"dspark_block_size", &ModelConfig::n_draft_block, 1, kPageTokens};
constexpr Dim<int64_t, V41DsparkConfig> kDsparkDims[] = {
    {"dspark_markov_rank", &V41DsparkConfig::d_markov, 1, 1 << 16},
    {"dspark_n_routed_experts", &V41DsparkConfig::n_experts, 1, 1 << 16},
    {"dspark_num_experts_per_tok", &V41DsparkConfig::n_active, 1, 1 << 10},
};

constexpr std::string_view kHonoured[] = {
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "compress_ratios",
    "kv_source_layer_ids",
    "index_source_layer_ids",
    "candidate_source_layer_id",
    "candidate_topk_blocks",
    "candidate_block_size",
    "compress_rope_theta",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "n_routed_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "moe_intermediate_size",
    "norm_topk_prob",
    "swiglu_limit",
    "routed_scaling_factor",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    "engram_layer_ids",
    "engram_num_embeddings",
    "engram_max_ngram_size",
    "engram_vocab_size",
    "engram_n_heads",
    "engram_head_dim",
    "engram_pad_token_id",
    "engram_compressed_vocab_size",
    "dspark_block_size",
    "dspark_markov_rank",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "dspark_n_routed_experts",
    "dspark_num_experts_per_tok",
    // of images, which are not read
    "vision_config",
    "image_token_id",
};

constexpr FixedKey kFixed[] = {
    {"scoring_func", {"\"sqrtsoftplus\"", ""}},
    {"topk_method", {"\"noaux_tc\"", "null"}},
    {"first_k_dense_replace", {"0", "null"}},
    // keys of DeepSeek-V3.2, GLM-5 and DeepSeek-V4
    {"n_group", {"1", "null"}},
    {"topk_group", {"1", "null"}},
    {"num_hash_layers", {"0", "null"}},
    {"kv_lora_rank", {"null", ""}},
    {"v_head_dim", {"null", ""}},
    {"layer_types", {"null", ""}},
    {"indexer_types", {"null", ""}},
    {"index_topk_freq", {"1", "null"}},
    {"index_topk_pattern", {"null", ""}},
    {"index_share_for_mtp_iteration", {"false", "null"}},
};

Status read_numbers(const JsonFields& fields, ModelConfig* config) {
  LEVIN_TRY(read_indexed_moe_dims(fields, config));
  for (const Dim<int64_t>& dim : kDims) LEVIN_TRY(read_dim(fields, dim, config));
  for (const Dim<int64_t, DeepseekV41Config>& dim : kOwnDims) LEVIN_TRY(read_dim(fields, dim, &own(*config)));
  LEVIN_TRY(read_dim(fields, kSinkhornSteps, config));
  LEVIN_TRY(read_expert_numbers(fields, config));
  return read_stream_numbers(fields, config);
}

// A head is d_nope columns, then d_rope rotated ones.
Status read_head(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(const int64_t d_head, read_whole(fields, "head_dim", {2, 1 << 14}));
  LEVIN_TRY(read_dim(fields, Dim<int64_t>{"qk_rope_head_dim", &ModelConfig::d_rope, 2, 1 << 14}, config));
  const int64_t most = std::min(d_head, config->d_index);
  if (config->d_rope % 2 != 0 || config->d_rope > most) {
    return fields.unexpected("qk_rope_head_dim",
                             fmt::format("an even number up to {} (head_dim, index_head_dim)", most));
  }
  config->d_nope = d_head - config->d_rope;
  return {};
}

Status check_sizes(const JsonFields& fields, const ModelConfig& c) {
  LEVIN_TRY(check_repetition(fields, {"num_key_value_heads", 1, "DeepSeek-V4.1 has one"}));
  if (c.n_heads % own(c).n_out_groups != 0)
    return fields.unexpected("o_groups", fmt::format("a divisor of {} (num_attention_heads)", c.n_heads));
  if (c.n_active > c.n_experts)
    return fields.unexpected("num_experts_per_tok", fmt::format("at most {} (n_routed_experts)", c.n_experts));
  return {};
}

// A list of layers of the trunk, ascending.
Result<std::vector<int>> read_layers(const JsonFields& fields, std::string_view key, const ModelConfig& config) {
  LEVIN_ASSIGN(const auto ids, fields.get<std::vector<int64_t>>(key));
  const bool ascending = std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
  if (!ids.empty() && ascending && ids.front() >= 0 && ids.back() < config.n_layers)
    return std::vector<int>(ids.begin(), ids.end());
  return fields.unexpected(
      key, fmt::format("different layers from 0 to {} (num_hidden_layers - 1), ascending", config.n_layers - 1));
}

bool contains(const std::vector<int>& layers, int layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

// The ratios of the trunk; those of the drafter's stages, which see their window alone, stand after them and are 0.
Result<std::vector<int64_t>> read_ratios(const JsonFields& fields, const ModelConfig& config) {
  constexpr std::string_view kKey = "compress_ratios";
  LEVIN_ASSIGN(std::vector<int64_t> ratios, fields.get<std::vector<int64_t>>(kKey));
  const auto n_layers = static_cast<size_t>(config.n_layers);
  const auto n_stages = static_cast<size_t>(own(config).dspark ? config.n_mtp_layers : 0);
  if (ratios.size() != n_layers && ratios.size() != n_layers + n_stages) {
    return fields.unexpected(
        kKey, fmt::format("{} entries (num_hidden_layers), and {} more (the drafter's stages)", n_layers, n_stages));
  }
  const bool stages_see_windows =
      std::all_of(ratios.begin() + config.n_layers, ratios.end(), [](int64_t r) { return r == 0; });
  if (!stages_see_windows) return fields.unexpected(kKey, "0 for the drafter's stages, the last entries");
  ratios.resize(n_layers);
  for (const int64_t ratio : ratios) {
    if (ratio < 0 || ratio > kPageTokens)
      return fields.unexpected(kKey, fmt::format("ratios from 0 to {}, not {}", kPageTokens, ratio));
  }
  LEVIN_TRY(check_common_multiple(fields, kKey, ratios));
  return ratios;
}

// Each layer with a ratio reads the entries of the nearest source at or below it, which must have the same ratio.
Status read_entries(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(const std::vector<int64_t> ratios, read_ratios(fields, *config));
  LEVIN_ASSIGN(const std::vector<int> sources, read_layers(fields, "kv_source_layer_ids", *config));
  int source = -1;
  for (int layer = 0; layer < config->n_layers; ++layer) {
    if (contains(sources, layer)) source = layer;
    const int64_t ratio = ratios[static_cast<size_t>(layer)];
    EntriesOfLayer& entries = own(*config).entries.emplace_back(EntriesOfLayer{.ratio = ratio});
    if (ratio == 0 && source != layer) continue;
    const bool fits = ratio > 0 && source >= 0 && ratios[static_cast<size_t>(source)] == ratio;
    if (!fits) {
      return fields.unexpected(
          "kv_source_layer_ids",
          fmt::format("layers with a ratio in compress_ratios, and for layer {}, of ratio {}, one of that ratio as the "
                      "nearest at or below it",
                      layer, ratio));
    }
    entries.source = source;
  }
  return {};
}

// The layers that select: every layer with entries has one of the same entries at or below it, and who makes entries
// selects among them.
Status read_selections(const JsonFields& fields, ModelConfig* config) {
  constexpr std::string_view kKey = "index_source_layer_ids";
  LEVIN_ASSIGN(const std::vector<int> sources, read_layers(fields, kKey, *config));
  int last = -1;
  for (int layer = 0; layer < config->n_layers; ++layer) {
    const EntriesOfLayer& entries = own(*config).entries_of(layer);
    const bool selects = contains(sources, layer);
    if (selects) last = layer;
    const bool fits = entries.ratio == 0 ? !selects : last >= entries.source;
    if (!fits) {
      return fields.unexpected(
          kKey,
          fmt::format("the layers of kv_source_layer_ids and some of those that read their entries; layer {} does "
                      "not fit",
                      layer));
    }
    config->owns_indexer.push_back(selects);
  }
  config->mtp_owns_indexer = false;  // stages see their window alone
  return {};
}

// Without it, or at -1, every layer selects among all entries.
Status read_candidates(const JsonFields& fields, ModelConfig* config) {
  constexpr std::string_view kKey = "candidate_source_layer_id";
  LEVIN_ASSIGN(const int64_t source, fields.get_or(kKey, int64_t{-1}));
  if (source == -1) return {};
  CandidateBlocks& candidates = own(*config).candidates;
  const bool selects = source >= 0 && source < config->n_layers && config->has_indexer(static_cast<int>(source));
  if (!selects) return fields.unexpected(kKey, "-1 or a layer of index_source_layer_ids");
  candidates.source = static_cast<int>(source);
  const EntriesOfLayer& entries = own(*config).entries_of(candidates.source);
  for (int layer = candidates.source; layer < config->n_layers; ++layer) {
    const int other = own(*config).entries_of(layer).source;
    if (config->has_indexer(layer) && other != entries.source)
      return fields.unexpected(
          kKey, fmt::format("a layer after which all select among its entries; layer {} does not", layer));
  }
  for (const Dim<int64_t, CandidateBlocks>& dim : kCandidateDims) LEVIN_TRY(read_dim(fields, dim, &candidates));
  // The newest block may have a single entry.
  const int64_t least = (candidates.n_blocks - 1) * candidates.block_size + 1;
  if (least >= config->n_topk) return {};
  return fields.unexpected("candidate_topk_blocks",
                           fmt::format("blocks with room for {} entries (index_topk), not {}", config->n_topk, least));
}

Status check_engram_rows(const JsonFields& fields, const EngramConfig& engram) {
  constexpr std::string_view kKey = "engram_num_embeddings";
  if (engram.n_rows.size() != engram.layers.size())
    return fields.unexpected(kKey, fmt::format("{} entries (engram_layer_ids)", engram.layers.size()));
  const std::vector<EngramHash> hashes = engram_hashes(engram);
  std::vector<int64_t> expected;
  for (const EngramHash& hash : hashes) expected.push_back(hash.n_rows());
  const bool fits = std::equal(expected.begin(), expected.end(), engram.n_rows.begin()) &&
                    *std::max_element(expected.begin(), expected.end()) <= std::numeric_limits<int32_t>::max();
  if (fits) return {};
  return fields.unexpected(kKey, fmt::format("[{}], the sums of the primes that hashes divide by (from "
                                             "engram_vocab_size, engram_max_ngram_size, engram_n_heads)",
                                             fmt::join(expected, ", ")));
}

Status read_engram(const JsonFields& fields, ModelConfig* config) {
  if (!fields.has("engram_layer_ids")) return {};
  LEVIN_ASSIGN(const auto ids, fields.get<std::vector<int64_t>>("engram_layer_ids"));
  if (ids.empty()) return {};
  EngramConfig& engram = own(*config).engram.emplace();
  LEVIN_ASSIGN(engram.layers, read_layers(fields, "engram_layer_ids", *config));
  for (const Dim<int64_t, EngramConfig>& dim : kEngramDims) LEVIN_TRY(read_dim(fields, dim, &engram));
  if (engram.first_prime * engram.n_columns() > int64_t{1} << 31) {
    return fields.unexpected("engram_vocab_size",
                             fmt::format("a table of less than 2^31 rows: {} hashes of so many", engram.n_columns()));
  }
  LEVIN_ASSIGN(engram.n_rows, fields.get<std::vector<int64_t>>("engram_num_embeddings"));
  LEVIN_ASSIGN(const int64_t pad, read_whole(fields, "engram_pad_token_id", {0, config->n_vocab - 1}));
  engram.pad_token = static_cast<int32_t>(pad);
  // Its ring stands among those of layers without entries.
  if (own(*config).entries_of(engram.layers.front()).source == engram.layers.front()) {
    return fields.unexpected("engram_layer_ids", "first a layer that is not one of kv_source_layer_ids");
  }
  return check_engram_rows(fields, engram);
}

// num_nextn_predict_layers says nothing of it: it has as many stages as target layers.
Status read_dspark(const JsonFields& fields, ModelConfig* config) {
  config->n_mtp_layers = 0;
  if (!fields.has("dspark_block_size")) return {};
  LEVIN_ASSIGN(const int64_t n_block, fields.get<int64_t>("dspark_block_size"));
  if (n_block == 0) return {};
  V41DsparkConfig& dspark = own(*config).dspark.emplace();
  LEVIN_TRY(read_dim(fields, kDraftBlock, config));
  for (const Dim<int64_t, V41DsparkConfig>& dim : kDsparkDims) LEVIN_TRY(read_dim(fields, dim, &dspark));
  if (dspark.n_active > dspark.n_experts) {
    return fields.unexpected("dspark_num_experts_per_tok",
                             fmt::format("at most {} (dspark_n_routed_experts)", dspark.n_experts));
  }
  LEVIN_ASSIGN(const int64_t noise, read_whole(fields, "dspark_noise_token_id", {0, config->n_vocab - 1}));
  dspark.noise_token = static_cast<int32_t>(noise);
  LEVIN_ASSIGN(dspark.target_layers, read_layers(fields, "dspark_target_layer_ids", *config));
  config->n_mtp_layers = static_cast<int>(dspark.target_layers.size());
  return {};
}

// In quantization_config.
Status read_expert_dtype(const JsonFields& fields, ModelConfig* config) {
  if (!config->fp8_blocks) return {};
  LEVIN_ASSIGN(const JsonFields quantization, fields.get_fields("quantization_config"));
  LEVIN_ASSIGN(const std::string dtype, quantization.get_or("expert_dtype", std::string("fp4")));
  if (dtype != "fp4" && dtype != "fp8") return quantization.unexpected("expert_dtype", "\"fp4\" or \"fp8\"");
  config->mxfp4_experts = dtype == "fp4";
  return {};
}

}  // namespace

constinit const ConfigKeys kConfigKeys{.honoured = kHonoured, .fixed = kFixed, .uniform = {}};

Status read_config(const JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  DeepseekV41Config& c = config->own.emplace<DeepseekV41Config>();
  config->expert_score = ops::ExpertScore::kSqrtSoftplus;
  LEVIN_TRY(read_numbers(fields, config));
  LEVIN_TRY(read_head(fields, config));
  LEVIN_TRY(check_sizes(fields, *config));
  LEVIN_TRY(read_dspark(fields, config));
  LEVIN_TRY(read_entries(fields, config));
  LEVIN_TRY(read_selections(fields, config));
  LEVIN_TRY(read_candidates(fields, config));
  LEVIN_TRY(read_engram(fields, config));
  LEVIN_TRY(read_expert_dtype(fields, config));
  config->index_rope_pairing = ops::RopePairing::kInterleaved;
  TwoRopes ropes;
  LEVIN_TRY(parse_two_rope_configs(fields, *config, &ropes, warnings));
  config->rope_theta = ropes.theta;
  c.compressed_rope_theta = ropes.compressed_theta;
  c.compressed_yarn = ropes.compressed_yarn;
  return {};
}

int class_layer(const ModelConfig& config) { return own(config).engram ? own(config).engram->layers.front() : -1; }

}  // namespace levin::deepseek_v41

namespace levin {

int EngramConfig::index_of(int layer) const {
  const auto found = std::find(layers.begin(), layers.end(), layer);
  return found == layers.end() ? -1 : static_cast<int>(found - layers.begin());
}

}  // namespace levin
