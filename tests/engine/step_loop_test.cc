// The loop over a fake model (fake_loop.h): scheduling, acceptance, drafting and prefixes, without a checkpoint. The right
// answer is known beforehand, and depends on every row of the cache.
#include "engine/step_loop.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engine/fake_loop.h"
#include "engine/mtp_drafter.h"

namespace levin::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Kinds, StepLoopTest, all_kinds(), kind_name);

// MTP steps of an answer of n tokens whose drafts are all right, or all wrong: one that takes in what was committed, and one
// more for every further draft that the answer has room for. Where they are enqueued nobody knows that the last round ends
// the answer: its tokens are taken in too.
int64_t expected_mtp_steps(int64_t n, int depth, bool right, bool enqueued) {
  int64_t steps = enqueued ? 1 : 0;
  for (int64_t answered = 1; answered < n;) {
    const int64_t n_drafts = std::min<int64_t>(depth, n - answered - 1);
    steps += std::max<int64_t>(n_drafts, 1);
    answered += right ? n_drafts + 1 : 1;
  }
  return steps;
}

TEST_P(StepLoopTest, AnswersAreThoseOfTheirPromptsHoweverTheyAreComputed) {
  for (const int64_t chunk : {1, 5, 64}) {
    for (const int depth : {0, 1, 3, 5}) {
      for (const uint32_t wrong_every : {0u, 1u, 2u, 3u}) {
        SCOPED_TRACE(testing::Message() << "chunk " << chunk << ", " << depth << " drafts, wrong every "
                                        << wrong_every);
        Fake fake({.chunk_tokens = chunk, .n_spec_steps = depth, .max_context_tokens = kContext}, wrong_every);
        fake.expect_answers({greedy(made_up(70, 1), 80), greedy(made_up(3, 2), 1), greedy(made_up(129, 3), 33)});
      }
    }
  }
}

TEST_P(StepLoopTest, PassesAndDraftForwardsAreThoseThatTheAnswerNeeds) {
  for (const int depth : {1, 2, 3, 5}) {
    for (const bool right : {true, false}) {
      SCOPED_TRACE(testing::Message() << depth << (right ? " right drafts" : " wrong drafts"));
      constexpr int64_t kTokens = 43;
      Fake fake({.n_spec_steps = depth, .min_confidence = 0, .max_context_tokens = kContext}, right ? 0 : 1);
      const std::unique_ptr<Generation> done = fake.answer(greedy(made_up(10, 4), kTokens));
      ASSERT_EQ(std::ssize(done->tokens), kTokens);
      const SpeculationStats& stats = done->speculation;
      EXPECT_EQ(stats.n_accepted, right ? stats.n_drafted : 0);
      EXPECT_EQ(stats.n_verify_passes, right ? (kTokens - 1 + depth) / (depth + 1) : kTokens - 1);
      EXPECT_EQ(fake.model.n_mtp_steps, expected_mtp_steps(kTokens, depth, right, where != Where::kHost));
      EXPECT_EQ(fake.model.n_trunk_rows, 10 + stats.n_verify_passes + stats.n_drafted);
    }
  }
}

TEST_P(StepLoopTest, WithoutDraftsTheMtpLayerNeverRuns) {
  Fake fake({.max_context_tokens = kContext});
  fake.expect_answers({greedy(made_up(70, 1), 80)});
  EXPECT_EQ(fake.model.n_mtp_steps, 0);
}

// Requests that choose in every way: by logits and place alone, which a device may do, and with what needs the logits.
std::vector<GenerateRequest> sampled_requests() {
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 12; ++i) {
    requests.push_back({.prompt = made_up(20 + 7 * static_cast<int64_t>(i), 100 + i), .max_tokens = 60});
    SamplingParams& sampling = requests.back().sampling;
    sampling.temperature = i % 4 == 0 ? 0 : 1.5 * static_cast<double>(i % 4);
    sampling.seed = 7 * i;
    sampling.choice = static_cast<uint32_t>(i % 3);
  }
  requests[2].sampling.top_k = 9;
  requests[3].sampling.top_p = 0.7;
  requests[4].sampling.repetition_penalty = 1.3;
  requests[5].sampling.logit_bias = {{3, 5.0}};
  requests[6].sampling.allowed_tokens = {1, 5, 40, 41};
  requests[7].sampling.stop_tokens = {8, 9, 10, 11, 12};
  requests[7].sampling.min_tokens = 20;
  requests[9].logprobs = true;
  return requests;
}

// Tokens of each, and whether it ended with an error: one that drew the poisoned token does.
std::vector<std::pair<Tokens, bool>> sampled_answers(const LoopOptions& options) {
  Fake fake(options, 3);
  std::vector<RequestId> ids;
  for (const GenerateRequest& request : sampled_requests()) ids.push_back(must(fake.loop.submit(request)));
  while (fake.loop.step()) continue;
  std::vector<std::pair<Tokens, bool>> answers;
  for (const RequestId id : ids) {
    const std::unique_ptr<Generation> done = fake.loop.take(id);
    EXPECT_TRUE(std::all_of(done->tokens.begin(), done->tokens.end(),
                            [&](const TokenEvent& event) { return event.logprobs.has_value() == (id == ids[9]); }));
    answers.emplace_back(answer_of(*done), done->error.has_value());
  }
  return answers;
}

