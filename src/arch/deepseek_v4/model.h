// DeepSeek-V4: the trunk over residual streams with an MTP layer or a block drafter (model_spec.md 6.7, 7.2, 7.4).
#pragma once

#include <vector>

#include "arch/deepseek_v4/weights.h"
#include "arch/deepseek_v4/window_attention.h"
#include "model/model.h"

namespace levin {

class DeepseekV4 final : public Model, public BlockDrafting {
 public:
  DeepseekV4(ModelConfig config, Numerics numerics, ModelWeights weights);

  bool has_mtp() const override { return deepseek_v4::own(weights()).has_mtp(); }
  const BlockDrafting* block_drafting() const override { return dspark() != nullptr ? this : nullptr; }
  int64_t d_state() const override { return dspark() != nullptr ? 0 : config().n_streams * config().d_model; }

  // The MTP layer continues from the streams after the last layer, its own included, not from what the head makes of
  // them.
  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override;
  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe* probe) const override;

  int32_t noise_token() const override { return deepseek_v4::own(config()).dspark->noise_token; }
  ForwardRows draft_blocks(OpContext& ctx, const Step& step, const KvCache& cache) const override;
  DraftTerms draft_terms(OpContext& ctx, View before, View state) const override;

 private:
  const DsparkWeights* dspark() const {
    const std::optional<DsparkWeights>& w = deepseek_v4::own(weights()).dspark;
    return w ? &*w : nullptr;
  }
  View run_layers(Pass& p, const StepRotations& r) const;
  StepRotations rotations(Pass& p) const;
  ForwardRows finish(Pass& p, View streams, const StreamHeadWeights& head, const Vector& norm) const;

  std::vector<float> frequencies_;             // Dr/2, of layers without compression
  std::vector<float> compressed_frequencies_;  // Dr/2
};

}  // namespace levin
