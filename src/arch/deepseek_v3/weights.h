// The weights of a DeepSeek-V3.2 shaped model, named by what they do.
#pragma once

#include <optional>
#include <vector>

#include "model/weights.h"

namespace levin {

struct IndexerWeights {
  Linear q_up;          // [Hi * Di, Rq]
  Linear k;             // [Di, D]
  Vector k_norm;        // [Di]
  Vector k_norm_bias;   // [Di]
  Linear head_weights;  // [Hi, D], input always f32
};

struct AttentionWeights {
  Linear q_down;             // [Rq, D]
  Vector q_norm;             // [Rq]
  Linear q_up;               // [H * (Dn + Dr), Rq]
  Linear kv_down;            // [Rk + Dr, D]
  Vector kv_norm;            // [Rk]
  std::vector<Matrix> k_up;  // H of [Rk, Dn]: transposed key part of kv_b_proj, to be applied to queries
  std::vector<Matrix> v_up;  // H of [Dv, Rk]: value part of kv_b_proj, applied to attention's output
  Linear o;                  // [D, H * Dv]
};

struct LayerWeights {
  Vector attention_norm;  // [D]
  AttentionWeights attention;
  std::optional<IndexerWeights> indexer;  // empty: the layer takes the top-k indices of a layer below
  Vector ffn_norm;                        // [D]
  std::optional<ops::FfnWeights> dense;   // one of the two
  std::optional<MoeWeights> moe;
};

struct MtpWeights {
  Vector embed_norm;   // [D]
  Vector hidden_norm;  // [D]
  Linear eh_proj;      // [D, 2D], embedding half first
  LayerWeights layer;
  Vector head_norm;  // [D]
};

struct MlaWeights final : FamilyWeights {
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;  // empty when the checkpoint has no MTP layer

  void visit(WeightVisitor& v) override;
  bool has_mtp() const override { return mtp.has_value(); }
  void drop_mtp() override { mtp.reset(); }
};

namespace mla {
inline const MlaWeights& own(const ModelWeights& weights) { return weights.own_weights<MlaWeights>(); }
inline MlaWeights& own(ModelWeights& weights) { return weights.own_weights<MlaWeights>(); }
}  // namespace mla

}  // namespace levin
