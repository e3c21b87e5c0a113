// Records that a device is still copying: what the index says and evicts does not depend on when a copy is done, and nobody gets a
// record that is not.
#include "kv/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <random>

#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

constexpr int64_t kBlockTokens = 2, kRowBytes = 32;

enum class Copies { kNone, kDoneAtOnce, kDoneLate };

// Fills its record when somebody waits for it, or before; with late copies nobody finds it done.
class FakeCopy final : public BlockCopy {
 public:
  FakeCopy(Copies copies, const BlockKey& key, BlockRecord& record) : copies_(copies), key_(key), record_(record) {}
  bool is_done() override { return copies_ == Copies::kDoneAtOnce; }
  Status finish() override {
    std::copy(key_.begin(), key_.end(), record_.rows.begin());
    return {};
  }

 private:
  Copies copies_;
  BlockKey key_;
  BlockRecord& record_;
};

// An index in host memory and, with a folder, on disk, whose blocks hold their own keys.
struct World {
  World(Copies how, int64_t max_host_blocks, const std::filesystem::path& folder = {},
        int64_t max_disk_bytes = int64_t{1} << 20)
      : copies(how), index(nullptr, max_host_blocks, store(folder, max_disk_bytes)) {}

  static std::shared_ptr<PageStore> store(const std::filesystem::path& folder, int64_t max_bytes) {
    if (folder.empty()) return nullptr;
    return must(PageStore::open(
        {.folder = folder, .max_bytes = max_bytes, .n_tokens = kBlockTokens, .n_row_bytes = kRowBytes, .n_state = 1}));
  }

  void keep(const BlockKey& key, const BlockPlace& place) {
    index.keep_record(key, place, [&] {
      auto record = std::make_shared<BlockRecord>(
          BlockRecord{.state = {1.0f}, .rows = std::vector<std::byte>(static_cast<size_t>(kRowBytes))});
      auto copy = std::make_unique<FakeCopy>(copies, key, *record);
      if (copies == Copies::kNone) {
        must(copy->finish());
        copy = nullptr;
      }
      return PrefixIndex::NewRecord{std::move(record), std::move(copy)};
    });
  }

  Copies copies;
  PrefixIndex index;
};

int64_t bytes_of_files(const PrefixIndex& index) {
  index.disk()->flush();
  return index.disk()->counts().n_bytes;
}

struct Block {
  BlockKey key, before;
  std::vector<int32_t> tokens;
  BlockPlace place() const { return {.before = before, .tokens = tokens}; }
};

// A few conversations that begin alike.
std::vector<std::vector<Block>> made_up_paths(const BlockKey& first, std::mt19937& random) {
  std::vector<std::vector<Block>> paths(12);
  for (std::vector<Block>& path : paths) {
    BlockKey before = first;
    for (int i = 0; i < 6; ++i) {
      const std::vector<int32_t> tokens = {i, static_cast<int32_t>(random() % 3)};
      path.push_back({.key = levin::key_after(before, tokens), .before = before, .tokens = tokens});
      before = path.back().key;
    }
  }
  return paths;
}

void expect_same_found(World& world, const World& expected_in, const Block& block, bool expected) {
  EXPECT_EQ(world.index.has_record(block.key), expected);
  EXPECT_EQ(world.index.memory().n_pages(), expected_in.index.memory().n_pages());
  EXPECT_EQ(world.index.memory().n_bytes(), expected_in.index.memory().n_bytes());
}

void expect_own_rows(const PrefixIndex::Found& found, const Block& block) {
  ASSERT_NE(found.record, nullptr);
  EXPECT_TRUE(std::equal(block.key.begin(), block.key.end(), found.record->rows.begin()));
}

TEST(PrefixIndexTest, WhatIsPresentDoesNotDependOnWhenCopiesAreDone) {
  std::mt19937 random(3);
  for (const int64_t max_host_blocks : {1, 3, 10, 100}) {
    World at_once(Copies::kNone, max_host_blocks), early(Copies::kDoneAtOnce, max_host_blocks),
        late(Copies::kDoneLate, max_host_blocks);
    const std::vector<std::vector<Block>> paths = made_up_paths(at_once.index.first_key(), random);
    for (int i = 0; i < 2000; ++i) {
      const std::vector<Block>& path = paths[random() % paths.size()];
      const Block& block = path[random() % path.size()];
      const unsigned what = random() % 8;
      for (World* world : {&at_once, &early, &late}) {
        if (what < 5) world->keep(block.key, block.place());
        if (what == 5) {
          std::vector<BlockKey> keys;
          for (const Block& b : path) keys.push_back(b.key);
          world->index.use_records(keys);
        }
        if (what == 6 && world->index.has_record(block.key))
          expect_own_rows(world->index.find_record(block.key, block.place()), block);
        if (what == 7 && i % 100 == 7) world->index.finish_records();
      }
      for (const Block& b : path) {
        const bool expected = at_once.index.has_record(b.key);
        expect_same_found(early, at_once, b, expected);
        expect_same_found(late, at_once, b, expected);
      }
      ASSERT_FALSE(HasFailure()) << "at " << i << " of an index of " << max_host_blocks;
    }
  }
}

// A path is kept on disk although host memory has no room for it, and is there for the next process.
TEST(PrefixIndexTest, RecordsThatAreStillCopiedComeToDisk) {
  std::mt19937 random(4);
  for (const Copies copies : {Copies::kNone, Copies::kDoneAtOnce, Copies::kDoneLate}) {
    SCOPED_TRACE(testing::Message() << "copies " << static_cast<int>(copies));
    const TempDir folder;
    std::vector<Block> path;
    {
      World world(copies, 1, folder.path());
      path = made_up_paths(world.index.first_key(), random).front();
      for (const Block& block : path) world.keep(block.key, block.place());
    }
    World next(copies, 0, folder.path());
    for (const Block& block : path) {
      const PrefixIndex::Found found = next.index.find_record(block.key, block.place());
      expect_own_rows(found, block);
      EXPECT_TRUE(found.from_disk);
    }
  }
}

// A use of a path counts for blocks that come to disk only after it: the end of a path goes before its beginning.
TEST(PrefixIndexTest, FilesThatAreWrittenLaterKeepTheOrderOfUse) {
  std::mt19937 random(5);
  for (const Copies copies : {Copies::kNone, Copies::kDoneLate}) {
    SCOPED_TRACE(testing::Message() << "copies " << static_cast<int>(copies));
    const TempDir measured, folder;
    World one(copies, 0, measured.path());
    const std::vector<Block> path = made_up_paths(one.index.first_key(), random).front();
    one.keep(path[0].key, path[0].place());
    one.index.finish_records();
    const int64_t file_bytes = bytes_of_files(one.index);

    World world(copies, 0, folder.path(), 6 * file_bytes + file_bytes / 2);
    std::vector<BlockKey> keys;
    for (const Block& block : path) {
      world.keep(block.key, block.place());
      keys.push_back(block.key);
    }
    world.index.use_records(keys);
    world.index.finish_records();
    EXPECT_EQ(bytes_of_files(world.index), 6 * file_bytes);
    const std::vector<int32_t> other = {77, 78};
    const BlockKey key = levin::key_after(world.index.first_key(), other);
    world.keep(key, {.before = world.index.first_key(), .tokens = other});
    world.index.finish_records();
    EXPECT_EQ(bytes_of_files(world.index), 6 * file_bytes);
    for (size_t i = 0; i < path.size(); ++i)
      EXPECT_EQ(world.index.has_record(path[i].key), i + 1 < path.size()) << "block " << i;
  }
}

}  // namespace
}  // namespace levin::test
