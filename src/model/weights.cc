#include "model/weights.h"

namespace levin {

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
  matrix(w.gate);
  matrix(w.up);
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
  for (Matrix ops::FfnWeights::* part : {&ops::FfnWeights::gate, &ops::FfnWeights::up, &ops::FfnWeights::down}) {
    std::vector<Matrix*> together;
    for (ops::FfnWeights& expert : w.experts) together.push_back(&(expert.*part));
    if (shared_is_alike) together.push_back(&(w.shared.value().*part));
    matrices(together);
  }
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
