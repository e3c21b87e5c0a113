// Reading the numbers of a config.json: what families write their read_config with.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/json.h"
#include "model/config.h"

namespace levin {

// A whole number of the config, and what is sane for it: far above every released model, and low enough that no product
// overflows. Owner is ModelConfig or the own struct of a family.
template <class T, class Owner = ModelConfig>
struct Dim {
  std::string_view key;
  T Owner::* field;
  int64_t min;
  int64_t max;
};
struct WholeRange {
  int64_t min;
  int64_t max;
};
Result<int64_t> read_whole(const io::JsonFields& fields, std::string_view key, WholeRange range);

template <class T, class Owner>
Status read_dim(const io::JsonFields& fields, const Dim<T, Owner>& dim, Owner* config) {
  LEVIN_ASSIGN(const int64_t value, read_whole(fields, dim.key, {dim.min, dim.max}));
  config->*dim.field = static_cast<T>(value);
  return {};
}

// The sizes of heads, indexer and experts, whose keys are the same in every family that has both an indexer and experts.
Status read_indexed_moe_dims(const io::JsonFields& fields, ModelConfig* config);

// routed_scaling_factor and norm_topk_prob.
Status read_expert_numbers(const io::JsonFields& fields, ModelConfig* config);
// Of models with residual streams: swiglu_limit and hc_eps.
Status read_stream_numbers(const io::JsonFields& fields, ModelConfig* config);

// Ratios of entries, 0 for layers without: after a common multiple of them and of a page all entries are complete, and prefixes
// are cached in blocks of so many tokens. Refused where the least is above 2^20.
Status check_common_multiple(const io::JsonFields& fields, std::string_view key, std::span<const int64_t> ratios);

struct RealRange {
  double min;
  double max;
};
// A number of the config; outside the range it is refused.
Result<float> read_real(const io::JsonFields& fields, std::string_view key, RealRange range);

// A key that repeats what others say must agree with them.
struct Repetition {
  std::string_view key;
  int64_t expected;
  std::string_view because;
};
Status check_repetition(const io::JsonFields& fields, const Repetition& repetition);

}  // namespace levin
