#include "arch/deepseek_v41/weights.h"

namespace levin {
namespace {

void visit_streams(WeightVisitor& v, StreamMixWeights& w) {
  v.linear(w.fn);
  v.vector(w.base);
  v.vector(w.scale);
}

void visit_attention(WeightVisitor& v, V41AttentionWeights& w) {
  for (Linear* m : {&w.q_down, &w.q_up, &w.kv, &w.out_up}) v.linear(*m);
  for (Vector* x : {&w.q_norm, &w.kv_norm, &w.sink}) v.vector(*x);
  v.heads(w.out_down);
  if (w.compressor) {
    v.linear(w.compressor->values);
    if (w.compressor->gate) v.linear(*w.compressor->gate);
    v.vector(w.compressor->norm);
  }
  if (!w.indexer) return;
  v.linear(w.indexer->q_up);
  v.linear(w.indexer->head_weights);
  if (w.indexer->k) v.linear(*w.indexer->k);
  v.vector(w.indexer->k_norm);
}

void visit_layer(WeightVisitor& v, V41LayerWeights& w) {
  if (w.engram) {
    v.linear(w.engram->kv);
    v.vector(w.engram->q_weight);
    v.vector(w.engram->k_weight);
  }
  visit_streams(v, w.attention_streams);
  v.vector(w.attention_norm);
  visit_attention(v, w.attention);
  visit_streams(v, w.ffn_streams);
  v.vector(w.ffn_norm);
  v.moe(w.moe);
}

}  // namespace

void DeepseekV41Weights::visit(WeightVisitor& v) {
  if (!token_classes.view.empty()) v.table(token_classes);
  v.vector(no_bias);
  v.vector(first_read);
  for (V41LayerWeights& layer : layers) visit_layer(v, layer);
  if (!dspark) return;
  v.linear(dspark->tap_join);
  v.vector(dspark->tap_norm);
  for (V41LayerWeights& stage : dspark->stages) visit_layer(v, stage);
  v.vector(dspark->head_norm);
  v.table(dspark->markov_rows);
  v.linear(dspark->markov_head);
  v.linear(dspark->confidence);
}

}  // namespace levin