TEST_P(StepLoopTest, SampledAnswersAreTheSameWhereverTokensAreChosen) {
  for (const int depth : {0, 3}) {
    for (const int64_t max_running : {1, 5, 64}) {
      SCOPED_TRACE(testing::Message() << depth << " drafts, " << max_running << " together");
      const auto found = sampled_answers({.chunk_tokens = 33,
                                          .n_spec_steps = depth,
                                          .min_confidence = 0,
                                          .max_context_tokens = kContext,
                                          .max_running = max_running});
      where = Where::kHost, overlap = false;
      const auto expected = sampled_answers({.max_context_tokens = kContext});
      std::tie(where, overlap) = GetParam();
      EXPECT_EQ(found, expected);
    }
  }
}

// Row status, tokens, logits that somebody needs, and taps at block ends come together; then each draft by itself, since some
// of the tokens are the host's to choose.
TEST_P(StepLoopTest, AStepWaitsForItsTokensAndForEachDraftOnce) {
  for (const int depth : {0, 1, 3}) {
    SCOPED_TRACE(depth);
    Fake fake({.chunk_tokens = 64, .n_spec_steps = depth, .min_confidence = 0, .max_context_tokens = kContext});
    for (const GenerateRequest& request : sampled_requests()) must(fake.loop.submit(request));
    int64_t before = fake.runner.n_waits(), most = 0;
    while (fake.loop.step()) {
      most = std::max(most, fake.runner.n_waits() - before);
      before = fake.runner.n_waits();
    }
    EXPECT_EQ(most, where == Where::kHost ? 0 : 1 + depth);
  }
}

// Requests whose tokens a device chooses.
std::vector<GenerateRequest> requests_by_rule() {
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    requests.push_back({.prompt = made_up(20 + 17 * static_cast<int64_t>(i), 100 + i),
                        .max_tokens = 40 + 3 * static_cast<int64_t>(i)});
    requests.back().sampling.temperature = i % 2 == 0 ? 0 : 0.8;
    requests.back().sampling.seed = i;
  }
  return requests;
}

// Where all tokens are chosen by rules a step waits once, however many drafts it makes.
TEST_P(StepLoopTest, AStepWaitsOnceWhereItsDraftsAreEnqueued) {
  for (const int depth : {1, 3, 5}) {
    for (const uint32_t wrong_every : {0u, 1u, 3u}) {
      SCOPED_TRACE(testing::Message() << depth << " drafts, wrong every " << wrong_every);
      Fake fake({.chunk_tokens = 33, .n_spec_steps = depth, .max_context_tokens = kContext}, wrong_every);
      for (const GenerateRequest& request : requests_by_rule()) must(fake.loop.submit(request));
      int64_t n_steps = 0;
      while (fake.loop.step()) ++n_steps;
      // A round that began before it was known that all answers had ended is waited for too.
      const int64_t n_in_vain = where == Where::kHost ? 0 : fake.runner.n_waits() - n_steps;
      EXPECT_TRUE(n_in_vain == 0 || (overlap && n_in_vain == 1)) << n_in_vain;
      EXPECT_EQ(fake.model.n_stale_rows, 0);
    }
  }
}

