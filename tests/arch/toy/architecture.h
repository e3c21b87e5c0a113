// A family that no checkpoint has, made by following docs/adding_a_model.md: a dense decoder whose heads share one
// key-value row and attend to every token. Its point is what it does not touch: nothing outside of this folder.
#pragma once

#include <vector>

#include "model/architecture.h"

namespace levin::test {

extern const Architecture kToy;

// What the family adds to the config.
struct ToyConfig {
  int64_t d_ffn = 0;              // ffn_width
  bool parallel_residual = true;  // attention and feed-forward read the same normed row
};

struct ToyLayerWeights {
  Vector norm;      // [D]
  Linear q;         // [H * Dh, D]
  Linear kv;        // [Dh, D]
  Linear out;       // [D, H * Dh]
  Vector ffn_norm;  // [D]; empty with parallel_residual
  ops::FfnWeights ffn;
};

struct ToyWeights final : FamilyWeights {
  std::vector<ToyLayerWeights> layers;

  void visit(WeightVisitor& v) override;
};

}  // namespace levin::test
