// DeepSeek-V4 (model_spec.md 2.3): one key-value head, windows and compressed entries, several residual streams.
#include "arch/deepseek_v4/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "arch/deepseek_v4/parts.h"
#include "model/config_fields.h"
#include "model/rope_config.h"
#include "tensor/formats.h"

namespace levin::deepseek_v4 {
namespace {

using io::JsonFields;

constexpr Dim<int64_t> kDims[] = {
    {"sliding_window", &ModelConfig::n_window, 1, 1 << 20},
    {"n_shared_experts", &ModelConfig::n_shared_experts, 1, 64},
    {"hc_mult", &ModelConfig::n_streams, 1, 16},
};
constexpr Dim<int64_t, DeepseekV4Config> kOwnDims[] = {
    {"o_groups", &DeepseekV4Config::n_out_groups, 1, 4096},
    {"o_lora_rank", &DeepseekV4Config::d_out_lora, 1, 1 << 16},
};
constexpr Dim<int> kSinkhornSteps = {"hc_sinkhorn_iters", &ModelConfig::n_sinkhorn_steps, 1, 1000};

constexpr Dim<int64_t> kDraftBlock = {"dspark_block_size", &ModelConfig::n_draft_block, 1, kPageTokens};
constexpr Dim<int64_t, DsparkConfig> kMarkovRank = {"dspark_markov_rank", &DsparkConfig::d_markov, 1, 1 << 16};
constexpr std::string_view kDsparkKeys[] = {
    "dspark_block_size",
    "dspark_markov_rank",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
};

constexpr std::string_view kHonoured[] = {
    "dspark_block_size",
    "dspark_markov_rank",
    "dspark_noise_token_id",
    "dspark_target_layer_ids",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "qk_rope_head_dim",
    "partial_rotary_factor",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "compress_ratios",
    "compress_rates",
    "layer_types",
    "compress_rope_theta",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "moe_intermediate_size",
    "num_hash_layers",
    "mlp_layer_types",
    "norm_topk_prob",
    "swiglu_limit",
    "routed_scaling_factor",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    "expert_dtype",
};

constexpr FixedKey kFixed[] = {
    {"scoring_func", {"\"sqrtsoftplus\"", ""}},
    {"topk_method", {"\"noaux_tc\"", "null"}},
    {"router_jitter_noise", {"0.0", "0"}},
    {"rope_interleave", {"true", "null"}},
    {"indexer_rope_interleave", {"true", "null"}},
    // keys of DeepSeek-V3.2, GLM-5 and DeepSeek-V4.1
    {"n_group", {"1", "null"}},
    {"topk_group", {"1", "null"}},
    {"first_k_dense_replace", {"0", "null"}},
    {"kv_lora_rank", {"null", ""}},
    {"v_head_dim", {"null", ""}},
    {"indexer_types", {"null", ""}},
    {"index_topk_freq", {"1", "null"}},
    {"index_topk_pattern", {"null", ""}},
    {"index_share_for_mtp_iteration", {"false", "null"}},
    {"kv_source_layer_ids", {"null", ""}},
    {"index_source_layer_ids", {"null", ""}},
    {"candidate_source_layer_id", {"null", ""}},
    {"dspark_n_routed_experts", {"null", ""}},
    {"dspark_num_experts_per_tok", {"null", ""}},
    // keys of early versions of transformers, in place of compress_rates
    {"compress_rate_csa", {"4", "null"}},
    {"compress_rate_hca", {"128", "null"}},
};

Status read_numbers(const JsonFields& fields, ModelConfig* config) {
  LEVIN_TRY(read_indexed_moe_dims(fields, config));
  for (const Dim<int64_t>& dim : kDims) LEVIN_TRY(read_dim(fields, dim, config));
  for (const Dim<int64_t, DeepseekV4Config>& dim : kOwnDims) LEVIN_TRY(read_dim(fields, dim, &own(*config)));
  LEVIN_TRY(read_dim(fields, kSinkhornSteps, config));
  LEVIN_TRY(read_expert_numbers(fields, config));
  return read_stream_numbers(fields, config);
}

// A head is d_nope columns, then d_rope rotated ones.
Status read_head(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(const int64_t d_head, fields.get<int64_t>("head_dim"));
  if (d_head < 2 || d_head > 1 << 14) return fields.unexpected("head_dim", "a whole number from 2 to 16384");
  LEVIN_TRY(read_dim(fields, Dim<int64_t>{"qk_rope_head_dim", &ModelConfig::d_rope, 2, 1 << 14}, config));
  const int64_t most = std::min(d_head, config->d_index);
  if (config->d_rope % 2 != 0 || config->d_rope > most) {
    return fields.unexpected(
        "qk_rope_head_dim",
        fmt::format("an even number up to {}: head_dim is {}, and the indexer rotates as many of its {} columns", most,
                    d_head, config->d_index));
  }
  config->d_nope = d_head - config->d_rope;
  if (!fields.has("partial_rotary_factor")) return {};
  return check_rotated_share(fields, static_cast<double>(config->d_rope) / static_cast<double>(d_head));
}

// How transformers names the kinds of layers, and the ratios it assumes.
struct LayerKind {
  std::string_view name;
  Compression kind;
  int64_t default_ratio;
};
constexpr std::array<LayerKind, 3> kLayerKinds = {{
    {"sliding_attention", Compression::kNone, 0},
    {"compressed_sparse_attention", Compression::kIndexed, 4},
    {"heavily_compressed_attention", Compression::kAll, 128},
}};
constexpr int64_t kMaxRatio = 1 << 16;

// The ratio of a kind of layers: compress_rates {kind: ratio} of transformers, or what is assumed without.
Result<int64_t> ratio_of(const LayerKind& kind, const JsonFields& fields) {
  if (kind.default_ratio == 0 || !fields.has("compress_rates")) return kind.default_ratio;
  LEVIN_ASSIGN(const JsonFields rates, fields.get_fields("compress_rates"));
  LEVIN_ASSIGN(const int64_t ratio, rates.get_or(kind.name, kind.default_ratio));
  if (ratio >= 1 && ratio <= kMaxRatio) return ratio;
  return rates.unexpected(kind.name, fmt::format("a whole number from 1 to {}", kMaxRatio));
}

// The entries of compress_ratios after those of the trunk, if there are any: of layers that see their window alone.
Status check_draft_ratios(const JsonFields& fields, const ModelConfig& config, std::span<const int64_t> ratios) {
  const bool dspark = own(config).dspark.has_value();
  const int64_t n_more = dspark ? config.n_mtp_layers : 1;
  if (!ratios.empty() && std::ssize(ratios) != n_more) {
    return fields.unexpected(
        "compress_ratios",
        fmt::format("{} entries (num_hidden_layers), or {} more for {}, not {}", config.n_layers,
                    dspark ? std::to_string(n_more) : "one",
                    dspark ? "the stages of the drafter (as many as dspark_target_layer_ids has)" : "the MTP layer",
                    config.n_layers + std::ssize(ratios)));
  }
  if (std::all_of(ratios.begin(), ratios.end(), [](int64_t ratio) { return ratio == 0; })) return {};
  return fields.unexpected("compress_ratios", dspark ? fmt::format("0 for the drafter's stages, the last {}", n_more)
                                                     : "0 for the MTP layer, the last entry");
}

// One for each layer of the trunk, those of the draft layers left out.
Result<std::vector<LayerCompression>> read_ratios(const JsonFields& fields, const ModelConfig& config) {
  LEVIN_ASSIGN(std::vector<int64_t> ratios, fields.get<std::vector<int64_t>>("compress_ratios"));
  if (std::ssize(ratios) < config.n_layers) {
    return fields.unexpected("compress_ratios", fmt::format("at least {} entries (num_hidden_layers), not {}",
                                                            config.n_layers, ratios.size()));
  }
  LEVIN_TRY(check_draft_ratios(fields, config, std::span(ratios).subspan(static_cast<size_t>(config.n_layers))));
  ratios.resize(static_cast<size_t>(config.n_layers));
  // The official files say the kind by the ratio: 4 comes with an indexer, any other does not.
  LEVIN_ASSIGN(const int64_t indexed_ratio, ratio_of(kLayerKinds[1], fields));
  std::vector<LayerCompression> layers;
  for (const int64_t ratio : ratios) {
    if (ratio < 0 || ratio > kMaxRatio) {
      return fields.unexpected("compress_ratios", fmt::format("ratios from 0 to {}, not {}", kMaxRatio, ratio));
    }
    const Compression compressed = ratio == indexed_ratio ? Compression::kIndexed : Compression::kAll;
    layers.push_back({.kind = ratio == 0 ? Compression::kNone : compressed, .ratio = ratio});
  }
  LEVIN_TRY(check_common_multiple(fields, "compress_ratios", ratios));
  return layers;
}

// transformers: layer_types with compress_rates.
Result<std::vector<LayerCompression>> read_layer_types(const JsonFields& fields, const ModelConfig& config) {
  LEVIN_ASSIGN(const auto types, fields.get<std::vector<std::string>>("layer_types"));
  if (static_cast<int64_t>(types.size()) != config.n_layers) {
    return fields.unexpected("layer_types", fmt::format("{} entries (num_hidden_layers)", config.n_layers));
  }
  std::vector<LayerCompression> layers;
  std::vector<int64_t> ratios;
  for (const std::string& type : types) {
    const auto kind =
        std::find_if(kLayerKinds.begin(), kLayerKinds.end(), [&](const LayerKind& k) { return k.name == type; });
    if (kind == kLayerKinds.end()) {
      return fields.unexpected("layer_types",
                               fmt::format("\"{}\", \"{}\" or \"{}\" in every layer", kLayerKinds[0].name,
                                           kLayerKinds[1].name, kLayerKinds[2].name));
    }
    LEVIN_ASSIGN(const int64_t ratio, ratio_of(*kind, fields));
    layers.push_back({.kind = kind->kind, .ratio = ratio});
    ratios.push_back(ratio);
  }
  LEVIN_TRY(check_common_multiple(fields, "compress_rates", ratios));
  return layers;
}

Status read_compression(const JsonFields& fields, ModelConfig* config) {
  std::vector<LayerCompression> by_ratio, by_type;
  const bool typed = fields.has("layer_types");
  if (fields.has("compress_ratios") || !typed) {
    LEVIN_ASSIGN(by_ratio, read_ratios(fields, *config));
  }
  if (typed) {
    LEVIN_ASSIGN(by_type, read_layer_types(fields, *config));
  }
  for (size_t i = 0; i < std::min(by_ratio.size(), by_type.size()); ++i) {
    if (by_ratio[i].ratio == by_type[i].ratio) continue;
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{} gives layer {} the ratio {}, and layer_types with compress_rates {}; correct one of "
                             "them or leave it out",
                             fields.name_of("compress_ratios"), i, by_ratio[i].ratio, by_type[i].ratio)};
  }
  std::vector<LayerCompression>& compression = own(*config).compression;
  compression = typed ? std::move(by_type) : std::move(by_ratio);
  compression.resize(static_cast<size_t>(config->n_layers) + static_cast<size_t>(config->n_mtp_layers));
  return {};
}

