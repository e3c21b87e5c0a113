// Mistakes that other implementations of the DSpark block drafter made (model_spec.md 9), made here on purpose, one row each:
// every one must move the first blocks' logits or confidence far beyond the tolerance that the right computation keeps.
// Tokens would not tell: most of these leave every accepted draft accepted on the fixture. That drafts beyond the block are
// not made is in drafter_test.cc; that every tensor of the stages is read, and those in F32 stay so, in
// weight_table_deepseek_v4_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>

#include "arch/deepseek_v4/dspark.h"
#include "arch/deepseek_v4/stream_layer.h"
#include "arch/deepseek_v4/streams.h"
#include "engine/loaded_model.h"
#include "engine/oracle.h"
#include "engine/trace.h"

namespace levin::test {
namespace {

constexpr double kRight = 2e-5;    // what a right implementation keeps
constexpr double kNoticed = 1e-4;  // what a mistake must exceed
const char* const kFixture = "v4-dspark";

enum class Taps : uint8_t { kBehindLayers, kBeforeLayers, kOutput };

// One way to be wrong. Empty functions change nothing.
struct Mistake {
  int number;  // of model_spec.md 9
  const char* what;
  Taps taps = Taps::kBehindLayers;
  std::function<void(Step&)> context = {};  // the step whose rows are kept
  std::function<void(Step&)> block = {};
  // The token whose row is added to the logits of row i, of those before rows 0 .. i.
  std::function<int32_t(const std::vector<int32_t>&)> before = {};
  bool normed_confidence = false;
  std::function<void(ModelConfig&, DsparkWeights&)> model = {};
};
void PrintTo(const Mistake& m, std::ostream* out) { *out << m.number << ": " << m.what; }

Step copy_of(OpContext& ctx, const Step& step) {
  Step out = step;
  for_each_view(out, [&ctx](View& view) {
    const View copy = ctx.arena->allocate(view.dtype(), {view.n_elements()});
    std::copy_n(view.data<int32_t>(), view.n_elements(), copy.data<int32_t>());
    view = view.rank() == 1 ? copy : copy.reshaped({view.dim(0), view.dim(1)});
  });
  return out;
}

// DeepSeek-V4 with a block drafter that may be wrong; of one sequence.
class MistakenModel final : public Model, public BlockDrafting {
 public:
  MistakenModel(ModelConfig config, ModelWeights weights, const Mistake& mistake)
      : Model(std::move(config), Numerics{}, std::move(weights)), mistake_(mistake) {}

  bool has_mtp() const override { return true; }
  const BlockDrafting* block_drafting() const override { return this; }
  int64_t d_state() const override { return 0; }
  int32_t noise_token() const override { return deepseek_v4::own(config()).dspark->noise_token; }

  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override {
    const ModelConfig& c = config();
    Pass p(ctx, numerics(), step, cache, probe);
    const StepRotations r = rotations(p);
    const View streams = spread_streams(p, p.embed(weights().embed), c.n_streams);
    const DsparkBlock drafter{c, dspark(), r};
    const View taps = drafter.allocate_taps(p);
    for (int layer = 0; layer < c.n_layers; ++layer) {
      if (mistake_.taps == Taps::kBeforeLayers) drafter.take(p, layer, streams, taps);
      StreamLayer{c, deepseek_v4::own(weights()).layers[static_cast<size_t>(layer)], r, layer}.forward(p, streams);
      if (mistake_.taps == Taps::kBehindLayers) drafter.take(p, layer, streams, taps);
    }
    const View h = collapse_streams(p, c, deepseek_v4::own(weights()).head, streams);
    const View hidden = p.rms_norm(h, weights().norm, c.norm_eps);
    for (int64_t t = 0; mistake_.taps == Taps::kOutput && t < p.n_tokens(); ++t) {
      for (int i = 0; i < c.n_mtp_layers; ++i)
        std::copy_n(hidden.row<float>(t), c.d_model, taps.row<float>(t) + i * c.d_model);
    }
    Step kept = copy_of(ctx, step);
    if (mistake_.context) mistake_.context(kept);
    Pass q(ctx, numerics(), kept, cache, probe);
    DsparkBlock{c, dspark(), rotations(q)}.append(q, taps);
    return {.hidden = hidden, .state = {}, .topk = {}};
  }
  ForwardRows mtp(OpContext&, const Step&, const MtpInput&, const KvCache&, const Probe*) const override { return {}; }

