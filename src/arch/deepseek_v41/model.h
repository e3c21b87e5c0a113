// DeepSeek-V4.1: the trunk over residual streams with an n-gram memory and a block drafter (model_spec.md 11).
#pragma once

#include <vector>

#include "arch/deepseek_v41/layer.h"
#include "arch/deepseek_v41/weights.h"
#include "model/model.h"

namespace levin {

class DeepseekV41 final : public Model, public BlockDrafting {
 public:
  DeepseekV41(ModelConfig config, Numerics numerics, ModelWeights weights);

  bool has_mtp() const override { return own().has_mtp(); }
  const BlockDrafting* block_drafting() const override { return has_mtp() ? this : nullptr; }
  int64_t d_state() const override { return 0; }

  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override;
  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe* probe) const override;

  int32_t noise_token() const override { return deepseek_v41::own(config()).dspark->noise_token; }
  ForwardRows draft_blocks(OpContext& ctx, const Step& step, const KvCache& cache) const override;
  DraftTerms draft_terms(OpContext& ctx, View before, View state) const override;

 private:
  const DeepseekV41Weights& own() const { return deepseek_v41::own(weights()); }
  V41Rotations rotations(Pass& p) const;
  SharedTopk allocate_topk(Pass& p) const;

  std::vector<float> frequencies_;             // Dr/2, of layers without entries
  std::vector<float> compressed_frequencies_;  // Dr/2
};

}  // namespace levin
