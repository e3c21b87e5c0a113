// GLM-5.3-Flash (model_spec.md 2.4), whose keys stand in text_config.
#include "arch/glm_next/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "arch/glm_next/parts.h"
#include "model/config_fields.h"
#include "tensor/row_formats.h"

namespace levin::glm_next {
namespace {

using io::JsonFields;

constexpr Dim<int64_t> kDims[] = {
    {"kv_lora_rank", &ModelConfig::d_latent, 1, 1 << 16},
    {"qk_nope_head_dim", &ModelConfig::d_nope, 1, 1 << 14},
    {"v_head_dim", &ModelConfig::d_value, 1, 1 << 14},
    {"intermediate_size", &ModelConfig::d_dense, 1, 1 << 20},
    {"n_shared_experts", &ModelConfig::n_shared_experts, 0, 64},
    {"hc_mult", &ModelConfig::n_streams, 1, 16},
};
constexpr Dim<int> kCounts[] = {
    {"n_group", &ModelConfig::n_groups, 1, 4096},
    {"topk_group", &ModelConfig::n_groups_kept, 1, 4096},
    {"hc_sinkhorn_iters", &ModelConfig::n_sinkhorn_steps, 1, 1000},
};
constexpr Dim<int64_t, GlmNextConfig> kLinearDims[] = {
    {"num_heads", &GlmNextConfig::n_linear_heads, 1, 4096},
    {"head_dim", &GlmNextConfig::d_linear_head, 1, 1 << 12},
    {"short_conv_kernel_size", &GlmNextConfig::n_taps, 1, kStateTokens},
};
// It has a default in transformers that no release uses, so it must be given.
constexpr Dim<int64_t, GlmNextConfig> kPool = {"index_kpool", &GlmNextConfig::n_pool, 1, 1 << 10};

constexpr std::string_view kHonoured[] = {
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_head_dim",
    "head_dim",
    "v_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "swiglu_limit",
    "mlp_layer_types",
    "first_k_dense_replace",
    "layer_types",
    "linear_attn_config",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "index_kpool",
    "index_share_for_mtp_iteration",
    "indexer_rope_interleave",  // nothing is rotated
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    // of images, which are not read
    "vision_config",
    "image_token_id",
    "video_token_id",
    "image_start_token_id",
    "image_end_token_id",
    "video_start_token_id",
    "video_end_token_id",
};

constexpr FixedKey kFixed[] = {
    {"qk_rope_head_dim", {"0", ""}},
    {"mla_use_nope", {"true", ""}},
    {"index_kpool_compress", {"true", ""}},
    {"index_kpool_always_select_tail", {"true", ""}},
    {"scoring_func", {"\"sigmoid\"", ""}},
    {"topk_method", {"\"noaux_tc\"", ""}},
    {"mhc", {"true", ""}},
    {"index_topk_freq", {"1", "null"}},
    {"index_topk_pattern", {"null", ""}},
    {"sliding_window", {"null", ""}},
    // keys of DeepSeek-V4 and later models
    {"compress_ratios", {"null", ""}},
    {"compress_rope_theta", {"null", ""}},
    {"expert_dtype", {"null", ""}},
    {"num_hash_layers", {"null", ""}},
    {"o_groups", {"null", ""}},
    {"o_lora_rank", {"null", ""}},
};

constexpr UniformKey kUniform[] = {{"indexer_types", "full"}};

Status read_numbers(const JsonFields& fields, ModelConfig* config) {
  LEVIN_TRY(read_indexed_moe_dims(fields, config));
  for (const Dim<int64_t>& dim : kDims) LEVIN_TRY(read_dim(fields, dim, config));
  for (const Dim<int>& dim : kCounts) LEVIN_TRY(read_dim(fields, dim, config));
  LEVIN_TRY(read_expert_numbers(fields, config));
  LEVIN_TRY(read_stream_numbers(fields, config));
  LEVIN_ASSIGN(config->share_topk_across_drafts, fields.get_or("index_share_for_mtp_iteration", false));
  return {};
}

// The rows of top-k indices have room for the tokens of the selected pools and for those of an incomplete one.
Status read_pools(const JsonFields& fields, ModelConfig* config) {
  GlmNextConfig& c = own(*config);
  LEVIN_TRY(read_dim(fields, kPool, &c));
  if (config->n_topk % c.n_pool != 0) {
    return fields.unexpected("index_topk", fmt::format("a multiple of {} (index_kpool)", c.n_pool));
  }
  c.n_pool_topk = config->n_topk / c.n_pool;
  config->n_topk += c.n_pool - 1;
  return {};
}

Status read_linear(const JsonFields& fields, GlmNextConfig* c) {
  LEVIN_ASSIGN(const JsonFields linear, fields.get_fields("linear_attn_config"));
  for (const Dim<int64_t, GlmNextConfig>& dim : kLinearDims) LEVIN_TRY(read_dim(linear, dim, c));
  LEVIN_ASSIGN(c->decay_lower, read_real(linear, "gate_lower_bound", {-80, -1e-3}));
  LEVIN_ASSIGN(const bool bounded, linear.get_or("safe_gate", true));
  if (!bounded) return linear.unexpected("safe_gate", "true, a decay with the bound gate_lower_bound");
  return {};
}

// layer_types, where transformers writes "indexed_attention". The lists in linear_attn_config are not read: nothing says
// from which number they count.
Status read_layer_types(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(const auto types, fields.get<std::vector<std::string>>("layer_types"));
  for (const std::string& type : types) {
    const bool linear = type == "linear_attention";
    if (!linear && type != "deepseek_sparse_attention" && type != "indexed_attention") {
      return fields.unexpected("layer_types", "\"linear_attention\" or \"deepseek_sparse_attention\" in every layer");
    }
    config->owns_indexer.push_back(!linear);
  }
  const auto n_linear = std::count(types.begin(), types.end(), "linear_attention");
  const bool sound = std::ssize(types) == config->n_layers && n_linear > 0 && n_linear < config->n_layers;
  if (sound) return {};
  return fields.unexpected("layer_types",
                           fmt::format("{} entries (num_hidden_layers) of both kinds", config->n_layers));
}

// mlp_layer_types, or first_k_dense_replace.
Status read_dense_layers(const JsonFields& fields, ModelConfig* config) {
  if (!fields.has("mlp_layer_types")) {
    return read_dim(fields, Dim<int>{"first_k_dense_replace", &ModelConfig::n_dense_layers, 0, config->n_layers},
                    config);
  }
  LEVIN_ASSIGN(const auto types, fields.get<std::vector<std::string>>("mlp_layer_types"));
  const auto first_other = std::find_if(types.begin(), types.end(), [](const auto& t) { return t != "dense"; });
  config->n_dense_layers = static_cast<int>(first_other - types.begin());
  const bool sound = std::ssize(types) == config->n_layers &&
                     std::all_of(first_other, types.end(), [](const auto& t) { return t == "sparse"; });
  if (!sound) {
    return fields.unexpected(
        "mlp_layer_types",
        fmt::format("{} entries (num_hidden_layers): \"dense\" first, then \"sparse\"", config->n_layers));
  }
  return check_repetition(fields, {"first_k_dense_replace", config->n_dense_layers, "mlp_layer_types"});
}

Status check_experts(const JsonFields& fields, const ModelConfig& c) {
  if (c.n_active > c.n_experts)
    return fields.unexpected("num_experts_per_tok", fmt::format("at most {} (n_routed_experts)", c.n_experts));
  if (c.n_groups != 1) return fields.unexpected("n_group", "1");
  if (c.n_groups_kept != 1) return fields.unexpected("topk_group", "1");
  return {};
}

}  // namespace

constinit const ConfigKeys kConfigKeys{.honoured = kHonoured, .fixed = kFixed, .uniform = kUniform};

Status read_config(const JsonFields& fields, ModelConfig* config, std::vector<std::string>*) {
  GlmNextConfig& c = config->own.emplace<GlmNextConfig>();
  LEVIN_TRY(read_numbers(fields, config));
  LEVIN_TRY(read_pools(fields, config));
  LEVIN_TRY(read_linear(fields, &c));
  const Repetition repetitions[] = {
      {"num_key_value_heads", config->n_heads, "num_attention_heads"},
      {"qk_head_dim", config->d_nope, "qk_nope_head_dim"},
      {"head_dim", 0, "nothing is rotated"},
      {"num_local_experts", config->n_experts, "n_routed_experts"},
  };
  for (const Repetition& repetition : repetitions) LEVIN_TRY(check_repetition(fields, repetition));
  LEVIN_TRY(read_layer_types(fields, config));
  LEVIN_TRY(read_dense_layers(fields, config));
  return check_experts(fields, *config);
}

}  // namespace levin::glm_next