// num_hash_layers, or mlp_layer_types of transformers: the layers that choose experts by token id come first.
Status read_hash_layers(const JsonFields& fields, ModelConfig* config) {
  DeepseekV4Config& v4 = own(*config);
  const Dim<int, DeepseekV4Config> dim = {"num_hash_layers", &DeepseekV4Config::n_hash_layers, 0, config->n_layers};
  if (!fields.has("mlp_layer_types")) return read_dim(fields, dim, &v4);
  LEVIN_ASSIGN(const auto types, fields.get<std::vector<std::string>>("mlp_layer_types"));
  const auto first_other = std::find_if(types.begin(), types.end(), [](const auto& t) { return t != "hash_moe"; });
  v4.n_hash_layers = static_cast<int>(first_other - types.begin());
  const bool sound = static_cast<int64_t>(types.size()) == config->n_layers &&
                     std::all_of(first_other, types.end(), [](const auto& t) { return t == "moe"; });
  if (!sound) {
    return fields.unexpected("mlp_layer_types", fmt::format("{} entries (num_hidden_layers): \"hash_moe\" first, then "
                                                            "\"moe\"",
                                                            config->n_layers));
  }
  return check_repetition(fields, {"num_hash_layers", v4.n_hash_layers, "mlp_layer_types"});
}

