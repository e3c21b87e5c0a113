#include "model/weights.h"

#include <algorithm>

namespace levin {
namespace {

bool gate_and_up_can_be_joined(const ops::FfnWeights& w) {
  const Matrix* const parts[] = {&w.gate, &w.up};
  return w.gate.n() % kWeightBlock == 0 && can_be_joined(parts);
}

}  // namespace

void WeightVisitor::matrix(Matrix& w) {
  Matrix* const alone = &w;
  matrices({&alone, 1});
}

void WeightVisitor::of_one_input(std::initializer_list<Linear*> w) {
  std::vector<Matrix*> together;
  for (Linear* linear : w) together.push_back(&linear->w);
  if (can_be_joined(std::vector<const Matrix*>(together.begin(), together.end()))) return matrices(together);
  for (Matrix* alone : together) matrix(*alone);
}

void WeightVisitor::heads(std::vector<Matrix>& w) {
  std::vector<Matrix*> together;
  for (Matrix& head : w) together.push_back(&head);
  matrices(together);
}

void WeightVisitor::ffn(ops::FfnWeights& w) {
  if (gate_and_up_can_be_joined(w)) {
    Matrix* const together[] = {&w.gate, &w.up};
    matrices(together);
  } else {
    matrix(w.gate);
    matrix(w.up);
  }
  matrix(w.down);
}

namespace {

bool are_alike(const Matrix& a, const Matrix& b) {
  return a.dtype() == b.dtype() && a.n() == b.n() && a.k() == b.k() && a.has_scales() == b.has_scales();
}

bool are_alike(const ops::FfnWeights& a, const ops::FfnWeights& b) {
  return are_alike(a.gate, b.gate) && are_alike(a.up, b.up) && are_alike(a.down, b.down);
}

}  // namespace

void WeightVisitor::moe(MoeWeights& w) {
  // One more expert, as kernels may see it.
  const bool shared_is_alike = w.shared && !w.experts.empty() && are_alike(*w.shared, w.experts.back());
  linear(w.gate);
  vector(w.bias);
  if (!w.hash_experts.empty()) tensor(w.hash_storage, w.hash_experts);
  std::vector<ops::FfnWeights*> alike;
  for (ops::FfnWeights& expert : w.experts) alike.push_back(&expert);
  if (shared_is_alike) alike.push_back(&*w.shared);
  const auto together = [&](std::initializer_list<Matrix ops::FfnWeights::*> parts) {
    std::vector<Matrix*> all;
    for (ops::FfnWeights* expert : alike) {
      for (Matrix ops::FfnWeights::* part : parts) all.push_back(&(expert->*part));
    }
    matrices(all);
  };
  if (std::ranges::all_of(alike, [](const auto* expert) { return gate_and_up_can_be_joined(*expert); })) {
    together({&ops::FfnWeights::gate, &ops::FfnWeights::up});
  } else {
    together({&ops::FfnWeights::gate});
    together({&ops::FfnWeights::up});
  }
  together({&ops::FfnWeights::down});
  if (w.shared && !shared_is_alike) ffn(*w.shared);
}

void ModelWeights::visit(WeightVisitor& v) {
  v.tensor(embed_storage, embed);
  own->visit(v);
  v.vector(norm);
  v.linear(head);
  if (draft_head) v.linear(*draft_head);
}

}  // namespace levin
