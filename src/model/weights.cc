#include "model/weights.h"

namespace levin {

void WeightVisitor::matrix(Matrix& w) {
  Matrix* const alone = &w;
  matrices({&alone, 1});
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

void WeightVisitor::moe(MoeWeights& w) {
  linear(w.gate);
  vector(w.bias);
  if (!w.hash_experts.empty()) tensor(w.hash_storage, w.hash_experts);
  for (Matrix ops::FfnWeights::* part : {&ops::FfnWeights::gate, &ops::FfnWeights::up, &ops::FfnWeights::down}) {
    std::vector<Matrix*> together;
    for (ops::FfnWeights& expert : w.experts) together.push_back(&(expert.*part));
    matrices(together);
  }
  if (w.shared) ffn(*w.shared);
}

void ModelWeights::visit(WeightVisitor& v) {
  v.tensor(embed_storage, embed);
  own->visit(v);
  v.vector(norm);
  v.linear(head);
  if (draft_head) v.linear(*draft_head);
}

}  // namespace levin