// Where the host has nothing to choose, every round after the prompts is enqueued before the results of the last one are read,
// and reads what that one leaves on the device.
TEST_P(StepLoopTest, ARoundIsEnqueuedBeforeTheHostKnowsTheResultsOfTheLastOne) {
  for (const int depth : {0, 1, 3, 5}) {
    for (const uint32_t wrong_every : {0u, 1u, 3u}) {
      SCOPED_TRACE(testing::Message() << depth << " drafts, wrong every " << wrong_every);
      Fake fake({.chunk_tokens = 512, .n_spec_steps = depth, .max_context_tokens = kContext}, wrong_every);
      std::vector<GenerateRequest> requests;
      for (uint64_t i = 0; i < 5; ++i) requests.push_back(greedy(made_up(20, 300 + i), 60));
      std::vector<RequestId> ids;
      for (const GenerateRequest& request : requests) ids.push_back(must(fake.loop.submit(request)));
      int64_t n_steps = 0;
      while (fake.loop.step()) ++n_steps;
      for (size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(answer_of(*fake.loop.take(ids[i])), fake_answer(requests[i].prompt, 60)) << i;
      EXPECT_EQ(fake.model.n_stale_rows, 0);
      const bool looks_ahead = overlap && where != Where::kHost;
      EXPECT_GE(fake.device.n_waits_ahead(), looks_ahead ? n_steps - 5 : 0) << "of " << n_steps << " steps";
      EXPECT_LE(fake.device.n_waits_ahead(), looks_ahead ? n_steps : 0);
    }
  }
}

// The caches and results of a round ahead are the runner's.
TEST_P(StepLoopTest, ARunnerGoesWhenItsLastRoundIsDone) {
  if (where == Where::kHost || !overlap) GTEST_SKIP() << "no round is ahead";
  FakeCuda device;
  const FakeModel model(0, tested_place());
  {
    Runner runner(model, runner_options(where, device, 64 * kPageTokens));
    StepLoop loop(runner, in_its_order({.max_context_tokens = kContext}));
    must(loop.submit(greedy(made_up(20, 312), 40)));
    while (device.n_outstanding() == 0) ASSERT_TRUE(loop.step());
  }
  EXPECT_EQ(device.n_outstanding(), 0);
}

// One request with an option of the host's, or one that waits to be admitted: rounds wait for results as long as it is there.
TEST_P(StepLoopTest, RoundsThatNeedTheHostWaitForResults) {
  if (where == Where::kHost || !overlap) GTEST_SKIP() << "no round is ahead";
  for (const int depth : {0, 3}) {
    Fake fake({.chunk_tokens = 512, .n_spec_steps = depth, .max_context_tokens = kContext});
    GenerateRequest biased = greedy(made_up(20, 310), 20);
    biased.sampling.logit_bias = {{3, 5.0}};
    const RequestId host = must(fake.loop.submit(std::move(biased)));
    must(fake.loop.submit(greedy(made_up(20, 311), 120)));
    while (fake.loop.take(host) == nullptr) fake.loop.step();
    EXPECT_EQ(fake.device.n_waits_ahead(), 0);
    while (fake.loop.step()) continue;
    EXPECT_GT(fake.device.n_waits_ahead(), 5);
  }
}

// Requests come and go while rounds are ahead: they end by a stop token, by their callers, by cancel(), for lack of numbers.
TEST_P(StepLoopTest, SequencesThatEndLeaveARoundAheadToTheOthers) {
  for (const int depth : {0, 1, 3}) {
    SCOPED_TRACE(depth);
    Fake fake({.chunk_tokens = 64, .n_spec_steps = depth, .max_context_tokens = kContext, .max_running = 6}, 3);
    std::vector<RequestId> ids;
    std::vector<GenerateRequest> requests;
    for (uint64_t i = 0; i < 24; ++i) {
      requests.push_back(greedy(made_up(20 + 5 * static_cast<int64_t>(i), 320 + i), 30 + static_cast<int64_t>(i)));
      if (i % 4 == 1) requests.back().sampling.stop_tokens = {fake_answer(requests.back().prompt, 17).back()};
      if (i % 4 == 2) {
        requests.back().on_token = [n = 0](const TokenEvent&) mutable {
          return ++n == 14 ? Verdict::kStop : Verdict::kGoOn;
        };
      }
      ids.push_back(must(fake.loop.submit(requests.back())));
    }
    int64_t n_steps = 0;
    while (fake.loop.step()) {
      if (++n_steps % 9 == 0) fake.loop.cancel(ids[static_cast<size_t>(n_steps) / 9 * 4 % ids.size()]);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      const std::unique_ptr<Generation> done = fake.loop.take(ids[i]);
      const auto n = std::ssize(done->tokens);
      EXPECT_EQ(answer_of(*done), fake_answer(requests[i].prompt, n)) << i;
      const int64_t n_most[4] = {requests[i].max_tokens, 17, 14, requests[i].max_tokens};
      EXPECT_LE(n, n_most[i % 4]) << i;
      EXPECT_TRUE(n == n_most[i % 4] || i % 4 < 2) << i << " has " << n;
    }
    EXPECT_EQ(fake.model.n_stale_rows, 0);
    EXPECT_EQ(fake.device.n_waits_ahead() > 20, where != Where::kHost && overlap);
    fake.loop.forget_prefixes();
    EXPECT_EQ(fake.runner.pools().rows().n_free(), fake.runner.pools().rows().n_pages());
  }
}

// Fields of sampling at random, against each other.
GenerateRequest random_request(std::mt19937_64& random) {
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(random() % n); };
  const auto tokens = [&](uint64_t most) {
    std::vector<int32_t> out(below(3) == 0 ? static_cast<size_t>(below(most)) : 0);
    for (int32_t& token : out) token = static_cast<int32_t>(below(kFakeVocab));
    return out;
  };
  GenerateRequest request = greedy(made_up(1 + below(60), random()), 1 + below(24));
  request.sampling = {.temperature = 0.6 * static_cast<double>(below(3)),
                      .top_k = below(3) == 0 ? below(20) : 0,
                      .top_p = below(2) == 0 ? 1 : 0.8,
                      .min_p = below(3) == 0 ? 0.05 : 0,
                      .repetition_penalty = below(3) == 0 ? 1.3 : 1,
                      .presence_penalty = below(3) == 0 ? 5.0 : 0.0,
                      .banned_tokens = tokens(90),
                      .allowed_tokens = tokens(6),
                      .stop_tokens = tokens(5),
                      .min_tokens = below(3) == 0 ? below(8) : 0,
                      .seed = random()};
  return request;
}

