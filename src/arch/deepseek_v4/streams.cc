#include "arch/deepseek_v4/streams.h"

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

StreamRead StreamBlock::read(Pass& p, View streams) const {
  const ModelConfig& c = config;
  const int64_t n_tokens = streams.dim(0);
  const StreamRead out{.x = p.allocate(DType::kF32, {n_tokens, c.d_model}),
                       .write = p.allocate(DType::kF32, {n_tokens, c.n_streams}),
                       .mix = p.allocate(DType::kF32, {n_tokens, c.n_streams, c.n_streams})};
  const ArenaScope scratch = p.scope();
  const View read = p.allocate(DType::kF32, {n_tokens, c.n_streams});
  ops::stream_weights(p.ctx(), {.projected = project(p, c, weights.fn, streams),
                                .base = weights.base.view,
                                .scale = weights.scale.view,
                                .n_sinkhorn_steps = c.n_sinkhorn_steps,
                                .eps = c.stream_eps,
                                .read = read,
                                .write = out.write,
                                .mix = out.mix});
  ops::read_streams(p.ctx(), {.streams = streams, .read = read, .out = out.x});
  return out;
}

void StreamBlock::write(Pass& p, View streams, const StreamRead& read, View y) const {
  ops::write_streams(p.ctx(), {.streams = streams, .y = y, .write = read.write, .mix = read.mix});
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
