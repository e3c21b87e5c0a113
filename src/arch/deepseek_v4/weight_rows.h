// Rows that DeepSeek-V4 and DeepSeek-V4.1 name alike: `<name>.scale` next to `<name>.weight`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arch/deepseek_v4/weights.h"
#include "model/weight_table_builder.h"

namespace levin::deepseek_v4 {

class PartsBuilder : public TableBuilder {
 protected:
  PartsBuilder(const ModelConfig& config, const Numerics* numerics) : TableBuilder(config, numerics, scale_name) {}

  void stream_mix(const std::string& prefix, StreamMixWeights& out);  // hc_attn_fn, hc_attn_base, hc_attn_scale
  // n_experts routed ones and the shared one: experts.0.w1.weight ...
  void experts(const std::string& prefix, int64_t n_experts, MoeWeights& out);

  // A matrix [n_groups * n, k] of which the rows of a group apply to the heads of that group.
  struct RowGroups {
    int64_t n_groups = 1;
    int64_t n = 0;
    int64_t k = 0;
    bool between_blocks = false;  // of FP8 scales
  };
  void row_groups(std::string name, const RowGroups& groups, std::vector<Matrix>& out);

 private:
  static std::string scale_name(std::string_view weight_name);
  void expert(const std::string& prefix, Storage storage, int64_t d_hidden, ops::FfnWeights& out);
};

}  // namespace levin::deepseek_v4
