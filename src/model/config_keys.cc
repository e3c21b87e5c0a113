#include "model/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

namespace levin {
namespace {

using std::string_view;

// Read by config.cc and rope_config.cc.
constexpr string_view kHonoured[] = {
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_nextn_predict_layers",
    "max_position_embeddings",
    "rms_norm_eps",
    "num_attention_heads",
    "num_key_value_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "qk_head_dim",
    "v_head_dim",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "first_k_dense_replace",
    "intermediate_size",
    "n_routed_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "n_shared_experts",
    "moe_intermediate_size",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "bos_token_id",
    "eos_token_id",
    "quantization_config",
    "mlp_layer_types",
};

// Training, bookkeeping of Python libraries, and hints that do not touch the result.
constexpr string_view kHarmless[] = {
    "_name_or_path",
    "_attn_implementation",
    "_commit_hash",
    "attn_implementation",
    "attention_dropout",
    "hidden_dropout",
    "aux_loss_alpha",
    "auto_map",
    "chunk_size_feed_forward",
    "dtype",
    "ep_size",
    "head_dim",
    "id2label",
    "label2id",
    "index_skip_topk_offset",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "router_aux_loss_coef",
    "seq_aux",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
};

// Known to change the mathematics. Each may have the values listed (as JSON) or be absent.
struct FixedKey {
  string_view key;
  std::array<string_view, 2> accepted;  // the second may be empty
};
constexpr FixedKey kFixed[] = {
    {"hidden_act", {"\"silu\"", ""}},
    {"tie_word_embeddings", {"false", ""}},
    {"attention_bias", {"false", ""}},
    {"mlp_bias", {"false", ""}},
    {"scoring_func", {"\"sigmoid\"", ""}},
    {"topk_method", {"\"noaux_tc\"", ""}},
    {"moe_layer_freq", {"1", ""}},
    {"moe_router_dtype", {"\"float32\"", "null"}},
    {"rope_interleave", {"true", ""}},
    {"indexer_rope_interleave", {"false", ""}},
    {"index_topk_freq", {"1", "null"}},
    {"index_topk_pattern", {"null", ""}},
    {"index_share_for_mtp_iteration", {"false", "null"}},
    {"partial_rotary_factor", {"1.0", "1"}},
    {"sliding_window", {"null", ""}},
    {"attn_logit_softcapping", {"null", ""}},
    {"final_logit_softcapping", {"null", ""}},
    {"logit_scale", {"1.0", "null"}},
    {"swiglu_limit", {"null", ""}},
    {"compression_config", {"null", ""}},
    // keys of DeepSeek-V4 and later models
    {"compress_ratios", {"null", ""}},
    {"compress_rope_theta", {"null", ""}},
    {"expert_dtype", {"null", ""}},
    {"hc_mult", {"null", ""}},
    {"hc_sinkhorn_iters", {"null", ""}},
    {"num_hash_layers", {"null", ""}},
    {"o_groups", {"null", ""}},
    {"o_lora_rank", {"null", ""}},
    {"index_kpool", {"null", ""}},
};

// Lists with one entry per layer, all of which must be the one value.
struct UniformKey {
  string_view key;
  string_view accepted;
};
constexpr UniformKey kUniform[] = {
    {"indexer_types", "full"},
    {"layer_types", "deepseek_sparse_attention"},
};

constexpr FixedKey kQuantization[] = {
    {"quant_method", {"\"fp8\"", ""}},          {"fmt", {"\"e4m3\"", "null"}},
    {"activation_scheme", {"\"dynamic\"", ""}}, {"weight_block_size", {"[128, 128]", ""}},
    {"scale_fmt", {"\"ue8m0\"", "null"}},
};
// What is stored how is read from the tensors themselves.
constexpr string_view kHarmlessQuantization[] = {"modules_to_not_convert", "ignored_layers", "dequantize"};

bool listed(std::span<const string_view> list, string_view key) {
  return std::find(list.begin(), list.end(), key) != list.end();
}

// The value as errors print it, cut when long.
std::string printed(const io::JsonValue& value) {
  std::string text = io::dump_json(value);
  return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

bool accepts(const FixedKey& fixed, const io::JsonValue& value) {
  const std::string text = io::dump_json(value);
  return text == fixed.accepted[0] || (!fixed.accepted[1].empty() && text == fixed.accepted[1]);
}

std::string accepted_text(const FixedKey& fixed) {
  return fixed.accepted[1].empty() ? std::string(fixed.accepted[0])
                                   : fmt::format("{} or {}", fixed.accepted[0], fixed.accepted[1]);
}

Error refused(const io::JsonFields& where, string_view key, const io::JsonValue& value, string_view accepted) {
  return {ErrorKind::kModelInvalid, fmt::format("{} is {}, which this version does not implement; implemented: {}",
                                                where.name_of(key), printed(value), accepted)};
}

// True when the key is in the list; an error when its value is not one of those implemented.
Result<bool> check_fixed(const io::JsonFields& where, std::span<const FixedKey> list, const io::JsonMember& member) {
  const auto fixed = std::find_if(list.begin(), list.end(), [&](const FixedKey& f) { return f.key == member.key; });
  if (fixed == list.end()) return false;
  if (!accepts(*fixed, member.value)) return refused(where, member.key, member.value, accepted_text(*fixed));
  return true;
}

Result<bool> check_uniform(const io::JsonFields& where, const io::JsonMember& member) {
  const auto uniform =
      std::find_if(std::begin(kUniform), std::end(kUniform), [&](const UniformKey& u) { return u.key == member.key; });
  if (uniform == std::end(kUniform)) return false;
  if (member.value.is_null()) return true;
  LEVIN_ASSIGN(const std::vector<std::string> entries, where.get<std::vector<std::string>>(member.key));
  for (const std::string& entry : entries) {
    if (entry != uniform->accepted)
      return refused(where, member.key, member.value, fmt::format("\"{}\" in every layer", uniform->accepted));
  }
  return true;
}

std::string ignored_text(const io::JsonFields& where, string_view key) {
  return fmt::format("{} is not known to this version and was ignored", where.name_of(key));
}

}  // namespace

Status check_config_keys(const io::JsonFields& config, std::vector<std::string>* warnings) {
  for (const io::JsonMember& member : config.object().members()) {
    if (listed(kHonoured, member.key) || listed(kHarmless, member.key)) continue;
    LEVIN_ASSIGN(const bool fixed, check_fixed(config, kFixed, member));
    LEVIN_ASSIGN(const bool uniform, check_uniform(config, member));
    if (!fixed && !uniform) warnings->push_back(ignored_text(config, member.key));
  }
  return {};
}

Status check_quantization_keys(const io::JsonFields& config, std::vector<std::string>* warnings) {
  if (!config.has("quantization_config")) return {};
  LEVIN_ASSIGN(const io::JsonFields quantization, config.get_fields("quantization_config"));
  for (const FixedKey& required : kQuantization) {
    const bool may_be_absent = required.accepted[1] == "null" || required.key == "activation_scheme";
    if (quantization.contains(required.key) || may_be_absent) continue;
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{} is missing, expected {}", quantization.name_of(required.key), required.accepted[0])};
  }
  for (const io::JsonMember& member : quantization.object().members()) {
    LEVIN_ASSIGN(const bool fixed, check_fixed(quantization, kQuantization, member));
    if (!fixed && !listed(kHarmlessQuantization, member.key))
      warnings->push_back(ignored_text(quantization, member.key));
  }
  return {};
}

}  // namespace levin
