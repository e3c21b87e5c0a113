// DeepSeek-V3.2, and GLM-5, which has the same layers: the trunk and its MTP layer (model_spec.md 3.4, 4, 5.1, 7.1).
#pragma once

#include <vector>

#include "arch/deepseek_v3/weights.h"
#include "model/model.h"

namespace levin {

class DeepseekV32 final : public Model {
 public:
  DeepseekV32(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection);

  bool has_mtp() const override { return mla::own(weights()).mtp.has_value(); }
  int64_t d_state() const override { return config().d_model; }

  // The MTP layer continues from rows after the final norm, its own head's included: state is hidden.
  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override;
  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe* probe) const override;

 private:
  Selection selection_;
  std::vector<float> rope_frequencies_;  // Dr/2
};

}  // namespace levin