TEST_P(StepLoopTest, RandomRequestsTogetherAnswerAsAlone) {
  const LoopOptions options{.chunk_tokens = 33, .n_spec_steps = 3, .max_context_tokens = kContext, .max_running = 6};
  Fake together(options, 3), alone(options, 3);
  std::mt19937_64 random(71);
  int64_t n_answers = 0, n_refused = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<GenerateRequest> requests;
    std::vector<RequestId> ids;
    for (int i = 0; i < 8; ++i) {
      GenerateRequest request = random_request(random);
      const Result<RequestId> id = together.loop.submit(request);
      n_refused += !id.ok();
      if (!id.ok()) continue;
      ids.push_back(*id);
      requests.push_back(std::move(request));
    }
    while (together.loop.step()) continue;
    for (size_t i = 0; i < ids.size(); ++i, ++n_answers) {
      const std::unique_ptr<Generation> found = together.loop.take(ids[i]), expected = alone.answer(requests[i]);
      ASSERT_EQ(answer_of(*found), answer_of(*expected)) << "round " << round << ", request " << i;
      ASSERT_EQ(found->finish_reason, expected->finish_reason);
    }
  }
  EXPECT_GT(n_answers, 200);
  EXPECT_GT(n_refused, 0);
}

struct Drafted {
  Tokens tokens;
  int64_t n_drafted = 0, n_accepted = 0, n_verify_passes = 0;
  std::vector<int64_t> accepted_per_position;
  bool operator==(const Drafted&) const = default;
};

std::vector<Drafted> drafted_answers(const LoopOptions& options, uint32_t wrong_every) {
  Fake fake(options, wrong_every);
  std::vector<RequestId> ids;
  for (const GenerateRequest& request : requests_by_rule()) ids.push_back(must(fake.loop.submit(request)));
  while (fake.loop.step()) continue;
  std::vector<Drafted> out;
  for (const RequestId id : ids) {
    const std::unique_ptr<Generation> done = fake.loop.take(id);
    const SpeculationStats& stats = done->speculation;
    out.push_back({answer_of(*done),
                   stats.n_drafted,
                   stats.n_accepted,
                   stats.n_verify_passes,
                   {stats.accepted_per_position.begin(), stats.accepted_per_position.end()}});
  }
  return out;
}

// Not only tokens: a chain ends at the same draft on the host and on a device. Two of the fake model's drafts together have a
// probability of 0.97, and five of 0.93.
TEST_P(StepLoopTest, DraftsAreTheSameWhereverChainsEnd) {
  if (where == Where::kHost) GTEST_SKIP() << "it is what devices are compared with";
  for (const double min_confidence : {0.0, 0.95, 0.98, 1.0}) {
    for (const uint32_t wrong_every : {0u, 1u, 4u}) {
      SCOPED_TRACE(testing::Message() << "confidence of " << min_confidence << ", wrong every " << wrong_every);
      const LoopOptions options{
          .chunk_tokens = 33, .n_spec_steps = 5, .min_confidence = min_confidence, .max_context_tokens = kContext};
      const std::vector<Drafted> found = drafted_answers(options, wrong_every);
      where = Where::kHost;
      const std::vector<Drafted> expected = drafted_answers(options, wrong_every);
      where = std::get<0>(GetParam());
      EXPECT_EQ(found, expected);
    }
  }
}

// A chain's end is known on the device alone. The steps after it have nothing but padding; graphs leave them out.
TEST_P(StepLoopTest, StepsAfterTheEndOfAllChainsDoNotRun) {
  if (where == Where::kHost) GTEST_SKIP() << "of devices";
  Fake fake({.n_spec_steps = 5, .min_confidence = 1, .max_context_tokens = kContext});
  must(fake.runner.record_graphs(5));
  ASSERT_TRUE(fake.device.synchronize().ok());
  const int64_t n_padding_before = fake.model.n_padding_steps, n_waits_before = fake.runner.n_waits();
  must(fake.loop.submit(greedy(made_up(40, 7), 100)));
  int64_t n_steps = 0;
  while (fake.loop.step()) ++n_steps;
  EXPECT_GT(n_steps, 30);
  EXPECT_LE(fake.runner.n_waits() - n_waits_before, n_steps + 1) << "a round in vain is waited for too";
  // Of each round four; of an answer that has ended the step over its tokens runs with padding.
  const int64_t n_padding_steps = fake.model.n_padding_steps - n_padding_before;
  if (where == Where::kEager) {
    EXPECT_GT(n_padding_steps, 3 * n_steps);
  } else {
    EXPECT_LE(n_padding_steps, 1);
  }
}

