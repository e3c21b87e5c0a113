// Mistakes that an implementation of GLM-5.3-Flash may make (model_spec.md 9), made here on purpose, one row each: every
// one must move an output far beyond the tolerance that the right computation keeps, or be refused by name. 40 (index_kpool
// by its default) is refused in config_glm_next_test.cc; 41 (queries or keys not of unit length) lies inside one op, and
// linear_attention_test.cc notices it.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>

#include "arch/glm_next/config.h"
#include "arch/glm_next/weights.h"
#include "engine/loaded_model.h"
#include "engine/oracle.h"
#include "engine/trace.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

constexpr const char* kFixture = "glm-next";
constexpr double kRight = 2e-5;    // what a right implementation keeps
constexpr double kNoticed = 1e-4;  // what a mistake must exceed

struct Errors {
  double logits = 0, first_draft = 0, drafts = 0;
};

Errors errors_of(const Model& model) {
  const Oracle oracle(kFixture);
  const std::vector<int64_t> ids = oracle.values<int64_t>("input_ids");
  const TraceOptions options{.ids = {ids.begin(), ids.end()}, .n_greedy = 1, .n_drafts = 3};
  Runner runner(model, runner_options(trace_cache_tokens(options)));
  const TraceResult result = must(trace(runner, options));
  return {.logits = relative_error(result.logits, oracle.values<float>("logits")),
          .first_draft = relative_error(result.draft1_logits, oracle.values<float>("draft1.logits")),
          .drafts = relative_error(result.draft_logits, oracle.values<float>("draft.logits"))};
}

Errors errors_with(const ModelChoices& choices) { return errors_of(*load_fixture(kFixture, choices)); }

TEST(GlmNextMistakesTest, WithoutOneTheOracleIsMet) {
  const Errors errors = errors_with({});
  EXPECT_LE(errors.logits, kRight);
  EXPECT_LE(errors.first_draft, kRight);
  EXPECT_LE(errors.drafts, kRight);
}

void fill(Vector& v, float x) { std::fill_n(v.view.data<float>(), v.view.n_elements(), x); }

ModelChoices every_linear(const std::function<void(LinearAttentionWeights&)>& change) {
  return {.change_weights = [=](ModelWeights& w) {
    for (GlmNextLayerWeights& layer : glm_next::own(w).layers) {
      if (layer.linear) change(*layer.linear);
    }
  }};
}

ModelChoices every_pooled(const std::function<void(PooledAttentionWeights&)>& change) {
  return {.change_weights = [=](ModelWeights& w) {
    for (GlmNextLayerWeights& layer : glm_next::own(w).layers) {
      if (layer.pooled) change(*layer.pooled);
    }
  }};
}

ModelChoices with_config(const std::function<void(ModelConfig&)>& change) { return {.change_config = change}; }

constexpr int64_t kTaps = 4;  // of the fixture's convolutions

// The last tap alone: no token before.
void forget_earlier_taps(Vector& conv) {
  float* taps = conv.view.data<float>();
  for (int64_t i = 0; i < conv.view.n_elements(); ++i) {
    if (i % kTaps != kTaps - 1) taps[i] = 0;
  }
}

void turn_taps(Vector& conv) {
  float* taps = conv.view.data<float>();
  for (int64_t i = 0; i < conv.view.n_elements(); i += kTaps) std::reverse(taps + i, taps + i + kTaps);
}

struct Mistake {
  int number;  // of model_spec.md 9; 0: without one
  const char* what;
  ModelChoices choices;
};
void PrintTo(const Mistake& m, std::ostream* out) { *out << m.number << ": " << m.what; }

const Mistake kMistakes[] = {
    {12, "one Sinkhorn step", with_config([](ModelConfig& c) { c.n_sinkhorn_steps = 1; })},
    {14, "feed-forward blocks not clamped", with_config([](ModelConfig& c) { c.ffn_limit = ops::kNoLimit; })},
    {21, "the bias of the index keys' norm dropped",
     every_pooled([](PooledAttentionWeights& w) { fill(w.indexer.k_norm_bias, 0); })},
    {42, "a decay with another lower bound", with_config([](ModelConfig& c) { glm_next::own(c).decay_lower = -1; })},
    {42, "a decay without its bias", every_linear([](LinearAttentionWeights& w) { fill(w.decay_bias, 0); })},
    {42, "a decay without its rate", every_linear([](LinearAttentionWeights& w) { fill(w.log_rate, 0); })},
    {0, "no convolution of keys", every_linear([](LinearAttentionWeights& w) { forget_earlier_taps(w.k_conv); })},
    {0, "the convolution's taps from the newest to the oldest",
     every_linear([](LinearAttentionWeights& w) { turn_taps(w.v_conv); })},
    {0, "keys convolved with the queries' taps",
     every_linear([](LinearAttentionWeights& w) { std::swap(w.q_conv, w.k_conv); })},
    {0, "the output gate of the decay's projections",
     every_linear([](LinearAttentionWeights& w) { std::swap(w.gate_up, w.decay_up); })},
    {0, "pools weighted by their tokens' keys, keys of their gates",
     every_pooled([](PooledAttentionWeights& w) { std::swap(w.pool.gate, w.indexer.k); })},
    {0, "pools without the bias of the place in them",
     every_pooled([](PooledAttentionWeights& w) { fill(w.pool.position_bias, 0); })},
    {0, "the most recent tokens in place of the selected pools", {.selection = Selection::kMostRecent}},
};

