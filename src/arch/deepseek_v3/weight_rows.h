// The rows of a DeepSeek-V3.2 shaped model, part by part, for it and for families with some of these parts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arch/deepseek_v3/weights.h"
#include "model/weight_table_builder.h"

namespace levin::mla {

class Builder : public TableBuilder {
 public:
  Builder(const ModelConfig& config, const Numerics* numerics) : TableBuilder(config, numerics, scale_name) {}

  std::vector<WeightRow> build(ModelWeights& w);

 protected:
  void block(const std::string& prefix, int64_t d_hidden, ops::FfnWeights& out);
  void attention(const std::string& prefix, AttentionWeights& out);
  void indexer(const std::string& prefix, IndexerWeights& out);
  void experts(const std::string& prefix, MoeWeights& out);

 private:
  static std::string scale_name(std::string_view weight_name) { return std::string(weight_name) + "_scale_inv"; }
  void up_projection(std::string name, AttentionWeights& out);
  void layer(int layer_idx, bool sparse, LayerWeights& out);
  void mtp(MtpWeights& out);
};

}  // namespace levin::mla
