#include "model/rope_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/math.h"

namespace levin {
namespace {

// What either spelling may say; a field of both must be the same.
struct RopeKeys {
  std::optional<std::string> type;
  std::optional<double> theta, factor, original, beta_fast, beta_slow, mscale, mscale_all_dim;
};

struct NumberKey {
  std::string_view key;
  std::optional<double> RopeKeys::* field;
};
constexpr NumberKey kNumbers[] = {
    {"rope_theta", &RopeKeys::theta},
    {"factor", &RopeKeys::factor},
    {"original_max_position_embeddings", &RopeKeys::original},
    {"beta_fast", &RopeKeys::beta_fast},
    {"beta_slow", &RopeKeys::beta_slow},
    {"mscale", &RopeKeys::mscale},
    {"mscale_all_dim", &RopeKeys::mscale_all_dim},
};

template <class T>
Status take(std::optional<T>& slot, const T& value, const io::JsonFields& where, std::string_view key) {
  if (slot && *slot != value)
    return invalid_model(
        fmt::format("{} is {}, but another key of the config says {}", where.name_of(key), value, *slot));
  slot = value;
  return {};
}

Status take_number(RopeKeys& keys, const NumberKey& number, const io::JsonFields& where) {
  LEVIN_ASSIGN(const double value, where.get<double>(number.key));
  return take(keys.*number.field, value, where, number.key);
}

// Every key of these objects changes the mathematics, so an unknown one is refused. `rotated_share` is the part of a
// head that the model rotates, which some configs repeat.
Status read_rope_object(const io::JsonFields& object, double rotated_share, RopeKeys& keys) {
  for (const io::JsonMember& member : object.object().members()) {
    if (member.value.is_null()) continue;
    const auto number =
        std::find_if(std::begin(kNumbers), std::end(kNumbers), [&](const NumberKey& n) { return n.key == member.key; });
    if (number != std::end(kNumbers)) {
      LEVIN_TRY(take_number(keys, *number, object));
    } else if (member.key == "type" || member.key == "rope_type") {
      LEVIN_ASSIGN(const std::string type, object.get<std::string>(member.key));
      LEVIN_TRY(take(keys.type, type, object, member.key));
    } else if (member.key == "attention_factor") {
      if (member.value.to_double() != 1.0) return object.unexpected(member.key, "1.0, the only value implemented");
    } else if (member.key == "partial_rotary_factor") {
      LEVIN_TRY(check_rotated_share(object, rotated_share));
    } else if (member.key == "truncate") {
      LEVIN_ASSIGN(const bool truncate, object.get<bool>(member.key));
      if (!truncate) return object.unexpected(member.key, "true, the only value implemented");
    } else {
      return invalid_model(
          fmt::format("{} is not known to this version, and keys of a rope setting change the mathematics",
                      object.name_of(member.key)));
    }
  }
  return {};
}

double yarn_gain(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * log_exact(factor) + 1.0; }

bool in_range(double value, double low, double high) { return value >= low && value <= high; }

bool positive(double value) { return std::isfinite(value) && value > 0; }

// cos and sin are never multiplied by a gain: `default_mscale` is what an absent mscale stands for.
Result<Yarn> make_yarn(const RopeKeys& keys, std::string_view source, double default_mscale) {
  const auto missing = [&](std::string_view key) {
    return invalid_model(fmt::format("{}: rope type yarn needs {}", source, key));
  };
  if (!keys.factor) return missing("factor");
  if (!keys.original) return missing("original_max_position_embeddings");
  Yarn yarn{.factor = *keys.factor,
            .original_max_position = *keys.original,
            .beta_fast = keys.beta_fast.value_or(32),
            .beta_slow = keys.beta_slow.value_or(1),
            .mscale = keys.mscale.value_or(default_mscale),
            .mscale_all_dim = keys.mscale_all_dim.value_or(0)};
  if (!in_range(yarn.factor, 1, 1e6))
    return invalid_model(fmt::format("{}: yarn factor is {}, expected a number from 1 to 1e6", source, yarn.factor));
  if (!positive(yarn.original_max_position) || !positive(yarn.beta_fast) || !positive(yarn.beta_slow)) {
    return invalid_model(
        fmt::format("{}: yarn original_max_position_embeddings is {}, beta_fast {}, beta_slow {}; all must be above 0",
                    source, yarn.original_max_position, yarn.beta_fast, yarn.beta_slow));
  }
  // cos and sin would be multiplied by the ratio of the two gains; every released model has 1.
  if (static_cast<float>(yarn_gain(yarn.factor, yarn.mscale) / yarn_gain(yarn.factor, yarn.mscale_all_dim)) != 1.0f) {
    return invalid_model(
        fmt::format("{}: yarn mscale is {} and mscale_all_dim {}; this version implements equal values only", source,
                    yarn.mscale, yarn.mscale_all_dim));
  }
  return yarn;
}

Result<double> theta_of(const RopeKeys& keys, const io::JsonFields& fields, std::string_view key) {
  if (!keys.theta)
    return invalid_model(fmt::format("{}: {} is missing, also from rope_parameters", fields.where(), key));
  if (in_range(*keys.theta, 1.001, 1e12)) return *keys.theta;
  return invalid_model(
      fmt::format("{} is {}, expected a number above 1, at most 1e12", fields.name_of(key), *keys.theta));
}

Result<std::optional<Yarn>> yarn_of(const RopeKeys& keys, const io::JsonFields& fields, double default_mscale) {
  const std::string type = keys.type.value_or(keys.factor ? "(not given)" : "default");
  if (type == "default") return std::optional<Yarn>();
  if (type != "yarn") {
    return invalid_model(
        fmt::format("{}: rope type is '{}', which this version does not implement; implemented: yarn, default",
                    fields.where(), type));
  }
  LEVIN_ASSIGN(Yarn yarn, make_yarn(keys, fields.where(), default_mscale));
  return std::optional(yarn);
}

void warn_of_stretch(const std::optional<Yarn>& yarn, const io::JsonFields& fields, int64_t max_position,
                     std::vector<std::string>* warnings) {
  if (!yarn || yarn->factor * yarn->original_max_position == static_cast<double>(max_position)) return;
  warnings->push_back(
      fmt::format("{}: yarn factor {} times original_max_position_embeddings {} is not max_position_embeddings {}; "
                  "the factor is used",
                  fields.where(), yarn->factor, yarn->original_max_position, max_position));
}

// rope_parameters of DeepSeek-V4: one object for each table, or one object whose scaling is of the compressed table.
Status read_two_tables(const io::JsonFields& object, double rotated_share, RopeKeys& plain, RopeKeys& compressed) {
  if (object.has("main") && object.has("compress")) {
    LEVIN_ASSIGN(const io::JsonFields main, object.get_fields("main"));
    LEVIN_ASSIGN(const io::JsonFields compress, object.get_fields("compress"));
    LEVIN_TRY(read_rope_object(main, rotated_share, plain));
    return read_rope_object(compress, rotated_share, compressed);
  }
  RopeKeys keys = compressed;
  keys.theta = plain.theta;
  LEVIN_TRY(read_rope_object(object, rotated_share, keys));
  plain.theta = keys.theta;
  keys.theta = compressed.theta;
  compressed = keys;
  return {};
}

}  // namespace

Status check_rotated_share(const io::JsonFields& fields, double rotated_share) {
  LEVIN_ASSIGN(const double value, fields.get<double>("partial_rotary_factor"));
  if (value == rotated_share) return {};
  return fields.unexpected("partial_rotary_factor", fmt::format("{}, the only value implemented", rotated_share));
}

Status parse_rope_config(const io::JsonFields& fields, ModelConfig* config, std::vector<std::string>* warnings) {
  RopeKeys keys;
  if (fields.has("rope_theta")) LEVIN_TRY(take_number(keys, kNumbers[0], fields));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!fields.has(key)) continue;
    LEVIN_ASSIGN(const io::JsonFields object, fields.get_fields(key));
    LEVIN_TRY(read_rope_object(object, 1.0, keys));
  }
  LEVIN_ASSIGN(config->rope_theta, theta_of(keys, fields, "rope_theta"));
  LEVIN_ASSIGN(config->yarn, yarn_of(keys, fields, 1));
  warn_of_stretch(config->yarn, fields, config->max_position, warnings);
  return {};
}

