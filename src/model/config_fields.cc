#include "model/config_fields.h"

#include <fmt/format.h>

#include <numeric>

#include "tensor/row_formats.h"

namespace levin {
using io::JsonFields;

namespace {

constexpr Dim<int64_t> kIndexedMoeDims[] = {
    {"num_attention_heads", &ModelConfig::n_heads, 1, 4096},
    {"q_lora_rank", &ModelConfig::d_q_lora, 1, 1 << 16},
    {"index_n_heads", &ModelConfig::n_index_heads, 1, 4096},
    {"index_head_dim", &ModelConfig::d_index, 2, 1 << 14},
    {"index_topk", &ModelConfig::n_topk, 1, 1 << 20},
    {"n_routed_experts", &ModelConfig::n_experts, 1, 4096},
    {"num_experts_per_tok", &ModelConfig::n_active, 1, 4096},
    {"moe_intermediate_size", &ModelConfig::d_expert, 1, 1 << 17},
};

}  // namespace

Result<int64_t> read_whole(const JsonFields& fields, std::string_view key, WholeRange range) {
  LEVIN_ASSIGN(const int64_t value, fields.get<int64_t>(key));
  if (value >= range.min && value <= range.max) return value;
  return fields.unexpected(key, fmt::format("a whole number from {} to {}", range.min, range.max));
}

Status read_indexed_moe_dims(const JsonFields& fields, ModelConfig* config) {
  for (const Dim<int64_t>& dim : kIndexedMoeDims) LEVIN_TRY(read_dim(fields, dim, config));
  return {};
}

Status read_expert_numbers(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(config->expert_factor, read_real(fields, "routed_scaling_factor", {1e-6, 1e6}));
  LEVIN_ASSIGN(config->normalize_expert_weights, fields.get<bool>("norm_topk_prob"));
  return {};
}

Status read_stream_numbers(const JsonFields& fields, ModelConfig* config) {
  LEVIN_ASSIGN(config->ffn_limit, read_real(fields, "swiglu_limit", {1e-3, 1e6}));
  LEVIN_ASSIGN(config->stream_eps, read_real(fields, "hc_eps", {1e-12, 0.1}));
  return {};
}

Status check_common_multiple(const JsonFields& fields, std::string_view key, std::span<const int64_t> ratios) {
  constexpr int64_t kMost = 1 << 20;
  int64_t n_tokens = kPageTokens;
  for (const int64_t ratio : ratios) {
    if (ratio > 0) n_tokens = std::lcm(n_tokens, ratio);
    if (n_tokens > kMost)
      return fields.unexpected(key, fmt::format("ratios with a least common multiple of at most {}, also with the {} "
                                                "tokens of a page",
                                                kMost, kPageTokens));
  }
  return {};
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
