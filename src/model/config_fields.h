// Reading the numbers of a config.json: what families write their read_config with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "io/json.h"
#include "model/config.h"

namespace levin {

// A whole number of the config, and what is sane for it: far above every released model, and low enough that no product
// overflows.
template <class T>
struct Dim {
  std::string_view key;
  T ModelConfig::* field;
  int64_t min;
  int64_t max;
};
Status read_dim(const io::JsonFields& fields, const Dim<int64_t>& dim, ModelConfig* config);
Status read_dim(const io::JsonFields& fields, const Dim<int>& dim, ModelConfig* config);

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