// It has layers that draft, and none that mtp() would run.
class FakeBlockModel final : public FakeModel, public BlockDrafting {
 public:
  FakeBlockModel() : FakeModel(0, tested_place()) {}
  const BlockDrafting* block_drafting() const override { return this; }
  ForwardRows mtp(OpContext&, const Step&, const MtpInput&, const KvCache&, const Probe*) const override {
    throw std::logic_error("the model has no MTP layer");
  }
  int32_t noise_token() const override { return 0; }
  ForwardRows draft_blocks(OpContext&, const Step&, const KvCache&) const override { return {}; }
  DraftTerms draft_terms(OpContext&, View, View) const override { return {}; }
};

TEST_P(StepLoopTest, NoPassOfAnMtpLayerIsRecordedForABlockDrafter) {
  if (where != Where::kGraphs) GTEST_SKIP() << "no graphs";
  FakeCuda device;
  const FakeBlockModel model;
  Runner runner(model, runner_options(where, device, 64 * kPageTokens));
  must(runner.record_graphs(3));
  EXPECT_GT(runner.n_graphs(), 0);
}

// What was recorded before is replayed, the rest runs kernel by kernel.
TEST_P(StepLoopTest, WithoutMemoryForMoreGraphsAnswersStayTheSame) {
  if (where == Where::kHost || where == Where::kEager) GTEST_SKIP() << "no graphs";
  for (const int64_t n_graphs : {0, 1, 3}) {
    Fake fake({.n_spec_steps = 3, .max_context_tokens = kContext});
    fake.device.n_graphs_left = n_graphs;
    const Status all = fake.runner.record_graphs(3);
    ASSERT_FALSE(all.ok());
    EXPECT_EQ(all.error().kind, ErrorKind::kOutOfMemory);
    const std::vector<int32_t> prompt = made_up(40, 9);
    const RequestId id = must(fake.loop.submit(greedy(prompt, 60)));
    while (fake.loop.step()) continue;
    EXPECT_EQ(answer_of(*fake.loop.take(id)), fake_answer(prompt, 60));
    EXPECT_EQ(fake.runner.n_graphs(), n_graphs);
  }
}

// Of the device's clock, which steps by a microsecond with every stamp: after the last work of a step comes the trunk.
TEST_P(StepLoopTest, TheGapBetweenStepsIsTakenFromTheDevicesClock) {
  if (where == Where::kHost) GTEST_SKIP() << "of devices";
  Fake fake({.n_spec_steps = 3, .max_context_tokens = kContext});
  must(fake.runner.record_graphs(3));  // which run the trunk
  must(fake.loop.submit(greedy(made_up(20, 8), 40)));
  fake.loop.step();
  EXPECT_FALSE(fake.loop.last_step().host_gap_s.has_value());
  while (fake.loop.step()) {
    const std::optional<double> gap_s = fake.loop.last_step().host_gap_s;
    EXPECT_NEAR(gap_s.value_or(1e-6), 1e-6, 1e-12);
  }
}

// Counts the rows of the draft layer's passes.
class CountingModel final : public FakeModel {
 public:
  CountingModel() : FakeModel(1, tested_place()) {}
  ForwardRows mtp(OpContext& ctx, const Step& step, const MtpInput& in, const KvCache& cache,
                  const Probe* probe) const override {
    n_most_rows = std::max(n_most_rows, step.n_tokens());
    return FakeModel::mtp(ctx, step, in, cache, probe);
  }
  mutable int64_t n_most_rows = 0;
};

// Twelve sequences, begun together, for which nobody drafts have 64 pairs each that wait when the first has to run.
TEST_P(StepLoopTest, NoPassOverPairsThatWaitedHasMoreRowsThanMemoryIsPlannedFor) {
  constexpr int64_t kRows = 128;
  FakeCuda device;
  const CountingModel model;
  RunnerOptions limits = runner_options(where, device, 64 * kPageTokens);
  limits.n_step_tokens = limits.n_step_rows = kRows;
  Runner runner(model, limits);
  StepLoop loop(runner, in_its_order({.chunk_tokens = kRows,
                                      .n_spec_steps = 3,
                                      .adapt_depth = true,
                                      .max_context_tokens = kContext,
                                      .max_running = 12}));
  std::vector<Tokens> prompts;
  std::vector<RequestId> ids;
  for (uint64_t i = 0; i < 12; ++i) {
    prompts.push_back(made_up(5, 400 + i));
    ids.push_back(must(loop.submit(greedy(prompts.back(), 200))));
  }
  while (loop.step()) continue;
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(answer_of(*loop.take(ids[i])), fake_answer(prompts[i], 200)) << i;
  EXPECT_LE(model.n_most_rows, kRows);
  EXPECT_EQ(model.n_stale_rows, 0);
}

// While nobody drafts, the taps that are kept for later come with the tokens.
TEST_P(StepLoopTest, AStepWithoutDraftsWaitsOnceToo) {
  Fake fake({.n_spec_steps = 3, .adapt_depth = true, .max_context_tokens = kContext}, 1);
  for (const GenerateRequest& request : requests_by_rule()) must(fake.loop.submit(request));
  int64_t n_steps = 0, n_once = 0, before = 0;
  while (fake.loop.step()) {
    ++n_steps;
    n_once += fake.runner.n_waits() - std::exchange(before, fake.runner.n_waits()) == 1 ? 1 : 0;
  }
  if (where == Where::kHost) return;
  EXPECT_GT(n_once, n_steps * 8 / 10) << "of " << n_steps << " steps, in some of which pending pairs are taken in";
  EXPECT_EQ(fake.device.n_waits_ahead() > n_steps / 3, overlap) << "of " << n_steps;
}

