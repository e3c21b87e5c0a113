// The values of a step, worked out by hand.
#include "engine/build_step.h"

#include <gtest/gtest.h>

#include <set>

#include "support/must.h"

namespace levin::test {
namespace {

using Values = std::vector<int32_t>;

Values values(const View& v) {
  if (v.empty()) return {};
  return {v.data<int32_t>(), v.data<int32_t>() + v.n_elements()};
}

// Two sequences: three tokens from position 64 on, and one at position 0.
class BuildStepTest : public testing::Test {
 protected:
  explicit BuildStepTest(const PageKinds& kinds = {})
      : kinds_(kinds),
        pools_(kinds, {.n_tokens = 1024, .n_sequences = 2, .n_step_tokens = 8}),
        first_(pools_),
        second_(pools_) {
    must(first_.grow(68));
    must(second_.grow(2));
  }
  Step step(SlotRule rule, std::optional<std::span<const int32_t>> wanted = std::nullopt) {
    const std::vector<SequenceChunk> chunks = {{.tokens = tokens_, .first_position = 64, .pages = &first_},
                                               {.tokens = token_, .first_position = 0, .pages = &second_}};
    return build_step(arena_, chunks, rule, kinds_, wanted);
  }

  PageKinds kinds_;
  SequencePools pools_;
  SequencePages first_, second_;
  Arena arena_;
  Values tokens_ = {7, 8, 9}, token_ = {5};
};

// Blocks of three and one, after 64 cached rows and none.
TEST(BuildBlockStepTest, RowsOfABlockSeeTheWindowBeforeItAndEachOther) {
  const PageKinds kinds{.n_window = 32, .ratios = {4}};
  SequencePools pools(kinds, {.n_tokens = 1024, .n_sequences = 2, .n_step_tokens = 8});
  SequencePages first(pools), second(pools);
  must(first.grow(65));
  must(second.grow(1));
  Arena arena;
  const Values three = {7, 250, 250}, one = {5};
  const Step s = build_block_step(arena,
                                  std::vector<SequenceChunk>{{.tokens = three, .first_position = 64, .pages = &first},
                                                             {.tokens = one, .first_position = 0, .pages = &second}},
                                  kinds);
  EXPECT_EQ(values(s.tokens), (Values{7, 250, 250, 5}));
  EXPECT_EQ(values(s.positions), (Values{64, 65, 66, 0}));
  EXPECT_EQ(values(s.seq), (Values{0, 0, 0, 1}));
  EXPECT_EQ(values(s.window), (Values{32, 32, 32, 0}));
  EXPECT_EQ(values(s.visible), (Values{64, 64, 64, 0}));
  EXPECT_EQ(values(s.slot), (Values{0, 1, 2, 0}));
  ASSERT_TRUE(s.blocks.has_value());
  EXPECT_EQ(values(s.blocks->tables), (Values{0, 1}));
  EXPECT_EQ(values(s.blocks->end), (Values{3, 3, 3, 1}));
  EXPECT_EQ(values(s.faults), (Values{0, 0, 0, 0}));
  EXPECT_TRUE(s.entries.empty());
  EXPECT_EQ(s.n_visible, 64);
}

TEST_F(BuildStepTest, RowsOfTheTrunkStandAtTheirPositions) {
  const Step s = step(SlotRule::kAtPosition);
  EXPECT_EQ(values(s.tokens), (Values{7, 8, 9, 5}));
  EXPECT_EQ(values(s.positions), (Values{64, 65, 66, 0}));
  EXPECT_EQ(values(s.seq), (Values{0, 0, 0, 1}));
  EXPECT_EQ(values(s.slot), (Values{64, 65, 66, 0}));
  EXPECT_EQ(values(s.visible), (Values{65, 66, 67, 1}));
  EXPECT_EQ(values(s.faults), (Values{0, 0, 0, 0}));
  EXPECT_EQ(s.first_slot, 0);
  EXPECT_EQ(s.n_visible, 67);
  ASSERT_EQ(s.tables.dim(0), 2);
  ASSERT_EQ(s.tables.dim(1), 2);
  EXPECT_EQ(Values(s.tables.row<int32_t>(0), s.tables.row<int32_t>(0) + 2), first_.rows());
  EXPECT_EQ(s.tables.row<int32_t>(1)[0], second_.rows()[0]);
  EXPECT_TRUE(s.window.empty());
  EXPECT_TRUE(s.entries.empty());
  EXPECT_FALSE(s.wanted);
}

TEST_F(BuildStepTest, PairsOfTheMtpLayerStandOneSlotLater) {
  const Values last = {2, 3};
  const Step s = step(SlotRule::kAfterPosition, last);
  EXPECT_EQ(values(s.positions), (Values{64, 65, 66, 0}));
  EXPECT_EQ(values(s.slot), (Values{65, 66, 67, 1}));
  EXPECT_EQ(values(s.visible), (Values{66, 67, 68, 2}));
  EXPECT_EQ(s.first_slot, 1);
  EXPECT_EQ(s.n_visible, 68);
  ASSERT_TRUE(s.wanted);
  EXPECT_EQ(values(*s.wanted), last);
}

class WindowStepTest : public BuildStepTest {
 protected:
  WindowStepTest() : BuildStepTest({.n_window = 4, .ratios = {3, 128}}) {}
};

TEST_F(WindowStepTest, ReadsTheWindowAndCompletesEntries) {
  const Step s = step(SlotRule::kAtPosition);
  EXPECT_EQ(values(s.window), (Values{61, 62, 63, 0}));
  EXPECT_EQ(values(s.rings), (Values{first_.ring(), second_.ring()}));
  EXPECT_EQ(values(s.first_row), (Values{0, 3}));
  EXPECT_EQ(values(s.end_row), (Values{3, 4}));
  EXPECT_EQ(values(s.first_position), (Values{64, 0}));
  const StepEntries& threes = s.entries_of(3);  // position 65 is the last of entry 21, which begins at 63
  EXPECT_EQ(values(threes.visible), (Values{21, 22, 22, 0}));
  EXPECT_EQ(threes.n_visible, 22);
  EXPECT_EQ(values(threes.seq), (Values{0}));
  EXPECT_EQ(values(threes.slot), (Values{21}));
  EXPECT_EQ(values(threes.positions), (Values{63}));
  const StepEntries& many = s.entries_of(128);
  EXPECT_EQ(values(many.visible), (Values{0, 0, 0, 0}));
  EXPECT_EQ(many.slot.dim(0), 0);
}

TEST_F(WindowStepTest, TheMtpLayerHasNoEntries) {
  const Step s = step(SlotRule::kAfterPosition);
  EXPECT_EQ(values(s.window), (Values{62, 63, 64, 1}));
  EXPECT_TRUE(s.entries.empty());
}

class MtpEntriesStepTest : public BuildStepTest {
 protected:
  MtpEntriesStepTest() : BuildStepTest({.ratios = {4}, .mtp_entries = true}) {}
};

// Slots 65 to 68 are entry 17, of pairs 64 to 67; slots 61 to 64 are entry 16.
TEST_F(MtpEntriesStepTest, TheMtpLayersEntriesEndAtMultiplesOfTheirRatio) {
  const Step s = step(SlotRule::kAfterPosition);  // slots 65, 66, 67 and 1
  EXPECT_EQ(values(s.first_position), (Values{65, 1}));
  const StepEntries& fours = s.entries_of(4);
  EXPECT_EQ(fours.first, 1);
  EXPECT_EQ(fours.first_token, -3);
  EXPECT_EQ(values(fours.visible), (Values{17, 17, 17, 1}));
  EXPECT_EQ(fours.slot.dim(0), 0);
  const Step trunk = step(SlotRule::kAtPosition);  // positions 64, 65, 66 and 0
  EXPECT_EQ(trunk.entries_of(4).first_token, 0);
  EXPECT_EQ(values(trunk.entries_of(4).visible), (Values{16, 16, 16, 0}));
}

// What moves a step to a device must not forget a tensor.
TEST_F(WindowStepTest, EveryTensorIsVisited) {
  Step s = step(SlotRule::kAtPosition, Values{0});
  std::set<const std::byte*> visited;
  for_each_view(s, [&](View& view) { EXPECT_TRUE(visited.insert(view.bytes()).second); });
  for (const View& view : {s.tokens, s.positions, s.seq, s.slot, s.visible, s.tables, s.faults, s.window, s.rings,
                           s.first_row, s.end_row, s.first_position, *s.wanted}) {
    EXPECT_TRUE(visited.contains(view.bytes())) << view.describe();
  }
  for (const StepEntries& e : s.entries) {
    for (const View& view : {e.tables, e.visible, e.seq, e.slot, e.positions})
      EXPECT_TRUE(visited.contains(view.bytes())) << view.describe();
  }
}

// ---- chunks without room ----

std::string refusal(const SequenceChunk& chunk, SlotRule rule, const PageKinds& kinds) {
  const Status room = check_room(chunk, rule, kinds);
  return room.ok() ? "" : room.error().message;
}

TEST_F(BuildStepTest, AChunkWithoutSlotsIsRefused) {
  const Values many(64, 1);
  const SequenceChunk chunk{.tokens = many, .first_position = 0, .pages = &second_};
  EXPECT_EQ(refusal(chunk, SlotRule::kAtPosition, kinds_), "");
  EXPECT_EQ(refusal(chunk, SlotRule::kAfterPosition, kinds_),
            "a step of 64 tokens from position 0 on needs 65 slots, its block table has 1 pages");
  EXPECT_THROW(build_step(arena_, {&chunk, 1}, SlotRule::kAfterPosition, kinds_), StepFault);
}

// Steps of 64 tokens, whatever a step is said to have.
TEST_F(WindowStepTest, AChunkOfMoreTokensThanAStepHasIsRefused) {
  must(second_.grow(100));
  const Values many(65, 1);
  SequenceChunk chunk{.tokens = std::span(many).first(64), .first_position = 0, .pages = &second_};
  EXPECT_EQ(refusal(chunk, SlotRule::kAtPosition, kinds_), "");
  chunk.tokens = many;
  EXPECT_EQ(refusal(chunk, SlotRule::kAtPosition, kinds_), "a step of 65 tokens from position 0 on has room for 64");
}

TEST_F(MtpEntriesStepTest, AChunkWithoutEntriesIsRefused) {
  must(second_.grow(100));
  const Values many(60, 1);
  const SequenceChunk chunk{.tokens = many, .first_position = 30, .pages = &second_};
  EXPECT_EQ(refusal(chunk, SlotRule::kAtPosition, kinds_), "");
  EXPECT_EQ(refusal(chunk, SlotRule::kAtPosition, {.ratios = {1}}),
            "a step of 60 tokens from position 30 on needs 90 entries of ratio 1, its block table has 1 pages");
}

TEST(BuildBlockStepTest, ABlockWithoutRoomIsRefused) {
  const PageKinds kinds{.n_window = 32, .ratios = {4}};
  SequencePools pools(kinds, {.n_tokens = 1024, .n_sequences = 2, .n_step_tokens = 8});
  SequencePages pages(pools);
  must(pages.grow(1));
  const Values block(kPageTokens + 1, 1);
  SequenceChunk chunk{.tokens = std::span(block).first(3), .first_position = 64, .pages = &pages};
  EXPECT_TRUE(check_block_room(chunk).ok());
  chunk.tokens = block;
  EXPECT_FALSE(check_block_room(chunk).ok());
  chunk = {.tokens = std::span(block).first(3), .first_position = 65, .pages = &pages};
  EXPECT_FALSE(check_block_room(chunk).ok());
  Arena arena;
  EXPECT_THROW(build_block_step(arena, {&chunk, 1}, kinds), StepFault);
}

// ---- padding ----

TEST(PaddedCounts, AreThoseThatGraphsAreMadeFor) {
  std::vector<int64_t> rows, pages;
  for (int64_t n = 1; n <= 48; n = padded_rows(n) + 1) rows.push_back(padded_rows(n));
  for (int64_t n = 1; n <= 256; n = padded_pages(n) + 1) pages.push_back(padded_pages(n));
  EXPECT_EQ(rows, (std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48}));
  EXPECT_EQ(pages, (std::vector<int64_t>{4, 16, 64, 256}));
}

class PaddedStepTest : public BuildStepTest {
 protected:
  PaddedStepTest() : BuildStepTest({.n_window = 8, .ratios = {4, 128}}) {}
  Step padded(SlotRule rule, std::optional<std::span<const int32_t>> wanted = std::nullopt) {
    const std::vector<SequenceChunk> chunks = {{.tokens = tokens_, .first_position = 65, .pages = &first_},
                                               {.tokens = token_, .first_position = 0, .pages = &second_}};
    shape_ = padded_shape(chunks, kinds_, wanted, 5);
    return build_step(arena_, chunks, rule, kinds_, wanted, shape_);
  }
  StepShape shape_;
};

TEST(PaddedCounts, AQuarterHalfOrAllRowsMayBeWanted) {
  EXPECT_EQ(wanted_counts(1), (std::array<int64_t, 3>{1, 1, 1}));
  EXPECT_EQ(wanted_counts(6), (std::array<int64_t, 3>{2, 3, 6}));
  EXPECT_EQ(wanted_counts(128), (std::array<int64_t, 3>{32, 64, 128}));
}

TEST_F(PaddedStepTest, RowsOfPaddingHaveNoSequenceAndSeeNothing) {
  tokens_ = {7, 8, 9, 6};
  must(first_.grow(70));
  const Step s = padded(SlotRule::kAtPosition);
  EXPECT_EQ(shape_, (StepShape{.n_rows = 6, .n_sequences = 5, .n_pages = 4, .rows_together = 4}));
  EXPECT_EQ(values(s.tokens), (Values{7, 8, 9, 6, 5, 0}));
  EXPECT_EQ(values(s.seq), (Values{0, 0, 0, 0, 1, -1}));
  EXPECT_EQ(values(s.slot), (Values{65, 66, 67, 68, 0, -1}));
  EXPECT_EQ(values(s.visible), (Values{66, 67, 68, 69, 1, 0}));
  EXPECT_EQ(values(s.window), (Values{58, 59, 60, 61, 0, 0}));
  EXPECT_EQ(s.tables.dim(0), 5);
  EXPECT_EQ(s.tables.dim(1), 4);
  EXPECT_EQ(s.n_visible, 4 * kPageTokens);
  EXPECT_EQ(values(s.end_row), (Values{4, 5, 0, 0, 0}));
  const StepEntries& e = s.entries_of(4);
  EXPECT_EQ(values(e.visible), (Values{16, 16, 17, 17, 0, 0}));
  EXPECT_EQ(values(e.seq), (Values{0, -1, -1, -1, -1, -1}));
  EXPECT_EQ(values(e.slot), (Values{16, -1, -1, -1, -1, -1}));
  EXPECT_EQ(e.tables.dim(1), 1);
  EXPECT_EQ(e.n_visible, kPageTokens);
  EXPECT_EQ(s.entries_of(128).tables.dim(1), 1);
}

TEST_F(PaddedStepTest, WantedRowsThatNobodyWantsAreThePaddingAtTheEnd) {
  const Values all = {0, 1, 2, 3}, one = {2}, three = {0, 1, 3}, none;
  Step s = padded(SlotRule::kAfterPosition, all);
  EXPECT_EQ(shape_.n_rows, 4);
  EXPECT_EQ(values(*s.wanted), all);
  s = padded(SlotRule::kAfterPosition, one);
  EXPECT_EQ(shape_.n_rows, 4);
  EXPECT_EQ(values(*s.wanted), one) << "a quarter";
  s = padded(SlotRule::kAfterPosition, three);
  EXPECT_EQ(values(*s.wanted), three) << "half of six";
  EXPECT_EQ(values(s.seq), (Values{0, 0, 0, 1, -1, -1}));
  EXPECT_EQ(values(s.visible), (Values{67, 68, 69, 2, 1, 1}));  // slots 1 and later
  s = padded(SlotRule::kAfterPosition, none);
  EXPECT_EQ(shape_.n_rows, 4);
  EXPECT_TRUE(values(*s.wanted).empty());
  tokens_ = {7, 8, 9, 6};
  must(first_.grow(70));
  const Values four = {0, 1, 3, 4};
  s = padded(SlotRule::kAfterPosition, four);
  EXPECT_EQ(values(*s.wanted), (Values{0, 1, 3, 4, 5, 5}));
}

// As many rows of one sequence next to each other as the longest chunk has, up to eight; of a wanted row's there is one.
TEST_F(PaddedStepTest, RowsOfChunksAreTogether) {
  EXPECT_EQ(padded(SlotRule::kAtPosition).rows_together, 4);  // a chunk of three
  EXPECT_EQ(shape_.rows_together, 4);
  const Values one = {2}, ten(10, 1);
  EXPECT_EQ(padded(SlotRule::kAfterPosition, one).rows_together, 1);
  EXPECT_EQ(shape_.rows_together, 1);
  const SequenceChunk single{.tokens = token_, .first_position = 0, .pages = &second_};
  EXPECT_EQ(build_step(arena_, {&single, 1}, SlotRule::kAtPosition, kinds_).rows_together, 1);
  const SequenceChunk chunk{.tokens = ten, .first_position = 50, .pages = &first_};
  EXPECT_EQ(build_step(arena_, {&chunk, 1}, SlotRule::kAtPosition, kinds_).rows_together, 8);
}

class PaddedMtpEntriesStepTest : public BuildStepTest {
 protected:
  PaddedMtpEntriesStepTest() : BuildStepTest({.ratios = {4}, .mtp_entries = true}) {}
};

// Neither slots from 1 on nor entries from 1 on, so that no tokens are left between the two.
TEST_F(PaddedMtpEntriesStepTest, RowsOfPaddingSeeNoEntryAndNoSlot) {
  const std::vector<SequenceChunk> chunks = {{.tokens = tokens_, .first_position = 65, .pages = &first_}};
  const StepShape shape{.n_rows = 6, .n_sequences = 2, .n_pages = 4};
  const Step s = build_step(arena_, chunks, SlotRule::kAfterPosition, kinds_, std::nullopt, shape);
  EXPECT_EQ(values(s.visible), (Values{67, 68, 69, 1, 1, 1}));
  EXPECT_EQ(values(s.entries_of(4).visible), (Values{17, 17, 18, 1, 1, 1}));
}

}  // namespace
}  // namespace levin::test
