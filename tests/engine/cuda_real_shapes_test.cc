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
#include "engine/kernel_changes.h"
#include "engine/knowing_drafter.h"
#include "engine/loaded_model.h"
#include "engine/near_plain.h"
#include "ops/cuda_backend.h"

namespace levin::test {
namespace {

constexpr size_t kTextTokens = 6000;
constexpr int64_t kAnswerTokensHere = 18;

// Of random weights, with its MTP layer.
std::unique_ptr<Model> dummy_model(CudaBackend& cuda, const std::string& released,
                                   std::initializer_list<const char*> changes) {
  std::vector<ConfigOverride> overrides;
  for (const char* override : changes) overrides.push_back(must(parse_config_override(override)));
  ModelConfig config = must(load_model_config(fixture_folder(released), Registry::built_in(), overrides)).config;
  const Numerics numerics = numerics_of_family(must(make_numerics(NumericsMode::kOfficial, "auto")), *config.family);
  ThreadPool pool(static_cast<int>(std::thread::hardware_concurrency()));
  ModelWeights weights = must(dummy_weights(config, numerics, pool, MatrixForm::kRowsInPlace));
  must(place_weights(cuda, pool, weights));
  return make_model(std::move(config), numerics, std::move(weights), Selection::kIndexer);
}

struct AnswerRun {
  int n_drafts = 0;
  int64_t max_running = 1;
  bool overlap = false;
  int64_t max_tokens = 0;
};

// Greedy and sampled, every draft made. `drafter`: null for the model's own.
std::vector<Ids> answers_of(const Model& model, const RunnerOptions& options, const std::vector<Ids>& prompts,
                            const AnswerRun& run, std::unique_ptr<Drafter> drafter = nullptr) {
  Runner runner(model, options);
  must(runner.ready());
  int64_t longest = 0;
  for (const Ids& prompt : prompts) longest = std::max(longest, std::ssize(prompt));
  const LoopOptions loop_options{.chunk_tokens = 512,
                                 .n_spec_steps = run.n_drafts,
                                 .min_confidence = 0,
                                 .max_context_tokens = longest + run.max_tokens + 1,
                                 .max_running = run.max_running,
                                 .share_prefixes = false,
                                 .overlap = run.overlap};
  if (drafter == nullptr) drafter = make_drafter(runner, run.n_drafts);
  StepLoop loop(runner, loop_options, std::move(drafter));
  std::vector<RequestId> ids;
  for (const Ids& prompt : prompts) {
    GenerateRequest request{.prompt = prompt, .max_tokens = run.max_tokens};
    request.sampling.temperature = ids.size() % 2 == 0 ? 0 : 0.8;
    request.sampling.seed = 5;
    ids.push_back(must(loop.submit(std::move(request))));
  }
  while (loop.step()) continue;
  std::vector<std::unique_ptr<Generation>> done;
  for (const RequestId id : ids) done.push_back(loop.take(id));
  return tokens_of(done);
}

std::string name_of(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return test_name(name);
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
      models[GetParam()] = dummy_model(*tested_cuda(), GetParam(), {"num_hidden_layers=3", "first_k_dense_replace=1"});
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
                         [](const auto& released) { return name_of(released.param); });

// The kernels of steps a few times each, for tools that make them many times slower (tools/gpu_check --sanitize-steps): of the
// demonstration models, and of a layer of each kind in released widths, with fewer experts and tokens, which changes no shape
// of a product, and less selected, so that a short text suffices. "few" is short enough for racecheck; of released widths its
// top-k indices are one part of sparse attention, the others' two.
struct ShortText {
  const char* name;
  size_t n_tokens;  // more than are selected
  const char* demo = nullptr;
  const char* released = nullptr;  // where it is no demonstration model
  int64_t n_topk = 0;              // 0: the model's own
  int64_t n_answer_tokens = 9;
};

class ShortTextTest : public ::testing::TestWithParam<ShortText> {
 protected:
  void SetUp() override {
    if (tested_cuda() == nullptr) GTEST_SKIP() << "on a device alone: set LEVIN_TEST_DEVICE";
  }

