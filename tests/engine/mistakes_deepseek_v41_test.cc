// Mistakes that an implementation of DeepSeek-V4.1 may make (model_spec.md 9), made here on purpose, one row each: every
// one must move an output far beyond the tolerance that the right computation keeps, or be refused by name.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>

#include "arch/deepseek_v41/config.h"
#include "arch/deepseek_v41/dspark.h"
#include "arch/deepseek_v41/engram.h"
#include "arch/deepseek_v41/weights.h"
#include "engine/loaded_model.h"
#include "engine/oracle.h"
#include "engine/trace.h"
#include "model/blocks/moe.h"
#include "model/rope_config.h"
#include "ops/streams.h"
#include "support/temp_checkpoint.h"

namespace levin::test {
namespace {

constexpr const char* kFixture = "v41-flash";
constexpr double kRight = 2e-5;    // what a right implementation keeps
constexpr double kNoticed = 1e-4;  // what a mistake must exceed

struct Errors {
  double logits = 0, drafts = 0, confidence = 0;
};

// Of the first block, whatever is accepted of it.
Errors errors_of(const Model& model) {
  const Oracle oracle(kFixture);
  const std::vector<int64_t> ids = oracle.values<int64_t>("input_ids");
  const TraceOptions options{.ids = {ids.begin(), ids.end()}, .n_greedy = 1, .n_drafts = 5};
  Runner runner(model, runner_options(trace_cache_tokens(options)));
  const TraceResult result = must(trace(runner, options));
  return {.logits = relative_error(result.logits, oracle.values<float>("logits")),
          .drafts = relative_error(result.draft_logits, oracle.values<float>("draft.logits")),
          .confidence = relative_error(result.draft_confidence, oracle.values<float>("draft.confidence"))};
}

Errors errors_with(const ModelChoices& choices) { return errors_of(*load_fixture(kFixture, choices)); }

TEST(V41MistakesTest, WithoutOneTheOracleIsMet) {
  const Errors errors = errors_with({});
  EXPECT_LE(errors.logits, kRight);
  EXPECT_LE(errors.drafts, kRight);
  EXPECT_LE(errors.confidence, kRight);
}

void fill(Vector& v, float x) { std::fill_n(v.view.data<float>(), v.view.n_elements(), x); }

ModelChoices every_layer(const std::function<void(V41LayerWeights&)>& change) {
  return {.change_weights = [=](ModelWeights& w) {
    for (V41LayerWeights& layer : deepseek_v41::own(w).layers) change(layer);
  }};
}
ModelChoices every_memory(const std::function<void(EngramWeights&)>& change) {
  return every_layer([=](V41LayerWeights& layer) {
    if (layer.engram) change(*layer.engram);
  });
}
ModelChoices every_source(const std::function<void(V41AttentionWeights&)>& change) {
  return every_layer([=](V41LayerWeights& layer) {
    if (layer.attention.compressor) change(layer.attention);
  });
}
ModelChoices with_config(const std::function<void(ModelConfig&)>& change) { return {.change_config = change}; }
ModelChoices with_own(const std::function<void(DeepseekV41Config&)>& change) {
  return with_config([=](ModelConfig& c) { change(deepseek_v41::own(c)); });
}

struct Mistake {
  const char* what;
  ModelChoices choices;
};
void PrintTo(const Mistake& m, std::ostream* out) { *out << m.what; }

const Mistake kMistakes[] = {
    {"one Sinkhorn step", with_config([](ModelConfig& c) { c.n_sinkhorn_steps = 1; })},
    {"experts not clamped", with_config([](ModelConfig& c) { c.ffn_limit = ops::kNoLimit; })},
    {"shared experts dropped", every_layer([](V41LayerWeights& w) { w.moe.shared.reset(); })},
    {"entries of the first source of the ratio in place of the nearest",
     with_own([](DeepseekV41Config& c) { c.entries[5].source = 2; })},
    {"one level of selection", with_own([](DeepseekV41Config& c) { c.candidates.source = -1; })},
    {"candidates of too few blocks", with_own([](DeepseekV41Config& c) { c.candidates.n_blocks = 5; })},
    {"entries and their layers rotated as the others",
     with_own([](DeepseekV41Config& c) { c.compressed_rope_theta = 10000, c.compressed_yarn.reset(); })},
    {"YaRN dropped", with_own([](DeepseekV41Config& c) { c.compressed_yarn.reset(); })},
    {"layers without entries rotated as those with", with_config([](ModelConfig& c) { c.rope_theta = 160000; })},
    {"entries weighted by their values, made of their gates", every_source([](V41AttentionWeights& w) {
       if (w.compressor->gate) std::swap(w.compressor->values, *w.compressor->gate);
     })},
    {"entries that are the mean of their tokens", every_source([](V41AttentionWeights& w) {
       if (!w.compressor->gate) return;
       Matrix& gate = w.compressor->gate->w;
       std::fill_n(const_cast<std::byte*>(gate.data().data()), gate.data().n_bytes(), std::byte{0});
     })},
    {"entries not normed by their weight", every_source([](V41AttentionWeights& w) { fill(w.compressor->norm, 1); })},
    {"no sink", every_layer([](V41LayerWeights& w) { fill(w.attention.sink, -1e30f); })},
    {"no memory", every_memory([](EngramWeights& w) { w.table.codes = nullptr; })},
    {"a memory whose columns all begin with row 0",
     every_memory([](EngramWeights& w) { std::fill(w.hash.offsets.begin(), w.hash.offsets.end(), 0); })},
    {"multipliers from the oldest token to the newest",
     every_memory([](EngramWeights& w) { std::reverse(w.hash.multipliers.begin(), w.hash.multipliers.end()); })},
    {"the multipliers of another layer",
     every_memory([](EngramWeights& w) { w.hash.multipliers = {27526976048817, 81659241234921, 10877931191531, 1}; })},
    {"another class before the first token",
     {.change_weights = [](ModelWeights& w) { ++deepseek_v41::own(w).pad_class; }}},
    {"classes numbered in another order",
     {.change_weights =
          [](ModelWeights& w) {
            const View& classes = deepseek_v41::own(w).token_classes.view;
            float* const first = classes.data<float>();
            const float last = *std::max_element(first, first + classes.dim(0));
            for (int64_t i = 0; i < classes.dim(0); ++i) first[i] = last - first[i];
          }}},
    {"gates without the weight of the streams", every_memory([](EngramWeights& w) { fill(w.q_weight, 1); })},
    {"gates without the weight of the keys", every_memory([](EngramWeights& w) { fill(w.k_weight, 1); })},
};

class V41MistakesTable : public ::testing::TestWithParam<Mistake> {};

TEST_P(V41MistakesTable, IsNoticed) { EXPECT_GE(errors_with(GetParam().choices).logits, kNoticed); }

INSTANTIATE_TEST_SUITE_P(DeepseekV41, V41MistakesTable, ::testing::ValuesIn(kMistakes),
                         [](const auto& row) { return fmt::format("M{}", row.index); });

// ---- in the drafter ----------------------------------------------------------------------------------------------

const Mistake kDrafterMistakes[] = {
    {"all experts of the trunk's number", with_own([](DeepseekV41Config& c) { c.dspark->n_active = 3; })},
    {"target layers one off", with_own([](DeepseekV41Config& c) {
       for (int& layer : c.dspark->target_layers) --layer;
     })},
    {"another noise token", with_own([](DeepseekV41Config& c) { --c.dspark->noise_token; })},
    {"taps not normed by their weight",
     {.change_weights = [](ModelWeights& w) { fill(deepseek_v41::own(w).dspark->tap_norm, 1); }}},
    {"stages in the other order",
     {.change_weights =
          [](ModelWeights& w) {
            std::vector<V41LayerWeights>& stages = deepseek_v41::own(w).dspark->stages;
            std::reverse(stages.begin(), stages.end());
          }}},
};

class V41DrafterMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(V41DrafterMistakes, IsNoticedInDraftsAlone) {
  const Errors errors = errors_with(GetParam().choices);
  EXPECT_LE(errors.logits, kRight);
  EXPECT_GE(std::max(errors.drafts, errors.confidence), kNoticed);
}

INSTANTIATE_TEST_SUITE_P(DeepseekV41, V41DrafterMistakes, ::testing::ValuesIn(kDrafterMistakes),
                         [](const auto& row) { return fmt::format("M{}", row.index); });

// ---- in the order of things --------------------------------------------------------------------------------------

enum class Order : uint8_t { kAsItIs, kOwnRead, kMemoryAfterTheLayer, kTapsAfterTheLayer, kMeanAtTheEnd };

// The trunk with the steps of DeepSeek-V4 in some place.
class OtherOrder final : public Model, public BlockDrafting {
 public:
  OtherOrder(const Model& right, ModelWeights weights, Order order)
      : Model(right.config(), right.numerics(), std::move(weights)), order_(order) {}

