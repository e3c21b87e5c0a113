#include "arch/glm_next/weights.h"

namespace levin {
namespace {

void visit_streams(WeightVisitor& v, StreamMixWeights& w) {
  v.linear(w.fn);
  v.vector(w.base);
  v.vector(w.scale);
}

void visit_linear(WeightVisitor& v, LinearAttentionWeights& w) {
  for (Linear* m : {&w.q, &w.k, &w.v, &w.decay_down, &w.decay_up, &w.beta, &w.gate_down, &w.gate_up, &w.o})
    v.linear(*m);
  for (Vector* x : {&w.q_conv, &w.k_conv, &w.v_conv, &w.decay_bias, &w.log_rate, &w.out_norm}) v.vector(*x);
}

void visit_pooled(WeightVisitor& v, PooledAttentionWeights& w) {
  AttentionWeights& a = w.attention;
  for (Linear* m : {&a.q_down, &a.q_up, &a.kv_down, &a.o}) v.linear(*m);
  for (Vector* x : {&a.q_norm, &a.kv_norm}) v.vector(*x);
  v.heads(a.k_up);
  v.heads(a.v_up);
  for (Linear* m : {&w.indexer.q_up, &w.indexer.k, &w.indexer.head_weights, &w.pool.gate}) v.linear(*m);
  for (Vector* x : {&w.indexer.k_norm, &w.indexer.k_norm_bias, &w.pool.position_bias}) v.vector(*x);
}

void visit_ffn(WeightVisitor& v, GlmNextFfnWeights& w) {
  v.vector(w.norm);
  if (w.dense) v.ffn(*w.dense);
  if (w.moe) v.moe(*w.moe);
}

}  // namespace

void GlmNextWeights::visit(WeightVisitor& v) {
  for (GlmNextLayerWeights& layer : layers) {
    visit_streams(v, layer.attention_streams);
    v.vector(layer.attention_norm);
    if (layer.linear) visit_linear(v, *layer.linear);
    if (layer.pooled) visit_pooled(v, *layer.pooled);
    visit_streams(v, layer.ffn_streams);
    visit_ffn(v, layer.ffn);
  }
  if (!mtp) return;
  for (Vector* x : {&mtp->embed_norm, &mtp->hidden_norm, &mtp->attention_norm, &mtp->head_norm}) v.vector(*x);
  v.linear(mtp->join);
  visit_pooled(v, mtp->attention);
  visit_ffn(v, mtp->ffn);
}

}  // namespace levin
