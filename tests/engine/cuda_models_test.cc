// Models on a CUDA device, on the plain kernels: the oracles of the fixtures, the bits of the CPU's plain kernels in every
// numerics mode and any chunking, the same answers alone and in company, from graphs and kernel by kernel, faults that end one request, and prefixes that
// come back from the host.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "engine/loaded_model.h"
#include "engine/oracle_trace.h"
#include "engine/row_gather.h"
#include "engine/step_loop.h"
#include "model/memory_plan.h"
#include "ops/cuda_backend.h"

namespace levin::test {
namespace {

using Ids = std::vector<int32_t>;

class CudaModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<CudaBackend>> cuda = open_cuda({.kernels = cuda::KernelSet::kPlain});
    if (!cuda.ok()) GTEST_SKIP() << cuda.error().message;
    cuda_ = std::move(cuda).value();
  }

  std::unique_ptr<Model> load(const std::string& fixture, NumericsMode mode = NumericsMode::kReference) const {
    return load_fixture(fixture, {.cuda = cuda_.get(), .numerics = mode});
  }
  RunnerOptions on_device(int64_t n_cache_tokens) const {
    RunnerOptions options = runner_options(n_cache_tokens, 1);
    options.cuda = cuda_.get();
    return options;
  }
  TraceResult trace_on_device(const Model& model, const TraceOptions& options) const {
    Runner runner(model, on_device(trace_cache_tokens(options)));
    must(runner.ready());
    return must(trace(runner, options));
  }

  std::unique_ptr<CudaBackend> cuda_;
};

class CudaFixtureTest : public CudaModelTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CudaFixtureTest, EveryTensorIsTheReferencesInAnyChunking) {
  const Oracle oracle(GetParam());
  const std::unique_ptr<Model> model = load(GetParam());
  const TraceResult base = trace_on_device(*model, oracle_options(oracle, 0));
  expect_reference(base, oracle, model->config());
  for (const int64_t n_chunk_tokens : {1, 7, 64}) {
    SCOPED_TRACE(n_chunk_tokens);
    expect_same_bits(trace_on_device(*model, oracle_options(oracle, n_chunk_tokens)), base);
  }
}

TEST_P(CudaFixtureTest, TheBitsAreThoseOfTheCpusPlainKernels) {
  const Oracle oracle(GetParam());
  const TraceOptions options = oracle_options(oracle, 0);
  for (const NumericsMode mode : {NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast}) {
    SCOPED_TRACE(numerics_mode_name(mode));
    const std::unique_ptr<Model> on_cpu = load_fixture(GetParam(), {.numerics = mode});
    RunnerOptions plain = runner_options(trace_cache_tokens(options));
    plain.isa = Isa::kPlain;
    Runner runner(*on_cpu, plain);
    expect_same_bits(trace_on_device(*load(GetParam(), mode), options), must(trace(runner, options)));
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaFixtureTest, ::testing::ValuesIn(kOracleFixtures),
                         [](const auto& fixture) { return test_name(fixture.param); });

// ---- answers ----

Ids random_ids(uint32_t seed, size_t n, int64_t n_vocab) {
  std::mt19937 random(seed);
  Ids ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(n_vocab));
  return ids;
}

std::vector<Ids> prompts_for(const Model& model) {
  std::vector<Ids> prompts;
  for (const size_t n : {3, 70, 200, 33}) {
    prompts.push_back(random_ids(static_cast<uint32_t>(n), n, model.config().n_vocab));
  }
  return prompts;
}

struct Circumstances {
  int n_spec_steps = 0;
  int64_t max_running = 1;
  int64_t chunk_tokens = 64;
};

constexpr int64_t kAnswerTokens = 24;
constexpr int64_t kContextTokens = 512;