  bool has_mtp() const override { return true; }
  const BlockDrafting* block_drafting() const override { return this; }
  int64_t d_state() const override { return 0; }
  int32_t noise_token() const override { return deepseek_v41::own(config()).dspark->noise_token; }
  ForwardRows mtp(OpContext&, const Step&, const MtpInput&, const KvCache&, const Probe*) const override { return {}; }

  ForwardRows trunk(OpContext& ctx, const Step& step, const KvCache& cache, const Probe* probe) const override {
    const ModelConfig& c = config();
    Pass p(ctx, numerics(), step, cache, probe);
    EngramBlock engram(c, own());
    engram.begin(p);
    const V41Rotations r = rotations(p);
    const View streams = spread_streams(p, p.embed(weights().embed), c.n_streams);
    const View read = first_read(p, own());
    const CandidateBlocks& candidates = deepseek_v41::own(c).candidates;
    SharedTopk topk{.slots = p.allocate(DType::kI32, {p.n_tokens(), c.n_topk}),
                    .blocks = p.allocate(DType::kI32, {p.n_tokens(), candidates.n_blocks})};
    const V41DsparkBlock drafter{c, own(), r};
    const View taps = drafter.allocate_taps(p);
    for (int i = 0; i < c.n_layers; ++i) {
      const V41Layer layer{c, own(), own().layers[static_cast<size_t>(i)], r, i};
      if (order_ != Order::kMemoryAfterTheLayer) engram.write(p, i, streams);
      if (order_ != Order::kTapsAfterTheLayer) drafter.take(p, i, streams, taps);
      if (order_ == Order::kOwnRead) {
        read_with_own_weights(p, layer, streams, read, topk);
      } else {
        layer.forward(p, streams, read, &topk);
      }
      if (order_ == Order::kMemoryAfterTheLayer) engram.write(p, i, streams);
      if (order_ == Order::kTapsAfterTheLayer) drafter.take(p, i, streams, taps);
    }
    drafter.append(p, taps);
    const View x = order_ == Order::kMeanAtTheEnd ? p.allocate(DType::kF32, {p.n_tokens(), c.d_model})
                                                  : read_streams(p, streams, read);
    if (order_ == Order::kMeanAtTheEnd) mean_of_streams(p, streams, x);
    return {.hidden = p.rms_norm(x, weights().norm, c.norm_eps), .state = {}, .topk = {}};
  }
  ForwardRows draft_blocks(OpContext& ctx, const Step& step, const KvCache& cache) const override {
    Pass p(ctx, numerics(), step, cache, nullptr);
    const V41Rotations r = rotations(p);
    return V41DsparkBlock{config(), own(), r}.forward(p, p.embed(weights().embed));
  }
  DraftTerms draft_terms(OpContext& ctx, View before, View state) const override {
    const Step no_step;
    const KvCache no_cache;
    Pass p(ctx, numerics(), no_step, no_cache, nullptr);
    return dspark_terms(p, *own().dspark, before, state);
  }

