// Exact under load: many requests through one loop whose cache is too small for them, with prompts that begin alike,
// cancellations and speculation. Every answer's tokens are those of the request run alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/engine.h"
#include "engine/engine_load.h"
#include "engine/loaded_model.h"
#include "engine/same_tokens.h"
#include "engine/step_loop.h"
#include "model/memory_plan.h"
#include "sched/trace.h"

namespace levin::test {
namespace {

constexpr int kSpecSteps = 3;

struct Answered {
  std::vector<int32_t> tokens;
  SpeculationStats speculation;
  int64_t n_found = 0;
};

Answered answered(const Generation& g) {
  Answered out{.tokens = {}, .speculation = g.speculation, .n_found = g.n_hit_tokens};
  for (const TokenEvent& event : g.tokens) out.tokens.push_back(event.token);
  return out;
}

GenerateRequest request(const std::vector<int32_t>& prompt, int i) {
  GenerateRequest out{.prompt = prompt, .max_tokens = 10 + 7 * (i % 8)};
  out.sampling = {.temperature = i % 2 == 0 ? 0.0 : 0.8, .stop_tokens = {1}, .seed = 1000u + static_cast<uint64_t>(i)};
  out.priority = i % 3;
  return out;
}

Answered run_alone(Runner& runner, const GenerateRequest& what) {
  StepLoop loop(runner, {.n_spec_steps = kSpecSteps, .max_context_tokens = 2048, .share_prefixes = false});
  const RequestId id = must(loop.submit(what));
  while (loop.step()) {
    if (const auto done = loop.take(id)) return answered(*done);
  }
  return {};
}

// Prompts of several families, of five texts; within one they agree up to a random place.
std::vector<std::vector<int32_t>> prompts(int n, const std::vector<std::vector<int32_t>>& texts) {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> out;
  for (int i = 0; i < n; ++i) {
    std::vector<int32_t> prompt = texts[i % 2];
    const size_t n_common = random() % prompt.size();
    const std::vector<int32_t>& other = texts[2 + i % 3];
    std::copy(other.begin() + static_cast<int64_t>(n_common), other.end(),
              prompt.begin() + static_cast<int64_t>(n_common));
    prompt.resize(1 + random() % prompt.size());
    out.push_back(std::move(prompt));
  }
  return out;
}

struct UnderLoad {
  int n_compared = 0;
  int64_t n_found = 0;
  int64_t n_running_most = 0;
  int64_t n_preempted = 0;
};

// Runs all requests through one loop, some of them cancelled on the way, and compares every answer with `alone`.
UnderLoad compare_under_load(StepLoop& loop, const std::vector<GenerateRequest>& requests,
                             const std::vector<Answered>& alone) {
  UnderLoad out;
  std::mt19937 random(4);
  std::map<RequestId, size_t> open;
  size_t n_submitted = 0;
  while (n_submitted < requests.size() || !open.empty()) {
    if (n_submitted < requests.size() && (open.size() < 4 || random() % 3 == 0)) {
      open[must(loop.submit(requests[n_submitted]))] = n_submitted;
      ++n_submitted;
    }
    if (random() % 60 == 0) loop.cancel(open.begin()->first);
    loop.step();
    out.n_running_most = std::max(out.n_running_most, loop.counts().n_running);
    for (auto at = open.begin(); at != open.end();) {
      const std::unique_ptr<Generation> done = loop.take(at->first);
      if (done == nullptr) {
        ++at;
        continue;
      }
      const Answered found = answered(*done);
      const std::vector<int32_t>& right = alone[at->second].tokens;
      const size_t n = done->finish_reason == FinishReason::kCancelled ? found.tokens.size() : right.size();
      EXPECT_EQ(found.tokens, std::vector(right.begin(), right.begin() + std::min(n, right.size()))) << at->second;
      out.n_found += found.n_found;
      out.n_compared += done->finish_reason != FinishReason::kCancelled ? 1 : 0;
      at = open.erase(at);
    }
  }
  out.n_preempted = loop.counts().n_preempted;
  return out;
}

// What is planned for the scratch of steps where the tests run.
int64_t planned_scratch_bytes(const MemoryPlan& plan) {
  return tested_device() == "cpu" ? plan.workspace_bytes : device_workspace_bytes(plan);
}

class DemoLoadTest : public testing::TestWithParam<const char*> {};

TEST_P(DemoLoadTest, EveryAnswerIsTheOneOfTheRequestAlone) {
  constexpr int kRequests = 40;
  const std::filesystem::path folder = demo_model_folder(GetParam());
  const std::unique_ptr<Model> model = load_model(folder, {.numerics = NumericsMode::kFast});
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < 5; ++i) texts.push_back(text_prompt(folder, 50 + static_cast<uint64_t>(i), 420));
  const std::vector<std::vector<int32_t>> inputs = prompts(kRequests, texts);
  Runner roomy(*model, runner_options(2048));
  std::vector<GenerateRequest> requests;
  std::vector<Answered> alone;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(request(inputs[static_cast<size_t>(i)], i));
    alone.push_back(run_alone(roomy, requests.back()));
  }
  Runner tight(*model, runner_options(20 * kPageTokens));
  std::string trace;
  TraceWriter writer([&](std::string_view line) { trace.append(line).append("\n"); });
  StepLoop loop(tight, {.chunk_tokens = 96,
                        .n_spec_steps = kSpecSteps,
                        .max_context_tokens = 1024,
                        .max_running = 8,
                        .schedule_trace = &writer});
  const UnderLoad seen = compare_under_load(loop, requests, alone);
  EXPECT_GT(seen.n_compared, kRequests * 3 / 4);
  EXPECT_GT(seen.n_found, 500);
  EXPECT_GT(seen.n_preempted, 2);
  const Result<int64_t> n_plans = replay_trace(trace);
  EXPECT_TRUE(n_plans.ok()) << n_plans.error().message;
}