std::vector<std::unique_ptr<Generation>> answer(Runner& runner, const std::vector<Ids>& prompts,
                                                const Circumstances& c) {
  StepLoop loop(runner, {.chunk_tokens = c.chunk_tokens,
                         .n_spec_steps = c.n_spec_steps,
                         .max_context_tokens = kContextTokens,
                         .max_running = c.max_running,
                         .share_prefixes = false});
  std::vector<RequestId> ids;
  for (const Ids& prompt : prompts) {
    GenerateRequest request{.prompt = prompt, .max_tokens = kAnswerTokens};
    request.sampling.temperature = ids.size() % 2 == 0 ? 0 : 0.8;
    request.sampling.seed = 5;
    ids.push_back(must(loop.submit(std::move(request))));
  }
  std::vector<std::unique_ptr<Generation>> answers(ids.size());
  while (loop.step()) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (answers[i] == nullptr) answers[i] = loop.take(ids[i]);
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (answers[i] == nullptr) answers[i] = loop.take(ids[i]);
  }
  return answers;
}

std::vector<Ids> tokens_of(const std::vector<std::unique_ptr<Generation>>& answers) {
  std::vector<Ids> out;
  for (const std::unique_ptr<Generation>& a : answers) {
    for (out.emplace_back(); const TokenEvent& event : a->tokens) out.back().push_back(event.token);
  }
  return out;
}

void expect_the_cpus_answers(CudaBackend& cuda, const std::filesystem::path& folder) {
  const std::unique_ptr<Model> on_cpu = load_model(folder), on_cuda = load_model(folder, {.cuda = &cuda});
  const std::vector<Ids> prompts = prompts_for(*on_cpu);
  Runner cpu(*on_cpu, runner_options(4 * kContextTokens));
  RunnerOptions options = runner_options(4 * kContextTokens, 1);
  options.cuda = &cuda;
  Runner device(*on_cuda, options);
  must(device.ready());
  const std::vector<Ids> expected = tokens_of(answer(cpu, prompts, {}));
  options.graphs = false;
  Runner eager(*on_cuda, options);
  must(eager.ready());
  for (const Circumstances& c : {Circumstances{}, Circumstances{.n_spec_steps = 3},
                                 Circumstances{.n_spec_steps = 2, .max_running = 4, .chunk_tokens = 33}}) {
    SCOPED_TRACE(c.n_spec_steps);
    EXPECT_EQ(tokens_of(answer(device, prompts, c)), expected);
    EXPECT_EQ(tokens_of(answer(eager, prompts, c)), expected);
  }
  EXPECT_GT(device.n_graphs(), 0);
  EXPECT_EQ(eager.n_graphs(), 0);
}

TEST_F(CudaModelTest, DemoV32AnswersAsOnTheCpu) { expect_the_cpus_answers(*cuda_, demo_model_folder("demo-v32")); }

TEST_F(CudaModelTest, DemoGlmAnswersAsOnTheCpu) { expect_the_cpus_answers(*cuda_, demo_model_folder("demo-glm")); }

TEST_F(CudaModelTest, V4AnswersAsOnTheCpu) {
  const TempDir folder;
  must(materialise(fixture_folder("v4-flash"), folder.path()));
  expect_the_cpus_answers(*cuda_, folder.path());
}

TEST_F(CudaModelTest, AFaultEndsItsRequestAndNoOther) {
  constexpr int32_t kPoisoned = 7;
  const std::unique_ptr<Model> model = load_fixture(
      "v32-odd", {.cuda = cuda_.get(), .change_weights = [](ModelWeights& w) {
                    const int64_t d = w.embed.dim(1);
                    if (w.embed.dtype() == DType::kBF16) {
                      std::fill_n(w.embed.row<uint16_t>(kPoisoned), d, uint16_t{0x7FC0});
                    } else {
                      std::fill_n(w.embed.row<float>(kPoisoned), d, std::numeric_limits<float>::quiet_NaN());
                    }
                  }});
  std::vector<Ids> prompts = prompts_for(*model);
  for (Ids& prompt : prompts) std::replace(prompt.begin(), prompt.end(), kPoisoned, kPoisoned + 1);
  Runner runner(*model, on_device(4 * kContextTokens));
  must(runner.ready());
  const std::vector<Ids> expected = tokens_of(answer(runner, prompts, {}));
  prompts[1][20] = kPoisoned;
  const std::vector<std::unique_ptr<Generation>> answers = answer(runner, prompts, {.max_running = 4});
  const std::vector<Ids> found = tokens_of(answers);
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(answers[i]->error.has_value(), i == 1);
    if (i != 1) {
      EXPECT_EQ(found[i], expected[i]);
    }
  }
}

