// DeepSeek-V4: the trunk and its MTP layer over residual streams (model_spec.md 6.7, 7.2).
#pragma once

#include <vector>

#include "arch/deepseek_v4/weights.h"
#include "arch/deepseek_v4/window_attention.h"
#include "model/model.h"

namespace levin {

class DeepseekV4 final : public Model {
 public:
  DeepseekV4(ModelConfig config, Numerics numerics, ModelWeights weights);

  bool has_mtp() const override { return deepseek_v4::own(weights()).mtp.has_value(); }
  int64_t d_state() const override { return config().n_streams * config().d_model; }

  // The MTP layer goes on from the streams after the last layer, its own included, not from what the head makes of
  // them.
  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override;
  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe* probe) const override;

 private:
  StepRotations rotations(Pass& p) const;
  ForwardRows finish(Pass& p, View streams, const StreamHeadWeights& head, const Vector& norm) const;

  std::vector<float> frequencies_;             // Dr/2, of layers without compression
  std::vector<float> compressed_frequencies_;  // Dr/2
};

}  // namespace levin