INSTANTIATE_TEST_SUITE_P(Models, DemoLoadTest, testing::Values("demo-v32", "demo-glm"),
                         [](const auto& model) { return model.index == 0 ? "V32" : "Glm"; });

// A long prompt's index scores among it.
TEST_P(DemoLoadTest, AStepsScratchIsWithinThePlan) {
  constexpr int64_t kChunkTokens = 512, kPromptTokens = 6000;
  const std::filesystem::path folder = demo_model_folder(GetParam());
  const std::unique_ptr<CudaBackend> cuda = open_tested_cuda();
  const std::unique_ptr<Model> model = load_model(folder, {.cuda = cuda.get(), .numerics = NumericsMode::kFast});
  RunnerOptions options = runner_options(kPromptTokens + 64);
  options.cuda = cuda.get();
  Runner runner(*model, options);
  const std::vector<int32_t> prompt = text_prompt(folder, 77, kPromptTokens);
  StepLoop loop(runner, {.chunk_tokens = kChunkTokens,
                         .n_spec_steps = kSpecSteps,
                         .max_context_tokens = kPromptTokens + 64,
                         .share_prefixes = false});
  const RequestId id = must(loop.submit({.prompt = prompt, .max_tokens = 12}));
  while (loop.take(id) == nullptr) loop.step();
  const MemoryPlan plan = plan_memory(model->config(), model->numerics(), nullptr, {.n_step_tokens = kChunkTokens});
  const int64_t score_bytes = kPromptTokens * kChunkTokens * 4;
  if (!tests_tuned_kernels()) {                           // whose scratch is their own
    EXPECT_GT(runner.peak_scratch_bytes(), score_bytes);  // they are in what is compared
  }
  EXPECT_LE(runner.peak_scratch_bytes(), planned_scratch_bytes(plan));
}