// The depth follows the time of rounds, so that it changes at any of them: from and to rounds that make no drafts, too.
TEST_P(StepLoopTest, AnswersAreThoseOfTheirPromptsWhenTheDepthAdapts) {
  for (const uint32_t wrong_every : {1u, 2u, 3u, 5u}) {
    SCOPED_TRACE(testing::Message() << "wrong every " << wrong_every);
    Fake fake({.n_spec_steps = 3, .adapt_depth = true, .max_context_tokens = kContext}, wrong_every);
    std::vector<GenerateRequest> requests;
    for (uint64_t i = 0; i < 5; ++i) requests.push_back(greedy(made_up(20, 350 + i), 300));
    fake.expect_answers(requests);
  }
}

// Twelve answers in a cache for three.
TEST_P(StepLoopTest, PreemptedAnswersGoOnAsIfNothingHadBeen) {
  for (const int depth : {0, 3}) {
    Fake fake({.chunk_tokens = 48, .n_spec_steps = depth, .max_context_tokens = kContext, .share_prefixes = false}, 3,
              9 * kPageTokens);
    std::vector<GenerateRequest> requests;
    for (uint64_t i = 0; i < 12; ++i) requests.push_back(greedy(made_up(20 + 9 * static_cast<int64_t>(i), 10 + i), 90));
    fake.expect_answers(requests);
    EXPECT_GT(fake.loop.counts().n_preempted, 0);
  }
}

TEST_P(StepLoopTest, PrefixesOfOthersAreFoundAndRight) {
  for (const int depth : {0, 3}) {
    Fake fake({.n_spec_steps = depth, .max_context_tokens = kContext}, 2);
    const Tokens common = made_up(200, 30);
    fake.expect_answers({greedy(joined(common, made_up(7, 31)), 50)});
    const int64_t n_computed = fake.model.n_trunk_rows;
    fake.expect_answers({greedy(joined(common, made_up(9, 32)), 5), greedy(common, 70)});
    EXPECT_GT(fake.loop.counts().n_hit_tokens, 0);
    EXPECT_LT(fake.model.n_trunk_rows - n_computed, 300) << "the prefix was computed again";
  }
}

// While nobody drafts the MTP layer's rows are pending, and tokens without them are not committed: nobody may find them.
TEST(MtpDrafterTest, TokensWhoseDraftRowsArePendingAreNotCommitted) {
  const FakeModel model;
  Runner runner(model, {.n_cache_tokens = 4 * kPageTokens});
  SequencePages pages(runner.pools());
  must(pages.grow(2 * kPageTokens));
  const Tokens tokens = made_up(31, 70);
  MtpDrafter drafter(runner);
  const std::unique_ptr<DraftState> state = drafter.open();
  const auto commit = [&](int64_t first, int64_t n, int depth) {
    const SequenceChunk chunk{.tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
                              .first_position = static_cast<int32_t>(first),
                              .pages = &pages};
    DraftRound round{.taps = runner.trunk({&chunk, 1}).state, .depth = depth};
    round.entries.push_back({.state = state.get(),
                             .pages = &pages,
                             .tokens = std::span(tokens).first(static_cast<size_t>(first + n + 1)),
                             .n_committed = n});
    drafter.commit(round);
  };
  commit(0, 20, 0);
  EXPECT_EQ(model.n_mtp_steps, 0);
  EXPECT_EQ(drafter.n_committed(*state, 20), 1);
  commit(20, 10, 1);
  EXPECT_EQ(model.n_mtp_steps, 1);
  EXPECT_EQ(drafter.n_committed(*state, 30), 30);
  EXPECT_EQ(model.n_stale_rows, 0);
}

