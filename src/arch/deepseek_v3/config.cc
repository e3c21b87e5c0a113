// What DeepSeek-V3.2 and GLM-5 have in common (model_spec.md 2.1).
#include <fmt/core.h>

#include "arch/deepseek_v3/mla.h"
#include "model/config_fields.h"
#include "model/rope_config.h"

namespace levin::mla {
namespace {

using io::JsonFields;

constexpr Dim<int64_t> kDims[] = {
    {"kv_lora_rank", &ModelConfig::d_latent, 1, 1 << 16},
    {"qk_nope_head_dim", &ModelConfig::d_nope, 1, 1 << 14},
    {"qk_rope_head_dim", &ModelConfig::d_rope, 2, 1 << 14},
    {"v_head_dim", &ModelConfig::d_value, 1, 1 << 14},
    {"intermediate_size", &ModelConfig::d_dense, 1, 1 << 20},
    {"n_shared_experts", &ModelConfig::n_shared_experts, 0, 64},
};
constexpr Dim<int> kCounts[] = {
    {"first_k_dense_replace", &ModelConfig::n_dense_layers, 0, 512},
    {"n_group", &ModelConfig::n_groups, 1, 4096},
    {"topk_group", &ModelConfig::n_groups_kept, 1, 4096},
};

// head_dim is no size of these models: GLM's files carry a number there that fits nothing (model_spec.md 2.2).
constexpr std::string_view kHonoured[] = {
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "qk_head_dim",
    "head_dim",
    "v_head_dim",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "indexer_types",
    "index_topk_pattern",
    "index_topk_freq",
    "index_skip_topk_offset",
    "index_share_for_mtp_iteration",
    "first_k_dense_replace",
    "intermediate_size",
    "n_routed_experts",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "mlp_layer_types",
    "moe_intermediate_size",
};

constexpr FixedKey kFixed[] = {
    {"scoring_func", {"\"sigmoid\"", ""}},
    {"topk_method", {"\"noaux_tc\"", ""}},
    {"rope_interleave", {"true", ""}},
    {"partial_rotary_factor", {"1.0", "1"}},
    {"sliding_window", {"null", ""}},
    {"swiglu_limit", {"null", ""}},
    // keys of DeepSeek-V4 and later models
    {"compress_ratios", {"null", ""}},
    {"compress_rope_theta", {"null", ""}},
    {"expert_dtype", {"null", ""}},
    {"hc_mult", {"null", ""}},
    {"hc_sinkhorn_iters", {"null", ""}},
    {"num_hash_layers", {"null", ""}},
    {"o_groups", {"null", ""}},
    {"o_lora_rank", {"null", ""}},
};

constexpr UniformKey kUniform[] = {{"layer_types", "deepseek_sparse_attention"}};

Status read_numbers(const JsonFields& fields, ModelConfig* config) {
  LEVIN_TRY(read_indexed_moe_dims(fields, config));
  for (const Dim<int64_t>& dim : kDims) {
    // null stands for no shared experts
    if (dim.field == &ModelConfig::n_shared_experts && fields.contains(dim.key) && !fields.has(dim.key)) continue;
    LEVIN_TRY(read_dim(fields, dim, config));
  }
  for (const Dim<int>& dim : kCounts) LEVIN_TRY(read_dim(fields, dim, config));
  return read_expert_numbers(fields, config);
}

Status check_layer_types(const JsonFields& fields, const ModelConfig& config) {
  if (!fields.has("mlp_layer_types")) return {};
  LEVIN_ASSIGN(const auto types, fields.get<std::vector<std::string>>("mlp_layer_types"));
  bool agrees = static_cast<int64_t>(types.size()) == config.n_layers;
  for (size_t i = 0; agrees && i < types.size(); ++i) {
    agrees = types[i] == (config.is_sparse_layer(static_cast<int>(i)) ? "sparse" : "dense");
  }
  if (agrees) return {};
  return fields.unexpected("mlp_layer_types",
                           fmt::format("{} entries: {} \"dense\" (first_k_dense_replace), then \"sparse\"",
                                       config.n_layers, config.n_dense_layers));
}

Status check_experts(const JsonFields& fields, const ModelConfig& c) {
  if (c.n_dense_layers > c.n_layers) {
    return fields.unexpected("first_k_dense_replace", fmt::format("at most {} (num_hidden_layers)", c.n_layers));
  }
  if (c.n_active > c.n_experts)
    return fields.unexpected("num_experts_per_tok", fmt::format("at most {} (n_routed_experts)", c.n_experts));
  if (c.n_experts % c.n_groups != 0)
    return fields.unexpected("n_group", fmt::format("a divisor of {} (n_routed_experts)", c.n_experts));
  if (c.n_groups_kept > c.n_groups)
    return fields.unexpected("topk_group", fmt::format("at most {} (n_group)", c.n_groups));
  const int64_t group_size = c.n_experts / c.n_groups;
  if (c.n_groups > 1 && group_size < 2) {
    return fields.unexpected(
        "n_group",
        fmt::format("groups of at least 2 of the {} experts: a group's score is the sum of its two best", c.n_experts));
  }
  if (c.n_active > c.n_groups_kept * group_size) {
    return fields.unexpected("num_experts_per_tok",
                             fmt::format("at most {}: topk_group {} groups of {} experts are kept",
                                         c.n_groups_kept * group_size, c.n_groups_kept, group_size));
  }
  return {};
}

Status check_attention(const JsonFields& fields, const ModelConfig& c) {
  if (c.d_rope % 2 != 0) return fields.unexpected("qk_rope_head_dim", "an even number");
  if (c.d_rope > c.d_index) {
    return fields.unexpected(
        "qk_rope_head_dim",
        fmt::format("at most {} (index_head_dim): the indexer rotates that many of its columns", c.d_index));
  }
  return {};
}

}  // namespace

constinit const ConfigKeys kConfigKeys{.honoured = kHonoured, .fixed = kFixed, .uniform = kUniform};

Status read_config(const JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  LEVIN_TRY(read_numbers(fields, config));
  const Repetition repetitions[] = {
      {"num_key_value_heads", config->n_heads, "num_attention_heads"},
      {"qk_head_dim", config->d_head(), "qk_nope_head_dim + qk_rope_head_dim"},
      {"num_local_experts", config->n_experts, "n_routed_experts"},
      {"num_experts", config->n_experts, "n_routed_experts"},
  };
  for (const Repetition& repetition : repetitions) LEVIN_TRY(check_repetition(fields, repetition));
  LEVIN_TRY(check_layer_types(fields, *config));
  LEVIN_TRY(check_experts(fields, *config));
  LEVIN_TRY(check_attention(fields, *config));
  return parse_rope_config(fields, config, warnings);
}

}  // namespace levin::mla