// Many sequences that decode have more rows than a chunk.
TEST_P(DemoLoadTest, TheScratchOfDecodingIsWithinThePlan) {
  constexpr int64_t kChunkTokens = 16, kSequences = 48, kPromptTokens = 20;
  const std::filesystem::path folder = demo_model_folder(GetParam());
  const std::unique_ptr<CudaBackend> cuda = open_tested_cuda();
  const std::unique_ptr<Model> model = load_model(folder, {.cuda = cuda.get(), .numerics = NumericsMode::kFast});
  RunnerOptions options = runner_options(kSequences * kPageTokens);
  options.cuda = cuda.get();
  options.n_step_tokens = kChunkTokens;
  options.n_step_rows = SchedulerOptions{.step_tokens = kChunkTokens,
                                         .chunk_tokens = kChunkTokens,
                                         .max_running = kSequences,
                                         .lookahead_tokens = 1 + kSpecSteps}
                            .most_rows();
  Runner runner(*model, options);
  StepLoop loop(runner, {.chunk_tokens = kChunkTokens,
                         .n_spec_steps = kSpecSteps,
                         .min_confidence = 0,
                         .max_context_tokens = kPageTokens,
                         .max_running = kSequences,
                         .share_prefixes = false});
  for (int64_t i = 0; i < kSequences; ++i)
    must(loop.submit({.prompt = text_prompt(folder, 80 + static_cast<uint64_t>(i), kPromptTokens), .max_tokens = 30}));
  while (loop.step()) continue;
  ModelConfig config = model->config();
  config.max_position = kPageTokens;  // index scores of no longer a context
  const auto planned = [&](int64_t n_step_rows) {
    return planned_scratch_bytes(
        plan_memory(config, model->numerics(), nullptr, {.n_step_tokens = kChunkTokens}, n_step_rows));
  };
  EXPECT_LE(runner.peak_scratch_bytes(), planned(options.n_step_rows));
  if (tested_device() == "cpu") {
    EXPECT_GT(runner.peak_scratch_bytes(), planned(kChunkTokens));
  }
}

class StateLoadTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string why_not = why_not_on_tested_device(fixture_folder(GetParam()));
    if (!why_not.empty()) GTEST_SKIP() << why_not;
  }
};

// Windows, entries and compressor state, or recurrent state and pools, of sequences that come, go and come again, and go
// on from each other's blocks, of which there is room for a few.
TEST_P(StateLoadTest, EveryAnswerIsThatOfTheRequestAlone) {
  constexpr int kRequests = 40;
  const TempDir folder;
  must(materialise(fixture_folder(GetParam()), folder.path()));
  const std::unique_ptr<Model> model = load_model(folder.path(), {.numerics = NumericsMode::kFast});
  const std::vector<std::vector<int32_t>> inputs =
      prompts(kRequests, random_prompts(folder.path(), 70, {420, 420, 420, 420, 420}));
  Runner roomy(*model, runner_options(1024));
  std::vector<GenerateRequest> requests;
  std::vector<Answered> alone;
  for (int i = 0; i < kRequests; ++i) {
    requests.push_back(request(inputs[static_cast<size_t>(i)], i));
    alone.push_back(run_alone(roomy, requests.back()));
  }
  RunnerOptions limits = runner_options(20 * kPageTokens);
  limits.n_sequences = 4;
  limits.n_step_tokens = 96;
  limits.n_undone_tokens = kSpecSteps;
  Runner tight(*model, limits);
  std::string trace;
  TraceWriter writer([&](std::string_view line) { trace.append(line).append("\n"); });
  StepLoop loop(tight, {.chunk_tokens = 96,
                        .n_spec_steps = kSpecSteps,
                        .max_context_tokens = 1024,
                        .n_host_blocks = 6,
                        .schedule_trace = &writer});
  const UnderLoad seen = compare_under_load(loop, requests, alone);
  EXPECT_GT(seen.n_compared, kRequests * 3 / 4);
  EXPECT_GT(seen.n_found, 500);
  EXPECT_EQ(seen.n_running_most, limits.n_sequences);
  EXPECT_GT(seen.n_preempted, 0);
  EXPECT_EQ(loop.cache().index().memory().n_pages(), 6);
  const Result<int64_t> n_plans = replay_trace(trace);
  EXPECT_TRUE(n_plans.ok()) << n_plans.error().message;
}

