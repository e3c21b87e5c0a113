// The weights of a DeepSeek-V4.1 shaped model (model_spec.md 11), named by what they do.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "arch/deepseek_v4/weights.h"
#include "arch/deepseek_v41/engram_hash.h"
#include "io/mapped_file.h"
#include "ops/engram.h"

namespace levin {

// Makes entries; where they stand for one token each, of that token alone.
struct V41CompressorWeights {
  Linear values;               // [Dh, D]
  std::optional<Linear> gate;  // [Dh, D], above ratio 1
  Vector norm;                 // [Dh]
};

struct V41IndexerWeights {
  Linear q_up;              // [Hi * Di, Rq]
  Linear head_weights;      // [Hi, D], input always f32
  std::optional<Linear> k;  // [Di, Dh], of an entry before it is rotated, where the layer makes entries
  Vector k_norm;            // [Di], likewise
};

struct V41AttentionWeights {
  Linear q_down;                 // [Rq, D]
  Vector q_norm;                 // [Rq]
  Linear q_up;                   // [H * Dh, Rq]
  Linear kv;                     // [Dh, D]
  Vector kv_norm;                // [Dh]
  Vector sink;                   // [H]: logits of the sinks
  std::vector<Matrix> out_down;  // Go of [Ro, H / Go * Dh]; input as numerics.absorbed
  Linear out_up;                 // [D, Go * Ro]
  std::optional<V41CompressorWeights> compressor;
  std::optional<V41IndexerWeights> indexer;
};

struct EngramWeights {
  deepseek_v41::EngramHash hash;
  ops::MappedTable table;  // [rows, De], in the files
  std::shared_ptr<const io::MappedFile> codes_file, scales_file;
  Linear kv;        // [(M + 1) * D, (Ne - 1) He * De]: a key for each stream, then the value
  Vector q_weight;  // [M, D], of the streams
  Vector k_weight;  // [M, D], of the keys
};

struct V41LayerWeights {
  std::optional<EngramWeights> engram;
  StreamMixWeights attention_streams;
  Vector attention_norm;  // [D]
  V41AttentionWeights attention;
  StreamMixWeights ffn_streams;
  Vector ffn_norm;  // [D]
  MoeWeights moe;
};

// The block drafter (11.7).
struct V41DsparkWeights {
  Linear tap_join;                      // [D, Nt * D]
  Vector tap_norm;                      // [D]
  std::vector<V41LayerWeights> stages;  // Nt
  Vector head_norm;                     // [D]
  Table markov_rows;                    // [V, Rm]
  Linear markov_head;                   // [V, Rm]; input always f32
  Linear confidence;                    // [1, D + Rm]; input always f32
};

struct DeepseekV41Weights final : FamilyWeights {
  Table token_classes;  // [V, 1] f32: what hashes see of a token; empty without an n-gram memory
  int64_t pad_class = 0;
  Vector no_bias;     // zeros for the pooling of entries, which has no bias: [largest ratio, Dh]
  Vector first_read;  // [1, M]: the first sublayer reads stream 0
  std::vector<V41LayerWeights> layers;
  std::optional<V41DsparkWeights> dspark;

  void visit(WeightVisitor& v) override;
  bool has_mtp() const override { return dspark.has_value(); }
  void drop_mtp() override { dspark.reset(); }
};

namespace deepseek_v41 {
inline const DeepseekV41Weights& own(const ModelWeights& weights) { return weights.own_weights<DeepseekV41Weights>(); }
inline DeepseekV41Weights& own(ModelWeights& weights) { return weights.own_weights<DeepseekV41Weights>(); }
}  // namespace deepseek_v41

}  // namespace levin
