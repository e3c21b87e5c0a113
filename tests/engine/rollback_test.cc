// Drafts that are turned down leave no trace: random rounds of verification, with logits that are the same bits as
// those of a run that never drafted. V4's windows, entries and compressor state, and GLM-5.3-Flash's recurrent
// state and pools, must all go back to any accepted prefix, also of a verify window wider than the compression ratio.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "engine/loaded_model.h"

namespace levin::test {
namespace {

constexpr int64_t kSequences = 4;
constexpr int64_t kTokens = 700;  // of each: beyond twice the widest ratio, and around the window's ring
constexpr int64_t kMaxWidth = 8;  // tokens of a verify step
constexpr int64_t kChainSteps = 3;

using Ids = std::vector<int32_t>;

Ids random_ids(std::mt19937& random, int64_t n_tokens, int64_t n_vocab) {
  Ids ids(static_cast<size_t>(n_tokens));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(n_vocab));
  return ids;
}

// Rows as they should be: of every position of a sequence.
struct Expected {
  Ids ids;
  std::vector<float> state, logits;  // of the trunk
  std::vector<float> draft_logits;   // of the MTP layer, for the pairs (i, i + 1)
};

void append(std::vector<float>* to, View rows) {
  to->insert(to->end(), rows.data<float>(), rows.data<float>() + rows.n_elements());
}

Expected run_undisturbed(const Model& model, CudaBackend* cuda, Ids ids) {
  RunnerOptions options = runner_options(kTokens + 1, 1);
  options.cuda = cuda;
  Runner runner(model, options);
  SequencePages pages(runner.pools());
  must(pages.grow(kTokens + 1));
  Expected out{.ids = std::move(ids)};
  constexpr int64_t kChunk = 50;
  for (int64_t begin = 0; begin < kTokens; begin += kChunk) {
    runner.begin_step();
    const SequenceChunk chunk{.tokens = std::span(out.ids).subspan(begin, kChunk),
                              .first_position = static_cast<int32_t>(begin),
                              .pages = &pages};
    const ForwardRows rows = runner.trunk({&chunk, 1});
    append(&out.state, runner.to_host(rows.state));
    append(&out.logits, runner.logits(rows.hidden));
  }
  for (int64_t begin = 0; begin + 1 < kTokens; begin += kChunk) {
    const int64_t count = std::min(kChunk, kTokens - 1 - begin);
    runner.begin_step();
    const SequenceChunk chunk{.tokens = std::span(out.ids).subspan(begin + 1, count),
                              .first_position = static_cast<int32_t>(begin),
                              .pages = &pages};
    const View state = View::of(out.state.data() + begin * model.d_state(), {count, model.d_state()});
    append(&out.draft_logits, runner.logits(runner.mtp({&chunk, 1}, {.state = runner.place(state)}).hidden));
  }
  return out;
}

// One sequence that is decoded with drafts.
struct Drafting {
  const Expected* expected = nullptr;
  SequencePages pages;
  int64_t n_cached = 0;
  int64_t n_accepted = 0;  // of this round
  Ids tokens;              // of this round's verify step

  explicit Drafting(const Expected& e, SequencePools& pools) : expected(&e), pages(pools) {
    must(pages.grow(kTokens + kMaxWidth + 1));
  }
  bool done() const { return n_cached + kMaxWidth + 1 >= kTokens; }
  SequenceChunk chunk(std::span<const int32_t> step_tokens, int64_t first_position) const {
    return {.tokens = step_tokens, .first_position = static_cast<int32_t>(first_position), .pages = &pages};
  }

  // Right tokens as far as they are accepted, wrong ones after.
  void draw(std::mt19937& random, int64_t n_vocab) {
    const int64_t width = 1 + static_cast<int64_t>(random() % kMaxWidth);
    n_accepted = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(width));
    tokens = random_ids(random, width, n_vocab);
    std::copy_n(expected->ids.begin() + n_cached, n_accepted, tokens.begin());
  }
};

bool same_bits(View rows, const std::vector<float>& expected, int64_t first_row) {
  const int64_t width = rows.dim(1);
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    const float* want = expected.data() + (first_row + r) * width;
    if (std::memcmp(rows.row<float>(r), want, static_cast<size_t>(width) * sizeof(float)) != 0) return false;
  }
  return true;
}

// The row of each one's last accepted token, among the accepted ones of all.
Ids rows_that_end(const std::vector<Drafting*>& running) {
  Ids rows;
  int64_t n = 0;
  for (const Drafting* s : running) rows.push_back(static_cast<int32_t>((n += s->n_accepted) - 1));
  return rows;
}

class RollbackTest : public ::testing::TestWithParam<std::tuple<std::string, NumericsMode, Device>> {
 protected:
  void SetUp() override {
    if (std::get<Device>(GetParam()) == Device::kCpu) return;
    Result<std::unique_ptr<CudaBackend>> cuda = open_cuda({.kernels = cuda::KernelSet::kPlain});
    if (!cuda.ok()) GTEST_SKIP() << cuda.error().message;
    cuda_ = std::move(cuda).value();
  }
  std::unique_ptr<CudaBackend> cuda_;  // null on the CPU
};

