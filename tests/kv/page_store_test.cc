// The store of cache pages by itself: what is written is read back, whatever else lies in the folder or happened to it.
#include "kv/page_store.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <map>
#include <random>

#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kTokens = 128;
constexpr int64_t kRowBytes = 500;
constexpr int64_t kState = 3;

class PageStoreTest : public ::testing::Test {
 protected:
  PageStoreOptions options(uint8_t model = 1) {
    PageStoreOptions o{.folder = folder_.path(),
                       .max_bytes = 1 << 20,
                       .n_tokens = kTokens,
                       .n_row_bytes = kRowBytes,
                       .n_state = kState};
    o.fingerprint.fill(std::byte{model});
    o.note = [this](const std::string& line) { notes_.push_back(line); };
    return o;
  }
  std::unique_ptr<PageStore> open(const PageStoreOptions& o) { return must(PageStore::open(o)); }
  std::unique_ptr<PageStore> open() { return open(options()); }

  // A conversation of n pages; those of one name begin alike.
  struct Path {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<BlockKey> keys;
  };
  Path path(const PageStore& store, int name, int n) {
    Path out;
    BlockKey key = store.first_key();
    for (int i = 0; i < n; ++i) {
      out.tokens.emplace_back(kTokens, name * 1000 + i);
      key = key_after(key, out.tokens.back());
      out.keys.push_back(key);
    }
    return out;
  }
  static BlockPlace place(const PageStore& store, const Path& p, size_t i) {
    return {.before = i > 0 ? p.keys[i - 1] : store.first_key(), .tokens = p.tokens[i]};
  }
  static std::vector<std::byte> rows_of(const Path& p, size_t i) {
    std::vector<std::byte> rows(kRowBytes);
    for (size_t j = 0; j < rows.size(); ++j) rows[j] = p.keys[i][j % p.keys[i].size()] ^ static_cast<std::byte>(j);
    return rows;
  }
  static void write(PageStore& store, const Path& p) {
    for (size_t i = 0; i < p.keys.size(); ++i) {
      const BlockPlace where = place(store, p, i);
      if (!store.wants(p.keys[i], where.before)) continue;
      store.write(p.keys[i], where, {.state = {1.0f, 2.0f, static_cast<float>(i)}, .rows = rows_of(p, i)});
    }
    store.use(p.keys);
    store.flush();
  }
  // Pages from the first on that can be read; they must be right.
  static size_t n_readable(PageStore& store, const Path& p) {
    for (size_t i = 0; i < p.keys.size(); ++i) {
      const std::optional<BlockRecord> found = store.read(p.keys[i], place(store, p, i));
      if (!found) return i;
      EXPECT_EQ(found->rows, rows_of(p, i));
      EXPECT_EQ(found->state, (std::vector<float>{1.0f, 2.0f, static_cast<float>(i)}));
    }
    return p.keys.size();
  }
  fs::path path_of(const BlockKey& key) {
    for (const fs::path& file : files()) {
      if (file.stem() == hex(key)) return file;
    }
    return {};
  }
  std::vector<fs::path> files() {
    std::vector<fs::path> out;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      if (entry.path().extension() == ".page") out.push_back(entry.path());
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  TempDir folder_;
  std::vector<std::string> notes_;
};

TEST_F(PageStoreTest, PagesOutliveTheStore) {
  std::unique_ptr<PageStore> first = open();
  const Path p = path(*first, 1, 5), other = path(*first, 2, 2);
  EXPECT_EQ(n_readable(*first, p), 0u);
  write(*first, p);
  EXPECT_EQ(n_readable(*first, p), 5u);
  EXPECT_EQ(n_readable(*first, other), 0u);
  first = nullptr;
  const std::unique_ptr<PageStore> second = open();
  EXPECT_EQ(n_readable(*second, p), 5u);
  EXPECT_EQ(second->counts().n_pages, 5);
  EXPECT_EQ(notes_, std::vector<std::string>{});
}

// As a signal leaves the thread that reads: no call sets errno where it succeeds.
TEST_F(PageStoreTest, AnEarlierInterruptionDoesNotKeepAReaderAtTheEndOfAFile) {
  const std::unique_ptr<PageStore> store = open();
  const Path conversation = path(*store, 1, 2);
  write(*store, conversation);
  errno = EINTR;
  EXPECT_EQ(n_readable(*store, conversation), 2U);
}

TEST_F(PageStoreTest, AFolderServesOneAtATime) {
  const std::unique_ptr<PageStore> first = open();
  const auto second = PageStore::open(options());
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another process uses it"), std::string::npos) << second.error().message;
}

TEST_F(PageStoreTest, SaysWhatFolderAndBudgetCannotDo) {
  std::ofstream(folder_ / "file") << "x";
  PageStoreOptions o = options();
  o.folder = folder_ / "file";
  EXPECT_NE(PageStore::open(o).error().message.find("cannot be made"), std::string::npos);
  o = options();
  o.max_bytes = 100;
  EXPECT_NE(PageStore::open(o).error().message.find("is too small for a page of this model"), std::string::npos);
}

TEST_F(PageStoreTest, PagesOfAnotherModelAreNotSeen) {
  std::unique_ptr<PageStore> store = open();
  write(*store, path(*store, 1, 3));
  store = nullptr;
  store = open(options(2));
  EXPECT_EQ(n_readable(*store, path(*store, 1, 3)), 0u);
  EXPECT_EQ(store->counts().n_pages, 0);
  EXPECT_GT(store->counts().n_bytes, 3 * kRowBytes);  // but they count
  write(*store, path(*store, 1, 2));
  store = nullptr;
  // carried over by hand into this model's folder, under the name of a page that is looked for
  std::map<fs::path, std::vector<fs::path>> by_folder;
  for (const fs::path& file : files()) by_folder[file.parent_path()].push_back(file);
  ASSERT_EQ(by_folder.size(), 2u);
  const auto& [own, foreign] = std::pair(by_folder.begin()->second, by_folder.rbegin()->second);
  fs::copy_file(foreign[0], own[0], fs::copy_options::overwrite_existing);
  notes_.clear();
  store = open();
  EXPECT_LT(n_readable(*store, path(*store, 1, 3)), 3u);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("another model"), std::string::npos) << notes_[0];
}

