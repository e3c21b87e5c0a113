// What the scheduler decides, case by case.
#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "sched/trace.h"

namespace levin {
namespace {

// A scheduler with sequences whose tokens are their own, and a model that always answers with the token 7.
class Bench {
 public:
  explicit Bench(const SchedulerOptions& options, int64_t n_pages = 100, bool share_prefixes = true)
      : pools_({}, {.n_tokens = n_pages * kPageTokens}),
        cache_(pools_, {.share_prefixes = share_prefixes}),
        writer_([this](std::string_view line) { trace_.append(line).append("\n"); }),
        scheduler_(options, cache_, &writer_) {}

  Submission submit(SequenceId id, int64_t n_prompt, int64_t n_answer = 100, int32_t priority = 0) {
    std::vector<int32_t>& tokens = tokens_[id];
    tokens.resize(static_cast<size_t>(n_prompt));
    std::iota(tokens.begin(), tokens.end(), static_cast<int32_t>(1000 * id));
    return scheduler_.submit({.id = id, .priority = priority, .limit_tokens = n_prompt + n_answer, .tokens = &tokens});
  }
  // Plans a step and does it; drafts of the next one are never right.
  StepPlan step(int64_t n_drafts = 0) {
    StepPlan plan = scheduler_.plan();
    for (const StepEntry& entry : plan.entries) {
      const int64_t n_cached = entry.first_position + entry.n_tokens;
      if (entry.gives_token) tokens_[entry.id].push_back(7);
      const std::vector<ResumeState> resume(
          static_cast<size_t>(n_cached / kPageTokens - entry.first_position / kPageTokens),
          std::make_shared<const std::vector<float>>());
      scheduler_.advance(entry.id,
                         {.n_cached = n_cached, .n_committed = n_cached, .n_drafts = n_drafts, .resume = resume});
    }
    return plan;
  }
  // Of one sequence, whose token and first n_right drafts are right.
  void advance(SequenceId id, int64_t first_position, int64_t n_right, int64_t n_drafts) {
    const int64_t n_cached = first_position + 1 + n_right;
    for (int64_t i = 0; i <= n_right; ++i) tokens_[id].push_back(7);
    const std::vector<ResumeState> resume(static_cast<size_t>(n_cached / kPageTokens - first_position / kPageTokens),
                                          std::make_shared<const std::vector<float>>());
    scheduler_.advance(id, {.n_cached = n_cached, .n_committed = n_cached, .n_drafts = n_drafts, .resume = resume});
  }
  void remove(SequenceId id) {
    scheduler_.remove(id);
    tokens_.erase(id);
  }
  Scheduler& scheduler() { return scheduler_; }
  std::vector<int32_t>& tokens(SequenceId id) { return tokens_[id]; }
  const std::string& trace() const { return trace_; }