  ForwardRows draft_blocks(OpContext& ctx, const Step& step, const KvCache& cache) const override {
    before_.clear();
    Step block = copy_of(ctx, step);
    if (mistake_.block) mistake_.block(block);
    Pass p(ctx, numerics(), block, cache, nullptr);
    ForwardRows rows = DsparkBlock{config(), dspark(), rotations(p)}.forward(p, p.embed(weights().embed));
    normed_ = rows.hidden;
    return rows;
  }
  DraftTerms draft_terms(OpContext& ctx, View before, View state) const override {
    before_.push_back(before.data<int32_t>()[0]);
    if (mistake_.before) before.data<int32_t>()[0] = mistake_.before(before_);
    const Step no_step;
    const KvCache no_cache;
    Pass p(ctx, numerics(), no_step, no_cache, nullptr);
    const View row = mistake_.normed_confidence ? normed_.slice_first(std::ssize(before_) - 1, 1) : state;
    return dspark_terms(p, dspark(), before, row);
  }

 private:
  const DsparkWeights& dspark() const { return *deepseek_v4::own(weights()).dspark; }
  StepRotations rotations(Pass& p) const {
    StepRotations r{.plain = p.rotation(p.step().positions, config().rope_frequencies()),
                    .compressed = p.rotation(p.step().positions, compressed_rope_frequencies(config()))};
    r.plain_inverse = p.inverse(r.plain);
    r.compressed_inverse = p.inverse(r.compressed);
    for (const StepEntries& e : p.step().entries)
      r.entries.push_back(p.rotation(e.positions, compressed_rope_frequencies(config())));
    return r;
  }

