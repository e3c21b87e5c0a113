// Steps of the MTP layer and of the trunk that are edited where they run (ops/draft_steps.h), with padding between sequences and
// inside them: the same bits, in the caches too, as steps over the rows that are left.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "engine/loaded_model.h"
#include "ops/draft_steps.h"

namespace levin::test {
namespace {

using Ids = std::vector<int32_t>;

constexpr size_t kSequences = 4;
constexpr size_t kPrompts[kSequences] = {70, 5, 33, 64};
constexpr size_t kVerified = 4;                                   // rows of each
constexpr size_t kRight[kSequences] = {1, 4, 0, 2};               // of them; the third sequence ends
constexpr bool kGoesOn[kSequences] = {true, false, false, true};  // with a second draft
constexpr int32_t kDraft = 9;

// A text whose verified rows are followed by wrong drafts from the first one on that is not right.
Ids text_of(size_t i, int64_t n_vocab) {
  std::mt19937 random(static_cast<uint32_t>(i + 1));
  Ids ids(kPrompts[i] + kVerified + 1);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(n_vocab));
  return ids;
}

class DraftRun {
 public:
  explicit DraftRun(const Model& model) : model_(model), runner_(model, options()) {
    must(runner_.ready());
    for (size_t i = 0; i < kSequences; ++i) {
      texts_.push_back(text_of(i, model.config().n_vocab));
      pages_.push_back(std::make_unique<SequencePages>(runner_.pools()));
      must(pages_.back()->grow(static_cast<int64_t>(kPrompts[i]) + 20));
    }
    runner_.begin_step();
    const ForwardRows rows = runner_.trunk(chunks(0, [](size_t i) { return kPrompts[i]; }));
    std::vector<SequenceChunk> pairs = chunks(1, [](size_t i) { return kPrompts[i]; });
    for (SequenceChunk& pair : pairs) pair.first_position = 0;
    runner_.mtp(pairs, {.state = rows.state});
    runner_.begin_step();
    taps_ = runner_.trunk(verified(0)).state;
  }

  // Over the rows that are right, as a host makes the steps.
  void draft() {
    std::vector<SequenceChunk> pairs;
    std::vector<int32_t> taps, wanted;
    for (size_t i = 0; i < kSequences; ++i) {
      if (kRight[i] == 0) continue;
      pairs.push_back(verified(1)[i]);
      pairs.back().tokens = pairs.back().tokens.first(kRight[i]);
      for (size_t r = 0; r < kRight[i]; ++r) taps.push_back(static_cast<int32_t>(i * kVerified + r));
      wanted.push_back(static_cast<int32_t>(taps.size()) - 1);
    }
    ForwardRows rows = runner_.mtp(pairs, {.state = taps_, .rows = taps}, wanted);
    keep(rows.hidden);
    const Ids draft = {kDraft};
    std::vector<SequenceChunk> chain;
    std::vector<int32_t> from;
    int32_t row = 0;
    for (size_t i = 0; i < kSequences; ++i) {
      if (kRight[i] == 0) continue;
      if (kGoesOn[i]) {
        chain.push_back({.tokens = draft,
                         .first_position = static_cast<int32_t>(kPrompts[i] + kRight[i]),
                         .pages = pages_[i].get()});
        from.push_back(row);
      }
      ++row;
    }
    const bool share = model_.config().share_topk_across_drafts;
    rows = runner_.mtp(chain, {.state = rows.state, .topk = share ? rows.topk : View(), .rows = from});
    keep(rows.hidden);
  }