TEST_F(PageStoreTest, StaysWithinItsBudgetAndForgetsWhatWasUsedLeast) {
  PageStoreOptions o = options();
  std::unique_ptr<PageStore> store = open(o);
  const Path a = path(*store, 1, 4), b = path(*store, 2, 4), c = path(*store, 3, 4);
  write(*store, a);
  const int64_t n_page_bytes = store->counts().n_bytes / 4;
  write(*store, b);
  store->use(a.keys);
  store = nullptr;  // the order of use is kept
  o.max_bytes = 9 * n_page_bytes;
  store = open(o);
  write(*store, c);
  EXPECT_EQ(store->counts().n_bytes, 9 * n_page_bytes);
  EXPECT_EQ(files().size(), 9u);
  EXPECT_EQ(n_readable(*store, a), 4u);
  EXPECT_EQ(n_readable(*store, b), 1u);  // its end went first
  EXPECT_EQ(n_readable(*store, c), 4u);
  EXPECT_EQ(store->counts().n_removed, 3);
}

TEST_F(PageStoreTest, ADiskThatIsBehindDropsPagesAndThoseThatFollow) {
  PageStoreOptions o = options();
  o.max_queued_bytes = 1;  // one at a time
  const std::unique_ptr<PageStore> store = open(o);
  const Path p = path(*store, 1, 200);
  write(*store, p);
  const PageStoreCounts counts = store->counts();
  EXPECT_EQ(counts.n_written + counts.n_dropped, 200);
  EXPECT_EQ(n_readable(*store, p), static_cast<size_t>(counts.n_written));
}

