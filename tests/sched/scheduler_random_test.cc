// The scheduler over many random rounds, against a cache that remembers what was written where.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "sched/scheduler.h"
#include "sched/trace.h"

namespace levin {
namespace {

constexpr uint64_t kUnwritten = 0;
constexpr int64_t kMostUndone = 80;  // rows that are not committed, drafts included

// Chain hash of the tokens up to and with tokens[n - 1]: what a right cache row at position n - 1 stands for.
std::vector<uint64_t> row_values(const std::vector<int32_t>& tokens) {
  std::vector<uint64_t> out;
  uint64_t value = 1;
  for (const int32_t token : tokens) {
    value = (value ^ static_cast<uint64_t>(token)) * 0x9e3779b97f4a7c15u;
    value ^= value >> 29;
    out.push_back(value | 1);
  }
  return out;
}

struct Pressure {
  int64_t n_pages;
  SchedulerOptions options;
  PageKinds kinds = {};
  int64_t n_host_blocks = 0;
  bool share_prefixes = true;
  int64_t max_prompt;
  int64_t max_answer;
  int64_t n_preempted;  // at least that often somebody loses pages
};

class World {
 public:
  World(const Pressure& pressure, uint64_t seed, TraceWriter* trace = nullptr)
      : pressure_(pressure),
        random_(seed),
        pools_(pressure.kinds, {.n_tokens = pressure.n_pages * kPageTokens,
                                .n_sequences = pressure.options.max_running,
                                .n_step_tokens = pressure.options.chunk_tokens,
                                .n_undone = kMostUndone}),
        cache_(pools_, {.share_prefixes = pressure.share_prefixes,
                        .max_host_blocks = pressure.n_host_blocks,
                        .disk = nullptr,
                        .block_bytes = kPageTokens * static_cast<int64_t>(sizeof(uint64_t)),
                        .copy_block =
                            [this](const SequencePages& pages, int64_t block, std::span<std::byte> out) {
                              copy_block(pages, block, out);
                              return std::unique_ptr<BlockCopy>();
                            }}),
        scheduler_(pressure.options, cache_, trace),
        rows_(static_cast<size_t>(pools_.rows().n_pages()) * kPageTokens, kUnwritten) {}

  // Arrivals, a cancellation now and then, and a step.
  void round() {
    if (below(4) == 0) arrive();
    if (below(40) == 0 && !sequences_.empty()) leave(std::next(sequences_.begin(), below(sequences_.size()))->first);
    const StepPlan plan = scheduler_.plan();
    ASSERT_EQ(plan.entries.empty() && plan.restored.empty(), sequences_.empty());
    ASSERT_LE(plan.n_rows(), scheduler_.options().most_rows());
    for (const SequenceId id : plan.preempted) sequences_.at(id).waits = true;
    for (const Admitted& admitted : plan.admitted) {
      EXPECT_EQ(admitted.n_cached % kPageTokens, 0);
      sequences_.at(admitted.id).waits = false;
      sequences_.at(admitted.id).n_committed = admitted.n_cached;
    }
    check_pages();
    for (const Restored& restored : plan.restored) restore(restored);
    for (const StepEntry& entry : plan.entries) run(entry);
    if (::testing::Test::HasFatalFailure()) return;
    check_pages();
  }
  bool idle() const { return sequences_.empty(); }
  void stop_arrivals() { arrivals_ = false; }
  const Scheduler& scheduler() const { return scheduler_; }
  int64_t n_finished() const { return n_finished_; }
  int64_t n_restored_blocks() const { return n_restored_blocks_; }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    int64_t limit = 0;
    int64_t n_drafts = 0;
    int64_t n_committed = 0;
    bool waits = true;
  };

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // Prompts share beginnings: each continues one of a few, at a random place.
  void arrive() {
    if (!arrivals_) return;
    const SequenceId id = next_id_++;
    Sequence& s = sequences_[id];
    const int64_t n_prompt = 1 + below(pressure_.max_prompt);
    const int32_t family = static_cast<int32_t>(below(3));
    const int64_t n_common = below(n_prompt + 1);
    for (int64_t i = 0; i < n_prompt; ++i) {
      s.tokens.push_back(i < n_common ? 100 * family + static_cast<int32_t>(i % 50)
                                      : static_cast<int32_t>(below(1000)));
    }
    s.limit = n_prompt + 1 + below(pressure_.max_answer);
    const Submission outcome = scheduler_.submit(
        {.id = id, .priority = static_cast<int32_t>(below(2)), .limit_tokens = s.limit, .tokens = &s.tokens});
    if (outcome != Submission::kAccepted) sequences_.erase(id);
  }