Status parse_two_rope_configs(const io::JsonFields& fields, const ModelConfig& config, TwoRopes* ropes,
                              std::vector<std::string>* warnings) {
  const double rotated_share = static_cast<double>(config.d_rope) / static_cast<double>(config.d_head());
  RopeKeys plain, compressed;
  if (fields.has("rope_theta")) LEVIN_TRY(take_number(plain, kNumbers[0], fields));
  LEVIN_ASSIGN(compressed.theta, fields.get_optional<double>("compress_rope_theta"));
  if (fields.has("rope_scaling")) {
    LEVIN_ASSIGN(const io::JsonFields object, fields.get_fields("rope_scaling"));
    LEVIN_TRY(read_rope_object(object, rotated_share, compressed));
  }
  if (fields.has("rope_parameters")) {
    LEVIN_ASSIGN(const io::JsonFields object, fields.get_fields("rope_parameters"));
    LEVIN_TRY(read_two_tables(object, rotated_share, plain, compressed));
  }
  LEVIN_ASSIGN(ropes->theta, theta_of(plain, fields, "rope_theta"));
  LEVIN_ASSIGN(ropes->compressed_theta, theta_of(compressed, fields, "compress_rope_theta"));
  LEVIN_ASSIGN(const std::optional<Yarn> none, yarn_of(plain, fields, 0));
  if (none) return invalid_model(fmt::format("{}: rope type yarn for layers without compression", fields.where()));
  LEVIN_ASSIGN(ropes->compressed_yarn, yarn_of(compressed, fields, 0));
  warn_of_stretch(ropes->compressed_yarn, fields, config.max_position, warnings);
  return {};
}