// The MTP layer's pair of the last cached token comes on top of the chunk.
TEST_P(StateLoadTest, AChunkAsLongAsAStepMayFollowAPrefixHit) {
  constexpr int64_t kChunkTokens = 96;
  const TempDir folder;
  must(materialise(fixture_folder(GetParam()), folder.path()));
  const std::unique_ptr<Model> model = load_model(folder.path(), {.numerics = NumericsMode::kFast});
  RunnerOptions options = runner_options(1024);
  options.n_step_tokens = kChunkTokens;
  Runner runner(*model, options);
  StepLoop loop(
      runner,
      {.chunk_tokens = kChunkTokens, .n_spec_steps = kSpecSteps, .max_context_tokens = 1024, .n_host_blocks = 6});
  const std::vector<int32_t> prompt = random_prompts(folder.path(), 79, {2 * kPageTokens + 4 * kChunkTokens}).front();
  const auto answer = [&](int64_t n_prompt_tokens) {
    const RequestId id =
        must(loop.submit({.prompt = {prompt.begin(), prompt.begin() + n_prompt_tokens}, .max_tokens = 8}));
    while (loop.step()) continue;
    return loop.take(id);
  };
  answer(2 * kPageTokens + 1);
  const std::unique_ptr<Generation> found = answer(std::ssize(prompt));
  EXPECT_GE(found->n_hit_tokens, kPageTokens);
  EXPECT_EQ(found->tokens.size(), 8u);
}

TEST_P(StateLoadTest, AStepsScratchIsWithinThePlan) {
  constexpr int64_t kChunkTokens = 256, kPromptTokens = 1500;
  const TempDir folder;
  must(materialise(fixture_folder(GetParam()), folder.path()));
  const std::unique_ptr<CudaBackend> cuda = open_tested_cuda();
  const std::unique_ptr<Model> model = load_model(folder.path(), {.cuda = cuda.get(), .numerics = NumericsMode::kFast});
  RunnerOptions options = runner_options(kPromptTokens + 64);
  options.cuda = cuda.get();
  options.n_step_tokens = kChunkTokens;
  Runner runner(*model, options);
  StepLoop loop(runner, {.chunk_tokens = kChunkTokens,
                         .n_spec_steps = kSpecSteps,
                         .max_context_tokens = kPromptTokens + 64,
                         .share_prefixes = false});
  const std::vector<int32_t> prompt = random_prompts(folder.path(), 78, {kPromptTokens}).front();
  const RequestId id = must(loop.submit({.prompt = prompt, .max_tokens = 12}));
  while (loop.take(id) == nullptr) loop.step();
  ModelConfig config = model->config();
  config.max_position = kPromptTokens + 64;  // index scores of no longer a context
  const MemoryPlan plan = plan_memory(config, model->numerics(), nullptr, {.n_step_tokens = kChunkTokens});
  EXPECT_LE(runner.peak_scratch_bytes(), planned_scratch_bytes(plan));
  RecordProperty("share_of_the_plan", std::to_string(100 * runner.peak_scratch_bytes() / planned_scratch_bytes(plan)));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, StateLoadTest, testing::Values("v4-flash", "v4-dspark", "glm-next", "v41-flash"),
                         [](const auto& fixture) { return test_name(fixture.param); });

class V4LoadTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Fixtures, V4LoadTest, testing::Values("v4-flash", "v4-dspark"),
                         [](const auto& fixture) { return test_name(fixture.param); });

