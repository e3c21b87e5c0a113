// The shapes of released models on the tuned kernels of a Hopper device: layers, experts and vocabulary as released, random
// weights, texts that are several times as long as what is selected of them. The bits of a row are to be the same in all
// circumstances that must not show. Minutes on a device; LEVIN_TEST_DEVICE (engine/tested_device.h) chooses the kernel set.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "arch/load_config.h"
#include "engine/device_runs.h"
#include "engine/knowing_drafter.h"
#include "engine/loaded_model.h"
#include "ops/cuda_backend.h"

namespace levin::test {
namespace {

constexpr size_t kTextTokens = 6000;
constexpr int64_t kAnswerTokensHere = 18;

// A dense layer, two with experts and the MTP layer.
std::unique_ptr<Model> three_layers(CudaBackend& cuda, const std::string& released) {
  std::vector<ConfigOverride> overrides;
  for (const char* override : {"num_hidden_layers=3", "first_k_dense_replace=1"}) {
    overrides.push_back(must(parse_config_override(override)));
  }
  ModelConfig config = must(load_model_config(fixture_folder(released), Registry::built_in(), overrides)).config;
  const Numerics numerics = numerics_of_family(must(make_numerics(NumericsMode::kOfficial, "auto")), *config.family);
  ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
  ModelWeights weights = must(dummy_weights(config, numerics, pool, MatrixForm::kRowsInPlace));
  must(place_weights(cuda, pool, weights));
  return make_model(std::move(config), numerics, std::move(weights), Selection::kIndexer);
}

class RealShapesTest : public ::testing::TestWithParam<const char*> {
 protected:
  // One model at a time: each is a third of a device's memory.
  static void TearDownTestSuite() { loaded().clear(); }

  void SetUp() override {
    if (tested_cuda() == nullptr) GTEST_SKIP() << "on a device alone: set LEVIN_TEST_DEVICE";
    std::map<std::string, std::unique_ptr<Model>>& models = loaded();
    if (!models.contains(GetParam())) {
      models.clear();
      models[GetParam()] = three_layers(*tested_cuda(), GetParam());
    }
    model_ = models.at(GetParam()).get();
  }

  // Rows of the longest step, which windows of the caches follow.
  static RunnerOptions options(int64_t n_sequences) {
    RunnerOptions out = runner_options(n_sequences * (static_cast<int64_t>(kTextTokens) + 2 * kPageTokens), 1);
    out.n_sequences = n_sequences;
    return out;
  }