float ModelConfig::attention_scale() const {
  double scale = 1.0 / std::sqrt(static_cast<double>(d_head()));
  if (yarn && yarn->mscale_all_dim != 0) {
    const double gain = yarn_gain(yarn->factor, yarn->mscale_all_dim);
    scale *= gain * gain;
  }
  return static_cast<float>(scale);
}

float ModelConfig::index_scale() const {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(d_index)) /
                            std::sqrt(static_cast<double>(n_index_heads)));
}

namespace {

// YaRN's ramp begins and ends at these pairs (of r/2): pairs below turn fast and keep their frequency, pairs above are
// slowed down.
struct YarnRamp {
  double first = 0;
  double last = 0;
};

YarnRamp yarn_ramp(const Yarn& yarn, double theta, double width) {
  constexpr double kTau = 6.283185307179586;
  const auto pair_turning = [&](double turns) {
    return width * log_exact(yarn.original_max_position / (turns * kTau)) / (2 * log_exact(theta));
  };
  YarnRamp ramp{std::max(std::floor(pair_turning(yarn.beta_fast)), 0.0),
                std::min(std::ceil(pair_turning(yarn.beta_slow)), width - 1)};
  if (ramp.first == ramp.last) ramp.last += 0.001;
  return ramp;
}

}  // namespace

// Every step in f32 and in the reference's order, because an ulp here is multiplied by the position.
std::vector<float> rope_frequencies(double theta, const std::optional<Yarn>& yarn, int64_t d_rope) {
  const float width = static_cast<float>(d_rope);
  const YarnRamp ramp = yarn ? yarn_ramp(*yarn, theta, static_cast<double>(d_rope)) : YarnRamp{};
  std::vector<float> frequencies(static_cast<size_t>(d_rope / 2));
  for (size_t j = 0; j < frequencies.size(); ++j) {
    const float exponent = static_cast<float>(2 * j) / width;
    const float period = static_cast<float>(pow_exact(theta, static_cast<double>(exponent)));
    frequencies[j] = 1.0f / period;
    if (!yarn) continue;
    const float slowed = 1.0f / (static_cast<float>(yarn->factor) * period);
    const float position =
        (static_cast<float>(j) - static_cast<float>(ramp.first)) / static_cast<float>(ramp.last - ramp.first);
    const float kept = 1.0f - std::clamp(position, 0.0f, 1.0f);
    frequencies[j] = slowed * (1.0f - kept) + frequencies[j] * kept;
  }
  return frequencies;
}

std::vector<float> ModelConfig::rope_frequencies() const { return levin::rope_frequencies(rope_theta, yarn, d_rope); }

}  // namespace levin
