#include "arch/load_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "io/json.h"
#include "io/mapped_file.h"
#include "model/config_fields.h"

namespace levin {
namespace {

using io::JsonFields;

// What every family has.
constexpr Dim<int64_t> kDims[] = {
    {"vocab_size", &ModelConfig::n_vocab, 1, 1 << 24},
    {"hidden_size", &ModelConfig::d_model, 1, 1 << 17},
    {"max_position_embeddings", &ModelConfig::max_position, 1, 1 << 30},
};
constexpr Dim<int> kLayers = {"num_hidden_layers", &ModelConfig::n_layers, 1, 512};

// The document with the members of its text part in the place of that part. What both have is taken from the text part,
// but for what names the model.
io::JsonValue with_text_part(const io::JsonValue& document, std::string_view text_key) {
  const io::JsonObject* text = nullptr;
  if (const io::JsonValue* part = text_key.empty() ? nullptr : document.as_object()->find(text_key))
    text = part->as_object();
  if (text == nullptr) return document;
  io::JsonObject merged = *document.as_object();
  merged.erase(text_key);
  for (const io::JsonMember& member : text->members()) {
    if (member.key != "model_type" && member.key != "architectures") merged.set(member.key, member.value);
  }
  return merged;
}

Status read_architecture(const JsonFields& fields, const Architecture& family, ModelConfig* config) {
  LEVIN_ASSIGN(const auto architectures, fields.get_or("architectures", std::vector<std::string>()));
  config->architecture = architectures.empty() ? std::string(family.class_name) : architectures.front();
  if (config->architecture == family.class_name) return {};
  return fields.unexpected("architectures", fmt::format("[\"{}\"]", family.class_name));
}

Status read_numbers(const JsonFields& fields, const Architecture& family, ModelConfig* config) {
  for (const Dim<int64_t>& dim : kDims) LEVIN_TRY(read_dim(fields, dim, config));
  LEVIN_TRY(read_dim(fields, kLayers, config));
  LEVIN_ASSIGN(const int64_t n_mtp_layers, fields.get_or("num_nextn_predict_layers", int64_t{0}));
  if (n_mtp_layers < 0 || n_mtp_layers > family.max_mtp_layers) {
    return fields.unexpected("num_nextn_predict_layers", family.max_mtp_layers == 1
                                                             ? std::string("0 or 1")
                                                             : fmt::format("0 to {}", family.max_mtp_layers));
  }
  config->n_mtp_layers = static_cast<int>(n_mtp_layers);
  LEVIN_ASSIGN(config->norm_eps, read_real(fields, "rms_norm_eps", {1e-30, 0.1}));
  return {};
}

Status read_token(const JsonFields& fields, std::string_view key, int64_t value, const ModelConfig& config) {
  if (value >= 0 && value < config.n_vocab) return {};
  return fields.unexpected(key, fmt::format("token ids from 0 to {} (vocab_size - 1)", config.n_vocab - 1));
}

Status read_tokens(const JsonFields& fields, ModelConfig* config) {
  if (fields.has("bos_token_id")) {
    LEVIN_ASSIGN(const int64_t bos, fields.get<int64_t>("bos_token_id"));
    LEVIN_TRY(read_token(fields, "bos_token_id", bos, *config));
    config->bos_token = static_cast<int32_t>(bos);
  }
  if (!fields.has("eos_token_id")) return {};
  std::vector<int64_t> eos;
  if (fields.find("eos_token_id")->as_array() != nullptr) {
    LEVIN_ASSIGN(eos, fields.get<std::vector<int64_t>>("eos_token_id"));
  } else {
    LEVIN_ASSIGN(const int64_t one, fields.get<int64_t>("eos_token_id"));
    eos.push_back(one);
  }
  for (const int64_t token : eos) {
    LEVIN_TRY(read_token(fields, "eos_token_id", token, *config));
    config->eos_tokens.push_back(static_cast<int32_t>(token));
  }
  return {};
}

Result<bool> says_nvfp4(const std::filesystem::path& path) {
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = 16 << 20}));
  LEVIN_ASSIGN(const io::JsonValue document, io::parse_json(text, path.string()));
  LEVIN_ASSIGN(const JsonFields fields, JsonFields::of(document, path.string()));
  LEVIN_ASSIGN(const StoredAs stored, read_modelopt_quantization(fields));
  return stored.nvfp4_experts;
}

}  // namespace

Result<ParsedConfig> parse_model_config(std::string_view json, std::string_view source, const Registry& registry,
                                        std::span<const ConfigOverride> overrides) {
  LEVIN_ASSIGN(io::JsonValue document, io::parse_json(json, source));
  const std::string where = apply_overrides(overrides, source, &document);
  LEVIN_ASSIGN(const JsonFields found, JsonFields::of(document, where));
  ParsedConfig parsed;
  ModelConfig& config = parsed.config;
  LEVIN_ASSIGN(config.family, registry.family_of(found));
  LEVIN_TRY(check_override_keys(overrides, *config.family->keys));
  io::JsonValue text = with_text_part(document, config.family->text_key);
  apply_overrides(overrides, source, &text);
  LEVIN_ASSIGN(const JsonFields fields, JsonFields::of(text, where));
  LEVIN_TRY(read_architecture(fields, *config.family, &config));
  LEVIN_TRY(check_config_keys(fields, *config.family->keys, &parsed.warnings));
  LEVIN_ASSIGN(const StoredAs stored, read_quantization(fields, config.family->fp8_block, &parsed.warnings));
  config.fp8_blocks = stored.fp8_blocks;
  config.fp8_block = config.family->fp8_block;
  config.nvfp4_experts = stored.nvfp4_experts;
  LEVIN_TRY(read_numbers(fields, *config.family, &config));
  LEVIN_TRY(read_tokens(fields, &config));
  LEVIN_TRY(config.family->read_config(fields, &config, &parsed.warnings));
  LEVIN_CHECK(std::ssize(config.owns_indexer) == config.n_layers, "{}: owns_indexer has {} entries, for {} layers",
              config.family->name, config.owns_indexer.size(), config.n_layers);
  return parsed;
}

Result<ParsedConfig> load_model_config(const std::string& folder, const Registry& registry,
                                       std::span<const ConfigOverride> overrides) {
  const std::filesystem::path path = std::filesystem::path(folder) / "config.json";
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = 16 << 20}));
  LEVIN_ASSIGN(ParsedConfig parsed, parse_model_config(text, path.string(), registry, overrides));
  const std::filesystem::path modelopt = std::filesystem::path(folder) / "hf_quant_config.json";
  std::error_code ignored;  // what is there and cannot be looked at is an error when it is read
  const bool is_there = std::filesystem::status(modelopt, ignored).type() != std::filesystem::file_type::not_found;
  if (!parsed.config.fp8_blocks && !parsed.config.nvfp4_experts && is_there) {
    LEVIN_ASSIGN(parsed.config.nvfp4_experts, says_nvfp4(modelopt));
  }
  return parsed;
}

Result<text::ChatFormat> load_chat_format(const Architecture& family, const std::filesystem::path& folder,
                                          const text::Tokenizer& tokenizer) {
  if (family.make_chat != nullptr) return text::ChatFormat::load(family.make_chat, folder, tokenizer);
  return Error{ErrorKind::kModelInvalid,
               fmt::format("{} (model_type \"{}\") has no chat format; levin bench and levin trace run it without one",
                           family.name, family.model_type)};
}

}  // namespace levin
