// The weights of a DeepSeek-V4 shaped model (model_spec.md 6.1, 7.2), named by what they do.
//
// Symbols as in docs/glossary.md; C stands for the channels of a compressor of rows d wide: 2 d where entries overlap
// (Compression::kIndexed), d where they do not.
#pragma once

#include <optional>
#include <vector>

#include "model/weights.h"

namespace levin {

// From the residual streams to the weights with which a sublayer reads, writes and mixes them (6.2). Its 2 M + M^2
// outputs: read weights, write weights, mixing matrix row by row.
struct StreamMixWeights {
  Linear fn;     // [2 M + M^2, M * D], input always f32
  Vector base;   // [2 M + M^2]
  Vector scale;  // [3]: of read, write and mixing outputs
};

// From the residual streams to one row before the final norm (6.2).
struct StreamHeadWeights {
  Linear fn;     // [M, M * D], input always f32
  Vector base;   // [M]
  Vector scale;  // [1]
};

// Pools `ratio` rows into one entry, channel by channel (6.4). For kIndexed, the first d channels feed the next entry,
// the last d this one.
struct CompressorWeights {
  Linear values;         // [C, D]
  Linear gate;           // [C, D]
  Vector position_bias;  // [ratio, C]: added to the gate of row i of a window
  Vector norm;           // [d]
};

struct V4IndexerWeights {
  Linear q_up;                   // [Hi * Di, Rq]
  Linear head_weights;           // [Hi, D], input always f32
  CompressorWeights compressor;  // of rows Di wide
};

struct V4AttentionWeights {
  Linear q_down;                                // [Rq, D]
  Vector q_norm;                                // [Rq]
  Linear q_up;                                  // [H * Dh, Rq]
  Linear kv;                                    // [Dh, D]
  Vector kv_norm;                               // [Dh]
  Vector sink;                                  // [H]: logits of the sinks
  std::vector<Matrix> out_down;                 // Go of [Ro, H / Go * Dh]; input as numerics.absorbed
  Linear out_up;                                // [D, Go * Ro]
  std::optional<CompressorWeights> compressor;  // of rows Dh wide; layers with compression
  std::optional<V4IndexerWeights> indexer;      // Compression::kIndexed
};

struct V4LayerWeights {
  StreamMixWeights attention_streams;
  Vector attention_norm;  // [D]
  V4AttentionWeights attention;
  StreamMixWeights ffn_streams;
  Vector ffn_norm;  // [D]
  MoeWeights moe;
};

struct V4MtpWeights {
  Vector embed_norm;   // [D]
  Vector hidden_norm;  // [D]
  Linear e_proj;       // [D, D], of the embedding
  Linear h_proj;       // [D, D], of each stream
  V4LayerWeights layer;
  StreamHeadWeights head;
  Vector head_norm;  // [D]
};

// The block drafter (7.4).
struct DsparkWeights {
  Linear tap_join;                     // [D, Nt * D], of the means of the target layers' streams side by side
  Vector tap_norm;                     // [D]
  std::vector<V4LayerWeights> stages;  // Nt
  StreamHeadWeights head;
  Vector head_norm;    // [D]
  Table markov_rows;   // [V, Rm]: what a token says of the one after it ...
  Linear markov_head;  // [V, Rm]: ... as logits; input always f32
  Linear confidence;   // [1, D + Rm], of the head's row and the token's; input always f32
};

struct DeepseekV4Weights final : FamilyWeights {
  std::vector<V4LayerWeights> layers;
  StreamHeadWeights head;
  std::optional<V4MtpWeights> mtp;      // one of these or none,
  std::optional<DsparkWeights> dspark;  // as the config says and the checkpoint has it

  void visit(WeightVisitor& v) override;
  bool has_mtp() const override { return mtp || dspark; }
  void drop_mtp() override { mtp.reset(), dspark.reset(); }
};

namespace deepseek_v4 {
inline const DeepseekV4Weights& own(const ModelWeights& weights) { return weights.own_weights<DeepseekV4Weights>(); }
inline DeepseekV4Weights& own(ModelWeights& weights) { return weights.own_weights<DeepseekV4Weights>(); }
}  // namespace deepseek_v4

}  // namespace levin
