#include "arch/deepseek_v4/stream_layer.h"

#include "model/blocks/moe.h"

namespace levin {

void StreamLayer::forward(Pass& p, View streams) const {
  const ArenaScope scratch = p.scope();
  const Input in = attention_input(p, streams);
  attention().append(p, in.h);
  forward_read(p, streams, in);
}

void StreamLayer::append(Pass& p, View streams) const {
  const ArenaScope scratch = p.scope();
  attention().append(p, attention_input(p, streams).h);
}

void StreamLayer::forward_appended(Pass& p, View streams) const {
  const ArenaScope scratch = p.scope();
  forward_read(p, streams, attention_input(p, streams));
}

StreamLayer::Input StreamLayer::attention_input(Pass& p, View streams) const {
  const StreamRead read = attention_streams().read(p, streams);
  return {.read = read, .h = p.rms_norm(read.x, weights.attention_norm, config.norm_eps)};
}

void StreamLayer::forward_read(Pass& p, View streams, const Input& in) const {
  attention_streams().write(p, streams, in.read, attention().attend(p, in.h));
  const StreamBlock block{config, weights.ffn_streams};
  const StreamRead read = block.read(p, streams);
  block.write(p, streams, read,
              MoeBlock{.params = moe_params(config), .weights = weights.moe}.forward(
                  p, p.rms_norm(read.x, weights.ffn_norm, config.norm_eps)));
  if (p.probe() == nullptr || !p.probe()->on_layer_output) return;
  p.probe()->on_layer_output(layer, streams.reshaped({p.n_tokens(), config.n_streams * config.d_model}));
}

WindowAttentionBlock StreamLayer::attention() const {
  return {.config = config,
          .weights = weights.attention,
          .rotations = rotations,
          .layer = layer,
          .compression = deepseek_v4::own(config).compression_of(layer)};
}

}  // namespace levin
