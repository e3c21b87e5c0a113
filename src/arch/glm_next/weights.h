// The weights of a GLM-5.3-Flash shaped model (model_spec.md 10), named by what they do. Attention, indexer, streams and
// experts are those of DeepSeek-V3.2 and V4.
#pragma once

#include <optional>
#include <vector>

#include "arch/deepseek_v3/weights.h"
#include "arch/deepseek_v4/weights.h"

namespace levin {

struct LinearAttentionWeights {
  Linear q, k, v;                 // [Hl * Dl, D]
  Vector q_conv, k_conv, v_conv;  // [Hl * Dl, n_taps], stored as [.., 1, ..]
  Linear decay_down;              // [Dl, D]
  Linear decay_up;                // [Hl * Dl, Dl]
  Vector decay_bias;              // [Hl * Dl]
  Vector log_rate;                // [Hl]
  Linear beta;                    // [Hl, D]
  Linear gate_down;               // [Dl, D]
  Linear gate_up;                 // [Hl * Dl, Dl]
  Vector out_norm;                // [Dl], of every head
  Linear o;                       // [D, Hl * Dl]
};

// Pools Pk tokens into one index key, channel by channel.
struct PoolWeights {
  Linear gate;           // [Di, D]
  Vector position_bias;  // [Pk, Di]: added to the gate of token i of a pool
};

struct PooledAttentionWeights {
  AttentionWeights attention;  // Dr is 0
  IndexerWeights indexer;
  PoolWeights pool;
};

struct GlmNextFfnWeights {
  Vector norm;                           // [D]
  std::optional<ops::FfnWeights> dense;  // one of the two
  std::optional<MoeWeights> moe;
};

struct GlmNextLayerWeights {
  StreamMixWeights attention_streams;
  Vector attention_norm;                         // [D]
  std::optional<LinearAttentionWeights> linear;  // one of the two
  std::optional<PooledAttentionWeights> pooled;
  StreamMixWeights ffn_streams;
  GlmNextFfnWeights ffn;
};

// One layer on a plain residual.
struct GlmNextMtpWeights {
  Vector embed_norm;      // [D]
  Vector hidden_norm;     // [D]
  Linear join;            // [D, 2D], embedding half first
  Vector attention_norm;  // [D]
  PooledAttentionWeights attention;
  GlmNextFfnWeights ffn;
  Vector head_norm;  // [D]
};

struct GlmNextWeights final : FamilyWeights {
  std::vector<GlmNextLayerWeights> layers;
  std::optional<GlmNextMtpWeights> mtp;  // empty when the checkpoint has no MTP layer

  void visit(WeightVisitor& v) override;
  bool has_mtp() const override { return mtp.has_value(); }
  void drop_mtp() override { mtp.reset(); }
};

namespace glm_next {
inline const GlmNextWeights& own(const ModelWeights& weights) { return weights.own_weights<GlmNextWeights>(); }
inline GlmNextWeights& own(ModelWeights& weights) { return weights.own_weights<GlmNextWeights>(); }
}  // namespace glm_next

}  // namespace levin