// Each of the layers once, in any order.
Result<std::vector<int>> read_target_layers(const JsonFields& fields, const ModelConfig& config) {
  constexpr std::string_view kKey = "dspark_target_layer_ids";
  LEVIN_ASSIGN(const auto ids, fields.get<std::vector<int64_t>>(kKey));
  const bool in_range =
      std::all_of(ids.begin(), ids.end(), [&](int64_t id) { return id >= 0 && id < config.n_layers; });
  const bool distinct = std::set(ids.begin(), ids.end()).size() == ids.size();
  if (ids.empty() || !in_range || !distinct) {
    return fields.unexpected(kKey, fmt::format("different layers from 0 to {} (num_hidden_layers - 1), one for each "
                                               "stage of the drafter",
                                               config.n_layers - 1));
  }
  return std::vector<int>(ids.begin(), ids.end());
}

// num_nextn_predict_layers says nothing of a block drafter: it has as many stages as target layers.
Status read_dspark(const JsonFields& fields, ModelConfig* config) {
  if (std::none_of(std::begin(kDsparkKeys), std::end(kDsparkKeys), [&](auto key) { return fields.has(key); })) {
    return config->n_mtp_layers <= 1 ? Status() : fields.unexpected("num_nextn_predict_layers", "0 or 1");
  }
  DsparkConfig& dspark = own(*config).dspark.emplace();
  LEVIN_TRY(read_dim(fields, kDraftBlock, config));
  LEVIN_TRY(read_dim(fields, kMarkovRank, &dspark));
  LEVIN_ASSIGN(const int64_t noise, read_whole(fields, "dspark_noise_token_id", {0, config->n_vocab - 1}));
  dspark.noise_token = static_cast<int32_t>(noise);
  LEVIN_ASSIGN(dspark.target_layers, read_target_layers(fields, *config));
  config->n_mtp_layers = static_cast<int>(dspark.target_layers.size());
  return {};
}