// ---- graphs ----

// Logits bits of a decode row, after chunks that are cut as `chunk_tokens` says, in company of others, and drafts.
struct GraphRun {
  bool graphs = true;
  int64_t chunk_tokens = 64;
  size_t n_company = 0;
};

std::vector<float> copy_of(const View& rows) { return {rows.data<float>(), rows.data<float>() + rows.n_elements()}; }

// Of 97 tokens: logits of the last three, which are verified together, then hidden rows of three MTP steps behind them, or
// of a block of drafts.
std::vector<float> bits_of(const Model& model, RunnerOptions options, const GraphRun& run) {
  options.graphs = run.graphs;
  Runner runner(model, options);
  must(runner.ready());
  std::vector<Ids> texts;
  std::vector<std::unique_ptr<SequencePages>> pages;
  for (size_t i = 0; i <= run.n_company; ++i) {
    texts.push_back(random_ids(static_cast<uint32_t>(i + 1), 97, model.config().n_vocab));
    pages.push_back(std::make_unique<SequencePages>(runner.pools()));
    must(pages.back()->grow(110));
  }
  const auto chunks = [&](size_t begin, size_t n) {
    std::vector<SequenceChunk> out;
    for (size_t i = texts.size(); i-- > 0;) {  // the one looked at comes last
      out.push_back({.tokens = std::span(texts[i]).subspan(begin, n),
                     .first_position = static_cast<int32_t>(begin),
                     .pages = pages[i].get()});
    }
    return out;
  };
  std::vector<float> out;
  const auto keep = [&](const View& rows) {
    const std::vector<float> values = copy_of(rows);
    out.insert(out.end(), values.begin(), values.end());
  };
  constexpr size_t kVerified = 3, kPrompt = 94;
  for (size_t begin = 0; begin < kPrompt; begin += static_cast<size_t>(run.chunk_tokens)) {
    runner.begin_step();
    runner.trunk(chunks(begin, std::min(static_cast<size_t>(run.chunk_tokens), kPrompt - begin)));
  }
  runner.begin_step();
  const ForwardRows rows = runner.trunk(chunks(kPrompt, kVerified));
  const int64_t first = static_cast<int64_t>(run.n_company * kVerified);
  keep(runner.logits(rows.hidden.slice_first(first, kVerified)));
  if (const BlockDrafting* drafting = model.block_drafting()) {
    const int64_t n_block = model.config().n_draft_block;
    std::vector<Ids> tokens;
    for (const Ids& text : texts) {
      tokens.emplace_back(static_cast<size_t>(n_block), drafting->noise_token()).front() = text.back();
    }
    std::vector<SequenceChunk> blocks = chunks(kPrompt + kVerified - 1, 1);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i].tokens = tokens[blocks.size() - 1 - i];
    const ForwardRows drafted = runner.draft_blocks(blocks);
    const View last = drafted.hidden.slice_first(static_cast<int64_t>(run.n_company) * n_block, n_block);
    keep(last);
    keep(runner.draft_logits(last));
    return out;
  }
  if (!model.has_mtp()) return out;
  std::vector<SequenceChunk> pairs = chunks(kPrompt + 1, kVerified - 1);
  for (SequenceChunk& pair : pairs) pair.first_position -= 1;
  std::vector<int32_t> wanted;
  std::vector<float> storage;
  RowGather<float> taps(storage, model.d_state());
  for (size_t i = 0; i < pairs.size(); ++i) {
    taps.add(rows.state.slice_first(static_cast<int64_t>(i * kVerified), kVerified - 1));
    wanted.push_back(static_cast<int32_t>((i + 1) * (kVerified - 1) - 1));
  }
  ForwardRows drafted = runner.mtp(pairs, {.state = taps.view()}, wanted);
  for (int step = 0; step < 3; ++step) {
    const auto last = static_cast<int64_t>(run.n_company);
    keep(drafted.hidden.slice_first(last, 1));
    keep(runner.draft_logits(drafted.hidden).slice_first(last, 1));
    std::vector<SequenceChunk> chain = chunks(static_cast<size_t>(step), 1);  // drafts that are wrong
    for (SequenceChunk& c : chain) c.first_position = static_cast<int32_t>(kPrompt + kVerified - 1 + step);
    const bool share = model.config().share_topk_across_drafts;
    drafted =
        runner.mtp(chain, {.state = runner.keep(drafted.state), .topk = share ? runner.keep(drafted.topk) : View()});
  }
  return out;
}

