#include "arch/deepseek_v3/layer.h"

#include "model/blocks/moe.h"
#include "ops/moe.h"

namespace levin {

void DecoderLayer::forward(Pass& p, View x, Topk& topk) const {  // x [T, D]
  const ArenaScope scratch = p.scope();
  const ProductInput h = normed(p, x);
  attention().append(p, h);
  forward_normed(p, x, h, topk);
}

void DecoderLayer::append(Pass& p, View x) const {
  const ArenaScope scratch = p.scope();
  attention().append(p, normed(p, x));
}

void DecoderLayer::forward_appended(Pass& p, View x, Topk& topk) const {
  const ArenaScope scratch = p.scope();
  forward_normed(p, x, normed(p, x), topk);
}

void DecoderLayer::forward_normed(Pass& p, View x, const ProductInput& h, Topk& topk) const {
  const View ffn_in = p.add_and_norm(x, attention().attend(p, h, topk), weights.ffn_norm, config.norm_eps);
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