TEST_P(RollbackTest, LogitsAreThoseOfARunThatNeverDrafted) {
  const auto& [fixture, mode, device] = GetParam();
  const std::unique_ptr<Model> model = load_fixture(fixture, {.cuda = cuda_.get(), .numerics = mode});
  const int64_t n_vocab = model->config().n_vocab, d_state = model->d_state();
  std::mt19937 random(7);
  std::vector<Expected> expected;
  for (int64_t i = 0; i < kSequences; ++i) {
    expected.push_back(run_undisturbed(*model, cuda_.get(), random_ids(random, kTokens, n_vocab)));
  }
  RunnerOptions options = runner_options(kSequences * (kTokens + 2 * kPageTokens));
  options.cuda = cuda_.get();
  options.n_sequences = kSequences;
  options.n_step_tokens = kMaxWidth;
  options.n_undone_tokens = kMaxWidth - 1;
  Runner runner(*model, options);
  std::vector<Drafting> sequences;
  for (const Expected& e : expected) sequences.emplace_back(e, runner.pools());

  int64_t n_rounds = 0;
  while (std::any_of(sequences.begin(), sequences.end(), [](const Drafting& s) { return !s.done(); })) {
    std::vector<Drafting*> running;
    std::vector<SequenceChunk> chunks;
    for (Drafting& s : sequences) {
      if (s.done() || random() % 8 == 0) continue;  // the company changes from step to step
      s.draw(random, n_vocab);
      running.push_back(&s);
      chunks.push_back(s.chunk(s.tokens, s.n_cached));
    }
    if (running.empty()) continue;
    n_rounds += std::ssize(running);
    runner.begin_step();
    const ForwardRows rows = runner.trunk(chunks);
    const View logits = runner.logits(rows.hidden), states = runner.to_host(rows.state);

    // The accepted rows are right; the MTP layer is extended over them, and then drafts on what is not.
    std::vector<float> state;
    std::vector<SequenceChunk> extended, chained;
    int64_t row = 0;
    for (const Drafting* s : running) {
      ASSERT_TRUE(same_bits(logits.slice_first(row, s->n_accepted), s->expected->logits, s->n_cached))
          << "round " << n_rounds << ", position " << s->n_cached;
      append(&state, states.slice_first(row, s->n_accepted));
      extended.push_back(s->chunk(std::span(s->expected->ids).subspan(s->n_cached + 1, s->n_accepted), s->n_cached));
      row += std::ssize(s->tokens);
    }
    const View extend_state = View::of(state.data(), {std::ssize(state) / d_state, d_state});
    const bool only_last = random() % 2 == 0;  // as the step loop does it; otherwise the output of all rows
    const Ids last_rows = rows_that_end(running);
    const ForwardRows drafts =
        runner.mtp(extended, {.state = runner.place(extend_state)},
                   only_last ? std::optional(std::span<const int32_t>(last_rows)) : std::nullopt);
    const View draft_logits = runner.logits(drafts.hidden), draft_states = runner.to_host(drafts.state);
    std::vector<float> last_state;
    row = 0;
    for (const Drafting* s : running) {
      const int64_t n_out = only_last ? 1 : s->n_accepted;
      const int64_t first_position = s->n_cached + s->n_accepted - n_out;
      ASSERT_TRUE(same_bits(draft_logits.slice_first(row, n_out), s->expected->draft_logits, first_position))
          << "round " << n_rounds << ", position " << first_position;
      row += n_out;
      append(&last_state, draft_states.slice_first(row - 1, 1));
    }
    ASSERT_EQ(row, drafts.hidden.dim(0));
    const Ids wrong = random_ids(random, kChainSteps, n_vocab);
    for (int64_t i = 0; i < kChainSteps; ++i) {
      chained.clear();
      for (const Drafting* s : running)
        chained.push_back(s->chunk(std::span(wrong).subspan(i, 1), s->n_cached + s->n_accepted + i));
      runner.mtp(chained, {.state = runner.place(View::of(last_state.data(), {std::ssize(running), d_state}))});
    }
    for (Drafting* s : running) s->n_cached += s->n_accepted;
  }
  EXPECT_GE(n_rounds, 800);
  RecordProperty("rounds", static_cast<int>(n_rounds));
}