 private:
  const DeepseekV41Weights& own() const { return deepseek_v41::own(weights()); }

  // DeepSeek-V4: a sublayer reads with the weights that it makes itself.
  void read_with_own_weights(Pass& p, const V41Layer& layer, View streams, View read, SharedTopk& topk) const {
    const ModelConfig& c = config();
    const StreamBlock around_attention{c, layer.w.attention_streams}, around_experts{c, layer.w.ffn_streams};
    const StreamRead in = around_attention.read(p, streams);
    const View h = p.rms_norm(in.x, layer.w.attention_norm, c.norm_eps);
    layer.attention().append(p, h);
    around_attention.write(p, streams, in, layer.attention().attend(p, h, &topk));
    const StreamRead mid = around_experts.read(p, streams);
    const MoeBlock moe{.params = moe_params(c), .weights = layer.w.moe};
    around_experts.write(p, streams, mid, moe.forward(p, p.rms_norm(mid.x, layer.w.ffn_norm, c.norm_eps)));
    const View next = around_experts.weigh(p, streams).read;
    std::copy_n(next.data<float>(), next.n_elements(), read.data<float>());
  }

  V41Rotations rotations(Pass& p) const {
    const DeepseekV41Config& c = deepseek_v41::own(config());
    const std::vector<float> compressed = rope_frequencies(c.compressed_rope_theta, c.compressed_yarn, config().d_rope);
    V41Rotations r{.plain = p.rotation(p.step().positions, config().rope_frequencies()),
                   .compressed = p.rotation(p.step().positions, compressed)};
    r.plain_inverse = p.inverse(r.plain);
    r.compressed_inverse = p.inverse(r.compressed);
    for (const StepEntries& e : p.step().entries) r.entries.push_back(p.rotation(e.positions, compressed));
    return r;
  }