TEST_F(PageStoreTest, WhatIsNoPageIsLeftAlone) {
  std::unique_ptr<PageStore> store = open();
  const Path p = path(*store, 1, 2);
  write(*store, p);
  store = nullptr;
  const fs::path own = files()[0].parent_path();
  std::ofstream(own / "notes.txt") << "mine";
  fs::create_directory(own / (std::string(64, 'a') + ".page"));
  std::ofstream(own / (std::string(64, 'b') + ".page.tmp-1-0")) << "half";
  fs::create_symlink("/nowhere", own / (std::string(64, 'c') + ".page"));
  store = open();
  EXPECT_EQ(n_readable(*store, p), 2u);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("3 files are not cache pages and are ignored"), std::string::npos) << notes_[0];
  EXPECT_TRUE(fs::exists(own / "notes.txt"));
  EXPECT_FALSE(fs::exists(own / (std::string(64, 'b') + ".page.tmp-1-0")));  // a writer that died
}

TEST_F(PageStoreTest, AnotherVersionOfTheFormatIsNotRead) {
  const std::unique_ptr<PageStore> store = open();
  const Path p = path(*store, 1, 2);
  write(*store, p);
  std::fstream(path_of(p.keys[0]), std::ios::binary | std::ios::in | std::ios::out).seekp(8).put(1);
  EXPECT_EQ(n_readable(*store, p), 0u);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_NE(notes_[0].find("its format is version 1"), std::string::npos) << notes_[0];
}

// Whatever happens to a file, its page is right or absent, with a line in the log.
TEST_F(PageStoreTest, DamageIsNoticed) {
  std::unique_ptr<PageStore> store = open();
  const Path p = path(*store, 1, 1);
  write(*store, p);
  const fs::path file = files()[0];
  std::string whole(static_cast<size_t>(fs::file_size(file)), '\0');
  std::ifstream(file, std::ios::binary).read(whole.data(), std::ssize(whole));
  std::mt19937 random(7);
  for (int round = 0; round < 80; ++round) {
    std::string bytes = whole;
    switch (random() % 4) {
      case 0:
        bytes.resize(random() % bytes.size());
        break;
      case 1:
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
        break;
      case 2:
        bytes.append(1 + random() % 100, 'x');
        break;
      case 3: {  // a hole, as a machine leaves that lost power; state and rows have no run of zeros of their own
        const size_t begin = 24 + random() % (bytes.size() - 64);
        std::fill_n(bytes.begin() + static_cast<int64_t>(begin), 40, '\0');
        if (bytes == whole) bytes[begin] = 'x';
        break;
      }
    }
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    notes_.clear();
    if (round % 2 == 0) {  // found while it runs, or by the next one
      store = nullptr;
      store = open();
    }
    EXPECT_EQ(n_readable(*store, p), 0u) << round;
    EXPECT_EQ(notes_.size(), 1u) << round;
    EXPECT_FALSE(fs::exists(file)) << round;
    write(*store, p);
    EXPECT_EQ(n_readable(*store, p), 1u) << round;
  }
}

// Here by the function that takes its messages.
TEST_F(PageStoreTest, WhatIsThrownWhileAPageIsWrittenCostsThatPage) {
  PageStoreOptions o = options();
  o.note = [](const std::string&) { throw std::bad_alloc(); };
  const std::unique_ptr<PageStore> store = open(o);
  const Path before = path(*store, 1, 2), lost = path(*store, 2, 2), after = path(*store, 3, 2);
  write(*store, before);
  const fs::path folder = files().front().parent_path(), aside = folder_.path() / "aside";
  fs::rename(folder, aside);
  write(*store, lost);
  fs::rename(aside, folder);
  write(*store, after);
  EXPECT_EQ(n_readable(*store, before), 2u);
  EXPECT_EQ(n_readable(*store, lost), 0u);
  EXPECT_EQ(n_readable(*store, after), 2u);
}

TEST_F(PageStoreTest, AFolderThatVanishesStopsNobody) {
  const std::unique_ptr<PageStore> store = open();
  const Path p = path(*store, 1, 3), q = path(*store, 2, 3);
  write(*store, p);
  fs::remove_all(folder_.path());
  EXPECT_EQ(n_readable(*store, p), 0u);
  write(*store, q);
  EXPECT_EQ(n_readable(*store, q), 0u);
  EXPECT_EQ(store->counts().n_pages, 2);  // of p, not looked for yet
}

}  // namespace
}  // namespace levin::test
