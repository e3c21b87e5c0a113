// Models in official numerics on the tuned kernels of a Hopper device: near the plain set, and the same bits in any chunking,
// company and row count, from graphs and kernel by kernel, with and without drafts.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "arch/load_config.h"
#include "engine/device_runs.h"
#include "engine/input_pack.h"
#include "engine/kernel_changes.h"
#include "engine/loaded_model.h"
#include "engine/near_plain.h"
#include "engine/oracle_trace.h"
#include "ops/cuda_backend.h"

namespace levin::test {
namespace {

class Sm90ModelTest : public ::testing::Test {
 public:
  static RunnerOptions on(CudaBackend& cuda, int64_t n_cache_tokens, bool graphs = true) {
    RunnerOptions options = runner_options(n_cache_tokens, 1);
    options.cuda = &cuda;
    options.graphs = graphs;
    return options;
  }

 protected:
  void SetUp() override {
    Result<std::unique_ptr<CudaBackend>> tuned = open_cuda({.kernels = cuda::KernelSet::kSm90});
    if (!tuned.ok()) GTEST_SKIP() << tuned.error().message;
    tuned_ = std::move(tuned).value();
    plain_ = must(open_cuda({.kernels = cuda::KernelSet::kPlain}));
  }

  static TraceResult trace_on(CudaBackend& cuda, const Model& model, const TraceOptions& options) {
    Runner runner(model, on(cuda, trace_cache_tokens(options)));
    must(runner.ready());
    return must(trace(runner, options));
  }