  // Over all rows, those that are not right made padding where the step runs.
  void draft_edited() {
    std::vector<VerifiedRows> sequences;
    std::vector<DraftChain> chains;
    std::vector<ChosenToken> chosen;
    std::vector<int32_t> faults(kSequences * kVerified, 0), wanted;
    for (size_t i = 0; i < kSequences; ++i) {
      const auto first = static_cast<int32_t>(i * kVerified);
      sequences.push_back(
          {.first_row = first, .n_rows = kVerified, .first_chosen = first, .chain = static_cast<int32_t>(i)});
      chains.push_back({.n_wanted = 2, .room = 20, .position = static_cast<int32_t>(kPrompts[i]) - 1});
      for (size_t r = 0; r < kVerified; ++r) chosen.push_back({.token = next(i, r), .sound = 1, .probability = 1});
      if (kRight[i] == 0) faults[i * kVerified] = 1;
      wanted.push_back(first + static_cast<int32_t>(kVerified) - 1);
    }
    std::vector<SequenceChunk> pairs = verified(1);
    std::vector<Ids> drafts;  // wrong from the first row on that is not right
    for (size_t i = 0; i < kSequences; ++i) {
      Ids& tokens = drafts.emplace_back(pairs[i].tokens.begin(), pairs[i].tokens.end());
      if (kRight[i] > 0 && kRight[i] < kVerified) tokens[kRight[i] - 1] ^= 1;
      pairs[i].tokens = tokens;
    }
    const View chain_words = placed(chains);
    const View chosen_words = placed(chosen), sequence_words = placed(sequences),
               fault_words = placed(faults).reshaped({std::ssize(faults)});
    ForwardRows rows = runner_.edited_mtp(pairs, {.state = taps_}, wanted, [&](OpContext& ctx, const Step& step) {
      ops::accept_drafts(ctx, {.chosen = chosen_words,
                               .faults = fault_words,
                               .sequences = sequence_words,
                               .chains = chain_words,
                               .step = edited(step),
                               .wanted = *step.wanted});
    });
    keep(rows.hidden, [](size_t i) { return kRight[i] > 0; });
    std::vector<ChosenToken> second;
    std::vector<SequenceChunk> chain;
    const Ids draft = {kDraft};
    for (size_t i = 0; i < kSequences; ++i) {
      second.push_back({.token = kDraft, .sound = 1, .probability = kGoesOn[i] ? 0.9f : 0.5f});
      chain.push_back(
          {.tokens = draft, .first_position = static_cast<int32_t>(kPrompts[i] + kVerified), .pages = pages_[i].get()});
    }
    const View second_words = placed(second);
    const bool share = model_.config().share_topk_across_drafts;
    const MtpRows from{.state = rows.state, .topk = share ? rows.topk : View()};
    rows = runner_.edited_mtp(chain, from, std::nullopt, [&](OpContext& ctx, const Step& step) {
      ops::continue_drafts(
          ctx, {.chosen = second_words, .chains = chain_words, .step = edited(step), .min_confidence = 0.7});
    });
    keep(rows.hidden, [](size_t i) { return kGoesOn[i]; });
  }

  // The target over as many of the next tokens as are right, as a host makes the step.
  void verify() {
    std::vector<SequenceChunk> rows;
    for (size_t i = 0; i < kSequences; ++i) {
      if (kRight[i] == 0) continue;
      rows.push_back(verified(0)[i]);
      rows.back().tokens = rows.back().tokens.first(kRight[i]);
    }
    keep(runner_.trunk(rows).hidden);
  }

  // The same tokens as the chains of a round before hold them, in a step that the host makes without knowing them or their place.
  void verify_carried() {
    std::vector<DraftChain> chains;
    std::vector<int32_t> which;
    std::vector<SequenceChunk> chunks = verified(0);
    const Ids unknown(kVerified, 0);
    for (size_t i = 0; i < kSequences; ++i) {
      DraftChain& chain = chains.emplace_back();
      chain = {.n_committed = kRight[i] > 0 ? 1 : 0,
               .next_token = texts_[i][kPrompts[i]],
               .next_position = static_cast<int32_t>(kPrompts[i])};
      for (size_t r = 1; r < kRight[i]; ++r) chain.drafts[chain.n_drafts++] = next(i, r - 1);
      chain.n_wanted = chain.n_drafts;
      which.push_back(static_cast<int32_t>(i));
      chunks[i].tokens = unknown;
      chunks[i].first_position += 3;
    }
    const std::vector<ChosenToken> last(kSequences);
    const View chain_words = placed(chains), last_words = placed(last),
               which_words = placed(which).reshaped({std::ssize(which)});
    const ForwardRows rows = runner_.edited_trunk(chunks, [&](OpContext& ctx, const Step& step) {
      ops::carry_drafts(ctx, {.chosen = last_words,
                              .chains = chain_words,
                              .which = which_words,
                              .step = edited(step),
                              .rows_each = kVerified});
    });
    keep(rows.hidden, [](size_t row) { return row % kVerified < kRight[row / kVerified]; });
  }

  // A step after it, which reads what the others wrote; and blocks of the caches.
  void go_on() {
    keep(runner_.trunk(verified(0)).hidden);
    std::vector<SequenceChunk> pairs = verified(1);
    keep(runner_.mtp(pairs, {.state = taps_}).hidden);
  }
  std::vector<float> bits;
  std::vector<std::vector<std::byte>> blocks() {
    std::vector<std::vector<std::byte>> out;
    for (size_t i = 0; i < kSequences; ++i) {
      if (static_cast<int64_t>(kPrompts[i]) < runner_.block_tokens()) continue;
      runner_.copy_block(*pages_[i], 0, out.emplace_back(static_cast<size_t>(runner_.block_bytes())));
    }
    return out;
  }
  Runner& runner() { return runner_; }

