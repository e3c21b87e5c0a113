#include "arch/deepseek_v41/model.h"

#include <optional>
#include <utility>

#include "arch/deepseek_v41/dspark.h"
#include "arch/deepseek_v41/engram.h"
#include "arch/deepseek_v41/parts.h"
#include "base/check.h"
#include "model/rope_config.h"

namespace levin {

DeepseekV41::DeepseekV41(ModelConfig config, Numerics numerics, ModelWeights weights)
    : Model(std::move(config), numerics, std::move(weights)),
      frequencies_(Model::config().rope_frequencies()),
      compressed_frequencies_(rope_frequencies(deepseek_v41::own(Model::config()).compressed_rope_theta,
                                               deepseek_v41::own(Model::config()).compressed_yarn,
                                               Model::config().d_rope)) {}

V41Rotations DeepseekV41::rotations(Pass& p) const {
  V41Rotations r{.plain = p.rotation(p.step().positions, frequencies_),
                 .compressed = p.rotation(p.step().positions, compressed_frequencies_)};
  r.plain_inverse = p.inverse(r.plain);
  r.compressed_inverse = p.inverse(r.compressed);
  for (const StepEntries& e : p.step().entries) r.entries.push_back(p.rotation(e.positions, compressed_frequencies_));
  return r;
}

SharedTopk DeepseekV41::allocate_topk(Pass& p) const {
  const CandidateBlocks& candidates = deepseek_v41::own(config()).candidates;
  SharedTopk topk{.slots = p.allocate(DType::kI32, {p.n_tokens(), config().n_topk})};
  if (candidates.source >= 0) topk.blocks = p.allocate(DType::kI32, {p.n_tokens(), candidates.n_blocks});
  return topk;
}

// The block drafter's rows of these tokens are written too, whether somebody drafts or not: it reads all of its window
// whenever somebody does.
ForwardRows DeepseekV41::trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const {
  const ModelConfig& c = config();
  Pass p(ctx, numerics(), step, cache, probe);
  EngramBlock engram(c, own());
  engram.begin(p);
  const V41Rotations r = rotations(p);
  const View streams = spread_streams(p, p.embed(weights().embed), c.n_streams);  // [T, M, D]
  const View read = first_read(p, own());                                         // [T, M]
  SharedTopk topk = allocate_topk(p);
  std::optional<V41DsparkBlock> drafter;
  if (has_mtp()) drafter.emplace(V41DsparkBlock{c, own(), r});
  const View taps = drafter ? drafter->allocate_taps(p) : View();  // [T, Nt * D]
  for (int layer = 0; layer < c.n_layers; ++layer) {
    engram.write(p, layer, streams);
    if (drafter) drafter->take(p, layer, streams, taps);
    V41Layer{c, own(), own().layers[static_cast<size_t>(layer)], r, layer}.forward(p, streams, read, &topk);
  }
  if (drafter) drafter->append(p, taps);
  const View x = read_streams(p, streams, read);  // [T, D]
  return {.hidden = p.rms_norm(x, weights().norm, c.norm_eps), .state = {}, .topk = {}};
}

ForwardRows DeepseekV41::mtp(OpContext&, const Step&, const MtpInput&, const KvCache&, const Probe*) const {
  LEVIN_CHECK(false, "the model has no MTP layer");
  return {};
}

ForwardRows DeepseekV41::draft_blocks(OpContext& ctx, const Step& step, const KvCache& cache) const {
  Pass p(ctx, numerics(), step, cache, nullptr);
  const V41Rotations r = rotations(p);
  return V41DsparkBlock{config(), own(), r}.forward(p, p.embed(weights().embed));
}

DraftTerms DeepseekV41::draft_terms(OpContext& ctx, View before, View state) const {
  const Step no_step;
  const KvCache no_cache;
  Pass p(ctx, numerics(), no_step, no_cache, nullptr);
  return dspark_terms(p, *own().dspark, before, state);
}

namespace deepseek_v41 {

std::unique_ptr<Model> make_model(ModelConfig config, Numerics numerics, ModelWeights weights, Selection) {
  return std::make_unique<DeepseekV41>(std::move(config), numerics, std::move(weights));
}

}  // namespace deepseek_v41
}  // namespace levin
