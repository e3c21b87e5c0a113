// Models on a CUDA device, on the plain kernels: the oracles of the fixtures, the bits of the CPU's plain kernels in every
// numerics mode and any chunking, the same answers alone and in a batch, from graphs and kernel by kernel, faults that end one request, and prefixes that
// come back from the host.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>

#include "engine/device_runs.h"
#include "engine/loaded_model.h"
#include "engine/oracle_trace.h"
#include "engine/step_loop.h"
#include "model/memory_plan.h"
#include "ops/copies.h"
#include "ops/cuda_backend.h"

namespace levin::test {
namespace {

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
  for (const Circumstances& c :
       {Circumstances{}, Circumstances{.n_spec_steps = 3},
        Circumstances{.n_spec_steps = 2, .max_running = 4, .chunk_tokens = 33, .overlap = true}}) {
    SCOPED_TRACE(c.n_spec_steps);
    EXPECT_EQ(tokens_of(answer(device, prompts, c)), expected);
    EXPECT_EQ(tokens_of(answer(eager, prompts, c)), expected);
  }
  EXPECT_GT(device.n_graphs(), 0);
  EXPECT_EQ(eager.n_graphs(), 0);
}

TEST_F(CudaModelTest, DemoV32AnswersAsOnTheCpu) { expect_the_cpus_answers(*cuda_, demo_model_folder("demo-v32")); }

TEST_F(CudaModelTest, DemoGlmAnswersAsOnTheCpu) { expect_the_cpus_answers(*cuda_, demo_model_folder("demo-glm")); }

TEST_F(CudaModelTest, ModelsWithStateAnswerAsOnTheCpu) {
  for (const char* fixture : {"v4-flash", "glm-next"}) {
    SCOPED_TRACE(fixture);
    const TempDir folder;
    must(materialise(fixture_folder(fixture), folder.path()));
    expect_the_cpus_answers(*cuda_, folder.path());
  }
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
  for (const uint32_t n : {5, 41, 90, 150}) prompts.push_back(random_ids(n, n, model->config().n_vocab));
  for (Ids& prompt : prompts) std::replace(prompt.begin(), prompt.end(), kPoisoned, kPoisoned + 1);
  Runner runner(*model, on_device(8 * kContextTokens));
  must(runner.ready());
  const std::vector<Ids> expected = tokens_of(answer(runner, prompts, {}));
  prompts[1][20] = kPoisoned;
  const std::vector<std::unique_ptr<Generation>> answers = answer(runner, prompts, {.max_running = 8});
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

class CudaGraphTest : public CudaModelTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(CudaGraphTest, TheBitsAreThoseOfEagerStepsInAnyCompanyAndChunking) {
  const std::unique_ptr<Model> model = load(GetParam());
  const RunnerOptions options = on_device(4096);
  const std::vector<float> expected = bits_of(*model, options, {.graphs = false});
  for (const GraphRun& run : {GraphRun{}, GraphRun{.chunk_tokens = 1}, GraphRun{.chunk_tokens = 7},
                              GraphRun{.n_company = 1}, GraphRun{.n_company = 4},
                              GraphRun{.chunk_tokens = 5, .n_company = 7}, GraphRun{.graphs = false, .n_company = 4}}) {
    SCOPED_TRACE(fmt::format("{} chunks of {}, with {} others", run.graphs, run.chunk_tokens, run.n_company));
    const std::vector<float> found = bits_of(*model, options, run);
    ASSERT_EQ(found.size(), expected.size());
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, CudaGraphTest, ::testing::ValuesIn(kOracleFixtures),
                         [](const auto& fixture) { return test_name(fixture.param); });

TEST_F(CudaModelTest, NoGraphIsRecordedAfterAllThatDraftingAsksFor) {
  for (const char* fixture : {"v32-odd", "v4-flash", "v4-dspark", "glm-next"}) {
    SCOPED_TRACE(fixture);
    const std::unique_ptr<Model> model = load(fixture);
    Runner runner(*model, on_device(4 * kContextTokens));
    must(runner.ready());
    must(runner.record_graphs(3));
    const int64_t n_recorded = runner.n_graphs();
    EXPECT_GT(n_recorded, 0);
    for (const int64_t chunk_tokens : {5, 64}) {
      answer(runner, prompts_for(*model), {.n_spec_steps = 3, .max_running = 4, .chunk_tokens = chunk_tokens});
    }
    EXPECT_EQ(runner.n_graphs(), n_recorded);
  }
}

// Decided by what stands there when it is this work's turn, not when it was recorded or enqueued.
TEST_F(CudaModelTest, WorkOverPaddingAloneIsLeftOut) {
  constexpr int64_t kApart = 256;
  const Buffer memory = must(cuda_->allocate(3 * kApart));
  const View seq(memory.data(), DType::kI32, {3}, Device::kCuda);
  const View from(memory.data() + kApart, DType::kI32, {1, 1}, Device::kCuda);
  const View to(memory.data() + 2 * kApart, DType::kI32, {1, 1}, Device::kCuda);
  OpContext ctx = op_context(*cuda_);
  const auto copy = [&] { ops::copy_rows(ctx, {.x = from, .out = to}); };
  copy();
  must(cuda_->synchronize());
  const std::unique_ptr<RecordedWork> work = must(cuda_->record_for_rows(seq, copy));
  int32_t value = 0, last = 0;
  for (const Ids& rows : {Ids{0, -1, -1}, Ids{-1, -1, -1}, Ids{-1, -1, 4}, Ids{-1, -1, -1}, Ids{1, 2, 3}}) {
    ++value;
    cuda_->copy_bytes_in(seq.bytes(), rows.data(), 3 * sizeof(int32_t));
    cuda_->copy_bytes_in(from.bytes(), &value, sizeof(value));
    work->replay();
    const bool runs = std::any_of(rows.begin(), rows.end(), [](int32_t s) { return s >= 0; });
    if (runs) last = value;
    int32_t found = 0;
    must(cuda_->copy_out(View::of(&found, {1, 1}), to));
    EXPECT_EQ(found, last) << value;
  }
}

// Few bytes and many, by kernels or the copy engine, to pinned memory and any other, more than the ring of pinned memory holds; each
// to the place that the copy before still reads. What is copied in changes at once. Copies to pinned memory queue after others
// that take milliseconds, so that the ring comes round before the first has been read; other memory makes each copy wait.
TEST_F(CudaModelTest, CopiesOfAnySizeArriveInTheirOrder) {
  constexpr int kRounds = 40, kCopiesBefore = 30;
  constexpr int64_t kMostBytes = (int64_t{1} << 20) + 8, kAllBytes = kRounds * kMostBytes;
  const Buffer memory = must(cuda_->allocate(kMostBytes)), large = must(cuda_->allocate(kAllBytes));
  const Buffer pinned = must(cuda_->allocate_pinned(kAllBytes)), unread = must(cuda_->allocate_pinned(kAllBytes));
  std::vector<std::byte> source(kMostBytes), other(kAllBytes);
  for (const int64_t n_bytes : {1, 3, 4, 20, 4100, 1 << 18, (1 << 18) + 4, 1 << 20}) {
    for (const int64_t offset : {0, 1, 4}) {
      for (std::byte* out : {pinned.data(), other.data()}) {
        SCOPED_TRACE(fmt::format("{} bytes at {}, {}", n_bytes, offset, out == other.data() ? "other" : "pinned"));
        const int n_rounds = n_bytes > 4100 ? kRounds : 8;
        for (int i = 0; i < kCopiesBefore; ++i) cuda_->copy_bytes_out(unread.data(), large.data(), kAllBytes);
        for (int round = 0; round < n_rounds; ++round) {
          std::fill_n(source.begin(), n_bytes, static_cast<std::byte>(round + offset));
          cuda_->copy_bytes_in(memory.data() + offset, source.data(), n_bytes);
          cuda_->copy_bytes_out(out + round * kMostBytes + offset, memory.data() + offset, n_bytes);
        }
        must(cuda_->synchronize());
        for (int round = 0; round < n_rounds; ++round) {
          const auto is_of_round = [&](std::byte b) { return b == static_cast<std::byte>(round + offset); };
          const std::byte* first = out + round * kMostBytes + offset;
          EXPECT_TRUE(std::all_of(first, first + n_bytes, is_of_round)) << round;
        }
      }
    }
  }
}

// ---- waits ----

// Greedy and sampled rows alike: trunk, head and choice together, then MTP pass, head and choice of each draft. Rows whose
// logits come to the host take part in the same waits.
TEST_F(CudaModelTest, AStepWaitsForItsTokensAndForEachDraftOnce) {
  const std::unique_ptr<Model> model = load("v32-odd");
  Runner runner(*model, on_device(4 * kContextTokens));
  must(runner.ready());
  for (const int n_drafts : {0, 1, 3}) {
    SCOPED_TRACE(n_drafts);
    StepLoop loop(runner, {.chunk_tokens = 64,
                           .n_spec_steps = n_drafts,
                           .max_context_tokens = kContextTokens,
                           .max_running = 4,
                           .share_prefixes = false});
    for (const double temperature : {0.0, 0.8}) {
      for (const double top_p : {1.0, 0.9}) {
        GenerateRequest request{.prompt = random_ids(3, 100, model->config().n_vocab), .max_tokens = kAnswerTokens};
        request.sampling.temperature = temperature;
        request.sampling.top_p = top_p;
        must(loop.submit(std::move(request)));
      }
    }
    int64_t before = runner.n_waits();
    while (loop.step()) {
      EXPECT_LE(runner.n_waits() - before, 1 + n_drafts);
      before = runner.n_waits();
    }
  }
}

// ---- prefixes ----

TEST_F(CudaModelTest, PrefixesComeBackFromHostMemory) {
  for (const char* fixture : {"v4-flash", "glm-next"}) {
    SCOPED_TRACE(fixture);
    const std::unique_ptr<Model> model = load(fixture);
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
}

// Large ones, which would otherwise be under way while the memory is written before and after them.
TEST_F(CudaModelTest, CopiesOnTheirOwnStreamFollowWhatTheyReadAndHoldWhatWritesOverIt) {
  constexpr int64_t kBytes = int64_t{32} << 20;
  const Buffer memory = must(cuda_->allocate(kBytes)), pinned = must(cuda_->allocate_pinned(kBytes));
  const std::unique_ptr<CopyStream> copies = must(cuda_->open_copy_stream());
  const std::unique_ptr<WorkMark> copied = must(copies->make_mark());
  const auto write = [&](int round) {
    const std::vector<std::byte> bytes(static_cast<size_t>(kBytes), static_cast<std::byte>(round));
    cuda_->copy_bytes_in(memory.data(), bytes.data(), kBytes);
  };
  for (int round = 1; round < 20; round += 2) {
    write(round);
    copies->follow();
    copies->copy_bytes_out(pinned.data(), memory.data(), kBytes);
    copied->set();
    copies->hold();
    write(round + 1);
    must(copied->wait());
    EXPECT_TRUE(copied->is_past());
    const auto is_of_round = [&](std::byte b) { return b == static_cast<std::byte>(round); };
    EXPECT_TRUE(std::all_of(pinned.data(), pinned.data() + kBytes, is_of_round)) << round;
    must(cuda_->synchronize());
  }
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
