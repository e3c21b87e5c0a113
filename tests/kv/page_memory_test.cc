// Pages in memory: within their budget, whole from the first, and forgotten by use.
#include "kv/page_memory.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace levin::test {
namespace {

BlockKey key_after(const BlockKey& before, int32_t token) { return levin::key_after(before, {&token, 1}); }

std::shared_ptr<const BlockRecord> record_of(const BlockKey& key) {
  return std::make_shared<const BlockRecord>(BlockRecord{.state = {1.0f}, .rows = {key.begin(), key.end()}});
}

constexpr BlockKey kFirst = {};

TEST(PageMemoryTest, KeepsNothingWithoutAPlace) {
  const PageMemory memory(0, kFirst);
  EXPECT_FALSE(memory.wants(key_after(kFirst, 1), kFirst));
}

TEST(PageMemoryTest, AnEndGoesBeforeItsBeginningAndTheOldestPathFirst) {
  PageMemory memory(4, kFirst);
  std::vector<BlockKey> a, b;
  for (int i = 0; i < 3; ++i) {
    a.push_back(key_after(i > 0 ? a.back() : kFirst, 1));
    b.push_back(key_after(i > 0 ? b.back() : kFirst, 2));
  }
  const auto keep = [&](const std::vector<BlockKey>& path, size_t i) {
    memory.keep(path[i], i > 0 ? path[i - 1] : kFirst, record_of(path[i]));
  };
  for (size_t i = 0; i < 3; ++i) keep(a, i);
  EXPECT_FALSE(memory.wants(b[1], b[0]));  // of nobody's end
  keep(b, 0);
  keep(b, 1);  // the end of a goes
  EXPECT_EQ(memory.find(a[2]), nullptr);
  EXPECT_NE(memory.find(a[1]), nullptr);
  memory.use(a);
  EXPECT_FALSE(memory.wants(b[2], b[1]));  // it would have to go for itself
  EXPECT_TRUE(memory.wants(a[2], a[1]));
  keep(a, 2);
  EXPECT_EQ(memory.find(b[1]), nullptr);
  EXPECT_NE(memory.find(b[0]), nullptr);
  EXPECT_EQ(memory.n_pages(), 4);
  EXPECT_EQ(memory.n_bytes(), 4 * (32 + 4));
}

// Random conversations. What is true of each page is told by a book of its own: when its path was last used, and which
// page it follows.
TEST(PageMemoryTest, OverRandomUseNothingGoesBeforeWhatIsOlderOrFollowsIt) {
  std::mt19937 random(5);
  for (const int64_t max_pages : {1, 2, 7, 40}) {
    PageMemory memory(max_pages, kFirst);
    struct Page {
      BlockKey before;
      int64_t used;
    };
    std::map<BlockKey, Page> here;
    int64_t n_refused = 0, n_gone = 0;
    for (int64_t now = 1; now < 1000; ++now) {
      std::vector<BlockKey> path;  // what is asked for: often a path that was there before
      for (size_t n = 1 + random() % 8; path.size() < n;) {
        path.push_back(key_after(path.empty() ? kFirst : path.back(), static_cast<int32_t>(random() % 3)));
      }
      memory.use(path);
      for (const BlockKey& key : path) {
        if (const auto found = here.find(key); found != here.end()) found->second.used = now;
      }
      for (size_t i = 0; i < path.size(); ++i) {
        const BlockKey before = i > 0 ? path[i - 1] : kFirst;
        if (here.contains(path[i])) continue;
        if (!memory.wants(path[i], before)) {
          ++n_refused;
          ASSERT_TRUE(i > 0 && (!here.contains(before) || std::ssize(here) == max_pages));
          continue;
        }
        memory.keep(path[i], before, record_of(path[i]));
        ASSERT_EQ(memory.find(path[i])->rows, record_of(path[i])->rows);
        here[path[i]] = {.before = before, .used = i > 0 ? here.at(before).used : now};
        std::erase_if(here, [&](const auto& page) {
          if (memory.find(page.first) != nullptr) return false;
          ++n_gone;
          for (const auto& [key, other] : here) {
            if (memory.find(key) == nullptr) continue;
            EXPECT_NE(other.before, page.first) << "a page stays whose beginning goes";
            EXPECT_GE(other.used, page.second.used) << "an older page stays";
          }
          return true;
        });
        ASSERT_EQ(std::ssize(here), memory.n_pages());
        ASSERT_LE(memory.n_pages(), max_pages);
      }
    }
    for (const auto& [key, page] : here) ASSERT_EQ(memory.find(key)->rows, record_of(key)->rows);
    EXPECT_GT(n_gone, 100) << max_pages;
    EXPECT_EQ(n_refused > 0, max_pages < 8) << max_pages;  // paths are no longer
  }
}

}  // namespace
}  // namespace levin::test