// A block drafter's rows go back with the trunk's: blocks after what is accepted are those of a run that never drafted.
class BlockRollbackTest : public ::testing::TestWithParam<std::tuple<const char*, NumericsMode>> {
 protected:
  // The blocks after positions first .. first + count - 1, side by side.
  static std::vector<float> blocks(Runner& runner, const SequencePages& pages, const Ids& ids, int64_t first,
                                   int64_t count) {
    const Model& model = runner.model();
    std::vector<Ids> tokens;
    for (int64_t i = 0; i < count; ++i) {
      tokens.emplace_back(model.config().n_draft_block, model.block_drafting()->noise_token());
      tokens.back().front() = ids[first + i];
    }
    std::vector<SequenceChunk> chunks;
    for (int64_t i = 0; i < count; ++i)
      chunks.push_back({.tokens = tokens[i], .first_position = static_cast<int32_t>(first + i), .pages = &pages});
    std::vector<float> out;
    append(&out, runner.draft_blocks(chunks).state);
    return out;
  }

  static std::vector<float> undisturbed(const Model& model, const Ids& ids) {
    Runner runner(model, runner_options(kTokens + 1, 1));
    SequencePages pages(runner.pools());
    must(pages.grow(kTokens + 1));
    std::vector<float> out;
    for (int64_t begin = 0; begin < kTokens; begin += kPageTokens) {
      runner.begin_step();
      const int64_t count = std::min(kPageTokens, kTokens - begin);
      const SequenceChunk chunk{.tokens = std::span(ids).subspan(begin, count),
                                .first_position = static_cast<int32_t>(begin),
                                .pages = &pages};
      runner.trunk({&chunk, 1});
      const std::vector<float> rows = blocks(runner, pages, ids, begin, count);
      out.insert(out.end(), rows.begin(), rows.end());
    }
    return out;
  }
};

TEST_P(BlockRollbackTest, BlocksAreThoseOfARunThatNeverDrafted) {
  const auto& [fixture, mode] = GetParam();
  const std::unique_ptr<Model> model = load_fixture(fixture, {.numerics = mode});
  const int64_t n_vocab = model->config().n_vocab, n_block = model->config().n_draft_block;
  std::mt19937 random(8);
  const Ids ids = random_ids(random, kTokens, n_vocab);
  const std::vector<float> expected = undisturbed(*model, ids);
  const auto width = std::ssize(expected) / kTokens;  // of a block
  RunnerOptions options = runner_options(kTokens + 2 * kPageTokens);
  options.n_sequences = 1;
  options.n_step_tokens = n_block + 1;
  options.n_undone_tokens = n_block;
  Runner runner(*model, options);
  SequencePages pages(runner.pools());
  must(pages.grow(kTokens + 1));
  for (int64_t n = 0; n + n_block + 1 < kTokens;) {
    const int64_t n_step = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(n_block + 1));
    const int64_t n_accepted = 1 + static_cast<int64_t>(random() % static_cast<uint32_t>(n_step));
    Ids tokens = random_ids(random, n_step, n_vocab);
    std::copy_n(ids.begin() + n, n_accepted, tokens.begin());
    runner.begin_step();
    const SequenceChunk step{.tokens = tokens, .first_position = static_cast<int32_t>(n), .pages = &pages};
    runner.trunk({&step, 1});
    n += n_accepted;
    if (random() % 4 == 0) continue;  // a round without drafts
    const std::vector<float> found = blocks(runner, pages, ids, n, 1);
    ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin() + n * width)) << "position " << n;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes, BlockRollbackTest,
    ::testing::Combine(::testing::Values("v4-dspark", "v41-flash"),
                       ::testing::Values(NumericsMode::kReference, NumericsMode::kOfficial, NumericsMode::kFast)),
    [](const auto& test) {
      return test_name(fmt::format("{}_{}", std::get<0>(test.param), numerics_mode_name(std::get<1>(test.param))));
    });

using Mode = NumericsMode;
constexpr Device kCpu = Device::kCpu, kCuda = Device::kCuda;
INSTANTIATE_TEST_SUITE_P(
    Fixtures, RollbackTest,
    ::testing::Values(std::tuple{"v4-flash", Mode::kReference, kCpu}, std::tuple{"v4-flash", Mode::kFast, kCpu},
                      std::tuple{"v4-fp4", Mode::kOfficial, kCpu}, std::tuple{"v32-odd", Mode::kReference, kCpu},
                      std::tuple{"glm-next", Mode::kReference, kCpu}, std::tuple{"glm-next", Mode::kOfficial, kCpu},
                      std::tuple{"glm-next", Mode::kFast, kCpu}, std::tuple{"v4-flash", Mode::kReference, kCuda},
                      std::tuple{"v4-fp4", Mode::kOfficial, kCuda}, std::tuple{"glm-next", Mode::kReference, kCuda},
                      std::tuple{"glm-next", Mode::kOfficial, kCuda}, std::tuple{"glm-next", Mode::kFast, kCuda}),
    [](const auto& test) {
      return test_name(fmt::format("{}_{}{}", std::get<0>(test.param), numerics_mode_name(std::get<1>(test.param)),
                                   std::get<2>(test.param) == kCuda ? "_cuda" : ""));
    });

}  // namespace
}  // namespace levin::test
