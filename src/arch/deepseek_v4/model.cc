#include "arch/deepseek_v4/model.h"

#include <utility>

#include "arch/deepseek_v4/dspark.h"
#include "arch/deepseek_v4/parts.h"
#include "arch/deepseek_v4/stream_layer.h"
#include "arch/deepseek_v4/streams.h"
#include "base/check.h"
#include "model/wanted_rows.h"

namespace levin {

DeepseekV4::DeepseekV4(ModelConfig config, Numerics numerics, ModelWeights weights)
    : Model(std::move(config), numerics, std::move(weights)),
      frequencies_(Model::config().rope_frequencies()),
      compressed_frequencies_(compressed_rope_frequencies(Model::config())) {}

StepRotations DeepseekV4::rotations(Pass& p) const {
  StepRotations r{.plain = p.rotation(p.step().positions, frequencies_),
                  .compressed = p.rotation(p.step().positions, compressed_frequencies_)};
  r.plain_inverse = p.inverse(r.plain);
  r.compressed_inverse = p.inverse(r.compressed);
  for (const StepEntries& e : p.step().entries) r.entries.push_back(p.rotation(e.positions, compressed_frequencies_));
  return r;
}

ForwardRows DeepseekV4::finish(Pass& p, View streams, const StreamHeadWeights& head, const Vector& norm) const {
  const View x = collapse_streams(p, config(), head, streams);  // [T, D]
  return {.hidden = p.rms_norm(x, norm, config().norm_eps),     // [T, D]
          .state = d_state() > 0 ? streams.reshaped({p.n_tokens(), d_state()}) : View(),
          .topk = {}};
}

ForwardRows DeepseekV4::trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const {
  Pass p(ctx, numerics(), step, cache, probe);
  const StepRotations r = rotations(p);
  return finish(p, run_layers(p, r), deepseek_v4::own(weights()).head, weights().norm);
}

// The trunk's streams [T, M, D]. The block drafter's rows of these tokens are written too, whether somebody drafts or not:
// it draws on all of its window whenever somebody does.
View DeepseekV4::run_layers(Pass& p, const StepRotations& r) const {
  const View streams = spread_streams(p, p.embed(weights().embed), config().n_streams);  // [T, M, D]
  std::optional<DsparkBlock> drafter;
  if (dspark() != nullptr) drafter.emplace(DsparkBlock{config(), *dspark(), r});
  const View taps = drafter ? drafter->allocate_taps(p) : View();  // [T, Nt * D]
  for (int layer = 0; layer < config().n_layers; ++layer) {
    StreamLayer{config(), deepseek_v4::own(weights()).layers[static_cast<size_t>(layer)], r, layer}.forward(p, streams);
    if (drafter) drafter->take(p, layer, streams, taps);
  }
  if (drafter) drafter->append(p, taps);
  return streams;
}

ForwardRows DeepseekV4::draft_blocks(OpContext& ctx, const Step& step, const KvCache& cache) const {
  Pass p(ctx, numerics(), step, cache, nullptr);
  const StepRotations r = rotations(p);
  return DsparkBlock{config(), *dspark(), r}.forward(p, p.embed(weights().embed));
}

DraftTerms DeepseekV4::draft_terms(OpContext& ctx, View before, View state) const {
  const Step no_step;
  const KvCache no_cache;
  Pass p(ctx, numerics(), no_step, no_cache, nullptr);
  return dspark_terms(p, *dspark(), before, state);
}

ForwardRows DeepseekV4::mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                            const Probe* probe) const {
  LEVIN_CHECK(deepseek_v4::own(weights()).mtp.has_value(), "the model has no MTP layer");
  const V4MtpWeights& w = *deepseek_v4::own(weights()).mtp;
  const ModelConfig& c = config();
  Pass p(ctx, numerics(), step, cache, probe);
  const StepRotations r = rotations(p);
  const View before = in.state.split_last(c.n_streams, c.d_model).merged_first();                     // [T * M, D]
  const View z = p.matmul(p.rms_norm(before, w.hidden_norm, c.norm_eps), w.h_proj);                   // [T * M, D]
  const View e = p.matmul(p.rms_norm(p.embed(weights().embed), w.embed_norm, c.norm_eps), w.e_proj);  // [T, D]
  p.add_into(z, spread_streams(p, e, c.n_streams).merged_first());
  const View streams = z.reshaped({p.n_tokens(), c.n_streams, c.d_model});  // [T, M, D]
  StreamLayer{c, w.layer, r, c.n_layers}.append(p, streams);
  WantedRows wanted(p);
  if (wanted.are_none()) return {};
  Pass& q = wanted.pass();
  const View x = wanted.of(z.reshaped({p.n_tokens(), d_state()}));       // [N, M * D]
  const View kept = x.reshaped({q.n_tokens(), c.n_streams, c.d_model});  // [N, M, D]
  StreamLayer{c, w.layer, wanted.are_all() ? r : rotations(q), c.n_layers}.forward_appended(q, kept);
  return finish(q, kept, w.head, w.head_norm);
}

namespace deepseek_v4 {

std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection) {
  return std::make_unique<DeepseekV4>(std::move(config), numerics, std::move(weights));
}

}  // namespace deepseek_v4
}  // namespace levin
