// The weights of a model, named by what they do; the weight table (weight_table.h) maps them to checkpoint names.
#pragma once

#include <optional>
#include <vector>

#include "model/weights_common.h"
#include "model/weights_deepseek_v4.h"
#include "ops/moe.h"
#include "tensor/buffer.h"
#include "tensor/matrix.h"
#include "tensor/view.h"

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

struct MoeWeights {
  Linear gate;                            // [E, D], input always f32
  Vector bias;                            // [E]
  std::vector<ops::FfnWeights> experts;   // E of [F, D], [F, D], [D, F]
  std::optional<ops::FfnWeights> shared;  // F * n_shared_experts wide
};

struct LayerWeights {
  Vector attention_norm;  // [D]
  AttentionWeights attention;
  std::optional<IndexerWeights> indexer;  // empty: the layer takes the picks of a layer below
  Vector ffn_norm;                        // [D]
  std::optional<ops::FfnWeights> dense;   // one of the two
  std::optional<MoeWeights> moe;
};

struct MtpWeights {
  Vector embed_norm;   // [D]
  Vector hidden_norm;  // [D]
  Linear join;         // [D, 2D], embedding half first
  LayerWeights layer;
  Vector head_norm;  // [D]
};

struct ModelWeights {
  Buffer embed_storage;
  View embed;                        // [V, D] as stored: bf16 or f32
  Vector norm;                       // [D]
  Linear head;                       // [V, D]
  std::optional<Linear> draft_head;  // [V, D], for drafts alone; empty: they take `head`

  // DeepSeek-V3.2 and GLM-5; empty for DeepSeek-V4
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;  // empty when the checkpoint has no MTP layer

  DeepseekV4Weights v4;  // empty for the others
};

}  // namespace levin
