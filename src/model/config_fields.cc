#include "model/config_fields.h"

#include <fmt/format.h>

namespace levin {
using io::JsonFields;

Result<int64_t> read_whole(const JsonFields& fields, std::string_view key, WholeRange range) {
  LEVIN_ASSIGN(const int64_t value, fields.get<int64_t>(key));
  if (value >= range.min && value <= range.max) return value;
  return fields.unexpected(key, fmt::format("a whole number from {} to {}", range.min, range.max));
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
