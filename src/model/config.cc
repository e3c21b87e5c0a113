#include "model/config.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "io/json.h"
#include "io/mapped_file.h"
#include "model/config_family.h"

namespace levin {
namespace {

using io::JsonFields;

Error invalid(std::string message) { return {ErrorKind::kModelInvalid, std::move(message)}; }

const ConfigFamily* const kFamilies[] = {&kDeepseekV32Config, &kGlmMoeDsaConfig, &kDeepseekV4Config};

// What every family has.
constexpr Dim<int64_t> kDims[] = {
    {"vocab_size", &ModelConfig::n_vocab, 1, 1 << 24},
    {"hidden_size", &ModelConfig::d_model, 1, 1 << 17},
    {"max_position_embeddings", &ModelConfig::max_position, 1, 1 << 30},
};
constexpr Dim<int> kLayers = {"num_hidden_layers", &ModelConfig::n_layers, 1, 512};

template <class T>
Status read_any_dim(const JsonFields& fields, const Dim<T>& dim, ModelConfig* config) {
  LEVIN_ASSIGN(const int64_t value, fields.get<int64_t>(dim.key));
  if (value < dim.min || value > dim.max) {
    return fields.unexpected(dim.key, fmt::format("a whole number from {} to {}", dim.min, dim.max));
  }
  config->*dim.field = static_cast<T>(value);
  return {};
}

// What a model of another type is, for those that people are likely to try.
struct OtherModel {
  std::string_view type;
  std::string_view what;
};
constexpr OtherModel kOtherModels[] = {
    {"deepseek_v41", "DeepSeek-V4.1, whose layers share compressed keys and look up n-grams; it is not supported"},
    {"deepseek_v3", "DeepSeek-V3, which has no lightning indexer; this program runs sparse attention only"},
    {"deepseek_v2", "DeepSeek-V2, which has no lightning indexer; this program runs sparse attention only"},
    {"glm5_next", "GLM-5.3-Flash, whose attention is of another kind; it is not supported"},
};

// Keys that make another model of a checkpoint, whatever its model_type says.
struct OtherKeys {
  std::string_view prefix;
  std::string_view what;
};
constexpr OtherKeys kOtherKeys[] = {
    {"dspark_", "a DSpark block drafter"},
    {"engram_", "the n-gram memory of DeepSeek-V4.1"},
};

std::string supported_text() {
  std::string text;
  for (const ConfigFamily* family : kFamilies) {
    text += fmt::format("{}\"{}\" ({})", text.empty() ? "" : ", ", family->model_type, family_name(family->family));
  }
  return text;
}

// By model_type and keys, never by the name of the model.
Result<const ConfigFamily*> find_family(const JsonFields& fields) {
  LEVIN_ASSIGN(const std::string type, fields.get<std::string>("model_type"));
  for (const io::JsonMember& member : fields.object().members()) {
    const auto other = std::find_if(std::begin(kOtherKeys), std::end(kOtherKeys),
                                    [&](const OtherKeys& keys) { return member.key.starts_with(keys.prefix); });
    if (other == std::end(kOtherKeys) || member.value.is_null()) continue;
    return invalid(fmt::format("{}: {}, which is not supported", fields.name_of(member.key), other->what));
  }
  const auto family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const ConfigFamily* f) { return f->model_type == type; });
  if (family != std::end(kFamilies)) return *family;
  const auto other = std::find_if(std::begin(kOtherModels), std::end(kOtherModels),
                                  [&](const OtherModel& m) { return m.type == type; });
  const bool known = other != std::end(kOtherModels);
  return invalid(fmt::format("{} is \"{}\"{}; this version runs {}", fields.name_of("model_type"), type,
                             known ? fmt::format(": {}", other->what) : ", a model this program does not know",
                             supported_text()));
}

