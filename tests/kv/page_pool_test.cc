#include "kv/page_pool.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>
#include <vector>

namespace levin {
namespace {

TEST(PagePool, GivesTheLowestFreePageFirst) {
  PagePool pool(3);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  pool.release(0);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), -1);
}

TEST(PagePool, KeepsAPageWhileSomebodyHoldsIt) {
  PagePool pool(1);
  const int32_t page = pool.allocate();
  pool.retain(page);
  pool.release(page);
  EXPECT_EQ(pool.n_free(), 0);
  pool.release(page);
  EXPECT_EQ(pool.n_free(), 1);
}

TEST(BlockTable, GrowsByWholePagesAndShortensToTheLastNeeded) {
  PagePool pool(4);
  BlockTable table(pool);
  ASSERT_TRUE(table.grow(1).ok());
  EXPECT_EQ(table.pages().size(), 1u);
  ASSERT_TRUE(table.grow(kPageTokens).ok());
  EXPECT_EQ(table.pages().size(), 1u);
  ASSERT_TRUE(table.grow(kPageTokens + 1).ok());
  EXPECT_EQ(table.pages().size(), 2u);
  table.shorten(kPageTokens);
  EXPECT_EQ(table.pages().size(), 1u);
  table.shorten(0);
  EXPECT_EQ(pool.n_free(), 4);
}

TEST(BlockTable, LeavesEverythingAsItWasWhenThePoolIsShort) {
  PagePool pool(2);
  BlockTable first(pool), second(pool);
  ASSERT_TRUE(first.grow(kPageTokens).ok());
  const Status status = second.grow(2 * kPageTokens);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::kOutOfMemory);
  EXPECT_TRUE(second.pages().empty());
  EXPECT_EQ(pool.n_free(), 1);
}

RC_GTEST_PROP(BlockTable, NoPageIsLostOrHeldTwice, (const std::vector<std::pair<uint8_t, uint16_t>>& moves)) {
  PagePool pool(40);
  std::vector<BlockTable> tables;
  for (int i = 0; i < 5; ++i) tables.emplace_back(pool);
  for (const auto& [which, n_tokens] : moves) {
    BlockTable& table = tables[which % tables.size()];
    if (which & 0x80) {
      table.shorten(n_tokens % 1500);
    } else {
      (void)table.grow(n_tokens % 1500).ok();
    }
    std::set<int32_t> held;
    size_t n_held = 0;
    for (const BlockTable& t : tables) {
      held.insert(t.pages().begin(), t.pages().end());
      n_held += t.pages().size();
    }
    RC_ASSERT(held.size() == n_held);
    RC_ASSERT(static_cast<int32_t>(n_held) + pool.n_free() == pool.n_pages());
  }
}

}  // namespace
}  // namespace levin
