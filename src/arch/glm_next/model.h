// GLM-5.3-Flash: the trunk over residual streams, and its MTP layer, which has none (model_spec.md 10).
#pragma once

#include "arch/glm_next/weights.h"
#include "model/model.h"

namespace levin {

class GlmNext final : public Model {
 public:
  GlmNext(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection);

  bool has_mtp() const override { return glm_next::own(weights()).mtp.has_value(); }
  int64_t d_state() const override { return config().d_model; }

  // The MTP layer continues from rows after the final norm, its own head's included: state is hidden.
  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override;
  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe* probe) const override;

 private:
  Selection selection_;
};

}  // namespace levin
