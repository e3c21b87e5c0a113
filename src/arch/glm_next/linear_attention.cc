#include "arch/glm_next/linear_attention.h"

#include "ops/linear_attention.h"

namespace levin {

View LinearAttentionBlock::forward(Pass& p, View h) const {  // h     [T, D]
  const GlmNextConfig& c = glm_next::own(config);
  const LinearAttentionWeights& w = weights;
  const int64_t n_tokens = p.n_tokens(), d = c.d_linear();
  const View out = p.allocate(DType::kF32, {n_tokens, config.d_model});
  const ArenaScope scratch = p.scope();
  const ops::RecurrentTokens tokens{.first_row = p.step().first_row,
                                    .end_row = p.step().end_row,
                                    .first_position = p.step().first_position,
                                    .rings = p.cache().recurrent(layer, p.step().rings)};
  int64_t channel = 0;
  const auto convolved = [&](const Linear& projection, const Vector& taps) {  // [T, D] -> [T, Hl * Dl]
    const View y = p.allocate(DType::kF32, {n_tokens, d});
    ops::short_conv(
        p.ctx(),
        {.x = p.matmul(h, projection), .weight = taps.view, .tokens = tokens, .first_channel = channel, .out = y});
    channel += d;
    return y;
  };
  const View q = convolved(w.q, w.q_conv);
  const View k = convolved(w.k, w.k_conv);
  const View v = convolved(w.v, w.v_conv);
  const View o = p.allocate(DType::kF32, {n_tokens, d});  // [T, Hl * Dl]
  ops::delta_rule(p.ctx(), {.q = q,
                            .k = k,
                            .v = v,
                            .decay = p.matmul(p.matmul(h, w.decay_down), w.decay_up),
                            .decay_bias = w.decay_bias.view,
                            .log_rate = w.log_rate.view,
                            .lower = c.decay_lower,
                            .beta = p.matmul(h, w.beta),  // [T, Hl]
                            .tokens = tokens,
                            .out = o});
  const View heads = o.reshaped({n_tokens * c.n_linear_heads, c.d_linear_head});
  p.rms_norm_into(heads, heads, w.out_norm, config.norm_eps);
  ops::sigmoid_mul(p.ctx(), {.x = o, .gate = p.matmul(p.matmul(h, w.gate_down), w.gate_up), .out = o});
  p.matmul_into(out, o, w.o);  // [T, D]
  return out;
}

}  // namespace levin
