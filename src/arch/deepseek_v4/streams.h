// The residual streams of DeepSeek-V4 around one sublayer (model_spec.md 6.2): reading its input from them, and writing
// its output back while they are mixed.
#pragma once

#include "arch/deepseek_v4/config.h"
#include "arch/deepseek_v4/weights.h"
#include "model/pass.h"

namespace levin {

// What a sublayer reads, and how its output is written back.
struct StreamRead {
  View x;      // [T, D]
  View write;  // [T, M]
  View mix;    // [T, M, M]
};

// The weights of the three.
struct StreamMix {
  View read;   // [T, M]
  View write;  // [T, M]
  View mix;    // [T, M, M]
};

struct StreamBlock {
  const ModelConfig& config;
  const StreamMixWeights& weights;

  StreamMix weigh(Pass& p, View streams) const;  // streams [T, M, D]
  StreamRead read(Pass& p, View streams) const;  // streams [T, M, D]
  void write(Pass& p, View streams, const StreamRead& read, View y) const;
};

// The sum of streams [T, M, D] by weights [T, M] -> [T, D].
View read_streams(Pass& p, View streams, View read);

// Every stream begins as x: [T, D] -> [T, M, D].
View spread_streams(Pass& p, View x, int64_t n_streams);
// out [T, D], which may be a slice of wider rows, becomes the mean of streams [T, M, D].
void mean_of_streams(Pass& p, View streams, View out);

// The one row that the head takes: streams [T, M, D] -> [T, D].
View collapse_streams(Pass& p, const ModelConfig& config, const StreamHeadWeights& weights, View streams);

}  // namespace levin
