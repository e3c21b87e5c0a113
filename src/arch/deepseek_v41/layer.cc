#include "arch/deepseek_v41/layer.h"

#include "model/blocks/moe.h"
#include "ops/copies.h"
#include "ops/streams.h"

namespace levin {

void V41Layer::forward(Pass& p, View streams, View read, SharedTopk* topk) const {  // [T, M, D], [T, M]
  const ArenaScope scratch = p.scope();
  const StreamMix around_attention = StreamBlock{config, w.attention_streams}.weigh(p, streams);
  const View h = p.rms_norm(read_streams(p, streams, read), w.attention_norm, config.norm_eps);  // [T, D]
  const bool has_rows = p.step().blocks.has_value();  // a block's rows stand in no cache
  if (!has_rows) attention().append(p, h);
  ops::write_streams(p.ctx(), {.streams = streams,
                               .y = attention().attend(p, h, topk),
                               .write = around_attention.write,
                               .mix = around_attention.mix});

  const StreamMix around_experts = StreamBlock{config, w.ffn_streams}.weigh(p, streams);
  const View y = experts(p, read_streams(p, streams, around_attention.read));  // [T, D]
  ops::write_streams(p.ctx(), {.streams = streams, .y = y, .write = around_experts.write, .mix = around_experts.mix});
  ops::copy_rows(p.ctx(), {.x = around_experts.read, .out = read});
  if (p.probe() == nullptr || !p.probe()->on_layer_output) return;
  p.probe()->on_layer_output(layer, streams.reshaped({p.n_tokens(), config.n_streams * config.d_model}));
}

View V41Layer::experts(Pass& p, View x) const {
  MoeParams params = moe_params(config);
  if (layer >= config.n_layers) params.n_active = deepseek_v41::own(config).dspark->n_active;
  return MoeBlock{.params = params, .weights = w.moe}.forward(p, p.rms_norm(x, w.ffn_norm, config.norm_eps));
}

SharedAttentionBlock V41Layer::attention() const {
  return {.config = config,
          .weights = weights,
          .w = w.attention,
          .rotations = rotations,
          .layer = layer,
          .entries = layer < config.n_layers ? deepseek_v41::own(config).entries_of(layer) : EntriesOfLayer{}};
}

View first_read(Pass& p, const DeepseekV41Weights& weights) {
  const View out = p.allocate(DType::kF32, {p.n_tokens(), weights.first_read.view.dim(1)});
  ops::copy_rows(p.ctx(), {.x = weights.first_read.view, .repeat = p.n_tokens(), .out = out});
  return out;
}

}  // namespace levin
