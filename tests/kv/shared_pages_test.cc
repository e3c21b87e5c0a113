#include "kv/shared_pages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace levin {
namespace {

std::vector<int32_t> pages_of(PagePool& pool, size_t n) {
  std::vector<int32_t> pages(n);
  for (int32_t& page : pages) page = pool.allocate();
  return pages;
}

// The keys of pages whose tokens are all alike, so that a page is named by one number and those before it.
std::vector<BlockKey> path_of(const std::vector<int32_t>& page_values) {
  std::vector<BlockKey> path;
  for (const int32_t value : page_values) {
    const std::vector<int32_t> tokens(kPageTokens, value);
    path.push_back(key_after(path.empty() ? BlockKey{} : path.back(), tokens));
  }
  return path;
}

std::vector<ResumeState> states(size_t n, float first = 0) {
  std::vector<ResumeState> out;
  for (size_t i = 0; i < n; ++i) {
    out.push_back(std::make_shared<const std::vector<float>>(1, first + static_cast<float>(i)));
  }
  return out;
}

void release_all(PagePool& pool, const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) pool.release(page);
}

TEST(SharedPages, FindsTheLongestPrefixInWholePages) {
  PagePool pool(8);
  SharedPages tree(pool);
  std::vector<int32_t> pages = pages_of(pool, 3);
  tree.adopt(path_of({1, 2, 3}), pages, 0, states(3));
  const std::vector<BlockKey> prompt = path_of({1, 2, 9});
  const SharedPages::Match match = tree.find(prompt);
  EXPECT_EQ(match.pages, (std::vector<int32_t>{pages[0], pages[1]}));
  EXPECT_EQ((*match.resume)[0], 1);
  EXPECT_EQ(pool.n_references(pages[1]), 3);  // the sequence that computed it, the tree, the match
  EXPECT_EQ(tree.find(std::span(prompt).first(1)).pages.size(), 1u);
  EXPECT_TRUE(tree.find(path_of({2, 1})).pages.empty());
}

TEST(SharedPages, GivesWhoComputedTheSameItsOwnPages) {
  PagePool pool(8);
  SharedPages tree(pool);
  std::vector<int32_t> first = pages_of(pool, 2), second = pages_of(pool, 3);
  const std::vector<int32_t> computed = second;
  tree.adopt(path_of({1, 2}), first, 0, states(2));
  tree.adopt(path_of({1, 2, 3}), second, 0, states(3));
  EXPECT_EQ(second, (std::vector<int32_t>{first[0], first[1], computed[2]}));
  EXPECT_EQ(pool.n_references(computed[0]), 0);
  EXPECT_EQ(tree.n_pages(), 3);
}

TEST(SharedPages, ForgetsTheLeastRecentlyUsedFirstAndEndsBeforeBeginnings) {
  PagePool pool(8);
  SharedPages tree(pool);
  for (const std::vector<int32_t>& branch : std::vector<std::vector<int32_t>>{{1, 2}, {1, 3}, {4}}) {
    std::vector<int32_t> pages = pages_of(pool, branch.size());
    tree.adopt(path_of(branch), pages, 0, states(branch.size()));
    release_all(pool, pages);
  }
  release_all(pool, tree.find(path_of({1, 2})).pages);
  const auto cached_pages = [&](const std::vector<int32_t>& branch) {
    const SharedPages::Match match = tree.find(path_of(branch));
    release_all(pool, match.pages);
    return match.pages.size();
  };
  EXPECT_EQ(tree.evict(1), 1);  // {1, 3} is the oldest
  EXPECT_EQ(tree.evict(1), 1);  // then {4}
  EXPECT_EQ(tree.n_pages(), 2);
  EXPECT_EQ(tree.evict(1), 1);  // then the end of {1, 2}
  EXPECT_EQ(cached_pages({1, 2}), 1u);
  EXPECT_EQ(tree.evict(5), 1);
  EXPECT_EQ(pool.n_free(), 8);
}

TEST(SharedPages, KeepsWhatIsInUse) {
  PagePool pool(4);
  SharedPages tree(pool);
  std::vector<int32_t> pages = pages_of(pool, 3);
  tree.adopt(path_of({1, 2, 3}), pages, 0, states(3));
  release_all(pool, pages);
  const SharedPages::Match held = tree.find(path_of({1, 2}));
  EXPECT_EQ(tree.n_evictable(), 1);
  EXPECT_EQ(tree.evict(4), 1);
  release_all(pool, held.pages);
  EXPECT_EQ(tree.n_evictable(), 2);
  EXPECT_EQ(tree.evict(4), 2);
}

// Sequences of few different pages come, are looked up, computed, entered and let go, with evictions between.
RC_GTEST_PROP(SharedPages, NoPageIsLostAndEveryMatchIsRight, ()) {
  PagePool pool(24);
  SharedPages tree(pool);
  std::map<int32_t, std::vector<int32_t>> written;  // page -> values up to its own
  std::vector<std::vector<int32_t>> held;
  const int n_rounds = *rc::gen::inRange(1, 120);
  for (int round = 0; round < n_rounds; ++round) {
    if (const int what = *rc::gen::inRange(0, 4); what == 0 && !held.empty()) {
      release_all(pool, held.back());
      held.pop_back();
    } else if (what == 1) {
      const int32_t n_evictable = tree.n_evictable(), n_wanted = *rc::gen::inRange(0, 6);
      RC_ASSERT(tree.evict(n_wanted) == std::min(n_evictable, n_wanted));
    } else {
      const auto values =
          *rc::gen::container<std::vector<int32_t>>(*rc::gen::inRange<size_t>(1, 6), rc::gen::inRange(0, 2));
      std::vector<BlockKey> path = path_of(values);
      SharedPages::Match match = tree.find(path);
      std::vector<int32_t> pages = std::move(match.pages);
      const size_t n_found = pages.size();
      for (size_t i = 0; i < n_found; ++i) {
        RC_ASSERT(written.at(pages[i]) == std::vector(values.begin(), values.begin() + static_cast<int64_t>(i) + 1));
      }
      while (pages.size() < path.size() && pool.n_free() > 0) {
        pages.push_back(pool.allocate());
        written[pages.back()] = std::vector(values.begin(), values.begin() + std::ssize(pages));
      }
      path.resize(pages.size());
      tree.adopt(path, pages, n_found, states(pages.size() - n_found));
      held.push_back(std::move(pages));
    }
    std::set<int32_t> in_use;
    for (const std::vector<int32_t>& pages : held) in_use.insert(pages.begin(), pages.end());
    RC_ASSERT(static_cast<int32_t>(in_use.size()) + tree.n_evictable() + pool.n_free() == pool.n_pages());
  }
}

}  // namespace
}  // namespace levin