  std::unique_ptr<CudaBackend> tuned_, plain_;
};

std::unique_ptr<Model> demo(CudaBackend& cuda) {
  return load_model(demo_model_folder("demo-v32"), {.cuda = &cuda, .numerics = NumericsMode::kOfficial});
}

// Mean over rows of |found - expected| / |expected|.
double mean_row_error(const std::vector<float>& found, const std::vector<float>& expected, int64_t d) {
  LEVIN_CHECK(found.size() == expected.size() && !found.empty(), "{} values, {} expected", found.size(),
              expected.size());
  double sum = 0;
  for (size_t row = 0; row < expected.size(); row += static_cast<size_t>(d)) {
    double error = 0, norm = 0;
    for (size_t i = row; i < row + static_cast<size_t>(d); ++i) {
      error += std::pow(double{found[i]} - expected[i], 2);
      norm += std::pow(double{expected[i]}, 2);
    }
    sum += std::sqrt(error / norm);
  }
  return sum * static_cast<double>(d) / static_cast<double>(expected.size());
}

// Of a text: the residual stream after each layer, [S, D], and the indices that each layer attends to.
struct Layers {
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<int32_t>> topk;
};

Layers layers_of(CudaBackend& cuda, const Model& model, const Ids& text) {
  Runner runner(model, Sm90ModelTest::on(cuda, std::ssize(text)));
  must(runner.ready());
  Layers out{std::vector<std::vector<float>>(static_cast<size_t>(model.config().n_layers)),
             std::vector<std::vector<int32_t>>(static_cast<size_t>(model.config().n_layers))};
  const auto append = [](auto& to, const auto* from, int64_t n) { to.insert(to.end(), from, from + n); };
  const Probe probe{
      .on_layer_output = [&](int layer,
                             View x) { append(out.rows[static_cast<size_t>(layer)], x.data<float>(), x.n_elements()); },
      .on_topk =
          [&](int layer, View topk) {
            append(out.topk[static_cast<size_t>(layer)], topk.data<int32_t>(), topk.n_elements());
          },
      .on_window_rows = {},
      .on_taps = {}};
  SequencePages pages(runner.pools());
  must(pages.grow(std::ssize(text)));
  constexpr size_t kChunkTokens = 512;
  for (size_t begin = 0; begin < text.size(); begin += kChunkTokens) {
    const SequenceChunk chunk{.tokens = std::span(text).subspan(begin, std::min(kChunkTokens, text.size() - begin)),
                              .first_position = static_cast<int32_t>(begin),
                              .pages = &pages};
    runner.begin_step();
    runner.trunk({&chunk, 1}, &probe);
  }
  return out;
}

void expect_near(const Layers& tuned, const Layers& plain, const ModelConfig& c) {
  EXPECT_GE(shared_topk(tuned.topk[0], plain.topk[0], c.n_topk), 0.998);
  for (size_t layer = 0; layer < tuned.rows.size(); ++layer) {
    const double error = mean_row_error(tuned.rows[layer], plain.rows[layer], c.d_model);
    const double tolerance = row_tolerance(static_cast<int>(layer) + 1);
    fmt::print("layer {}: mean row error {:.5f}, at most {:.5f}\n", layer, error, tolerance);
    EXPECT_LE(error, tolerance) << "layer " << layer;
    EXPECT_GT(error, 0) << "layer " << layer << ": the tuned kernels were not used";
  }
}

TEST_F(Sm90ModelTest, TheOfficialFixtureIsNearThePlainSetAndTheSameInAnyChunking) {
  const Oracle oracle("v32-official");
  const ModelChoices official{.numerics = NumericsMode::kOfficial};
  ModelChoices tuned = official, plain = official;
  tuned.cuda = tuned_.get(), plain.cuda = plain_.get();
  const std::unique_ptr<Model> on_tuned = load_fixture("v32-official", tuned);
  const TraceResult base = trace_on(*tuned_, *on_tuned, oracle_options(oracle, 0));
  const Ids text = oracle_options(oracle, 0).ids;
  expect_near(layers_of(*tuned_, *on_tuned, text), layers_of(*plain_, *load_fixture("v32-official", plain), text),
              on_tuned->config());
  EXPECT_GE(shared_topk(base.topk[0], oracle.values<int32_t>("official.topk.0"), on_tuned->config().n_topk), 0.998);
  for (const int64_t n_chunk_tokens : {1, 7, 64}) {
    SCOPED_TRACE(n_chunk_tokens);
    expect_same_bits(trace_on(*tuned_, *on_tuned, oracle_options(oracle, n_chunk_tokens)), base);
  }
}

TEST_F(Sm90ModelTest, DemoV32IsNearThePlainSet) {
  const std::unique_ptr<Model> tuned = demo(*tuned_), plain = demo(*plain_);
  const Ids text = random_ids(3, 700, tuned->config().n_vocab);
  expect_near(layers_of(*tuned_, *tuned, text), layers_of(*plain_, *plain, text), tuned->config());
}

// ---- the same bits ----

constexpr size_t kTextTokens = 400;  // more than are selected

void expect_same(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0);
}

TEST_F(Sm90ModelTest, DemoV32HasTheSameBitsInAnyCompanyAndChunking) {
  const std::unique_ptr<Model> model = demo(*tuned_);
  const RunnerOptions options = on(*tuned_, 8192);
  const std::vector<float> expected = bits_of(*model, options, {.graphs = false}, kTextTokens);
  for (const GraphRun& run :
       {GraphRun{}, GraphRun{.chunk_tokens = 1}, GraphRun{.chunk_tokens = 7}, GraphRun{.chunk_tokens = 400},
        GraphRun{.n_company = 1}, GraphRun{.n_company = 4}, GraphRun{.chunk_tokens = 50, .n_company = 7},
        GraphRun{.graphs = false, .n_company = 11}}) {
    SCOPED_TRACE(fmt::format("{} chunks of {}, with {} others", run.graphs, run.chunk_tokens, run.n_company));
    expect_same(bits_of(*model, options, run, kTextTokens), expected);
  }
}

// Rows of one sequence that are scored together: as many as a chunk has, whether or not those of another stand before them.
TEST_F(Sm90ModelTest, DemoV32HasTheSameBitsHoweverManyRowsAreTogether) {
  const std::unique_ptr<Model> model = demo(*tuned_);
  const RunnerOptions options = on(*tuned_, 8192);
  const std::vector<float> expected = bits_of(*model, options, {.graphs = false, .chunk_tokens = 1}, kTextTokens);
  for (const int64_t chunk_tokens : {2, 3, 4, 5, 8, 9}) {
    for (const bool graphs : {true, false}) {
      SCOPED_TRACE(fmt::format("{} chunks of {}", graphs, chunk_tokens));
      expect_same(
          bits_of(*model, options, {.graphs = graphs, .chunk_tokens = chunk_tokens, .n_company = 2}, kTextTokens),
          expected);
    }
  }
}

TEST_F(Sm90ModelTest, DemoV32HasTheSameBitsAtTheRowCountsWhereKernelsChange) {
  const std::unique_ptr<Model> model = demo(*tuned_);
  const RunnerOptions options = on(*tuned_, 8192);
  const std::vector<float> expected = bits_of(*model, options, {.graphs = false}, kTextTokens);
  const std::set<int64_t> rows = rows_where_kernels_change(*model, kTextTokens, 512, tuned_->device().n_sms);
  EXPECT_GE(rows.size(), 6u);
  for (const int64_t n_rows : rows) {
    SCOPED_TRACE(n_rows);
    expect_same(bits_of(*model, options, {.graphs = false, .chunk_tokens = n_rows}, kTextTokens), expected);
  }
}

TEST_F(Sm90ModelTest, DemoV32AnswersAlikeWithDraftsAndInCompany) {
  const std::unique_ptr<Model> model = demo(*tuned_);
  const std::vector<Ids> prompts = prompts_for(*model);
  Runner graphs(*model, on(*tuned_, 4 * kContextTokens)), eager(*model, on(*tuned_, 4 * kContextTokens, false));
  must(graphs.ready()), must(eager.ready());
  const std::vector<Ids> expected = tokens_of(answer(eager, prompts, {}));
  for (const Circumstances& c :
       {Circumstances{}, Circumstances{.n_spec_steps = 3},
        Circumstances{.n_spec_steps = 2, .max_running = 4, .chunk_tokens = 33, .overlap = true}}) {
    SCOPED_TRACE(c.n_spec_steps);
    EXPECT_EQ(tokens_of(answer(graphs, prompts, c)), expected);
    EXPECT_EQ(tokens_of(answer(eager, prompts, c)), expected);
  }
}

TEST_F(Sm90ModelTest, AFaultEndsItsRequestAndNoOther) {
  constexpr int32_t kPoisoned = 7;
  const std::unique_ptr<Model> model =
      load_model(demo_model_folder("demo-v32"),
                 {.cuda = tuned_.get(), .numerics = NumericsMode::kOfficial, .change_weights = [](ModelWeights& w) {
                    const int64_t d = w.embed.dim(1);
                    if (w.embed.dtype() == DType::kBF16) {
                      std::fill_n(w.embed.row<uint16_t>(kPoisoned), d, uint16_t{0x7FC0});
                    } else {
                      std::fill_n(w.embed.row<float>(kPoisoned), d, std::numeric_limits<float>::quiet_NaN());
                    }
                  }});
  std::vector<Ids> prompts = prompts_for(*model);
  for (const uint32_t n : {330, 5, 41, 90})  // more than are selected, and fewer
    prompts.push_back(random_ids(n, n, model->config().n_vocab));
  for (Ids& prompt : prompts) std::replace(prompt.begin(), prompt.end(), kPoisoned, kPoisoned + 1);
  Runner runner(*model, on(*tuned_, 8 * kContextTokens));
  must(runner.ready());
  const std::vector<Ids> expected = tokens_of(answer(runner, prompts, {}));
  for (const size_t poisoned : {size_t{1}, size_t{4}}) {
    SCOPED_TRACE(poisoned);
    std::vector<Ids> changed = prompts;
    changed[poisoned][20] = kPoisoned;
    const std::vector<std::unique_ptr<Generation>> answers = answer(runner, changed, {.max_running = 8});
    const std::vector<Ids> found = tokens_of(answers);
    for (size_t i = 0; i < prompts.size(); ++i) {
      EXPECT_EQ(answers[i]->error.has_value(), i == poisoned) << i;
      if (i != poisoned) {
        EXPECT_EQ(found[i], expected[i]) << i;
      }
    }
  }
}

// ---- the widths of DeepSeek-V3.2 ----

// Of a layer with experts; of more tokens the shared expert's are its own.
constexpr int64_t kLaunches = 18;

// Layers and the MTP layer of random weights, with fewer experts and tokens, whose number changes no shape.
std::unique_ptr<Model> real_widths(CudaBackend& cuda, std::initializer_list<const char*> layers) {
  std::vector<ConfigOverride> overrides = {must(parse_config_override("n_routed_experts=16")),
                                           must(parse_config_override("vocab_size=8192"))};
  for (const char* override : layers) overrides.push_back(must(parse_config_override(override)));
  ModelConfig config =
      must(load_model_config(LEVIN_SOURCE_DIR "/tests/fixtures/deepseek-v3.2", Registry::built_in(), overrides)).config;
  const Numerics numerics = numerics_of_family(must(make_numerics(NumericsMode::kOfficial, "auto")), *config.family);
  ThreadPool pool(2);
  ModelWeights weights = must(dummy_weights(config, numerics, pool, MatrixForm::kRowsInPlace));
  must(place_weights(cuda, pool, weights));
  return make_model(std::move(config), numerics, std::move(weights), Selection::kIndexer);
}

TEST_F(Sm90ModelTest, V32sWidthsHaveTheSameBitsInAnyCompanyAndChunking) {
  constexpr size_t kRealTokens = 2400;  // more than are selected
  const std::unique_ptr<Model> model = real_widths(*tuned_, {"num_hidden_layers=3", "first_k_dense_replace=1"});
  const RunnerOptions options = on(*tuned_, 32768);
  const std::vector<float> expected = bits_of(*model, options, {.graphs = false, .chunk_tokens = 512}, kRealTokens);
  for (const GraphRun& run :
       {GraphRun{.chunk_tokens = 512}, GraphRun{.chunk_tokens = 61}, GraphRun{.chunk_tokens = 2400},
        GraphRun{.chunk_tokens = 512, .n_company = 1}, GraphRun{.chunk_tokens = 300, .n_company = 3},
        GraphRun{.graphs = false, .chunk_tokens = 512, .n_company = 7}}) {
    SCOPED_TRACE(fmt::format("{} chunks of {}, with {} others", run.graphs, run.chunk_tokens, run.n_company));
    expect_same(bits_of(*model, options, run, kRealTokens), expected);
  }
}

// What a decode step of some rows consists of as a graph.
struct StepParts {
  int64_t n_kernels = 0;
  int64_t n_others = 0;  // copies and fills
};

StepParts parts_of_step(CudaBackend& cuda, const Model& model, int64_t n_rows) {
  constexpr int32_t kPosition = 3000;  // more slots than are selected
  SequencePools pools(model.cache_layout().page_kinds(), {.n_tokens = n_rows * 4096, .n_sequences = n_rows});
  const KvCache cache = must(KvCache::on_device(cuda, model.cache_layout(), pools));
  std::vector<std::unique_ptr<SequencePages>> pages;
  std::vector<SequenceChunk> chunks;
  const Ids token = {7};
  for (int64_t i = 0; i < n_rows; ++i) {
    pages.push_back(std::make_unique<SequencePages>(pools));
    must(pages.back()->grow(kPosition + 1));
    chunks.push_back({.tokens = token, .first_position = kPosition, .pages = pages.back().get()});
  }
  Arena arena;
  Step step = build_step(arena, chunks, SlotRule::kAtPosition, pools.kinds());
  const ArenaScope scratch(cuda.arena());
  InputPack pack;
  for_each_view(step, [&](View& view) { pack.add(view); });
  pack.send(cuda);
  OpContext ctx = op_context(cuda);
  const auto run = [&] {
    const ArenaScope of_step(cuda.arena());
    model.trunk(ctx, step, cache, nullptr);
  };
  run();
  must(cuda.synchronize());
  const std::unique_ptr<RecordedWork> work = must(cuda.record(run));
  return {work->n_kernels(), work->n_parts() - work->n_kernels()};
}

// Of a layer with experts and V3.2's widths: what one more of them adds to a step.
TEST_F(Sm90ModelTest, ALayerIsFewLaunchesAndNothingElse) {
  const auto layers = [&](const char* n_layers) {
    return real_widths(*tuned_, {n_layers, "first_k_dense_replace=1", "num_nextn_predict_layers=0"});
  };
  const std::unique_ptr<Model> two = layers("num_hidden_layers=2"), three = layers("num_hidden_layers=3");
  for (const int64_t n_rows : {1, 8, 32}) {
    const StepParts less = parts_of_step(*tuned_, *two, n_rows), more = parts_of_step(*tuned_, *three, n_rows);
    fmt::print("{} rows: {} launches a layer, {} copies and fills; a step of three layers {} and {}\n", n_rows,
               more.n_kernels - less.n_kernels, more.n_others - less.n_others, more.n_kernels, more.n_others);
    EXPECT_LE(more.n_kernels - less.n_kernels, kLaunches);
    EXPECT_EQ(more.n_others - less.n_others, 0);
  }
}

// What a layer selects and which experts it chooses is the plain run's; with its own, each layer's input differs more.
TEST_F(Sm90ModelTest, ThreeLayersOfV32sWidthsAreNearThePlainSet) {
  const std::unique_ptr<Model> model = real_widths(*tuned_, {"num_hidden_layers=3", "first_k_dense_replace=1"});
  const Ids text = random_ids(1, 2600, model->config().n_vocab);  // more than are selected
  const std::vector<Forced> ways = {Forced::kChoicesAndInputs, Forced::kChoices};
  const auto layers = differences_of_layers(*tuned_, *plain_, *model, text, ways);
  for (size_t way = 0; way < ways.size(); ++way) expect_near_plain(layers[way], ways[way]);
}

// One layer at a time, dense and with experts, and where the choices between near ties of random weights, which differ between
// any two programs, are none: all experts are chosen, and all tokens attended to.
TEST_F(Sm90ModelTest, LayersOfV32sWidthsAreNearThePlainSet) {
  constexpr const char* kLayers[] = {"first_k_dense_replace=1", "first_k_dense_replace=0"};
  for (const char* layer : kLayers) {
    SCOPED_TRACE(layer);
    const std::unique_ptr<Model> model = real_widths(
        *tuned_,
        {"num_hidden_layers=1", layer, "num_nextn_predict_layers=0", "num_experts_per_tok=16", "topk_group=8"});
    const Ids text = random_ids(1, 1500, model->config().n_vocab);
    // The weights lie in the memory of the device, which both sets read alike.
    expect_near(layers_of(*tuned_, *model, text), layers_of(*plain_, *model, text), model->config());
  }
}

}  // namespace
}  // namespace levin::test