class CudaGraphTest : public CudaModelTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CudaGraphTest, TheBitsAreThoseOfEagerStepsInAnyCompanyAndChunking) {
  const std::unique_ptr<Model> model = load(GetParam());
  const RunnerOptions options = on_device(4096);
  const std::vector<float> expected = bits_of(*model, options, {.graphs = false});
  for (const GraphRun& run : {GraphRun{}, GraphRun{.chunk_tokens = 1}, GraphRun{.chunk_tokens = 7},
                              GraphRun{.n_company = 1}, GraphRun{.n_company = 4},
                              GraphRun{.chunk_tokens = 5, .n_company = 7}, GraphRun{.graphs = false, .n_company = 4}}) {
    SCOPED_TRACE(fmt::format("{} chunks of {}, beside {}", run.graphs, run.chunk_tokens, run.n_company));
    const std::vector<float> found = bits_of(*model, options, run);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaGraphTest, ::testing::ValuesIn(kOracleFixtures),
                         [](const auto& fixture) { return test_name(fixture.param); });

TEST_F(CudaModelTest, NoGraphIsRecordedAfterAllThatDraftingAsksFor) {
  for (const char* fixture : {"v32-odd", "v4-flash"}) {
    SCOPED_TRACE(fixture);
    const std::unique_ptr<Model> model = load(fixture);
    Runner runner(*model, on_device(4 * kContextTokens));
    must(runner.ready());
    runner.record_graphs(3);
    const int64_t n_recorded = runner.n_graphs();
    EXPECT_GT(n_recorded, 0);
    for (const int64_t chunk_tokens : {5, 64}) {
      answer(runner, prompts_for(*model), {.n_spec_steps = 3, .max_running = 4, .chunk_tokens = chunk_tokens});
    }
    EXPECT_EQ(runner.n_graphs(), n_recorded);
  }
}

// ---- prefixes ----

TEST_F(CudaModelTest, PrefixesComeBackFromHostMemory) {
  const std::unique_ptr<Model> model = load("v4-flash");
  Runner runner(*model, on_device(4 * kContextTokens));
  must(runner.ready());
  const Ids prompt = random_ids(11, 300, model->config().n_vocab);
  const auto run = [&](StepLoop& loop) {
    const RequestId id = must(loop.submit({.prompt = prompt, .max_tokens = kAnswerTokens}));
    while (loop.step()) continue;
    return loop.take(id);
  };
  StepLoop keeping(runner, {.chunk_tokens = 64,
                            .n_spec_steps = 2,
                            .max_context_tokens = kContextTokens,
                            .max_running = 2,
                            .n_host_blocks = 8});
  std::vector<std::unique_ptr<Generation>> answers;
  answers.push_back(run(keeping));
  answers.push_back(run(keeping));
  EXPECT_EQ(answers[0]->n_hit_tokens, 0);
  EXPECT_GT(answers[1]->n_hit_tokens, 0);
  const std::vector<Ids> tokens = tokens_of(answers);
  EXPECT_EQ(tokens[1], tokens[0]);
}

// ---- memory ----

TEST_F(CudaModelTest, TheReservedScratchIsEnough) {
  for (const char* fixture : kOracleFixtures) {
    SCOPED_TRACE(fixture);
    SetUp();
    const Oracle oracle(fixture);
    const TraceOptions options = oracle_options(oracle, 0);
    const std::unique_ptr<Model> model = load(fixture);
    const MemoryPlan plan = plan_memory(model->config(), model->numerics(), nullptr,
                                        {.n_sequences = 1, .n_step_tokens = std::ssize(options.ids)});
    cuda_->arena().reserve(device_workspace_bytes(plan));
    trace_on_device(*model, options);
    EXPECT_EQ(cuda_->arena().n_blocks(), 1);
  }
}

}  // namespace
}  // namespace levin::test
