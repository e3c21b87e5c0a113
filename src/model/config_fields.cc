#include "model/config_fields.h"

#include <fmt/format.h>

namespace levin {
namespace {

using io::JsonFields;

template <class T>
Status read_any_dim(const JsonFields& fields, const Dim<T>& dim, ModelConfig* config) {
  LEVIN_ASSIGN(const int64_t value, fields.get<int64_t>(dim.key));
  if (value < dim.min || value > dim.max) {
    return fields.unexpected(dim.key, fmt::format("a whole number from {} to {}", dim.min, dim.max));
  }
  config->*dim.field = static_cast<T>(value);
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

}  // namespace levin