  void expect_bits(const GraphRun& run, const std::vector<float>& expected) const {
    SCOPED_TRACE(fmt::format("{}, chunks of {}, with {} others", run.graphs ? "graphs" : "eager", run.chunk_tokens,
                             run.n_company));
    const std::vector<float> found =
        bits_of(*model_, options(static_cast<int64_t>(run.n_company) + 1), run, kTextTokens);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
  std::vector<float> plainest() const {
    return bits_of(*model_, options(1), {.graphs = false, .chunk_tokens = 512}, kTextTokens);
  }

  const Model* model_ = nullptr;

 private:
  static std::map<std::string, std::unique_ptr<Model>>& loaded() {
    static std::map<std::string, std::unique_ptr<Model>> models;
    return models;
  }
};

INSTANTIATE_TEST_SUITE_P(Released, RealShapesTest, ::testing::Values("deepseek-v3.2", "glm-5.1"),
                         [](const auto& released) {
                           std::string name = test_name(released.param);
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

// The kernels of a step once or twice each, for tools that make them many times slower (tools/gpu_check --sanitize-steps).
TEST_P(RealShapesTest, AShortTextHasTheSameBitsInTwoChunkings) {
  constexpr size_t kTokens = 2300;  // more than are selected
  const auto bits = [&](const GraphRun& run) { return bits_of(*model_, options(1), run, kTokens); };
  const std::vector<float> graphs = bits({.chunk_tokens = 1200}), eager = bits({.graphs = false, .chunk_tokens = 2047});
  ASSERT_EQ(graphs.size(), eager.size());
  EXPECT_EQ(std::memcmp(graphs.data(), eager.data(), graphs.size() * sizeof(float)), 0);
}

// Decode rows, verified rows and chained drafts: from graphs and kernel by kernel, alone and in batches that are
// padded to the shapes of graphs.
TEST_P(RealShapesTest, RowsHaveTheSameBitsInAnyCompanyAndChunking) {
  const std::vector<float> expected = plainest();
  for (const int64_t chunk_tokens : {1, 7, 64, 300, 512, 1024, 2047, 4096})
    expect_bits({.chunk_tokens = chunk_tokens}, expected);
  constexpr int64_t kStepRows = 4096;  // what the scratch of a device is made for
  for (const int64_t n_company : {1, 2, 4, 7, 12, 31}) {
    GraphRun run{.chunk_tokens = kStepRows / (n_company + 1), .n_company = static_cast<size_t>(n_company)};
    expect_bits(run, expected);
    run.graphs = false;
    expect_bits(run, expected);
  }
  expect_bits({.chunk_tokens = 61, .n_company = 7}, expected);
}

// Whole answers, by the model's own drafter and by one whose drafts are all right, all wrong or some of each.
TEST_P(RealShapesTest, AnswersAreTheSameWithAnyDrafts) {
  std::vector<Ids> prompts;
  for (const size_t n : {size_t{5}, size_t{2100}, kTextTokens - 100, size_t{700}}) {
    prompts.push_back(random_ids(static_cast<uint32_t>(n), n, model_->config().n_vocab));
  }
  const auto answers_of = [&](int n_drafts, std::unique_ptr<Drafter> drafter, int64_t max_running, bool graphs) {
    RunnerOptions wanted = options(std::ssize(prompts));
    wanted.graphs = graphs;
    Runner runner(*model_, wanted);
    must(runner.ready());
    const LoopOptions loop_options{.chunk_tokens = 512,
                                   .n_spec_steps = n_drafts,
                                   .min_confidence = 0,
                                   .max_context_tokens = static_cast<int64_t>(kTextTokens),
                                   .max_running = max_running,
                                   .share_prefixes = false};
    if (drafter == nullptr) drafter = make_drafter(runner, n_drafts);
    StepLoop loop(runner, loop_options, std::move(drafter));
    std::vector<RequestId> ids;
    for (const Ids& prompt : prompts) {
      GenerateRequest request{.prompt = prompt, .max_tokens = kAnswerTokensHere};
      request.sampling.temperature = ids.size() % 2 == 0 ? 0 : 0.8;
      request.sampling.seed = 5;
      ids.push_back(must(loop.submit(std::move(request))));
    }
    while (loop.step()) continue;
    std::vector<std::unique_ptr<Generation>> done;
    for (const RequestId id : ids) done.push_back(loop.take(id));
    return tokens_of(done);
  };
  const std::vector<Ids> expected = answers_of(0, nullptr, 1, false);
  std::vector<Ids> texts = prompts;
  for (size_t i = 0; i < texts.size(); ++i) texts[i].insert(texts[i].end(), expected[i].begin(), expected[i].end());
  for (int n_drafts = 0; n_drafts <= 5; ++n_drafts) {
    SCOPED_TRACE(fmt::format("{} drafts", n_drafts));
    EXPECT_EQ(answers_of(n_drafts, nullptr, 4, true), expected) << "of the model's own drafter";
    if (n_drafts == 0) continue;
    for (const Knowledge knowledge : {Knowledge::kRight, Knowledge::kWrong, Knowledge::kMixed}) {
      EXPECT_EQ(answers_of(n_drafts, std::make_unique<KnowingDrafter>(texts, knowledge), 4, n_drafts % 2 == 1),
                expected)
          << "knowledge " << static_cast<int>(knowledge);
    }
  }
}

}  // namespace
}  // namespace levin::test
