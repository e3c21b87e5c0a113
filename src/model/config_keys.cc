#include "model/config_keys.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"

namespace levin {
namespace {

using std::string_view;

// Read for every family, by arch/load_config.cc and rope_config.cc.
constexpr string_view kHonoured[] = {
    "architectures",
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_nextn_predict_layers",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "bos_token_id",
    "eos_token_id",
    "quantization_config",
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
    "id2label",
    "label2id",
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

// Known to change the mathematics, in any family.
constexpr FixedKey kFixed[] = {
    {"hidden_act", {"\"silu\"", ""}},
    {"tie_word_embeddings", {"false", ""}},
    {"attention_bias", {"false", ""}},
    {"mlp_bias", {"false", ""}},
    {"moe_layer_freq", {"1", ""}},
    {"moe_router_dtype", {"\"float32\"", "null"}},
    {"attn_logit_softcapping", {"null", ""}},
    {"final_logit_softcapping", {"null", ""}},
    {"logit_scale", {"1.0", "null"}},
    {"compression_config", {"null", ""}},
    {"index_kpool", {"null", ""}},
};

constexpr ConfigKeys kEveryFamily{.honoured = kHonoured, .fixed = kFixed, .uniform = {}};

constexpr FixedKey kQuantization[] = {
    {"quant_method", {"\"fp8\"", ""}},
    {"fmt", {"\"e4m3\"", "null"}},
    {"activation_scheme", {"\"dynamic\"", ""}},
    {"scale_fmt", {"\"ue8m0\"", "null"}},
};
constexpr FixedKey kBlocksOf128[] = {{"weight_block_size", {"[128, 128]", ""}}};
constexpr FixedKey kBlocksOf32[] = {{"weight_block_size", {"[32, 32]", ""}}};
std::span<const FixedKey> block_key(int64_t fp8_block) {
  LEVIN_CHECK(fp8_block == 128 || fp8_block == 32, "FP8 in blocks of {}", fp8_block);
  return fp8_block == 128 ? kBlocksOf128 : kBlocksOf32;
}
// What is stored how is read from the tensors themselves.
constexpr string_view kHarmlessQuantization[] = {"expert_dtype",
                                                 "modules_to_not_convert",
                                                 "ignored_layers",
                                                 "dequantize",
                                                 "ignore",
                                                 "exclude_modules",
                                                 "targets",
                                                 "quantized_layers",
                                                 "config_groups",
                                                 "kv_cache_scheme",
                                                 "producer",
                                                 "kv_cache_quant_algo",
                                                 "quantization_status",
                                                 "global_compression_ratio",
                                                 "sparsity_config",
                                                 "version"};
// Of releases with NVFP4 experts, by ModelOpt or compressed-tensors. MIXED_PRECISION: some layers otherwise.
constexpr FixedKey kNvfp4[] = {
    {"quant_algo", {"\"NVFP4\"", "\"MIXED_PRECISION\""}},
    {"moe_quant_algo", {"\"NVFP4\"", ""}},
    {"group_size", {"16", ""}},
    {"format", {"\"nvfp4-pack-quantized\"", "\"mixed-precision\""}},
    {"transform_config", {"{}", "null"}},  // rotations of inputs, which nothing here applies
};
constexpr string_view kNvfp4Methods[] = {"modelopt", "modelopt_fp4", "modelopt_mixed", "compressed-tensors"};

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

Result<bool> check_uniform(const io::JsonFields& where, std::span<const UniformKey> list,
                           const io::JsonMember& member) {
  const auto uniform = std::find_if(list.begin(), list.end(), [&](const UniformKey& u) { return u.key == member.key; });
  if (uniform == list.end()) return false;
  if (member.value.is_null()) return true;
  LEVIN_ASSIGN(const std::vector<std::string> entries, where.get<std::vector<std::string>>(member.key));
  for (const std::string& entry : entries) {
    if (entry != uniform->accepted)
      return refused(where, member.key, member.value, fmt::format("\"{}\" in every layer", uniform->accepted));
  }
  return true;
}

// True when one of the lists has the key.
Result<bool> check_key(const io::JsonFields& config, const ConfigKeys& keys, const io::JsonMember& member) {
  if (listed(keys.honoured, member.key)) return true;
  LEVIN_ASSIGN(const bool fixed, check_fixed(config, keys.fixed, member));
  if (fixed) return true;
  LEVIN_ASSIGN(const bool uniform, check_uniform(config, keys.uniform, member));
  if (uniform) return true;
  if (keys.base != nullptr) return check_key(config, *keys.base, member);
  if (&keys != &kEveryFamily) return check_key(config, kEveryFamily, member);
  return listed(kHarmless, member.key);
}

std::string ignored_text(const io::JsonFields& where, string_view key) {
  return fmt::format("{} is not known to this version and was ignored", where.name_of(key));
}

void add_keys(const ConfigKeys& keys, std::vector<std::string>* out) {
  out->insert(out->end(), keys.honoured.begin(), keys.honoured.end());
  for (const FixedKey& fixed : keys.fixed) out->emplace_back(fixed.key);
  for (const UniformKey& uniform : keys.uniform) out->emplace_back(uniform.key);
}

}  // namespace

std::vector<std::string> known_config_keys(const ConfigKeys& keys) {
  std::vector<std::string> known(std::begin(kHarmless), std::end(kHarmless));
  add_keys(kEveryFamily, &known);
  for (const ConfigKeys* list = &keys; list != nullptr; list = list->base) add_keys(*list, &known);
  return known;
}

Status check_config_keys(const io::JsonFields& config, const ConfigKeys& keys, std::vector<std::string>* warnings) {
  for (const io::JsonMember& member : config.object().members()) {
    LEVIN_ASSIGN(const bool known, check_key(config, keys, member));
    if (!known) warnings->push_back(ignored_text(config, member.key));
  }
  return {};
}

namespace {

bool has_text(const io::JsonFields& fields, string_view key, string_view value) {
  const io::JsonValue* found = fields.find(key);
  return found != nullptr && io::dump_json(*found) == fmt::format("\"{}\"", value);
}

bool is_nvfp4_method(const io::JsonFields& quantization) {
  return std::any_of(std::begin(kNvfp4Methods), std::end(kNvfp4Methods),
                     [&](string_view method) { return has_text(quantization, "quant_method", method); });
}

Status check_fp8_keys_present(const io::JsonFields& quantization, int64_t fp8_block) {
  std::vector<FixedKey> keys(std::begin(kQuantization), std::end(kQuantization));
  keys.push_back(block_key(fp8_block).front());
  for (const FixedKey& required : keys) {
    const bool may_be_absent = required.accepted[1] == "null" || required.key == "activation_scheme";
    if (quantization.contains(required.key) || may_be_absent) continue;
    return Error{ErrorKind::kModelInvalid,
                 fmt::format("{} is missing, expected {}", quantization.name_of(required.key), required.accepted[0])};
  }
  return {};
}

// Of FP8 releases, some of which have NVFP4 experts besides, or of NVFP4 releases, whose keys say nothing of blocks.
struct Quantization {
  bool nvfp4 = false;
  int64_t fp8_block = 128;
};
Result<bool> check_quantization_key(const io::JsonFields& quantization, const Quantization& how,
                                    const io::JsonMember& member) {
  LEVIN_ASSIGN(const bool of_nvfp4, check_fixed(quantization, kNvfp4, member));
  if (of_nvfp4) return true;
  if (how.nvfp4 && member.key == "quant_method") return true;
  LEVIN_ASSIGN(const bool of_block, check_fixed(quantization, block_key(how.fp8_block), member));
  if (of_block) return true;
  LEVIN_ASSIGN(const bool of_fp8, check_fixed(quantization, kQuantization, member));
  return of_fp8 || listed(kHarmlessQuantization, member.key);
}

}  // namespace

Result<StoredAs> read_quantization(const io::JsonFields& config, int64_t fp8_block,
                                   std::vector<std::string>* warnings) {
  StoredAs out;
  if (!config.has("quantization_config")) return out;
  LEVIN_ASSIGN(const io::JsonFields quantization, config.get_fields("quantization_config"));
  const bool nvfp4 = is_nvfp4_method(quantization);
  for (const io::JsonMember& member : quantization.object().members()) {
    LEVIN_ASSIGN(const bool known,
                 check_quantization_key(quantization, {.nvfp4 = nvfp4, .fp8_block = fp8_block}, member));
    if (!known) warnings->push_back(ignored_text(quantization, member.key));
  }
  if (!nvfp4) LEVIN_TRY(check_fp8_keys_present(quantization, fp8_block));
  out.fp8_blocks = !nvfp4;
  out.nvfp4_experts = nvfp4 || quantization.contains("moe_quant_algo");
  return out;
}

Result<StoredAs> read_modelopt_quantization(const io::JsonFields& config) {
  LEVIN_ASSIGN(const io::JsonFields quantization, config.get_fields("quantization"));
  for (const io::JsonMember& member : quantization.object().members()) {
    LEVIN_TRY(check_fixed(quantization, kNvfp4, member));
  }
  return StoredAs{.nvfp4_experts = quantization.contains("quant_algo")};
}

}  // namespace levin
