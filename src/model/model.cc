#include "model/model.h"

#include <cstring>
#include <utility>

#include "ops/matmul.h"

namespace levin {
namespace {

// [a ; b] row by row: [T, N], [T, M] -> [T, N + M].
View concatenate(Pass& p, View a, View b) {
  const View out = p.allocate(DType::kF32, {a.dim(0), a.dim(1) + b.dim(1)});
  for (int64_t t = 0; t < a.dim(0); ++t) {
    std::memcpy(out.row<float>(t), a.row<float>(t), static_cast<size_t>(a.dim(1)) * sizeof(float));
    std::memcpy(out.row<float>(t) + a.dim(1), b.row<float>(t), static_cast<size_t>(b.dim(1)) * sizeof(float));
  }
  return out;
}

}  // namespace

Model::Model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection selection)
    : config_(std::move(config)),
      numerics_(numerics),
      weights_(std::move(weights)),
      selection_(selection),
      rope_frequencies_(config_.rope_frequencies()) {}

std::vector<LayerCacheFormat> Model::cache_formats() const {
  const LayerCacheFormat format{.latent = latent_format(numerics_.latent, config_.d_latent, config_.d_rope),
                                .index = index_key_format(numerics_.index_keys, config_.d_index)};
  return std::vector<LayerCacheFormat>(static_cast<size_t>(config_.n_layers + (has_mtp() ? 1 : 0)), format);
}

View Model::trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const {
  Pass p(ctx, numerics_, step, cache, probe);
  p.prepare_rope(rope_frequencies_);
  const View x = p.embed(weights_.embed);  // [T, D]
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    DecoderLayer{config_, weights_.layers[layer], layer, selection_}.forward(p, x);
  }
  return p.rms_norm(x, weights_.norm, config_.norm_eps);  // [T, D]
}

View Model::mtp(OpContext& ctx, const Step& step, View hidden, const KvCache& cache, const Probe* probe) const {
  LEVIN_CHECK(has_mtp(), "the model has no MTP layer");
  const MtpWeights& w = *weights_.mtp;
  Pass p(ctx, numerics_, step, cache, probe);
  p.prepare_rope(rope_frequencies_);
  const View e = p.rms_norm(p.embed(weights_.embed), w.embed_norm, config_.norm_eps);  // [T, D]
  const View h = p.rms_norm(hidden, w.hidden_norm, config_.norm_eps);                  // [T, D]
  const View z = p.matmul(concatenate(p, e, h), w.join);                               // [T, D], embedding first
  DecoderLayer{config_, w.layer, config_.n_layers, selection_}.forward(p, z);
  return p.rms_norm(z, w.head_norm, config_.norm_eps);  // [T, D]
}

View Model::logits(OpContext& ctx, View hidden) const {
  const Step no_step;
  const KvCache no_cache({}, 0);
  Pass p(ctx, numerics_, no_step, no_cache, nullptr);
  return p.matmul(hidden, weights_.head);  // [N, V]
}

}  // namespace levin