  void leave(SequenceId id) {
    scheduler_.remove(id);
    sequences_.erase(id);
  }

  uint64_t& row(const SequencePages& pages, int64_t position) {
    const int32_t page = pages.rows()[static_cast<size_t>(position / kPageTokens)];
    return rows_[static_cast<size_t>(page * kPageTokens + position % kPageTokens)];
  }

  void copy_block(const SequencePages& pages, int64_t block, std::span<std::byte> out) {
    auto to = out.begin();
    for (int64_t i = 0; i < kPageTokens; ++i) {
      const auto bytes = std::bit_cast<std::array<std::byte, sizeof(uint64_t)>>(row(pages, block * kPageTokens + i));
      to = std::copy(bytes.begin(), bytes.end(), to);
    }
  }

  void restore(const Restored& restored) {
    Sequence& s = sequences_.at(restored.id);
    if (s.waits) return;  // preempted in the same plan
    for (const RestoredBlock& block : restored.blocks) {
      for (int64_t i = 0; i < kPageTokens; ++i) {
        uint64_t value = 0;
        std::memcpy(&value, block.record->rows.data() + i * static_cast<int64_t>(sizeof value), sizeof value);
        row(scheduler_.pages(restored.id), block.block * kPageTokens + i) = value;
      }
      ++n_restored_blocks_;
    }
    s.n_committed = restored.n_cached;
  }

  void run(const StepEntry& entry) {
    Sequence& s = sequences_.at(entry.id);
    ASSERT_FALSE(s.waits);
    const SequencePages& pages = scheduler_.pages(entry.id);
    const int64_t n_slots =
        std::min(entry.first_position + entry.n_rows() + scheduler_.options().lookahead_tokens, s.limit + 1);
    ASSERT_GE(std::ssize(pages.rows()) * kPageTokens, n_slots);
    for (int64_t i = entry.first_position / kPageTokens; i < std::ssize(pages.rows()); ++i) {
      ASSERT_EQ(pools_.rows().n_references(pages.rows()[static_cast<size_t>(i)]), 1)
          << "a page that is written belongs to others too";
    }
    const std::vector<uint64_t> values = row_values(s.tokens);
    const int64_t n_window = pressure_.kinds.n_window;
    const int64_t first_read = n_window > 0 ? std::max<int64_t>(0, entry.first_position - n_window) : 0;
    for (int64_t i = first_read; i < entry.first_position; ++i)
      ASSERT_EQ(row(pages, i), values[i]) << "of position " << i;
    for (int64_t i = entry.first_position; i < n_slots; ++i) row(pages, i) = kUnwritten;  // drafts leave anything there
    for (int64_t i = 0; i < entry.n_tokens; ++i)
      row(pages, entry.first_position + i) = values[entry.first_position + i];
    int64_t n_cached = entry.first_position + entry.n_tokens;
    if (entry.gives_token) {
      ASSERT_LE(entry.n_drafts, s.n_drafts);
      for (int64_t accepted = below(entry.n_drafts + 1); accepted > 0; --accepted, ++n_cached) {
        s.tokens.push_back(static_cast<int32_t>(below(3)));
        row(pages, n_cached) = row_values(s.tokens).back();
      }
      s.tokens.push_back(static_cast<int32_t>(below(3)));
    }
    s.n_drafts =
        std::clamp<int64_t>(s.limit - std::ssize(s.tokens) - 1, 0, below(scheduler_.options().lookahead_tokens));
    const int64_t n_committed = std::max(s.n_committed, n_cached - below(70));
    const std::vector<ResumeState> resume(static_cast<size_t>(n_committed / kPageTokens - s.n_committed / kPageTokens),
                                          std::make_shared<const std::vector<float>>());
    s.n_committed = n_committed;
    scheduler_.advance(entry.id,
                       {.n_cached = n_cached, .n_committed = n_committed, .n_drafts = s.n_drafts, .resume = resume});
    if (std::ssize(s.tokens) < s.limit) return;
    leave(entry.id);
    ++n_finished_;
  }