 private:
  static RunnerOptions options() {
    RunnerOptions out = runner_options(16 * kPageTokens);
    out.n_sequences = kSequences;
    return out;
  }
  int32_t next(size_t i, size_t r) const { return texts_[i][kPrompts[i] + r + 1]; }
  template <class NTokens>
  std::vector<SequenceChunk> chunks(size_t begin, const NTokens& n_tokens) const {
    std::vector<SequenceChunk> out;
    for (size_t i = 0; i < kSequences; ++i) {
      out.push_back({.tokens = std::span(texts_[i]).subspan(begin, n_tokens(i)),
                     .first_position = static_cast<int32_t>(begin),
                     .pages = pages_[i].get()});
    }
    return out;
  }
  std::vector<SequenceChunk> verified(size_t shift) const {
    std::vector<SequenceChunk> out;
    for (size_t i = 0; i < kSequences; ++i) {
      out.push_back({.tokens = std::span(texts_[i]).subspan(kPrompts[i] + shift, kVerified),
                     .first_position = static_cast<int32_t>(kPrompts[i]),
                     .pages = pages_[i].get()});
    }
    return out;
  }
  template <class T>
  View placed(const std::vector<T>& records) {
    return runner_.place(View::of(reinterpret_cast<const int32_t*>(records.data()),
                                  {std::ssize(records), static_cast<int64_t>(sizeof(T) / 4)}));
  }
  ops::EditedStep edited(const Step& step) {
    return {.tokens = step.tokens,
            .positions = step.positions,
            .seq = step.seq,
            .slot = step.slot,
            .visible = step.visible,
            .window = step.window,
            .first_slot = step.first_slot,
            .n_window = runner_.pools().kinds().n_window};
  }
  template <class Asked>
  void keep(const View& device_rows, const Asked& asked) {
    const View rows = runner_.to_host(device_rows);
    for (int64_t i = 0; i < rows.dim(0); ++i) {
      if (asked(static_cast<size_t>(i))) bits.insert(bits.end(), rows.row<float>(i), rows.row<float>(i) + rows.dim(1));
    }
  }
  void keep(const View& rows) {
    keep(rows, [](size_t) { return true; });
  }

  const Model& model_;
  Runner runner_;
  std::vector<Ids> texts_;
  std::vector<std::unique_ptr<SequencePages>> pages_;
  View taps_;
};

class EditedStepTest : public testing::TestWithParam<const char*> {};

TEST_P(EditedStepTest, PaddingBetweenRowsIsAsIfItWereNotThere) {
  const std::unique_ptr<Model> model = load_fixture(GetParam());
  DraftRun host(*model), edited(*model);
  host.draft();
  edited.draft_edited();
  const auto expect_same = [&] {
    ASSERT_EQ(host.bits.size(), edited.bits.size());
    EXPECT_EQ(std::memcmp(host.bits.data(), edited.bits.data(), host.bits.size() * sizeof(float)), 0);
    EXPECT_EQ(host.blocks(), edited.blocks());
    if (!host.runner().keeps_all_rows()) return;
    EXPECT_EQ(page_contents(host.runner()), page_contents(edited.runner()));
  };
  expect_same();
  host.go_on();
  edited.go_on();
  expect_same();
}

TEST_P(EditedStepTest, RowsThatARoundCarriesOverAreThoseThatTheHostWouldMake) {
  const std::unique_ptr<Model> model = load_fixture(GetParam());
  DraftRun host(*model), carried(*model);
  if (!host.runner().keeps_all_rows()) GTEST_SKIP() << "no round is ahead of the host";
  const auto expect_same = [&] {
    ASSERT_EQ(host.bits.size(), carried.bits.size());
    EXPECT_EQ(std::memcmp(host.bits.data(), carried.bits.data(), host.bits.size() * sizeof(float)), 0);
    EXPECT_EQ(page_contents(host.runner()), page_contents(carried.runner()));
  };
  host.verify();
  carried.verify_carried();
  expect_same();
  host.go_on();
  carried.go_on();
  expect_same();
}

INSTANTIATE_TEST_SUITE_P(Fixtures, EditedStepTest,
                         testing::Values("v32-odd", "v32-fp8", "v32-shared", "glm-shared", "v4-flash", "v4-fp4"),
                         [](const auto& fixture) { return test_name(fixture.param); });

}  // namespace
}  // namespace levin::test