  Order order_;
};

Errors errors_in_order(Order order) {
  const TempDir folder;
  must(materialise(fixture_folder(kFixture), folder.path()));
  const std::unique_ptr<Model> right = load_model(folder.path(), {});
  const io::Checkpoint checkpoint = must(io::Checkpoint::open(folder.path()));
  ThreadPool pool(1);
  return errors_of(
      OtherOrder(*right, must(load_weights(right->config(), right->numerics(), checkpoint, pool, {}, nullptr)), order));
}

TEST(V41Order, TheRightOneMeetsTheOracle) {
  const Errors errors = errors_in_order(Order::kAsItIs);
  EXPECT_LE(std::max({errors.logits, errors.drafts, errors.confidence}), kRight);
}

TEST(V41Order, StreamsReadWithASublayersOwnWeightsAreNoticed) {
  EXPECT_GE(errors_in_order(Order::kOwnRead).logits, kNoticed);
}

TEST(V41Order, AMemoryWrittenAfterTheLayerIsNoticed) {
  EXPECT_GE(errors_in_order(Order::kMemoryAfterTheLayer).logits, kNoticed);
}

TEST(V41Order, TheMeanOfTheStreamsAtTheEndIsNoticed) {
  EXPECT_GE(errors_in_order(Order::kMeanAtTheEnd).logits, kNoticed);
}

TEST(V41Order, TapsAfterTheTargetLayersAreNoticedInDraftsAlone) {
  const Errors errors = errors_in_order(Order::kTapsAfterTheLayer);
  EXPECT_LE(errors.logits, kRight);
  EXPECT_GE(errors.drafts, kNoticed);
}

// ---- in the files ------------------------------------------------------------------------------------------------

struct InFile {
  const char* what;
  std::function<void(TempCheckpoint&)> change;
  const char* message;  // a part of it
};
void PrintTo(const InFile& m, std::ostream* out) { *out << m.what; }

void add_like(TempCheckpoint& m, const char* name, const char* like) {
  DrawnTensor copy = m.tensor(like);
  copy.name = name;
  m.add_tensor(copy);
}

const InFile kInFiles[] = {
    {"a gate where entries are of one token",
     [](TempCheckpoint& m) {
       add_like(m, "layers.6.attn.compressor.wgate.weight", "layers.6.attn.compressor.wkv.weight");
     },
     "layers.6.attn.compressor.wgate.weight: expected no such tensor"},
    {"no gate where they are of two",
     [](TempCheckpoint& m) { m.remove_tensor("layers.4.attn.compressor.wgate.weight"); },
     "layers.4.attn.compressor.wgate.weight: expected BF16, F32 or F16 [64, 96], found nothing"},
    {"index keys in a layer that makes no entries",
     [](TempCheckpoint& m) { add_like(m, "layers.3.attn.indexer.wk.weight", "layers.2.attn.indexer.wk.weight"); },
     "layers.3.attn.indexer.wk.weight: expected no such tensor"},
    {"a head over the streams, which V4 has", [](TempCheckpoint& m) { add_like(m, "hc_head_fn", "norm.weight"); },
     "hc_head_fn: expected no such tensor"},
    {"a memory in another layer",
     [](TempCheckpoint& m) { add_like(m, "layers.2.engram.embed.weight", "layers.1.engram.embed.weight"); },
     "layers.2.engram.embed.weight: expected no such tensor"},
    {"scales of V4's blocks",
     [](TempCheckpoint& m) {
       DrawnTensor scales = m.tensor("layers.0.attn.wq_b.scale");
       m.remove_tensor(scales.name);
       scales.shape = {2, 1};
       scales.bytes.resize(2);
       m.add_tensor(scales);
     },
     "layers.0.attn.wq_b.scale: expected F32 or F8_E8M0 [8, 2], found F8_E8M0 [2, 1]"},
    {"a table without scales", [](TempCheckpoint& m) { m.remove_tensor("layers.1.engram.embed.scale"); },
     "layers.1.engram.embed.scale: expected F8_E8M0"},
};

class V41InFile : public ::testing::TestWithParam<InFile> {};

TEST_P(V41InFile, IsNamed) {
  TempCheckpoint model = TempCheckpoint::from_fixture(kFixture);
  GetParam().change(model);
  const std::string folder = model.write().string();
  const ModelConfig config = must(load_model_config(folder)).config;
  const Status status = check_weights(config, must(io::Checkpoint::open(folder)));
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find(GetParam().message), std::string::npos) << status.error().message;
}

INSTANTIATE_TEST_SUITE_P(DeepseekV41, V41InFile, ::testing::ValuesIn(kInFiles),
                         [](const auto& row) { return fmt::format("M{}", row.index); });

// Tensors of images are left alone, and said to be.
TEST(V41InFile, OnlyWhatBelongsToImagesIsSkipped) {
  const TempDir folder;
  must(materialise(fixture_folder(kFixture), folder.path()));
  const ModelConfig config = must(load_model_config(folder.path())).config;
  const WeightReport report = validate_weights(config, must(io::Checkpoint::open(folder.path())));
  EXPECT_EQ(report.errors, std::vector<std::string>());
  EXPECT_EQ(report.warnings,
            (std::vector<std::string>{"vision.* (1 tensor) is not used: images are not read",
                                      "aligner.* (1 tensor) is not used: images are not read",
                                      "image_* (1 tensor) is not used: images are not read",
                                      "layers.*.ffn.gate.bias_vl (11 tensors) is not used: images are not read",
                                      "mtp.*.ffn.gate.bias_vl (2 tensors) is not used: images are not read"}));
}

// The hashes are of classes of tokens, which follow from tokenizer.json.
TEST(V41InFile, AnotherModelsTokenizerIsNamed) {
  const TempDir folder;
  must(materialise(fixture_folder(kFixture), folder.path()));
  const auto load = [&] {
    const ModelConfig config = must(load_model_config(folder.path())).config;
    ThreadPool pool(1);
    return load_weights(config, {}, must(io::Checkpoint::open(folder.path())), pool, {}, nullptr);
  };
  EXPECT_TRUE(load().ok());
  const std::filesystem::path tokenizer = folder.path() / "tokenizer.json";
  std::filesystem::remove(tokenizer);
  EXPECT_FALSE(load().ok());
  std::filesystem::copy_file(demo_model_folder() / "tokenizer.json", tokenizer);
  const auto refused = load();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kModelInvalid);
  EXPECT_NE(
      refused.error().message.find("(engram_compressed_vocab_size); the model's own tokenizer.json belongs there"),
      std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace levin::test
