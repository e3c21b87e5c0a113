#include "arch/deepseek_v4/streams.h"

#include "ops/copies.h"
#include "ops/streams.h"

namespace levin {
namespace {

// fn . v, v being a token's streams as one row, normed: [T, M, D] -> [T, N].
View project(Pass& p, const ModelConfig& c, const Linear& fn, View streams) {
  const int64_t n_tokens = streams.dim(0);
  const View out = p.allocate(DType::kF32, {n_tokens, fn.w.n()});
  const ArenaScope scratch = p.scope();
  p.matmul_into(out, p.rms_norm(streams.reshaped({n_tokens, c.n_streams * c.d_model}), c.norm_eps), fn);
  return out;
}

}  // namespace

StreamMix StreamBlock::weigh(Pass& p, View streams) const {
  const ModelConfig& c = config;
  const int64_t n_tokens = streams.dim(0);
  const StreamMix out{.read = p.allocate(DType::kF32, {n_tokens, c.n_streams}),
                      .write = p.allocate(DType::kF32, {n_tokens, c.n_streams}),
                      .mix = p.allocate(DType::kF32, {n_tokens, c.n_streams, c.n_streams})};
  const ArenaScope scratch = p.scope();
  ops::stream_weights(p.ctx(), {.projected = project(p, c, weights.fn, streams),
                                .base = weights.base.view,
                                .scale = weights.scale.view,
                                .n_sinkhorn_steps = c.n_sinkhorn_steps,
                                .eps = c.stream_eps,
                                .read = out.read,
                                .write = out.write,
                                .mix = out.mix});
  return out;
}

StreamRead StreamBlock::read(Pass& p, View streams) const {
  const StreamMix mix = weigh(p, streams);
  return {.x = read_streams(p, streams, mix.read), .write = mix.write, .mix = mix.mix};
}

void StreamBlock::write(Pass& p, View streams, const StreamRead& read, View y) const {
  ops::write_streams(p.ctx(), {.streams = streams, .y = y, .write = read.write, .mix = read.mix});
}

View read_streams(Pass& p, View streams, View read) {
  const View out = p.allocate(DType::kF32, {streams.dim(0), streams.dim(2)});
  ops::read_streams(p.ctx(), {.streams = streams, .read = read, .out = out});
  return out;
}

View spread_streams(Pass& p, View x, int64_t n_streams) {
  const View out = p.allocate(DType::kF32, {x.dim(0), n_streams, x.dim(1)});
  ops::copy_rows(p.ctx(), {.x = x, .repeat = n_streams, .out = out.merged_first()});
  return out;
}

void mean_of_streams(Pass& p, View streams, View out) {
  const int64_t n_tokens = streams.dim(0), n_streams = streams.dim(1), d_model = streams.dim(2);
  const View side_by_side = streams.reshaped({n_tokens, n_streams * d_model});
  ops::copy_rows(p.ctx(), {.x = side_by_side.slice_last(0, d_model), .out = out});
  for (int64_t i = 1; i < n_streams; ++i) p.add_into(out, side_by_side.slice_last(i * d_model, d_model));
  ops::scale_rows(p.ctx(), {.x = out, .factor = 1 / static_cast<float>(n_streams), .out = out});
}

View collapse_streams(Pass& p, const ModelConfig& config, const StreamHeadWeights& weights, View streams) {
  const int64_t n_tokens = streams.dim(0);
  const View out = p.allocate(DType::kF32, {n_tokens, config.d_model});
  const ArenaScope scratch = p.scope();
  const View read = p.allocate(DType::kF32, {n_tokens, config.n_streams});
  ops::stream_weights(p.ctx(), {.projected = project(p, config, weights.fn, streams),
                                .base = weights.base.view,
                                .scale = weights.scale.view,
                                .eps = config.stream_eps,
                                .read = read});
  ops::read_streams(p.ctx(), {.streams = streams, .read = read, .out = out});
  return out;
}

}  // namespace levin