TEST_P(V4LoadTest, AContextMayBeShorterThanAnEntry) {
  const TempDir folder;
  must(materialise(fixture_folder(GetParam()), folder.path()));
  const std::unique_ptr<Engine> engine =
      must(Engine::load(on_tested_device({.model_folder = folder.path().string(), .max_model_len_tokens = 20}), {}));
  EXPECT_EQ(must(engine->generate({.prompt = {1, 2, 3}})).tokens.size(), 17u);
}

// As many as the options say, whatever the model keeps for each.
TEST(LoadTest, AnEngineRunsAsManyRequestsAsItIsAskedTo) {
  const TempDir folder;
  must(materialise(fixture_folder("v4-flash"), folder.path()));
  const std::unique_ptr<Engine> engine = must(Engine::load(
      on_tested_device({.model_folder = folder.path().string(), .max_running = 3, .max_model_len_tokens = 512}), {}));
  for (int i = 0; i < 5; ++i) must(engine->submit({.prompt = {1, 2, 3}, .max_tokens = 4}));
  engine->step();
  EXPECT_EQ(engine->load().n_running, 3);
  EXPECT_EQ(engine->load().n_waiting, 2);
}

// In memory of their own, or none where none is given, and on disk for an engine to come.
TEST(LoadTest, ADeviceThatLacksTheMemoryIsNamedWithTheLongestContext) {
  EngineOptions options =
      on_tested_device({.model_folder = demo_model_folder(), .max_model_len_tokens = 1'000'000'000});
  options.overrides.push_back(must(parse_config_override("max_position_embeddings=1000000000")));
  const auto engine = Engine::load(options, {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().kind, ErrorKind::kOutOfMemory);
  const std::string where = tested_cuda() == nullptr ? "" : " on " + tested_cuda()->device().name;
  EXPECT_NE(engine.error().message.find(where + "; the longest context that fits is --max-model-len "),
            std::string::npos)
      << engine.error().message;
}

// On machines without a device too: the family is looked at first.
TEST(LoadTest, AFamilyThatCudaLacksKernelsOfIsRefused) {
  const TempDir folder;
  must(materialise(fixture_folder("v41-flash"), folder.path()));
  const auto engine = Engine::load({.model_folder = folder.path().string(), .device = Device::kCuda}, {});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().kind, ErrorKind::kUsage);
  EXPECT_NE(engine.error().message.find("runs on the CPU alone, CUDA lacks "), std::string::npos)
      << engine.error().message;
}

TEST_P(V4LoadTest, AnEngineSharesPrefixesOfDeepseekV4) {
  const TempDir folder, disk;
  must(materialise(fixture_folder(GetParam()), folder.path()));
  const GenerateRequest what = request(random_prompts(folder.path(), 72, {300}).front(), 1);
  EngineOptions options{.model_folder = folder.path().string(),
                        .n_spec_steps = kSpecSteps,
                        .prefix_memory_bytes = 0,
                        .max_model_len_tokens = 512};
  const auto run_twice = [&](const char* dir) {
    options.cache_dir = dir;
    const std::unique_ptr<Engine> engine = must(Engine::load(on_tested_device(options), {}));
    const Answered first = answered(must(engine->generate(what))), second = answered(must(engine->generate(what)));
    EXPECT_EQ(first.tokens, second.tokens);
    EXPECT_EQ(first.speculation.accepted_per_position, second.speculation.accepted_per_position);
    return std::pair(std::pair(first.n_found, second.n_found), engine->load());
  };
  const auto [none, without] = run_twice("");
  EXPECT_EQ(none, std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(without.n_memory_pages, 0);
  options.prefix_memory_bytes.reset();
  const auto [in_memory, load] = run_twice("");
  EXPECT_EQ(in_memory, std::pair(int64_t{0}, int64_t{256}));
  EXPECT_EQ(load.n_hit_tokens, 256);
  EXPECT_EQ(load.n_restored_tokens, 0);
  EXPECT_EQ(load.n_memory_pages, 2);
  EXPECT_GT(load.n_memory_bytes, 2 * 128);
  run_twice(disk.path().c_str());
  const auto [after_restart, later] = run_twice(disk.path().c_str());
  EXPECT_EQ(after_restart, std::pair(int64_t{256}, int64_t{256}));
  EXPECT_EQ(later.n_restored_tokens, 256);
  EXPECT_EQ(later.n_hit_tokens, 256);  // the second time, in memory
}

// What a later request finds in the cache, the MTP layer's rows and state among it, is to the bit what it would have
// computed itself: so is what it writes next, and what speculation accepts.
TEST(LoadTest, AcceptanceAfterAHitIsThatOfAColdRun) {
  const std::unique_ptr<Model> model = load_model(demo_model_folder(), {.numerics = NumericsMode::kFast});
  GenerateRequest what = request(text_prompt(demo_model_folder(), 60, 300), 0);
  what.max_tokens = 40;
  what.sampling.stop_tokens.clear();
  GenerateRequest beginning = what;  // leaves four pages, and no row of a fifth that is not written again
  beginning.prompt.resize(4 * kPageTokens + 1);
  beginning.max_tokens = 2;
  Runner alone(*model, runner_options(1024, 1)), shared(*model, runner_options(1024, 1));
  const Answered cold = run_alone(alone, what);
  StepLoop loop(shared, {.n_spec_steps = kSpecSteps, .max_context_tokens = 1024});
  must(loop.submit(beginning));
  while (loop.step()) continue;
  const RequestId id = must(loop.submit(what));
  while (loop.step()) continue;
  const Answered found = answered(*loop.take(id));
  EXPECT_EQ(found.n_found, 4 * kPageTokens);
  EXPECT_EQ(found.tokens, cold.tokens);
  EXPECT_EQ(found.speculation.accepted_per_position, cold.speculation.accepted_per_position);
  EXPECT_EQ(found.speculation.n_verify_passes, cold.speculation.n_verify_passes);
  const auto cold_pages = page_contents(alone), found_pages = page_contents(shared);
  EXPECT_GT(cold_pages.size(), 5u);
  EXPECT_TRUE(std::includes(found_pages.begin(), found_pages.end(), cold_pages.begin(), cold_pages.end()));
}

// Log probabilities of a prompt do not depend on chunks, speculation or what the cache holds.
TEST(LoadTest, PromptLogprobsAreTheSameInEveryCircumstance) {
  const std::unique_ptr<Model> model = load_model(demo_model_folder(), {.numerics = NumericsMode::kFast});
  Runner runner(*model, runner_options(4096));
  const std::vector<int32_t> prompt = text_prompt(demo_model_folder(), 61, 300);
  std::vector<std::vector<RowLogprobs>> seen;
  for (const auto& [chunk, drafts] : std::initializer_list<std::pair<int64_t, int>>{{512, 0}, {70, 3}, {512, 3}}) {
    StepLoop loop(runner, {.chunk_tokens = chunk, .n_spec_steps = drafts, .max_context_tokens = 1024});
    for (int turn = 0; turn < 2; ++turn) {
      GenerateRequest what{.prompt = prompt, .max_tokens = 1, .n_top_logprobs = 2, .prompt_logprobs = true};
      what.on_prompt = [&](std::vector<RowLogprobs> logprobs) { seen.push_back(std::move(logprobs)); };
      must(loop.submit(what));
      while (loop.step()) continue;
    }
  }
  ASSERT_EQ(seen.size(), 6u);
  for (const std::vector<RowLogprobs>& rows : seen) {
    ASSERT_EQ(rows.size(), prompt.size() - 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].chosen.token, prompt[i + 1]);
      EXPECT_EQ(rows[i].chosen.logprob, seen[0][i].chosen.logprob);
      EXPECT_EQ(rows[i].top[1].logprob, seen[0][i].top[1].logprob);
    }
  }
}

}  // namespace
}  // namespace levin::test