// Pairs that have to run take those of other sequences with them, up to 512 rows.
TEST(MtpDrafterTest, SequencesWithPendingRowsRunTogether) {
  constexpr size_t kSequences = 10;
  const FakeModel model;
  Runner runner(model, {.n_cache_tokens = kSequences * 2 * kPageTokens});
  const Tokens tokens = made_up(70, 33);
  MtpDrafter drafter(runner);
  std::vector<std::unique_ptr<SequencePages>> pages;
  std::vector<std::unique_ptr<DraftState>> states;
  for (size_t i = 0; i < kSequences; ++i) {
    pages.push_back(std::make_unique<SequencePages>(runner.pools()));
    must(pages.back()->grow(2 * kPageTokens));
    states.push_back(drafter.open());
  }
  // Rows from position `first` on of every sequence: n_of_first of the first sequence, n of the others.
  const auto commit = [&](int64_t first, int64_t n_of_first, int64_t n) {
    std::vector<SequenceChunk> chunks;
    DraftRound round;
    int64_t n_rows = 0;
    for (size_t i = 0; i < kSequences; ++i) {
      const int64_t n_own = i == 0 ? n_of_first : n;
      chunks.push_back({.tokens = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(n_own)),
                        .first_position = static_cast<int32_t>(first),
                        .pages = pages[i].get()});
      round.entries.push_back({.state = states[i].get(),
                               .pages = pages[i].get(),
                               .tokens = std::span(tokens).first(static_cast<size_t>(first + n_own + 1)),
                               .first_row = n_rows,
                               .n_committed = n_own});
      n_rows += n_own;
    }
    round.taps = runner.trunk(chunks).state;
    drafter.commit(round);
  };
  commit(0, 60, 60);
  EXPECT_EQ(model.n_mtp_steps, 0);
  commit(60, 4, 1);
  EXPECT_EQ(model.n_mtp_steps, 1);
  EXPECT_EQ(drafter.n_committed(*states[0], 64), 64);
  for (size_t i = 1; i < kSequences; ++i) {
    const bool has_run = 64 + static_cast<int64_t>(i) * 61 <= 512;
    EXPECT_EQ(drafter.n_committed(*states[i], 61), has_run ? 61 : 1) << i;
  }
  EXPECT_EQ(model.n_stale_rows, 0);
}

// Of prefixes whose pages others took, the records in host memory are left.
TEST_P(StepLoopTest, PrefixesComeBackFromHostMemory) {
  for (const int depth : {0, 3}) {
    Fake fake({.n_spec_steps = depth, .max_context_tokens = kContext, .n_host_blocks = 64}, 2, 8 * kPageTokens);
    const Tokens prompt = made_up(260, 40);
    fake.expect_answers({greedy(prompt, 20)});
    for (uint64_t i = 0; i < 3; ++i) fake.expect_answers({greedy(made_up(400, 41 + i), 10)});
    const int64_t n_computed = fake.model.n_trunk_rows;
    fake.expect_answers({greedy(prompt, 20)});
    EXPECT_LT(fake.model.n_trunk_rows - n_computed, 100) << "the prefix was computed again";
  }
}

// They are copied in parallel with the steps, each of which waits for its own results alone.
TEST_P(StepLoopTest, NoStepWaitsForRecords) {
  if (where == Where::kHost) GTEST_SKIP() << "of devices";
  for (const bool late : {false, true}) {
    Fake fake({.chunk_tokens = 64, .n_spec_steps = 3, .max_context_tokens = kContext, .n_host_blocks = 64});
    fake.device.copies_aside_late = late;
    must(fake.runner.record_graphs(3));
    must(fake.loop.submit(greedy(made_up(300, 50), 300)));
    const int64_t before = fake.device.n_synchronized();
    int64_t n_steps = 0;
    while (fake.loop.step()) {
      ++n_steps;
      EXPECT_EQ(fake.device.n_waits_aside(), 0);
    }
    EXPECT_LE(fake.device.n_synchronized() - before, n_steps + 1) << "a round in vain is waited for too";
    if (late) {
      EXPECT_GE(fake.device.n_waits_aside(), 1) << "records are finished when there is nothing else to do";
    }
    EXPECT_GE(fake.device.n_copies_aside(), 9);
  }
}

// A record is what its block was when it was complete: copied no earlier than the last pass that writes it, and no later than
// its pages have another owner. A sequence that resumes from it gets the answer that it would have computed.
TEST_P(StepLoopTest, RecordsAreCopiedBetweenTheStepsThatWriteTheirBlocks) {
  if (where == Where::kHost) GTEST_SKIP() << "of devices";
  for (const bool late : {false, true}) {
    for (const int depth : {0, 3}) {
      SCOPED_TRACE(testing::Message() << (late ? "late" : "early") << " copies, " << depth << " drafts");
      Fake fake({.chunk_tokens = 64, .n_spec_steps = depth, .max_context_tokens = kContext, .n_host_blocks = 64}, 2,
                8 * kPageTokens);
      fake.device.copies_aside_late = late;
      // After a prefix that is found, nobody waits for the MTP layer's pass over the next chunk, which completes the last block.
      const Tokens prefix = made_up(128, 40), prompt = joined(prefix, made_up(72, 41));
      fake.expect_answers({greedy(joined(prefix, made_up(10, 42)), 10)});
      std::vector<GenerateRequest> requests = {greedy(prompt, 20)};
      for (uint64_t i = 0; i < 3; ++i) requests.push_back(greedy(made_up(400, 43 + i), 10));  // in the same pages
      fake.expect_answers(requests);
      const int64_t n_computed = fake.model.n_trunk_rows;
      fake.expect_answers({greedy(prompt, 20)});
      EXPECT_LT(fake.model.n_trunk_rows - n_computed, 100) << "the prefix was computed again";
    }
  }
}

