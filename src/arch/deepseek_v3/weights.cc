#include "arch/deepseek_v3/weights.h"

namespace levin {
namespace {

void visit_indexer(WeightVisitor& v, IndexerWeights& w) {
  v.vector(w.k_norm);
  v.vector(w.k_norm_bias);
  v.linear(w.head_weights);
}

void visit_attention(WeightVisitor& v, AttentionWeights& w) {
  v.vector(w.q_norm);
  v.vector(w.kv_norm);
  v.heads(w.k_up);
  v.heads(w.v_up);
  v.linear(w.o);
}

void visit_layer(WeightVisitor& v, LayerWeights& w) {
  v.vector(w.attention_norm);
  if (w.indexer) {
    v.of_one_input({&w.attention.q_down, &w.indexer->k, &w.attention.kv_down});
    v.of_one_input({&w.attention.q_up, &w.indexer->q_up});
  } else {
    v.of_one_input({&w.attention.q_down, &w.attention.kv_down});
    v.linear(w.attention.q_up);
  }
  visit_attention(v, w.attention);
  if (w.indexer) visit_indexer(v, *w.indexer);
  v.vector(w.ffn_norm);
  if (w.dense) v.ffn(*w.dense);
  if (w.moe) v.moe(*w.moe);
}

}  // namespace

void MlaWeights::visit(WeightVisitor& v) {
  for (LayerWeights& layer : layers) visit_layer(v, layer);
  if (!mtp) return;
  v.vector(mtp->embed_norm);
  v.vector(mtp->hidden_norm);
  v.linear(mtp->eh_proj);
  visit_layer(v, mtp->layer);
  v.vector(mtp->head_norm);
}

}  // namespace levin
