#include "arch/deepseek_v3/layer.h"

#include "model/blocks/moe.h"
#include "ops/moe.h"

namespace levin {

void DecoderLayer::forward(Pass& p, View x, Topk& topk) const {  // x [T, D]
  const ArenaScope scratch = p.scope();
  const ProductInput h = normed(p, x);
  const DownRows down = attention().project(p, h);
  forward_normed(p, x, h, attention().append_and_norm(p, h, down, topk), topk);
}

void DecoderLayer::append(Pass& p, View x) const {
  const ArenaScope scratch = p.scope();
  attention().append(p, attention().project_to_append(p, normed(p, x)));
}

void DecoderLayer::forward_appended(Pass& p, View x, Topk& topk) const {
  const ArenaScope scratch = p.scope();
  const ProductInput h = normed(p, x);
  forward_normed(p, x, h, attention().norm(p, attention().project_to_attend(p, h)), topk);
}

void DecoderLayer::forward_normed(Pass& p, View x, const ProductInput& h, const QueryInput& in, Topk& topk) const {
  const View ffn_in = p.add_and_norm(x, attention().attend(p, h, in, topk), weights.ffn_norm, config.norm_eps);
  add_feed_forward(p, x, ffn_in);
  if (p.probe() != nullptr && p.probe()->on_layer_output) p.probe()->on_layer_output(layer, x);
}

void DecoderLayer::add_feed_forward(Pass& p, View x, View h) const {
  if (weights.moe) return MoeBlock{.params = moe_params(config), .weights = *weights.moe}.add_to(p, x, h);
  ops::ffn(p.ctx(), {.x = h, .weights = &*weights.dense, .out = x, .add = true});
}

}  // namespace levin