TEST_P(StepLoopTest, ARowWithoutNumbersEndsItsRequestAlone) {
  Fake fake({.chunk_tokens = 16, .n_spec_steps = 3, .max_context_tokens = kContext});
  Tokens poisoned = made_up(40, 50);
  poisoned[30] = kPoison;
  std::vector<GenerateRequest> requests;
  for (uint64_t i = 0; i < 7; ++i) requests.push_back(greedy(made_up(33, 51 + i), 30));
  std::vector<RequestId> ids;
  for (const GenerateRequest& request : requests) ids.push_back(must(fake.loop.submit(request)));
  const RequestId bad = must(fake.loop.submit(greedy(poisoned, 30)));
  while (fake.loop.step()) continue;
  const std::unique_ptr<Generation> ended = fake.loop.take(bad);
  EXPECT_EQ(ended->finish_reason, FinishReason::kError);
  ASSERT_TRUE(ended->error.has_value());
  EXPECT_NE(ended->error->message.find("position 30"), std::string::npos) << ended->error->message;
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(answer_of(*fake.loop.take(ids[i])), fake_answer(requests[i].prompt, 30)) << i;
  }
  // Nor does anybody find its rows.
  poisoned[30] = 1;
  EXPECT_EQ(answer_of(*fake.answer(greedy(poisoned, 20))), fake_answer(poisoned, 20));
}

// A caller ends its answer at a token: later ones, which may be computed already, are neither delivered nor counted.
TEST_P(StepLoopTest, AnAnswerThatItsCallerEndsHasNoTokenMore) {
  for (const int depth : {0, 3}) {
    for (const Verdict verdict : {Verdict::kStop, Verdict::kCancel}) {
      SCOPED_TRACE(testing::Message() << depth << " drafts");
      Fake fake({.chunk_tokens = 16, .n_spec_steps = depth, .min_confidence = 0, .max_context_tokens = kContext}, 3);
      std::vector<RequestId> ids;
      std::vector<Tokens> prompts, seen(9);
      for (size_t i = 0; i < seen.size(); ++i) {
        prompts.push_back(made_up(20 + static_cast<int64_t>(i), 80 + i));
        GenerateRequest request = greedy(prompts.back(), 40);
        request.on_token = [&seen, verdict, i](const TokenEvent& event) {
          seen[i].push_back(event.token);
          return seen[i].size() == 3 * i + 1 ? verdict : Verdict::kGoOn;
        };
        ids.push_back(must(fake.loop.submit(std::move(request))));
      }
      while (fake.loop.step()) continue;
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::unique_ptr<Generation> done = fake.loop.take(ids[i]);
        EXPECT_EQ(seen[i], fake_answer(prompts[i], std::ssize(seen[i])));
        EXPECT_EQ(seen[i].size(), 3 * i + 1);
        EXPECT_EQ(answer_of(*done), seen[i]);
        EXPECT_EQ(done->finish_reason, verdict == Verdict::kStop ? FinishReason::kStop : FinishReason::kCancelled);
        EXPECT_EQ(done->speculation.n_kept, std::ssize(seen[i]) - 1);
      }
      // Others may find the rows that were computed, and no wrong ones.
      for (const Tokens& prompt : prompts)
        EXPECT_EQ(answer_of(*fake.answer(greedy(prompt, 50))), fake_answer(prompt, 50));
    }
  }
}

// While a device computes a round the tokens of the one before are delivered; on the whole each is, once.
TEST_P(StepLoopTest, TokensAreDeliveredWhileTheNextRoundIsComputed) {
  Fake fake({.max_context_tokens = kContext});
  std::vector<bool> computes;  // while a token is delivered
  GenerateRequest request = greedy(made_up(20, 90), 12);
  request.on_token = [&](const TokenEvent&) {
    computes.push_back(fake.device.n_outstanding() > 0);
    return Verdict::kGoOn;
  };
  must(fake.loop.submit(std::move(request)));
  while (fake.loop.step()) continue;
  std::vector<bool> expected(12, overlap && where != Where::kHost);
  expected.front() = expected.back() = false;  // of a prompt; and there is no next
  EXPECT_EQ(computes, expected);
}

TEST_P(StepLoopTest, CancelledAnswersEndAndOthersGoOn) {
  Fake fake({.n_spec_steps = 2, .max_context_tokens = kContext}, 2);
  const Tokens one = made_up(20, 60), other = made_up(20, 61);
  const RequestId cancelled = must(fake.loop.submit(greedy(one, 200))),
                  kept = must(fake.loop.submit(greedy(other, 60)));
  for (int i = 0; i < 5; ++i) fake.loop.step();
  fake.loop.cancel(cancelled);
  while (fake.loop.step()) continue;
  const std::unique_ptr<Generation> ended = fake.loop.take(cancelled);
  EXPECT_EQ(ended->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(answer_of(*ended), fake_answer(one, std::ssize(ended->tokens)));
  EXPECT_EQ(answer_of(*fake.loop.take(kept)), fake_answer(other, 60));
}

}  // namespace
}  // namespace levin::test