  // Every page of every kind is free, cached or held, and what is held twice is shared.
  void check_pages() {
    std::vector<std::set<int32_t>> used(pools_.n_pools());
    for (const auto& [id, s] : sequences_) {
      if (s.waits) continue;
      const SequencePages& pages = scheduler_.pages(id);
      used.front().insert(pages.rows().begin(), pages.rows().end());
      for (size_t i = 0; i < pressure_.kinds.ratios.size(); ++i) {
        for (const int32_t page : pages.entries(i)) ASSERT_TRUE(used[1 + i].insert(page).second);
      }
      if (pages.ring() >= 0) {
        ASSERT_TRUE(used.back().insert(pages.ring()).second);
      }
    }
    const SharedPages* shared = cache_.index().shares_pages() ? &cache_.index().pages() : nullptr;
    for (size_t i = 0; i < pools_.n_pools(); ++i) {
      const int32_t n_cached = i == 0 && shared != nullptr ? shared->n_evictable() : 0;
      ASSERT_EQ(pools_.pool(i).n_free() + n_cached + std::ssize(used[i]), pools_.pool(i).n_pages()) << "pool " << i;
    }
  }

  Pressure pressure_;
  std::mt19937_64 random_;
  SequencePools pools_;
  CacheManager cache_;
  std::map<SequenceId, Sequence> sequences_;
  Scheduler scheduler_;
  std::vector<uint64_t> rows_;  // what was written into each slot
  SequenceId next_id_ = 1;
  bool arrivals_ = true;
  int64_t n_finished_ = 0;
  int64_t n_restored_blocks_ = 0;
};

const Pressure kPressures[] = {
    {.n_pages = 12,
     .options = {.step_tokens = 96, .chunk_tokens = 64, .max_running = 8, .max_waiting = 20, .lookahead_tokens = 4},
     .max_prompt = 400,
     .max_answer = 200,
     .n_preempted = 100},
    {.n_pages = 200,
     .options = {.step_tokens = 256, .chunk_tokens = 100, .max_running = 4, .max_waiting = 50, .lookahead_tokens = 2},
     .max_prompt = 1000,
     .max_answer = 40,
     .n_preempted = 0},
    {.n_pages = 40,
     .options = {.step_tokens = 16, .chunk_tokens = 30, .max_running = 64, .max_waiting = 9},
     .share_prefixes = false,
     .max_prompt = 200,
     .max_answer = 100,
     .n_preempted = 100},
    {.n_pages = 16,
     .options = {.step_tokens = 96, .chunk_tokens = 64, .max_running = 8, .max_waiting = 20, .lookahead_tokens = 4},
     .n_host_blocks = 30,
     .max_prompt = 400,
     .max_answer = 200,
     .n_preempted = 100},
    {.n_pages = 30,
     .options = {.step_tokens = 96, .chunk_tokens = 80, .max_running = 6, .max_waiting = 20, .lookahead_tokens = 4},
     .kinds = {.n_window = 128, .ratios = {4, 64}},
     .n_host_blocks = 40,
     .max_prompt = 400,
     .max_answer = 200,
     .n_preempted = 50}};

class SchedulerWorld : public ::testing::TestWithParam<int> {};

TEST_P(SchedulerWorld, KeepsEveryRowRightAndEveryPageCounted) {
  const Pressure& pressure = kPressures[GetParam()];
  World world(pressure, 17 + GetParam());
  for (int i = 0; i < 35'000 && !HasFatalFailure(); ++i) world.round();
  world.stop_arrivals();
  for (int i = 0; i < 20'000 && !HasFatalFailure() && !world.idle(); ++i) world.round();
  EXPECT_TRUE(world.idle()) << "some sequence never ends";
  EXPECT_GT(world.n_finished(), 500);
  const SchedulerCounts counts = world.scheduler().counts();
  EXPECT_EQ(counts.n_free_pages + counts.n_cached_pages, counts.n_pages);
  EXPECT_GE(counts.n_preempted, pressure.n_preempted);
  if (pressure.share_prefixes && pressure.kinds.ratios.empty()) {
    EXPECT_GT(counts.n_hit_tokens, counts.n_queried_tokens / 20);
  }
  EXPECT_EQ(world.n_restored_blocks() > 500, pressure.n_host_blocks > 0) << world.n_restored_blocks();
}

INSTANTIATE_TEST_SUITE_P(Pressures, SchedulerWorld, ::testing::Range(0, static_cast<int>(std::size(kPressures))));

TEST(SchedulerTrace, RandomRunsReplay) {
  for (size_t i = 0; i < std::size(kPressures); ++i) {
    std::string trace;
    TraceWriter writer([&](std::string_view line) { trace.append(line).append("\n"); });
    World world(kPressures[i], 99 + i, &writer);
    for (int round = 0; round < 500; ++round) world.round();
    const Result<int64_t> n_plans = replay_trace(trace);
    ASSERT_TRUE(n_plans.ok()) << n_plans.error().message;
    EXPECT_EQ(*n_plans, 500);
  }
}

}  // namespace
}  // namespace levin