  const Mistake& mistake_;
  mutable std::vector<int32_t> before_;  // of the block at hand
  mutable View normed_;
};

// Of as many values as both have.
double error_of(const std::vector<float>& found, const std::vector<float>& expected) {
  const size_t n = std::min(found.size(), expected.size());
  return relative_error(std::span(found).first(n), std::span(expected).first(n));
}

// The worst of all rounds; those after the first with other tokens cannot be compared.
double error_with(const Mistake& mistake) {
  const TempDir folder;
  must(materialise(fixture_folder(kFixture), folder.path()));
  ModelConfig config = must(load_model_config(folder.path())).config;
  const io::Checkpoint checkpoint = must(io::Checkpoint::open(folder.path()));
  ThreadPool pool(1);
  std::vector<std::string> warnings;
  ModelWeights weights = must(load_weights(config, Numerics{}, checkpoint, pool, {}, &warnings));
  if (mistake.model) mistake.model(config, *deepseek_v4::own(weights).dspark);
  const MistakenModel mistaken(std::move(config), std::move(weights), mistake);
  const Oracle oracle(kFixture);
  const std::vector<int64_t> ids = oracle.values<int64_t>("input_ids");
  const TraceOptions options{.ids = {ids.begin(), ids.end()},
                             .n_greedy = static_cast<int>(oracle.values<int64_t>("greedy_ids").size()),
                             .n_drafts = static_cast<int>(mistaken.config().n_draft_block)};
  Runner runner(mistaken, runner_options(trace_cache_tokens(options)));
  const TraceResult result = must(trace(runner, options));
  const double first = std::max(error_of(result.draft_logits, oracle.values<float>("draft.logits")),
                                error_of(result.draft_confidence, oracle.values<float>("draft.confidence")));
  if (result.rounds.tokens != oracle.values<int64_t>("rounds.tokens")) return std::max(first, kNoticed);
  return std::max({first, error_of(result.rounds.logits, oracle.values<float>("rounds.logits")),
                   error_of(result.rounds.confidence, oracle.values<float>("rounds.confidence"))});
}

void for_each_row(Step& step, const std::function<void(int64_t t)>& f) {
  for (int64_t t = 0; t < step.n_tokens(); ++t) f(t);
}

int32_t& id_at(View view, int64_t i) { return view.data<int32_t>()[i]; }

void shift_positions(Step& step) {
  for_each_row(step, [&](int64_t t) { ++id_at(step.positions, t); });
}

// A verify step is as wide as a block and one token; a prompt is wider, a token by itself narrower.
bool verifies(const Step& step) { return step.n_tokens() > 1 && step.n_tokens() <= 6; }

const Mistake kMistakes[] = {
    {.number = 31, .what = "the streams in front of the target layers", .taps = Taps::kBeforeLayers},
    {.number = 31, .what = "the trunk's output after its norm", .taps = Taps::kOutput},
    {.number = 31,
     .what = "target layers one off",
     .model =
         [](ModelConfig& c, DsparkWeights&) {
           for (int& layer : deepseek_v4::own(c).dspark->target_layers) --layer;
         }},
    {.number = 32,
     .what = "rows that see only those before them",
     .block =
         [](Step& step) {
           for_each_row(step, [&](int64_t t) { id_at(step.blocks->end, t) = id_at(step.slot, t) + 1; });
         }},
    {.number = 32,
     .what = "a window of its own for each row",
     .block =
         [](Step& step) { for_each_row(step, [&](int64_t t) { id_at(step.window, t) += id_at(step.slot, t) + 1; }); }},
    {.number = 33,
     .what = "a shorter block where fewer drafts are wanted",
     .model = [](ModelConfig& c, DsparkWeights&) { c.n_draft_block = 3; }},
    {.number = 34,
     .what = "no rows of accepted drafts",
     .context =
         [](Step& step) {
           if (verifies(step)) std::fill_n(step.slot.data<int32_t>() + 1, step.n_tokens() - 1, -1);
         }},
    {.number = 34,
     .what = "no rows of any round",
     .context =
         [](Step& step) {
           if (verifies(step)) std::fill_n(step.slot.data<int32_t>(), step.n_tokens(), -1);
         }},
    {.number = 35,
     .what = "the anchor's term in every row",
     .before = [](const std::vector<int32_t>& all) { return all.front(); }},
    {.number = 35,
     .what = "terms one row late",
     .before = [](const std::vector<int32_t>& all) { return all[all.size() - std::min<size_t>(all.size(), 2)]; }},
    {.number = 36, .what = "the block's positions one off", .block = shift_positions},
    {.number = 36, .what = "the context rows' positions one off", .context = shift_positions},
    {.number = 37, .what = "confidence of the normed row", .normed_confidence = true},
    {.number = 38,
     .what = "no shared experts",
     .model =
         [](ModelConfig&, DsparkWeights& w) {
           for (V4LayerWeights& stage : w.stages) stage.moe.shared.reset();
         }},
};

class DsparkMistakesTest : public ::testing::TestWithParam<Mistake> {};

TEST_P(DsparkMistakesTest, AreNoticed) { EXPECT_GE(error_with(GetParam()), kNoticed); }

INSTANTIATE_TEST_SUITE_P(Dspark, DsparkMistakesTest, ::testing::ValuesIn(kMistakes), [](const auto& row) {
  return "M" + std::to_string(row.param.number) + "_" + std::to_string(row.index);
});

TEST(DsparkMistakesTest, WithoutOneTheOracleIsMet) { EXPECT_LE(error_with({.number = 0, .what = "none"}), kRight); }

}  // namespace
}  // namespace levin::test
