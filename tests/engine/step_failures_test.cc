// Failures of a step over a fake model (fake_loop.h): whose request ends with an error, and that the others know nothing of it.
#include <gtest/gtest.h>

#include <functional>
#include <new>

#include "engine/fake_loop.h"
#include "engine/mtp_drafter.h"

namespace levin::test {
namespace {

class StepFailureTest : public StepLoopTest {};
INSTANTIATE_TEST_SUITE_P(Kinds, StepFailureTest, all_kinds(), kind_name);

// Makes more drafts for the sequence that begins with a token than it was asked for.
class RashDrafter final : public TaplessDrafter {
 public:
  explicit RashDrafter(int32_t first_token) : first_token_(first_token) {}
  int max_drafts() const override { return 1; }
  void propose(DraftRound& round) override {
    for (DraftEntry& entry : round.entries) {
      if (entry.tokens.front() == first_token_ && entry.tokens.size() > 40) entry.drafts.assign(100, 1);
    }
  }

 private:
  int32_t first_token_;
};

// The seven others of eight prompts, of which this is none.
void expect_others_answered(StepLoop& loop, const std::vector<RequestId>& ids, const std::vector<Tokens>& prompts,
                            int64_t n_window) {
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::unique_ptr<Generation> done = loop.take(ids[i]);
    EXPECT_FALSE(done->error.has_value()) << i;
    EXPECT_EQ(answer_of(*done), fake_answer(prompts[i], 30, n_window)) << i;
  }
}

// A step of one sequence has room for 65 rows here, 64 and a draft.
TEST_P(StepFailureTest, AChunkWithoutRoomEndsItsRequestAlone) {
  constexpr int64_t kWindow = 40;
  constexpr int32_t kRashToken = 95;
  FakeCuda device;
  const FakeModel model(0, tested_place(), kWindow);
  RunnerOptions limits = runner_options(where, device, 64 * kPageTokens);
  limits.n_step_tokens = 16;
  limits.n_undone_tokens = 1;
  Runner runner(model, limits);
  StepLoop loop(runner,
                in_its_order({.chunk_tokens = 16, .n_spec_steps = 1, .max_context_tokens = kContext, .max_running = 8}),
                std::make_unique<RashDrafter>(kRashToken));
  std::vector<Tokens> prompts;
  std::vector<RequestId> ids;
  Tokens rash = made_up(33, 150);
  rash.front() = kRashToken;
  const RequestId bad = must(loop.submit(greedy(rash, 30)));
  for (uint64_t i = 0; i < 7; ++i) {
    prompts.push_back(made_up(33, 151 + i));
    ids.push_back(must(loop.submit(greedy(prompts.back(), 30))));
  }
  while (loop.step()) continue;
  const std::unique_ptr<Generation> ended = loop.take(bad);
  ASSERT_TRUE(ended->error.has_value());
  EXPECT_EQ(ended->finish_reason, FinishReason::kError);
  EXPECT_NE(ended->error->message.find("an error of levin's ends this request, others continue: a step of 101 tokens"),
            std::string::npos)
      << ended->error->message;
  EXPECT_EQ(answer_of(*ended), fake_answer(rash, std::ssize(ended->tokens), kWindow));
  expect_others_answered(loop, ids, prompts, kWindow);
  EXPECT_EQ(runner.pools().rows().n_free(), runner.pools().rows().n_pages());
}

// What is thrown in a step ends the requests of that step; one that waits, and those after it, know nothing of it.
TEST_P(StepFailureTest, AFailingStepEndsItsRequestsAndNoOthers) {
  const std::vector<std::function<void()>> failures = {[] { throw std::bad_alloc(); },
                                                       [] { LEVIN_CHECK(kFakeVocab == 0, "a row of {}", kFakeVocab); }};
  for (const std::function<void()>& failure : failures) {
    for (const int64_t n_good_steps : {0, 3, 7}) {
      Fake fake({.chunk_tokens = 48, .n_spec_steps = 2, .max_context_tokens = kContext, .max_running = 3});
      std::vector<Tokens> prompts;
      std::vector<RequestId> ids;
      for (uint64_t i = 0; i < 5; ++i) {
        prompts.push_back(made_up(20, 170 + i));
        ids.push_back(must(fake.loop.submit(greedy(prompts.back(), 60))));
      }
      int64_t n_steps = 0;
      fake.model.on_trunk = [&] {
        if (n_steps++ == n_good_steps) failure();
      };
      while (fake.loop.step()) continue;
      for (size_t i = 0; i < ids.size(); ++i) {
        const std::unique_ptr<Generation> done = fake.loop.take(ids[i]);
        EXPECT_EQ(done->error.has_value(), i < 3) << i;
        EXPECT_EQ(answer_of(*done), fake_answer(prompts[i], std::ssize(done->tokens))) << i;
        EXPECT_TRUE(done->error || done->tokens.size() == 60U);
      }
      const Tokens later = joined(prompts.front(), made_up(100, 180));
      EXPECT_EQ(answer_of(*fake.answer(greedy(later, 20))), fake_answer(later, 20));
      fake.loop.forget_prefixes();
      EXPECT_EQ(fake.runner.pools().rows().n_free(), fake.runner.pools().rows().n_pages());
    }
  }
}

// A long prompt for which memory runs out. What a device computes fails later, when tokens are chosen.
TEST_P(StepFailureTest, APromptThatAStepFailsForDoesNotEndThoseThatDecode) {
  if (where != Where::kHost) GTEST_SKIP() << "the fake device computes when somebody waits";
  for (const int depth : {0, 3}) {
    Fake fake({.chunk_tokens = 64, .n_spec_steps = depth, .min_confidence = 0, .max_context_tokens = kContext}, 3);
    std::vector<Tokens> prompts;
    std::vector<RequestId> ids;
    for (uint64_t i = 0; i < 7; ++i) {
      prompts.push_back(made_up(9, 210 + i));
      ids.push_back(must(fake.loop.submit(greedy(prompts.back(), 30))));
    }
    for (int i = 0; i < 4; ++i) fake.loop.step();
    const RequestId bad = must(fake.loop.submit(greedy(made_up(300, 220), 30)));
    fake.loop.step();
    bool fails = true;
    fake.model.on_trunk = [&] {
      if (std::exchange(fails, false)) throw std::bad_alloc();
    };
    while (fake.loop.step()) continue;
    EXPECT_EQ(fake.loop.take(bad)->error.value().kind, ErrorKind::kOutOfMemory);
    expect_others_answered(fake.loop, ids, prompts, 0);
    EXPECT_EQ(fake.model.n_stale_rows, 0);
  }
}

TEST_P(StepFailureTest, ALostDeviceEndsMoreThanRequests) {
  Fake fake({.max_context_tokens = kContext});
  must(fake.loop.submit(greedy(made_up(20, 190), 9)));
  fake.model.on_trunk = [] { throw DeviceFault({ErrorKind::kNoDevice, "lost"}); };
  EXPECT_THROW(fake.loop.step(), DeviceFault);
}

TEST_P(StepFailureTest, ACallerThatThrowsEndsItsRequestAlone) {
  Fake fake({.n_spec_steps = 2, .max_context_tokens = kContext});
  std::vector<Tokens> prompts;
  std::vector<RequestId> ids;
  GenerateRequest throwing = greedy(made_up(20, 200), 30);
  throwing.on_token = [](const TokenEvent&) -> Verdict { throw std::bad_alloc(); };
  const RequestId bad = must(fake.loop.submit(std::move(throwing)));
  for (uint64_t i = 0; i < 7; ++i) {
    prompts.push_back(made_up(33, 201 + i));
    ids.push_back(must(fake.loop.submit(greedy(prompts.back(), 30))));
  }
  while (fake.loop.step()) continue;
  ASSERT_TRUE(fake.loop.take(bad)->error.has_value());
  expect_others_answered(fake.loop, ids, prompts, 0);
}

// Two sequences whose last pair needs slot 64; one has no page for it.
TEST(MtpDrafterTest, PairsWithoutRoomAreAnErrorOfTheirSequence) {
  const FakeModel model;
  Runner runner(model, {.n_cache_tokens = 8 * kPageTokens});
  const Tokens tokens = made_up(65, 71);
  MtpDrafter drafter(runner);
  std::vector<SequencePages> pages;
  std::vector<std::unique_ptr<DraftState>> states;
  std::vector<SequenceChunk> chunks;
  for (const int64_t n_pages : {1, 2}) {
    must(pages.emplace_back(runner.pools()).grow(n_pages * kPageTokens));
    states.push_back(drafter.open());
  }
  for (const SequencePages& own : pages)
    chunks.push_back({.tokens = std::span(tokens).first(64), .first_position = 0, .pages = &own});
  DraftRound round{.taps = runner.trunk(chunks).state, .depth = 1};
  for (size_t i = 0; i < pages.size(); ++i) {
    round.entries.push_back({.state = states[i].get(),
                             .pages = &pages[i],
                             .tokens = tokens,
                             .first_row = 64 * static_cast<int64_t>(i),
                             .n_committed = 64});
  }
  drafter.commit(round);
  ASSERT_TRUE(round.entries[0].error.has_value());
  EXPECT_EQ(round.entries[0].error->message,
            "a step of 64 tokens from position 0 on needs 65 slots, its block table has 1 pages");
  EXPECT_FALSE(round.entries[1].error.has_value());
  EXPECT_EQ(drafter.n_committed(*states[1], 64), 64);
  EXPECT_EQ(model.n_mtp_steps, 1);
  EXPECT_EQ(model.n_stale_rows, 0);
}

// Wherever in a step it shows, and nothing waits for the device afterwards, nor when the loop goes.
TEST_P(StepFailureTest, ALostDeviceIsThrownOutOfTheStep) {
  if (where == Where::kHost) GTEST_SKIP() << "the host is no device";
  for (const int64_t n_host_blocks : {0, 64}) {  // with records on their way, too
    for (int64_t n_waits = 0; n_waits < 12; ++n_waits) {
      Fake fake({.chunk_tokens = 16,
                 .n_spec_steps = 3,
                 .min_confidence = 0,
                 .max_context_tokens = kContext,
                 .n_host_blocks = n_host_blocks},
                2);
      fake.device.copies_aside_late = true;
      for (uint64_t i = 0; i < 3; ++i) must(fake.loop.submit(greedy(made_up(40, 70 + i), 100)));
      fake.device.fail_after(n_waits);
      const auto run = [&] {
        while (fake.loop.step()) continue;
      };
      EXPECT_THROW(run(), DeviceFault) << n_waits;
    }
  }
}

// All answers are there, and their records are not: that shows when the loop has nothing else to do.
TEST_P(StepFailureTest, ADeviceIsLostWhileRecordsAreCopied) {
  if (where == Where::kHost) GTEST_SKIP() << "the host is no device";
  Fake fake({.chunk_tokens = 64, .max_context_tokens = kContext, .n_host_blocks = 64});
  fake.device.copies_aside_late = true;
  const RequestId id = must(fake.loop.submit(greedy(made_up(200, 80), 4)));
  std::unique_ptr<Generation> answer;
  while (answer == nullptr && fake.loop.step()) answer = fake.loop.take(id);
  ASSERT_NE(answer, nullptr);
  EXPECT_FALSE(answer->error.has_value());
  fake.device.fail_after(0);
  EXPECT_THROW(fake.loop.finish_records(), DeviceFault);
}

}  // namespace
}  // namespace levin::test