  static RunnerOptions options() {
    return runner_options(2 * static_cast<int64_t>(GetParam().n_tokens) + 4 * kPageTokens, 1);
  }
  static std::unique_ptr<Model> model() {
    const ShortText& text = GetParam();
    if (text.demo != nullptr) {
      const auto select_less = [&](ModelConfig& config) {
        if (text.n_topk > 0) config.n_topk = text.n_topk;
      };
      return load_model(demo_model_folder(text.demo),
                        {.numerics = NumericsMode::kOfficial, .change_config = select_less});
    }
    const std::string topk = fmt::format("index_topk={}", text.n_topk);
    return dummy_model(*tested_cuda(), text.released,
                       {"num_hidden_layers=2", "first_k_dense_replace=1", "n_routed_experts=16", "vocab_size=4096",
                        "eos_token_id=2", topk.c_str()});
  }
};

TEST_P(ShortTextTest, HasTheSameBitsByGraphsAndInCompany) {
  const std::unique_ptr<Model> short_model = model();
  const size_t n_tokens = GetParam().n_tokens;
  const GraphRun eager{.graphs = false, .chunk_tokens = static_cast<int64_t>(n_tokens)};
  const GraphRun graphs{.chunk_tokens = static_cast<int64_t>(n_tokens), .n_company = 1};
  const std::vector<float> expected = bits_of(*short_model, options(), eager, n_tokens),
                           found = bits_of(*short_model, options(), graphs, n_tokens);
  ASSERT_EQ(found.size(), expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0);
}

// Drafts that are turned down and chains that end leave padding; the second request ends before the first.
TEST_P(ShortTextTest, HasTheSameAnswersByRoundsAhead) {
  const std::unique_ptr<Model> short_model = model();
  const int64_t n_answer = GetParam().n_answer_tokens;
  const int64_t n_vocab = short_model->config().n_vocab;
  const std::vector<Ids> prompts = {random_ids(1, GetParam().n_tokens, n_vocab), random_ids(2, 20, n_vocab)};
  RunnerOptions eager = options();
  eager.graphs = false;
  const std::vector<Ids> expected = answers_of(*short_model, eager, prompts, {.max_tokens = n_answer});
  const AnswerRun ahead{.n_drafts = 3, .max_running = 2, .overlap = true, .max_tokens = n_answer};
  EXPECT_EQ(answers_of(*short_model, options(), prompts, ahead), expected);
}

INSTANTIATE_TEST_SUITE_P(Steps, ShortTextTest,
                         ::testing::Values(ShortText{.name = "demo-v32", .n_tokens = 300, .demo = "demo-v32"},
                                           ShortText{.name = "demo-glm", .n_tokens = 300, .demo = "demo-glm"},
                                           ShortText{"demo-v32.few", 80, "demo-v32", nullptr, 64, 3},
                                           ShortText{"demo-glm.few", 80, "demo-glm", nullptr, 64, 3},
                                           ShortText{"v3.2", 1150, nullptr, "deepseek-v3.2", 1088},
                                           ShortText{"glm", 1150, nullptr, "glm-5.1", 1088},
                                           ShortText{"v3.2.few", 150, nullptr, "deepseek-v3.2", 128, 3},
                                           ShortText{"glm.few", 150, nullptr, "glm-5.1", 128, 3}),
                         [](const auto& text) { return name_of(text.param.name); });

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

// One chunk of each number of rows, at the end of a text whose rows are in the caches, as the kernels of that number leave them.
TEST_P(RealShapesTest, RowsHaveTheSameBitsWhereKernelsChange) {
  constexpr int64_t kMostRows = 4096, kMostLogits = 128, kEnd = static_cast<int64_t>(kTextTokens);
  const Ids text = random_ids(1, kTextTokens + 1, model_->config().n_vocab);
  RunnerOptions wanted = options(1);
  wanted.graphs = false;
  Runner runner(*model_, wanted);
  must(runner.ready());
  SequencePages pages(runner.pools());
  must(pages.grow(kEnd + 1));
  struct Rows {
    std::vector<float> hidden, logits,
        drafted;  // of the trunk, [T, D]; [min(T, kMostLogits), V]; of the MTP layer, [T, D]
  };
  const auto last_rows = [&](int64_t end, int64_t n_rows) {
    const auto chunk = [&](int64_t begin) {
      return SequenceChunk{.tokens = std::span(text).subspan(static_cast<size_t>(begin), static_cast<size_t>(n_rows)),
                           .first_position = static_cast<int32_t>(end - n_rows),
                           .pages = &pages};
    };
    runner.begin_step();
    const SequenceChunk of_trunk = chunk(end - n_rows), of_mtp = chunk(end - n_rows + 1);
    const ForwardRows trunk = runner.trunk({&of_trunk, 1}), mtp = runner.mtp({&of_mtp, 1}, {.state = trunk.state});
    const int64_t n_logits = std::min(n_rows, kMostLogits);
    const auto values = [](const View& rows) {
      return std::vector<float>(rows.data<float>(), rows.data<float>() + rows.n_elements());
    };
    return Rows{.hidden = values(runner.to_host(trunk.hidden)),
                .logits = values(runner.logits(trunk.hidden.slice_first(n_rows - n_logits, n_logits))),
                .drafted = values(runner.to_host(mtp.hidden))};
  };
  Rows expected;
  const auto append = [](std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  constexpr int64_t kSteps = 120;  // rows, which end with the text
  static_assert(kEnd % kSteps == 0);
  for (int64_t end = kSteps; end <= kEnd; end += kSteps) {
    const Rows rows = last_rows(end, kSteps);
    append(expected.hidden, rows.hidden);
    append(expected.drafted, rows.drafted);
    if (end > kEnd - 2 * kSteps) append(expected.logits, rows.logits);
  }
  const auto expect_end = [](const std::vector<float>& found, const std::vector<float>& all, const char* what) {
    ASSERT_LE(found.size(), all.size());
    EXPECT_EQ(std::memcmp(found.data(), &*(all.end() - std::ssize(found)), found.size() * sizeof(float)), 0) << what;
  };
  const std::set<int64_t> counts = rows_where_kernels_change(*model_, kMostRows, kEnd, tested_cuda()->device().n_sms);
  EXPECT_GE(counts.size(), 30u);
  fmt::print("{} numbers of rows\n", counts.size());
  for (const int64_t n_rows : counts) {
    SCOPED_TRACE(fmt::format("{} rows", n_rows));
    const Rows rows = last_rows(kEnd, n_rows);
    expect_end(rows.hidden, expected.hidden, "hidden rows");
    expect_end(rows.logits, expected.logits, "logits");
    expect_end(rows.drafted, expected.drafted, "rows of the MTP layer");
  }
}

TEST_P(RealShapesTest, EachLayerIsNearThePlainKernels) {
  const std::unique_ptr<CudaBackend> plain = must(open_cuda({.kernels = cuda::KernelSet::kPlain}));
  const Ids text = random_ids(1, kTextTokens, model_->config().n_vocab);
  const std::vector<Forced> ways = {Forced::kChoicesAndInputs, Forced::kChoices};
  const auto found = differences_of_layers(*tested_cuda(), *plain, *model_, text, ways);
  for (size_t way = 0; way < ways.size(); ++way) expect_near_plain(found[way], ways[way]);
}

// Whole answers, by the model's own drafter and by one whose drafts are all right, all wrong or some of each.
TEST_P(RealShapesTest, AnswersAreTheSameWithAnyDrafts) {
  std::vector<Ids> prompts;
  for (const size_t n : {size_t{5}, size_t{2100}, kTextTokens - 100, size_t{700}}) {
    prompts.push_back(random_ids(static_cast<uint32_t>(n), n, model_->config().n_vocab));
  }
  RunnerOptions eager = options(std::ssize(prompts)), graphs = eager;
  eager.graphs = false;
  const std::vector<Ids> expected = answers_of(*model_, eager, prompts, {.max_tokens = kAnswerTokensHere});
  std::vector<Ids> texts = prompts;
  for (size_t i = 0; i < texts.size(); ++i) texts[i].insert(texts[i].end(), expected[i].begin(), expected[i].end());
  for (int n_drafts = 0; n_drafts <= 5; ++n_drafts) {
    SCOPED_TRACE(fmt::format("{} drafts", n_drafts));
    const AnswerRun run{
        .n_drafts = n_drafts, .max_running = 4, .overlap = n_drafts != 1, .max_tokens = kAnswerTokensHere};
    EXPECT_EQ(answers_of(*model_, graphs, prompts, run), expected) << "of the model's own drafter";
    if (n_drafts == 0) continue;
    for (const Knowledge knowledge : {Knowledge::kRight, Knowledge::kWrong, Knowledge::kMixed}) {
      EXPECT_EQ(answers_of(*model_, n_drafts % 2 == 1 ? graphs : eager, prompts, run,
                           std::make_unique<KnowingDrafter>(texts, knowledge)),
                expected)
          << "knowledge " << static_cast<int>(knowledge);
    }
  }
}

}  // namespace
}  // namespace levin::test