// The April 2026 configs of the FP4 releases do not have the key.
Status read_expert_dtype(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(const std::string dtype, fields.get_or("expert_dtype", config->fp8_blocks ? "fp4" : "bf16"));
  if (dtype != "fp4" && dtype != "fp8" && dtype != "bf16") {
    return fields.unexpected("expert_dtype", "\"fp4\", \"fp8\" or \"bf16\"");
  }
  config->mxfp4_experts = dtype == "fp4";
  return {};
}

}  // namespace

constinit const ConfigKeys kConfigKeys{.honoured = kHonoured, .fixed = kFixed, .uniform = {}};

Status read_config(const JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  DeepseekV4Config& v4 = config->own.emplace<DeepseekV4Config>();
  config->expert_score = ops::ExpertScore::kSqrtSoftplus;
  LEVIN_TRY(read_numbers(fields, config));
  LEVIN_TRY(read_head(fields, config));
  LEVIN_TRY(check_repetition(fields, {"num_key_value_heads", 1, "DeepSeek-V4 has one"}));
  LEVIN_TRY(check_repetition(fields, {"num_local_experts", config->n_experts, "n_routed_experts"}));
  if (config->n_heads % v4.n_out_groups != 0) {
    return fields.unexpected("o_groups", fmt::format("a divisor of {} (num_attention_heads)", config->n_heads));
  }
  if (config->n_active > config->n_experts) {
    return fields.unexpected("num_experts_per_tok", fmt::format("at most {} (n_routed_experts)", config->n_experts));
  }
  LEVIN_TRY(read_dspark(fields, config));
  LEVIN_TRY(read_compression(fields, config));
  for (int layer = 0; layer < config->n_layers; ++layer) {
    config->owns_indexer.push_back(v4.compression_of(layer).kind == Compression::kIndexed);
  }
  config->mtp_owns_indexer = false;  // it sees its window alone
  LEVIN_TRY(read_hash_layers(fields, config));
  LEVIN_TRY(read_expert_dtype(fields, config));
  config->index_rope_pairing = ops::RopePairing::kInterleaved;
  TwoRopes ropes;
  LEVIN_TRY(parse_two_rope_configs(fields, *config, &ropes, warnings));
  config->rope_theta = ropes.theta;
  v4.compressed_rope_theta = ropes.compressed_theta;
  v4.compressed_yarn = ropes.compressed_yarn;
  return {};
}

}  // namespace levin::deepseek_v4

namespace levin {

std::vector<float> compressed_rope_frequencies(const ModelConfig& config) {
  const DeepseekV4Config& v4 = deepseek_v4::own(config);
  return rope_frequencies(v4.compressed_rope_theta, v4.compressed_yarn, config.d_rope);
}

}  // namespace levin