class GlmNextMistakesTable : public ::testing::TestWithParam<Mistake> {};

TEST_P(GlmNextMistakesTable, IsNoticed) { EXPECT_GE(errors_with(GetParam().choices).logits, kNoticed); }

INSTANTIATE_TEST_SUITE_P(GlmNext, GlmNextMistakesTable, ::testing::ValuesIn(kMistakes),
                         [](const auto& row) { return fmt::format("M{}_{}", row.param.number, row.index); });

// ---- in the MTP layer --------------------------------------------------------------------------------------------

TEST(GlmNextMtpMistakes, M24PicksThatAreNotSharedAreNoticed) {
  const Errors errors = errors_with(with_config([](ModelConfig& c) { c.share_topk_across_drafts = false; }));
  EXPECT_LE(errors.first_draft, kRight);
  EXPECT_GE(errors.drafts, kNoticed);
}

TEST(GlmNextMtpMistakes, TheTwoHalvesOfItsInputAreNoticed) {
  const Errors errors = errors_with({.change_weights = [](ModelWeights& w) {
    std::swap(glm_next::own(w).mtp->embed_norm, glm_next::own(w).mtp->hidden_norm);
  }});
  EXPECT_LE(errors.logits, kRight);
  EXPECT_GE(errors.first_draft, kNoticed);
}

// ---- in what a right model is fed with ----------------------------------------------------------------------------

// One way to be wrong about it. Empty functions change nothing.
struct Feeding {
  int number;
  const char* what;
  std::function<void(Step&)> trunk = {}, mtp = {};
  Vector GlmNextMtpWeights::* undone_norm = nullptr;  // that is taken back from the state of later drafts
  bool undoes_final_norm = false;                     // from the state of the first one
  double Errors::* where = &Errors::logits;           // it is noticed
};
void PrintTo(const Feeding& m, std::ostream* out) { *out << m.number << ": " << m.what; }

View copy_of(OpContext& ctx, const View& x) {
  const View copy =
      x.rank() == 1 ? ctx.arena->allocate(x.dtype(), {x.dim(0)}) : ctx.arena->allocate(x.dtype(), {x.dim(0), x.dim(1)});
  std::copy_n(x.bytes(), x.n_elements() * dtype_bytes(x.dtype()), copy.bytes());
  return copy;
}

// A right model with a wrong caller; its own weights are those of the heads.
class WronglyFed final : public Model {
 public:
  WronglyFed(const Model& right, ModelWeights weights, const Feeding& feeding)
      : Model(right.config(), right.numerics(), std::move(weights)), right_(right), feeding_(feeding) {}

  bool has_mtp() const override { return right_.has_mtp(); }
  int64_t d_state() const override { return right_.d_state(); }

  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override {
    return right_.trunk(ctx, changed(ctx, step, feeding_.trunk), cache, probe);
  }
  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe* probe) const override {
    MtpInput other = in;
    const bool later = !in.topk.empty();  // drafts after the first are given their indices
    if (later && feeding_.undone_norm != nullptr)
      other.state = without_norm(ctx, in.state, *glm_next::own(weights()).mtp.*feeding_.undone_norm);
    if (!later && feeding_.undoes_final_norm) other.state = without_norm(ctx, in.state, weights().norm);
    return right_.mtp(ctx, changed(ctx, step, feeding_.mtp), other, cache, probe);
  }

 private:
  static Step changed(OpContext& ctx, const Step& step, const std::function<void(Step&)>& change) {
    Step out = step;
    if (!change) return out;
    out.tokens = copy_of(ctx, step.tokens), out.visible = copy_of(ctx, step.visible);
    change(out);
    return out;
  }
  // Up to a factor for each row, which the norm of what reads the state takes away.
  static View without_norm(OpContext& ctx, const View& state, const Vector& norm) {
    const View out = copy_of(ctx, state);
    for (int64_t t = 0; t < out.dim(0); ++t) {
      for (int64_t c = 0; c < out.dim(1); ++c) out.row<float>(t)[c] /= norm.view.data<float>()[c];
    }
    return out;
  }

  const Model& right_;
  const Feeding& feeding_;
};

void cut_tails(Step& step) {
  const StepEntries& pools = step.entries.front();
  for (int64_t t = 0; t < step.n_tokens(); ++t) {
    step.visible.data<int32_t>()[t] =
        pools.first_token + pools.visible.data<int32_t>()[t] * static_cast<int32_t>(pools.ratio);
  }
}