 private:
  SequencePools pools_;
  CacheManager cache_;
  std::map<SequenceId, std::vector<int32_t>> tokens_;
  std::string trace_;
  TraceWriter writer_;
  Scheduler scheduler_;
};

StepEntry chunk(SequenceId id, int64_t first, int64_t n, bool last) {
  return {.id = id, .first_position = first, .n_tokens = n, .n_drafts = 0, .gives_token = last};
}

TEST(Scheduler, CutsAPromptIntoChunksAndThenDecodes) {
  Bench bench({.step_tokens = 100, .chunk_tokens = 80});
  bench.submit(1, 170);
  EXPECT_EQ(bench.step().entries, (std::vector<StepEntry>{chunk(1, 0, 80, false)}));
  EXPECT_EQ(bench.step().entries, (std::vector<StepEntry>{chunk(1, 80, 80, false)}));
  EXPECT_EQ(bench.step(2).entries, (std::vector<StepEntry>{chunk(1, 160, 10, true)}));
  const std::vector<StepEntry> decode = {
      {.id = 1, .first_position = 170, .n_tokens = 1, .n_drafts = 2, .gives_token = true}};
  EXPECT_EQ(bench.step().entries, decode);
}

TEST(Scheduler, PrefillTakesWhatDecodingLeaves) {
  Bench bench({.step_tokens = 100, .chunk_tokens = 100});
  for (SequenceId id = 1; id <= 5; ++id) bench.submit(id, 10);
  bench.step(3);
  bench.submit(6, 500);
  const StepPlan plan = bench.step(3);
  ASSERT_EQ(plan.entries.size(), 6u);
  EXPECT_EQ(plan.entries.back(), chunk(6, 0, 80, false));  // 100 less 5 times 4
}

TEST(Scheduler, WithPrefillFirstNobodyDecodesUntilEveryPromptIsComputed) {
  Bench bench({.step_tokens = 100, .chunk_tokens = 100, .prefill_first = true});
  bench.submit(1, 30);
  bench.submit(2, 200);
  EXPECT_EQ(bench.step().entries, (std::vector<StepEntry>{chunk(1, 0, 30, true), chunk(2, 0, 70, false)}));
  EXPECT_EQ(bench.step().entries, (std::vector<StepEntry>{chunk(2, 70, 100, false)}));
  EXPECT_EQ(bench.step().entries, (std::vector<StepEntry>{chunk(2, 170, 30, true)}));
  for (int i = 0; i < 5; ++i) {
    const StepPlan plan = bench.step();
    ASSERT_EQ(plan.entries.size(), 2u);
    EXPECT_TRUE(plan.entries[0].gives_token && plan.entries[1].gives_token);
  }
  EXPECT_TRUE(replay_trace(bench.trace()).ok());
}

TEST(Scheduler, PrefillIsNotStarvedByManyDecoders) {
  Bench bench({.step_tokens = 64, .chunk_tokens = 512, .max_running = 200}, 1000);
  for (SequenceId id = 1; id <= 100; ++id) bench.submit(id, 1);
  for (int i = 0; i < 2; ++i) bench.step();
  bench.submit(101, 500);
  const StepPlan plan = bench.step();
  EXPECT_EQ(plan.entries.size(), 101u);
  EXPECT_EQ(plan.entries.back(), chunk(101, 0, 64, false));
}

TEST(Scheduler, BetterPriorityGoesFirstAndSendsOthersBack) {
  Bench bench({.max_running = 1});
  bench.submit(1, 10, 100, 5);
  bench.step();
  bench.submit(2, 10, 100, 5);
  bench.submit(3, 10, 100, 1);
  const StepPlan plan = bench.step();
  EXPECT_EQ(plan.preempted, (std::vector<SequenceId>{1}));
  ASSERT_EQ(plan.entries.size(), 1u);
  EXPECT_EQ(plan.entries[0].id, 3);
  bench.remove(3);
  EXPECT_EQ(bench.step().entries, (std::vector<StepEntry>{chunk(1, 0, 11, true)}));  // with the token it had
}

TEST(Scheduler, ABetterPrioritySendsNobodyBackWhereThatMakesTooLittleRoom) {
  Bench bench({}, 4, false);
  bench.submit(1, 60, 60, 0);
  bench.submit(2, 60, 60, 5);
  bench.step();
  bench.submit(3, 150, 60, 1);  // 3 pages, and one more for 1: without 2 there are 3
  for (int i = 0; i < 3; ++i) {
    const StepPlan plan = bench.step();
    EXPECT_TRUE(plan.preempted.empty() && plan.admitted.empty());
    EXPECT_EQ(plan.entries.size(), 2u);
  }
  bench.remove(1);
  const StepPlan plan = bench.step();  // it fits with 2 gone
  EXPECT_EQ(plan.preempted, (std::vector<SequenceId>{2}));
  ASSERT_EQ(plan.admitted.size(), 1u);
  EXPECT_EQ(plan.admitted[0].id, 3);
  EXPECT_TRUE(replay_trace(bench.trace()).ok());
}

TEST(Scheduler, ABetterPriorityGetsThePagesThatOthersShareWithIt) {
  Bench bench({}, 6);
  bench.submit(1, 200, 60, 5);
  bench.submit(2, 200, 60, 5);
  bench.tokens(2) = bench.tokens(1);
  bench.step();
  bench.step();
  bench.submit(3, 330, 50, 1);  // all 6 pages, of which it finds 3
  std::copy_n(bench.tokens(1).begin(), 200, bench.tokens(3).begin());
  const StepPlan plan = bench.step();
  EXPECT_EQ(plan.preempted, (std::vector<SequenceId>{2, 1}));
  ASSERT_EQ(plan.admitted.size(), 1u);
  EXPECT_EQ(plan.admitted[0].n_cached, 3 * kPageTokens);
}

TEST(Scheduler, SendsTheLastBackWhenPagesRunOut) {
  Bench bench({}, 4, false);
  bench.submit(1, 60, 120);
  bench.submit(2, 60, 120);
  std::vector<SequenceId> preempted;
  int64_t n_steps = 0;
  for (; preempted.empty(); ++n_steps) preempted = bench.step().preempted;
  EXPECT_EQ(preempted, (std::vector<SequenceId>{2}));
  EXPECT_EQ(bench.scheduler().counts().n_waiting, 1);
  EXPECT_EQ(bench.scheduler().counts().n_preempted, 1);
  EXPECT_GT(n_steps, 60);
  bench.remove(1);
  const StepPlan plan = bench.step();
  ASSERT_EQ(plan.admitted.size(), 1u);
  // from its first token, the answer so far included
  EXPECT_EQ(plan.entries.at(0), chunk(2, 0, std::ssize(bench.tokens(2)) - 1, true));
}

TEST(Scheduler, ADraftSendsNobodyBack) {
  Bench bench({.lookahead_tokens = 1}, 3, false);
  bench.submit(1, 61, 60);
  bench.submit(2, 61, 60);
  bench.step(3);
  const StepPlan plan = bench.step();  // 62 rows, 3 drafts and one slot need a second page each; one is left
  ASSERT_EQ(plan.entries.size(), 2u);
  EXPECT_EQ(plan.entries[0].n_drafts, 3);
  EXPECT_EQ(plan.entries[1].n_drafts, 0);
  EXPECT_TRUE(plan.preempted.empty());
}

TEST(Scheduler, ASecondPromptFindsThePagesOfTheFirst) {
  Bench bench({});
  bench.submit(1, 200);
  bench.step();
  bench.submit(2, 200);
  bench.tokens(2) = bench.tokens(1);  // the same prompt, with the answer's first token after it
  const StepPlan plan = bench.step();
  ASSERT_EQ(plan.admitted.size(), 1u);
  EXPECT_EQ(plan.admitted[0].n_cached, 3 * kPageTokens);
  EXPECT_EQ(bench.scheduler().counts().n_hit_tokens, 3 * kPageTokens);
  EXPECT_EQ(plan.entries.back(), chunk(2, 192, 9, true));
}

TEST(Scheduler, TheLastTokenIsAlwaysComputed) {
  Bench bench({});
  bench.submit(1, 128);
  bench.step();
  bench.submit(2, 128);
  bench.tokens(2).assign(bench.tokens(1).begin(), bench.tokens(1).begin() + 128);
  EXPECT_EQ(bench.step().admitted.at(0).n_cached, 64);
}

TEST(Scheduler, RefusesWhatCannotBe) {
  Bench bench({.max_running = 1, .max_waiting = 2}, 4);
  EXPECT_EQ(bench.submit(1, 200, 100), Submission::kTooLong);
  EXPECT_EQ(bench.submit(2, 10, 10), Submission::kAccepted);
  EXPECT_EQ(bench.submit(3, 10, 10), Submission::kAccepted);
  EXPECT_EQ(bench.submit(4, 10, 10), Submission::kQueueFull);
  bench.step();
  EXPECT_EQ(bench.submit(5, 10, 10), Submission::kAccepted);
  EXPECT_EQ(bench.submit(6, 10, 10), Submission::kQueueFull);
  bench.remove(5);
  EXPECT_EQ(bench.submit(7, 10, 10), Submission::kAccepted);
}

TEST(Scheduler, ARemovedSequenceIsInNoPlan) {
  Bench bench({}, 10);
  bench.submit(1, 100);
  bench.submit(2, 100);
  bench.step();
  bench.remove(1);
  const StepPlan plan = bench.step();
  ASSERT_EQ(plan.entries.size(), 1u);
  EXPECT_EQ(plan.entries[0].id, 2);
  bench.remove(2);
  EXPECT_TRUE(bench.scheduler().plan().entries.empty());
  const SchedulerCounts counts = bench.scheduler().counts();
  EXPECT_EQ(counts.n_free_pages + counts.n_cached_pages, 10);
}

// ---- steps ahead ---------------------------------------------------------------------------------------------------

StepEntry decoding(SequenceId id, int64_t first, int64_t n_drafts) {
  return {.id = id, .first_position = first, .n_tokens = 1, .n_drafts = n_drafts, .gives_token = true};
}

TEST(Scheduler, AStepAheadBeginsWhereAllRowsBeforeItAreRight) {
  Bench bench({.step_tokens = 100, .chunk_tokens = 100, .lookahead_tokens = 4});
  bench.submit(1, 60);
  bench.submit(2, 20);
  EXPECT_FALSE(bench.scheduler().plan_ahead(3).has_value()) << "nobody decodes";
  bench.step(2);
  ASSERT_EQ(bench.scheduler().plan().entries, (std::vector<StepEntry>{decoding(1, 60, 2), decoding(2, 20, 2)}));
  const auto ahead = bench.scheduler().plan_ahead(3);
  ASSERT_TRUE(ahead.has_value());
  EXPECT_EQ(ahead->entries, (std::vector<StepEntry>{decoding(1, 63, 3), decoding(2, 23, 3)}));
  // All it may write, by the drafting after it too.
  EXPECT_GE(bench.scheduler().pages(1).n_tokens(), 63 + 4 + 4);
  bench.advance(1, 60, 0, 3);
  bench.advance(2, 20, 2, 1);
  const auto next = bench.scheduler().plan_ahead(3);
  ASSERT_TRUE(next.has_value());
  EXPECT_EQ(next->entries, (std::vector<StepEntry>{decoding(1, 61 + 4, 3), decoding(2, 23 + 4, 3)}));
  bench.advance(1, 61, 3, 0);
  bench.advance(2, 23, 1, 0);
  bench.advance(1, 65, 0, 2);
  bench.advance(2, 25, 0, 0);
  EXPECT_EQ(bench.scheduler().plan().entries, (std::vector<StepEntry>{decoding(1, 66, 2), decoding(2, 26, 0)}));
  const Result<int64_t> n_plans = replay_trace(bench.trace());
  ASSERT_TRUE(n_plans.ok()) << n_plans.error().message;
  EXPECT_EQ(*n_plans, 6);
}

TEST(Scheduler, ASequenceWhoseNextTokenIsItsLastIsInNoStepAhead) {
  Bench bench({.step_tokens = 100, .chunk_tokens = 100});
  bench.submit(1, 10, 2);
  bench.submit(2, 20, 50);
  bench.step();
  bench.scheduler().plan();
  const auto ahead = bench.scheduler().plan_ahead(0);
  ASSERT_TRUE(ahead.has_value());
  EXPECT_EQ(ahead->entries, (std::vector<StepEntry>{decoding(2, 21, 0)}));
}

// Its row is not one of four, as it was planned to be when it was preempted.
TEST(Scheduler, NoStepIsAheadOfOneThatComesBackWithAllButItsLastTokenCached) {
  Bench bench({.step_tokens = 100, .chunk_tokens = 100, .max_running = 1, .lookahead_tokens = 4});
  bench.submit(1, 60, 100, 5);
  bench.step(3);
  ASSERT_EQ(bench.scheduler().plan().entries, (std::vector<StepEntry>{decoding(1, 60, 3)}));
  bench.advance(1, 60, 3, 3);
  bench.submit(2, 10, 100, 1);
  ASSERT_EQ(bench.step().preempted, (std::vector<SequenceId>{1}));
  bench.remove(2);
  const StepPlan back = bench.scheduler().plan();
  ASSERT_EQ(back.admitted.size(), 1u);
  ASSERT_EQ(back.entries, (std::vector<StepEntry>{decoding(1, 64, 0)}));
  EXPECT_FALSE(bench.scheduler().plan_ahead(0).has_value());
  bench.advance(1, 64, 0, 0);
  ASSERT_EQ(bench.scheduler().plan().entries, (std::vector<StepEntry>{decoding(1, 65, 0)}));
  const auto ahead = bench.scheduler().plan_ahead(0);
  ASSERT_TRUE(ahead.has_value());
  EXPECT_EQ(ahead->entries, (std::vector<StepEntry>{decoding(1, 66, 0)}));
}

TEST(Scheduler, NoStepIsAheadOfAPromptAnAdmissionOrAShortageOfPages) {
  Bench prompts({.step_tokens = 100, .chunk_tokens = 100});
  prompts.submit(1, 10);
  prompts.step();
  prompts.submit(2, 300);
  prompts.step();
  EXPECT_FALSE(prompts.scheduler().plan_ahead(0).has_value()) << "a prompt";
  Bench full({.step_tokens = 100, .chunk_tokens = 100, .max_running = 1});
  full.submit(1, 10);
  full.step();
  full.submit(2, 10);
  full.scheduler().plan();
  EXPECT_TRUE(full.scheduler().plan_ahead(0).has_value()) << "one that waits for a place";
  full.advance(1, 10, 0, 0);
  full.submit(3, 10, 100, -1);
  EXPECT_FALSE(full.scheduler().plan_ahead(0).has_value()) << "one of better priority";
  Bench small({.step_tokens = 100, .chunk_tokens = 100}, 3, false);
  small.submit(1, 58, 60);
  small.submit(2, 58, 60);
  small.step();
  small.step();
  ASSERT_EQ(small.scheduler().plan().entries.size(), 2U);
  EXPECT_FALSE(small.scheduler().plan_ahead(5).has_value()) << "two pages, one of which is there";
}

TEST(ScheduleTrace, ReplaysToTheSamePlans) {
  Bench bench({.step_tokens = 100, .chunk_tokens = 64, .max_running = 3}, 9);
  for (SequenceId id = 1; id <= 5; ++id) bench.submit(id, 70 * id % 150 + 1, 60, static_cast<int32_t>(id % 2));
  for (int i = 0; i < 40; ++i) bench.step(2);
  bench.remove(3);
  for (int i = 0; i < 5; ++i) bench.step(1);
  const Result<int64_t> n_plans = replay_trace(bench.trace());
  ASSERT_TRUE(n_plans.ok()) << n_plans.error().message;
  EXPECT_EQ(*n_plans, 45);
}

TEST(ScheduleTrace, HasPrioritiesBelowZero) {
  Bench bench({.max_running = 1});
  bench.submit(1, 10);
  bench.step();
  bench.submit(2, 10, 100, -1000);
  EXPECT_EQ(bench.step().preempted, (std::vector<SequenceId>{1}));
  const Result<int64_t> n_plans = replay_trace(bench.trace());
  ASSERT_TRUE(n_plans.ok()) << n_plans.error().message;
  EXPECT_EQ(*n_plans, 2);
}

TEST(ScheduleTrace, NamesTheLineThatComesOutDifferently) {
  Bench bench({});
  bench.submit(1, 100);
  bench.step();
  std::string changed = bench.trace();
  changed.replace(changed.find("1@0+100+0"), 9, "1@0+99+0");
  const Result<int64_t> outcome = replay_trace(changed);
  ASSERT_FALSE(outcome.ok());
  EXPECT_NE(outcome.error().message.find("line 3: 'plan back admitted 1+0 restored step 1@0+99+0': the plan is now"),
            std::string::npos)
      << outcome.error().message;
}

struct BrokenTrace {
  const char* text;
  const char* fault;
};

TEST(ScheduleTrace, RefusesWhatDoesNotRead) {
  for (const BrokenTrace& broken : std::initializer_list<BrokenTrace>{
           {"plan back admitted step", "the first line is to be"},
           {"levin-schedule 1 9 100 64 3 5 1 1", "it does not read as a first line"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 0\n\n", "words and token ids"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 0\nsubmit 1 0 10 1 : 4 x", "words and token ids"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 0\nsubmit 1 0 10 1 :", "submit ID PRIORITY LIMIT"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 0\nsubmit 1 0 -10 1 : 4", "submit ID PRIORITY LIMIT"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 0\nsubmit 1 0 9999 1 : 4", "it is now refused"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 0\nremove 4", "it does not name a sequence"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0", "it does not read as a first line"},
           {"levin-schedule 2 100 64 3 5 1 1 128 0 : 576 1 1 0 0", "it does not read as a first line"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 128 0", "it does not read as a first line"},
           {"levin-schedule 2 100 64 3 5 1 1 64 0 : 576 1 1 0 0\nleave 4", "there is no call 'leave'"}}) {
    const Result<int64_t> outcome = replay_trace(broken.text);
    ASSERT_FALSE(outcome.ok()) << broken.text;
    EXPECT_NE(outcome.error().message.find(broken.fault), std::string::npos) << outcome.error().message;
  }
}

}  // namespace
}  // namespace levin