Status read_architecture(const JsonFields& fields, const ConfigFamily& family, ModelConfig* config) {
  LEVIN_ASSIGN(const auto architectures, fields.get_or("architectures", std::vector<std::string>()));
  config->architecture = architectures.empty() ? std::string(family.architecture) : architectures.front();
  if (config->architecture == family.architecture) return {};
  return fields.unexpected("architectures", fmt::format("[\"{}\"]", family.architecture));
}

Status read_numbers(const JsonFields& fields, ModelConfig* config) {
  for (const Dim<int64_t>& dim : kDims) LEVIN_TRY(read_dim(fields, dim, config));
  LEVIN_TRY(read_dim(fields, kLayers, config));
  LEVIN_ASSIGN(const int64_t n_mtp_layers, fields.get_or("num_nextn_predict_layers", int64_t{0}));
  if (n_mtp_layers != 0 && n_mtp_layers != 1) return fields.unexpected("num_nextn_predict_layers", "0 or 1");
  config->n_mtp_layers = static_cast<int>(n_mtp_layers);
  LEVIN_ASSIGN(config->norm_eps, read_real(fields, "rms_norm_eps", {1e-12, 0.1}));
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

}  // namespace

Status read_dim(const JsonFields& fields, const Dim<int64_t>& dim, ModelConfig* config) {
  return read_any_dim(fields, dim, config);
}
Status read_dim(const JsonFields& fields, const Dim<int>& dim, ModelConfig* config) {
  return read_any_dim(fields, dim, config);
}

Result<float> read_real(const JsonFields& fields, std::string_view key, RealRange range) {
  LEVIN_ASSIGN(const double value, fields.get<double>(key));
  if (value >= range.min && value <= range.max) return static_cast<float>(value);
  return fields.unexpected(key, fmt::format("a number from {} to {}", range.min, range.max));
}

Status check_repetition(const JsonFields& fields, const Repetition& repetition) {
  if (!fields.has(repetition.key)) return {};
  LEVIN_ASSIGN(const int64_t value, fields.get<int64_t>(repetition.key));
  if (value == repetition.expected) return {};
  return fields.unexpected(repetition.key, fmt::format("{} ({})", repetition.expected, repetition.because));
}

std::string_view family_name(ModelFamily family) {
  switch (family) {
    case ModelFamily::kDeepseekV32:
      return "DeepSeek-V3.2";
    case ModelFamily::kGlmMoeDsa:
      return "GLM-5";
    case ModelFamily::kDeepseekV4:
      return "DeepSeek-V4";
  }
  return "unknown";
}

int ModelConfig::n_indexers() const {
  int n = 0;
  for (int layer = 0; layer < n_layers; ++layer) n += has_indexer(layer);
  return n;
}

Result<ParsedConfig> parse_model_config(std::string_view json, std::string_view source) {
  LEVIN_ASSIGN(const io::JsonValue document, io::parse_json(json, source));
  LEVIN_ASSIGN(const JsonFields fields, JsonFields::of(document, source));
  ParsedConfig parsed;
  ModelConfig& config = parsed.config;
  LEVIN_ASSIGN(const ConfigFamily* family, find_family(fields));
  config.family = family->family;
  LEVIN_TRY(read_architecture(fields, *family, &config));
  LEVIN_TRY(check_config_keys(fields, *family->keys, &parsed.warnings));
  LEVIN_TRY(check_quantization_keys(fields, &parsed.warnings));
  config.fp8_blocks = fields.has("quantization_config");
  LEVIN_TRY(read_numbers(fields, &config));
  LEVIN_TRY(read_tokens(fields, &config));
  LEVIN_TRY(family->read(fields, &config, &parsed.warnings));
  return parsed;
}

Result<ParsedConfig> load_model_config(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::path(folder) / "config.json";
  LEVIN_ASSIGN(const std::string text, io::read_file(path, {.max_bytes = 16 << 20}));
  return parse_model_config(text, path.string());
}

}  // namespace levin