void change_first_token(Step& step) {
  for (int64_t t = 0; t < step.n_tokens(); ++t) {
    if (step.positions.data<int32_t>()[t] == 0) step.tokens.data<int32_t>()[t] ^= 1;
  }
}

const Feeding kFeedings[] = {
    {.number = 39, .what = "no tokens of incomplete pools", .trunk = cut_tails},
    {.number = 39, .what = "none in the MTP layer", .mtp = cut_tails, .where = &Errors::first_draft},
    {.number = 23,
     .what = "the first draft from rows before the final norm",
     .undoes_final_norm = true,
     .where = &Errors::first_draft},
    {.number = 23,
     .what = "later drafts from rows before the layer's own norm",
     .undone_norm = &GlmNextMtpWeights::head_norm,
     .where = &Errors::drafts},
    {.number = 0,
     .what = "another embedding with the first token's state",
     .mtp = change_first_token,
     .where = &Errors::first_draft},
};

Errors errors_with(const Feeding& feeding) {
  const TempDir folder;
  must(materialise(fixture_folder(kFixture), folder.path()));
  const std::unique_ptr<Model> right = load_model(folder.path());
  ThreadPool pool(1);
  ModelWeights weights = must(
      load_weights(right->config(), right->numerics(), must(io::Checkpoint::open(folder.path())), pool, {}, nullptr));
  return errors_of(WronglyFed(*right, std::move(weights), feeding));
}

class GlmNextFeedings : public ::testing::TestWithParam<Feeding> {};

TEST_P(GlmNextFeedings, IsNoticed) { EXPECT_GE(errors_with(GetParam()).*GetParam().where, kNoticed); }

TEST(GlmNextMistakesTest, RightlyFedTheOracleIsMet) {
  const Errors errors = errors_with(Feeding{.number = 0, .what = "none"});
  for (const double error : {errors.logits, errors.first_draft, errors.drafts}) EXPECT_LE(error, kRight);
}

INSTANTIATE_TEST_SUITE_P(GlmNext, GlmNextFeedings, ::testing::ValuesIn(kFeedings),
                         [](const auto& row) { return fmt::format("M{}_{}", row.param.number, row.index); });

// ---- in the files ------------------------------------------------------------------------------------------------

struct InFile {
  int number;
  const char* what;
  std::function<void(TempCheckpoint&)> change;
  const char* message;  // a part of it; empty: all is well
};
void PrintTo(const InFile& m, std::ostream* out) { *out << m.number << ": " << m.what; }

constexpr const char* kEmbedding = "model.language_model.embed_tokens.weight";

void add_like_embedding(TempCheckpoint& m, const char* name) {
  DrawnTensor copy = m.tensor(kEmbedding);
  copy.name = name;
  m.add_tensor(copy);
}

const InFile kInFiles[] = {
    {0, "the vision tower is skipped",
     [](TempCheckpoint& m) { add_like_embedding(m, "model.visual.blocks.0.attn.qkv.weight"); }, ""},
    {0, "copies in the MTP layer are skipped",
     [](TempCheckpoint& m) { add_like_embedding(m, "model.language_model.layers.6.embed_tokens.weight"); }, ""},
    {0, "no other tensor is let through",
     [](TempCheckpoint& m) { add_like_embedding(m, "model.language_model.layers.0.self_attn.z_proj.weight"); },
     "model.language_model.layers.0.self_attn.z_proj.weight: expected no such tensor"},
    {0, "a convolution is missing",
     [](TempCheckpoint& m) { m.remove_tensor("model.language_model.layers.0.self_attn.k_conv1d.weight"); },
     "model.language_model.layers.0.self_attn.k_conv1d.weight: expected BF16, F32 or F16 [48, 1, 4], found nothing"},
    {43, "a head over the streams, which V4 has",
     [](TempCheckpoint& m) { add_like_embedding(m, "model.language_model.hc_head_fn"); },
     "model.language_model.hc_head_fn: expected no such tensor"},
};

class GlmNextInFile : public ::testing::TestWithParam<InFile> {};

TEST_P(GlmNextInFile, IsNamedOrSkipped) {
  TempCheckpoint model = TempCheckpoint::from_fixture(kFixture);
  GetParam().change(model);
  const std::string folder = model.write().string();
  const ModelConfig config = must(load_model_config(folder)).config;
  const Status status = check_weights(config, must(io::Checkpoint::open(folder)));
  const std::string message = GetParam().message;
  ASSERT_EQ(status.ok(), message.empty()) << (status.ok() ? "" : status.error().message);
  if (status.ok()) return;
  EXPECT_NE(status.error().message.find(message), std::string::npos) << status.error().message;
}

INSTANTIATE_TEST_SUITE_P(GlmNext, GlmNextInFile, ::testing::ValuesIn(kInFiles),
                         [](const auto& row) { return fmt::format("M{}_{}", row.param.number, row.index); });

}  // namespace
}  // namespace levin::test
