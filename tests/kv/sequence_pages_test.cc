#include "kv/sequence_pages.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "kv/cache.h"
#include "support/must.h"
#include "support/pretended_device.h"

namespace levin {
namespace {

constexpr int64_t kWindow = 128;
const PageKinds kV4{.n_window = kWindow, .ratios = {4, 128}};
const CacheLimits kLimits{.n_tokens = 10000, .n_sequences = 3, .n_step_tokens = 100, .n_undone = 7};

TEST(SequencePoolsTest, HoldAWindowOfEverySequenceAndEntriesOfAllTokens) {
  const SequencePools pools(kV4, kLimits);
  EXPECT_EQ(kLimits.ring_pages(kWindow), 4);  // 235 tokens
  EXPECT_EQ(pools.rows().n_pages(), 3 * 4);
  EXPECT_TRUE(pools.never_short(0));
  EXPECT_EQ(pools.entries(0).n_pages(), 40 + 2);  // 2500 entries, two sequences' last pages partly empty
  EXPECT_EQ(pools.entries(1).n_pages(), 2 + 2);
  EXPECT_EQ(pools.rings().n_pages(), 3);
  EXPECT_EQ(pools.max_step_tokens(), 100);
  EXPECT_EQ(pools.max_undone_tokens(), 7);
  EXPECT_EQ(pools.max_sequences(), 3);
  EXPECT_FALSE(pools.keeps_all_rows());
}

TEST(SequencePoolsTest, HaveAPageOfEntriesWhereNoneCanBeComplete) {
  const SequencePools pools(kV4, {.n_tokens = 100});
  EXPECT_EQ(pools.entries(0).n_pages(), 1);
  EXPECT_EQ(pools.entries(1).n_pages(), 1);
}

// Where nothing but entries is kept apart from the rows of all tokens, steps are as long as what ends blocks allows.
TEST(SequencePoolsTest, TheMtpLayersLastEntryHasRoom) {
  const PageKinds kinds{.n_window = 0, .ratios = {4}, .mtp_entries = true};
  const SequencePools pools(kinds, kLimits);
  EXPECT_EQ(pools.rows().n_pages(), 157);
  EXPECT_EQ(pools.table_tokens(1, 256), 64);  // slots 249 .. 252 are entry 63
  EXPECT_EQ(pools.table_tokens(1, 257), 65);  // slots 253 .. 256 are entry 64
  EXPECT_EQ(pools.entries(0).n_pages(), 40 + 2);
  EXPECT_EQ(pools.max_step_tokens(), 100);
  EXPECT_EQ(pools.max_sequences(), 3);
  EXPECT_FALSE(pools.keeps_all_rows());
}

TEST(SequencePoolsTest, AStepMayAlwaysHaveAPageBesideItsDrafts) {
  CacheLimits limits = kLimits;
  limits.n_step_tokens = 1;
  EXPECT_EQ(SequencePools(kV4, limits).max_step_tokens(), 64 + 7);
  EXPECT_EQ(limits.ring_pages(kWindow), 4);  // 206 tokens
}

TEST(SequencePoolsTest, WithoutAWindowHoldAllTokensWhateverTheStep) {
  const SequencePools pools({}, kLimits);
  EXPECT_EQ(pools.rows().n_pages(), 157);
  EXPECT_FALSE(pools.never_short(0));
  EXPECT_EQ(pools.rings().n_pages(), 0);
  EXPECT_TRUE(pools.keeps_all_rows());
  EXPECT_EQ(pools.max_step_tokens(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(pools.max_undone_tokens(), std::numeric_limits<int64_t>::max());
}

TEST(SequencePagesTest, AWindowsPagesComeRoundAgain) {
  SequencePools pools(kV4, kLimits);
  SequencePages pages(pools);
  test::must(pages.grow(1000));
  ASSERT_EQ(pages.rows().size(), 16u);
  for (size_t i = 4; i < 16; ++i) EXPECT_EQ(pages.rows()[i], pages.rows()[i - 4]);
  EXPECT_EQ(pools.rows().n_free(), 3 * 4 - 4);
  EXPECT_EQ(pages.entries(0).size(), 4u);  // 250 entries
  EXPECT_EQ(pages.entries(1).size(), 1u);
  EXPECT_GE(pages.ring(), 0);
  pages.shorten(100);
  EXPECT_EQ(pages.rows().size(), 2u);
  EXPECT_EQ(pages.entries(0).size(), 1u);
  EXPECT_EQ(pages.entries(1).size(), 0u);
  EXPECT_EQ(pools.rows().n_free(), 3 * 4 - 2);
  EXPECT_GE(pages.ring(), 0);
}

TEST(SequencePagesTest, LeaveEverythingAsItWasWhenAKindIsShort) {
  SequencePools pools(kV4, kLimits);
  SequencePages first(pools), second(pools);
  test::must(first.grow(9000));
  test::must(second.grow(100));
  const int32_t n_free = pools.rows().n_free();
  const Status status = second.grow(5000);  // 20 pages of entries; 42 - 36 are left
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_EQ(second.rows().size(), 2u);
  EXPECT_EQ(second.entries(0).size(), 1u);
  EXPECT_EQ(pools.rows().n_free(), n_free);
}

TEST(SequencePagesTest, BeginWithPagesThatOthersHoldToo) {
  SequencePools pools({}, kLimits);
  SequencePages first(pools), second(pools);
  test::must(first.grow(2 * kPageTokens));
  for (const int32_t page : first.rows()) pools.rows().retain(page);
  second.begin_with(first.rows());
  EXPECT_EQ(second.n_tokens(), 2 * kPageTokens);
  EXPECT_EQ(second.n_missing(0, 2 * kPageTokens + 1), 1);
  test::must(second.grow(2 * kPageTokens + 1));
  EXPECT_EQ(second.rows().size(), 3u);
  EXPECT_EQ(second.rows()[1], first.rows()[1]);
  first.shorten(0);
  EXPECT_EQ(pools.rows().n_free(), pools.rows().n_pages() - 3);
  second.shorten(0);
  EXPECT_EQ(pools.rows().n_free(), pools.rows().n_pages());
}

TEST(SequencePoolsTest, SayWhatCouldEverFit) {
  const SequencePools pools(kV4, kLimits);
  EXPECT_TRUE(pools.could_hold(42 * 64 * 4));
  EXPECT_FALSE(pools.could_hold(42 * 64 * 4 + 64 * 4));  // entries of ratio 4
  const SequencePools plain({}, kLimits);
  EXPECT_TRUE(plain.could_hold(157 * 64));
  EXPECT_FALSE(plain.could_hold(157 * 64 + 1));
}

TEST(SequencePagesTest, NothingIsLostOrHeldTwice) {
  SequencePools pools(kV4, kLimits);
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<SequencePages> sequences;
    for (int i = 0; i < 3; ++i) sequences.emplace_back(pools);
    for (int move = 0; move < 20; ++move) {
      SequencePages& s = sequences[random() % 3];
      const int64_t n_tokens = random() % 5000;
      if (random() % 2 == 0) {
        (void)s.grow(n_tokens).ok();
      } else {
        s.shorten(n_tokens);
      }
    }
    int64_t n_held = 0;
    for (const SequencePages& s : sequences) n_held += static_cast<int64_t>(s.entries(0).size());
    ASSERT_EQ(n_held + pools.entries(0).n_free(), pools.entries(0).n_pages());
  }
  EXPECT_EQ(pools.rows().n_free(), pools.rows().n_pages());
  EXPECT_EQ(pools.entries(0).n_free(), pools.entries(0).n_pages());
  EXPECT_EQ(pools.entries(1).n_free(), pools.entries(1).n_pages());
  EXPECT_EQ(pools.rings().n_free(), pools.rings().n_pages());
}

TEST(CacheLayoutTest, CountsWhatGrowsAndWhatDoesNot) {
  const LatentFormat rows = key_value_format(CacheDType::kBF16, 512, 64);  // 1152 bytes
  const IndexKeyFormat keys = index_key_format(CacheDType::kBF16, 128);    // 256 bytes
  const StateFormat state{.n_channels = 1024, .n_tokens = 8, .n_before = 4},
      index_state{.n_channels = 256, .n_tokens = 8, .n_before = 4};
  CacheLayout layout{.layers = {}, .n_window = kWindow};
  layout.layers.push_back({.latent = rows});
  layout.layers.push_back(
      {.latent = rows,
       .index = keys,
       .compressed = CompressedFormat{.ratio = 4, .entries = rows, .state = state, .index_state = index_state}});
  EXPECT_EQ(layout.latent_bytes_per_token(), 1152 / 4);
  EXPECT_EQ(layout.index_bytes_per_token(), 256 / 4);
  // rings of 8 tokens and 7 undone ones, and the ends of the 3 blocks that a step of 100 touches
  EXPECT_EQ(kLimits.open_blocks(64), 3);
  EXPECT_EQ(layout.bytes_per_sequence(kLimits), 2 * 4 * 64 * 1152 + (15 + 3 * 4) * 8 * (1024 + 256));
  EXPECT_EQ(layout.page_kinds().ratios, std::vector<int64_t>{4});
  SequencePools pools(layout.page_kinds(), kLimits);
  const KvCache cache(layout, pools);
  EXPECT_EQ(cache.n_bytes(), 3 * layout.bytes_per_sequence(kLimits) + 42 * 64 * (1152 + 256));
  EXPECT_EQ(layout.spare_bytes(kLimits), 2 * 64 * (1152 + 256));  // the other 40 grow with the tokens
}

TEST(CacheLayoutTest, ABlockEndsWhereNothingIsHalfDone) {
  const LatentFormat rows = key_value_format(CacheDType::kBF16, 512, 64);  // 1152 bytes
  const IndexKeyFormat keys = index_key_format(CacheDType::kFp8, 128);     // 132 bytes
  CacheLayout layout{.layers = {{.latent = rows, .index = keys}}, .n_window = 0};
  EXPECT_EQ(layout.block_tokens(), 64);
  EXPECT_EQ(layout.block_bytes(), rows.page_bytes() + keys.page_bytes());
  layout = {.layers = {{.latent = rows}}, .n_window = 100};
  EXPECT_EQ(layout.block_tokens(), 64);
  EXPECT_EQ(layout.block_bytes(), 64 * 1152);  // what the window has of tokens before comes with their blocks
  const auto compressed = [&](int64_t ratio, int64_t n_before) {
    return CompressedFormat{.ratio = ratio,
                            .entries = rows,
                            .state = {.n_channels = 64, .n_tokens = ratio + n_before, .n_before = n_before},
                            .index_state = {}};
  };
  layout.layers.push_back({.latent = rows, .index = keys, .compressed = compressed(4, 4)});
  EXPECT_EQ(layout.block_tokens(), 64);
  EXPECT_EQ(layout.block_bytes(), 2 * 64 * 1152 + 16 * (1152 + 132) + 4 * 8 * 64);
  layout.layers.push_back({.latent = rows, .compressed = compressed(96, 0)});
  EXPECT_EQ(layout.block_tokens(), 192);
  EXPECT_EQ(layout.block_bytes(), 3 * 100 * 1152 + 48 * (1152 + 132) + 4 * 8 * 64 + 2 * 1152);
}

TEST(KvCacheTest, ABlockIsAPageWhereAllRowsAreKept) {
  const LatentFormat rows = latent_format(CacheDType::kFp8, 128, 64);
  const IndexKeyFormat keys = index_key_format(CacheDType::kFp8, 32);
  const CacheLayout layout{.layers = {{.latent = rows}, {.latent = rows, .index = keys}}, .n_window = 0};
  SequencePools pools(layout.page_kinds(), {.n_tokens = 640});
  KvCache cache(layout, pools);
  std::mt19937 random(2);
  std::vector<std::byte> record(static_cast<size_t>(cache.block_bytes()));
  for (std::byte& b : record) b = static_cast<std::byte>(random());
  SequencePages pages(pools);
  test::must(pages.grow(3 * kPageTokens));
  cache.set_block(pages, 1, record);
  int32_t id = pages.rows()[1];
  const View table = View::of(&id, {1, 1});
  auto at = record.begin();
  const auto expect_next = [&](const std::byte* page, int64_t n_bytes) {
    EXPECT_TRUE(std::equal(at, at + n_bytes, page));
    at += n_bytes;
  };
  expect_next(cache.latent_rows(0, table).page(0, 0), rows.page_bytes());
  expect_next(cache.latent_rows(1, table).page(0, 0), rows.page_bytes());
  expect_next(cache.index_rows(1, table).page(0, 0), keys.page_bytes());
  EXPECT_EQ(at, record.end());
  std::vector<std::byte> copied(record.size());
  cache.copy_block(pages, 1, copied);
  EXPECT_EQ(copied, record);
}

TEST(KvCacheTest, OnADeviceBlocksAreCopiedThereAndBack) {
  const LatentFormat rows = key_value_format(CacheDType::kBF16, 512, 64);
  const StateFormat state{.n_channels = 64, .n_tokens = 8, .n_before = 4};
  const CacheLayout layout{
      .layers = {{.latent = rows},
                 {.latent = rows,
                  .index = index_key_format(CacheDType::kFp8, 128),
                  .compressed = CompressedFormat{.ratio = 4, .entries = rows, .state = state, .index_state = state}}},
      .n_window = 100};
  SequencePools pools(layout.page_kinds(), kLimits);
  test::PretendedDevice device;
  KvCache cache = test::must(KvCache::on_device(device, layout, pools));
  EXPECT_EQ(cache.n_bytes(), KvCache(layout, pools).n_bytes());
  SequencePages pages(pools);
  test::must(pages.grow(2 * kPageTokens));
  // What a step would have written: the rows and entries of the block, and the state after it.
  std::vector<std::byte> record(static_cast<size_t>(cache.block_bytes())), copied(record.size());
  std::mt19937 random(3);
  for (std::byte& b : record) b = static_cast<std::byte>(random());
  cache.set_block(pages, 0, record);
  int32_t ring = pages.ring();
  for (const bool index : {false, true}) {
    const View ids = View::of(&ring, {1});
    const StateRings rings = index ? cache.index_state(1, ids) : cache.state(1, ids);
    for (int64_t p = kPageTokens - state.n_before; p < kPageTokens; ++p)
      std::memcpy(rings.end_row(0, p), rings.row(0, p), static_cast<size_t>(state.row_bytes()));
  }
  cache.copy_block(pages, 0, copied);
  EXPECT_EQ(copied, record);

  device.available = 1 << 20;
  const Result<KvCache> refused = KvCache::on_device(device, layout, pools);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().kind, ErrorKind::kOutOfMemory);
}

}  // namespace
}  // namespace levin
