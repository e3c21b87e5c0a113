#include "arch/deepseek_v3/layer.h"

#include "model/blocks/moe.h"
#include "ops/moe.h"

namespace levin {

void DecoderLayer::forward(Pass& p, View x, Topk& topk) const {  // x [T, D]
  const ArenaScope scratch = p.scope();
  const ProductInput h = normed(p, x);
  const DownRows down = attention().project(p, h);
  attention().append(p, down);
  forward_normed(p, x, h, down, topk);
}

void DecoderLayer::append(Pass& p, View x) const {
  const ArenaScope scratch = p.scope();
  attention().append(p, attention().project_to_append(p, normed(p, x)));
}

void DecoderLayer::forward_appended(Pass& p, View x, Topk& topk) const {
  const ArenaScope scratch = p.scope();
  const ProductInput h = normed(p, x);
  forward_normed(p, x, h, attention().project_to_attend(p, h), topk);
}

void DecoderLayer::forward_normed(Pass& p, View x, const ProductInput& h, const DownRows& down, Topk& topk) const {
  const View ffn_in = p.add_and_norm(x, attention().attend(p, h, down, topk), weights.ffn_norm, config.norm_eps);
  p.add_into(x, feed_forward(p, ffn_in));
  if (p.probe() != nullptr && p.probe()->on_layer_output) p.probe()->on_layer_output(layer, x);
}

View DecoderLayer::feed_forward(Pass& p, View h) const {
  if (weights.moe) return MoeBlock{.params = moe_params(config), .weights = *weights.moe}.forward(p, h);
  const View out = p.allocate(DType::kF32, {p.n_tokens(), config.d_model});  // [T, D]
  const ArenaScope scratch = p.scope();
  ops::ffn(p.ctx(), {.x = h, .weights = &*weights.dense, .out = out});
  return out;
}

}  // namespace levin
