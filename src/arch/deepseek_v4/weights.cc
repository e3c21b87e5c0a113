#include "arch/deepseek_v4/weights.h"

namespace levin {
namespace {

// StreamMixWeights or StreamHeadWeights.
template <class Streams>
void visit_streams(WeightVisitor& v, Streams& w) {
  v.linear(w.fn);
  v.vector(w.base);
  v.vector(w.scale);
}

void visit_compressor(WeightVisitor& v, CompressorWeights& w) {
  v.linear(w.values);
  v.linear(w.gate);
  v.vector(w.position_bias);
  v.vector(w.norm);
}

void visit_attention(WeightVisitor& v, V4AttentionWeights& w) {
  v.linear(w.q_down);
  v.vector(w.q_norm);
  v.linear(w.q_up);
  v.linear(w.kv);
  v.vector(w.kv_norm);
  v.vector(w.sink);
  v.heads(w.out_down);
  v.linear(w.out_up);
  if (w.compressor) visit_compressor(v, *w.compressor);
  if (!w.indexer) return;
  v.linear(w.indexer->q_up);
  v.linear(w.indexer->head_weights);
  visit_compressor(v, w.indexer->compressor);
}

void visit_layer(WeightVisitor& v, V4LayerWeights& w) {
  visit_streams(v, w.attention_streams);
  v.vector(w.attention_norm);
  visit_attention(v, w.attention);
  visit_streams(v, w.ffn_streams);
  v.vector(w.ffn_norm);
  v.moe(w.moe);
}

void visit_mtp(WeightVisitor& v, V4MtpWeights& w) {
  v.vector(w.embed_norm);
  v.vector(w.hidden_norm);
  v.linear(w.e_proj);
  v.linear(w.h_proj);
  visit_layer(v, w.layer);
  visit_streams(v, w.head);
  v.vector(w.head_norm);
}

void visit_dspark(WeightVisitor& v, DsparkWeights& w) {
  v.linear(w.tap_join);
  v.vector(w.tap_norm);
  for (V4LayerWeights& stage : w.stages) visit_layer(v, stage);
  visit_streams(v, w.head);
  v.vector(w.head_norm);
  v.table(w.markov_rows);
  v.linear(w.markov_head);
  v.linear(w.confidence);
}

}  // namespace

void DeepseekV4Weights::visit(WeightVisitor& v) {
  for (V4LayerWeights& layer : layers) visit_layer(v, layer);
  visit_streams(v, head);
  if (mtp) visit_mtp(v, *mtp);
  if (dspark) visit_dspark(v, *dspark);
}

}  // namespace levin
