#include "apps/levin/prompt_history.h"

#include <gtest/gtest.h>

#include "io/mapped_file.h"
#include "support/must.h"
#include "support/temp_dir.h"

namespace levin::app {
namespace {

using Entries = std::vector<std::string>;

TEST(PromptHistoryTest, GivesBackWhatItWasGiven) {
  const test::TempDir dir;
  const PromptHistory history(dir / "deep" / "levin" / "history");
  const Entries entries = {"plain", "two\nlines\n", "\\n is no newline", "\\", "日本語 \\\\ \r\t", " "};
  for (const std::string& entry : entries) ASSERT_TRUE(history.append(entry).ok());
  ASSERT_TRUE(history.append("").ok());
  EXPECT_EQ(history.read(), entries);
}

TEST(PromptHistoryTest, IsBounded) {
  const test::TempDir dir;
  const PromptHistory history(dir / "levin" / "history");
  const size_t n = PromptHistory::kMaxEntries + 10;
  for (size_t i = 0; i < n; ++i) ASSERT_TRUE(history.append(std::to_string(i)).ok());
  ASSERT_TRUE(history.append(std::string(PromptHistory::kMaxEntryBytes + 1, 'x')).ok());
  const Entries entries = history.read();
  ASSERT_EQ(entries.size(), PromptHistory::kMaxEntries);
  EXPECT_EQ(entries.front(), "10");
  EXPECT_EQ(entries.back(), std::to_string(n - 1));
  const std::string file = test::must(io::read_file(dir / "levin" / "history"));
  EXPECT_TRUE(file.starts_with("10\n11\n"));
}

TEST(PromptHistoryTest, MayBeNowhere) {
  const PromptHistory history{std::filesystem::path()};
  EXPECT_TRUE(history.append("x").ok());
  EXPECT_EQ(history.read(), Entries());
  const test::TempDir dir;
  test::must(io::write_file_atomically(dir / "levin", "a file"));
  const Status refused = PromptHistory(dir / "levin" / "history").append("x");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("levin/history: "), std::string::npos) << refused.error().message;
}

TEST(PromptHistoryTest, LiesWhereStateBelongs) {
  EXPECT_EQ(PromptHistory::default_file({{{"HOME", "/home/x"}}}), "/home/x/.local/state/levin/history");
  EXPECT_EQ(PromptHistory::default_file({{{"HOME", "/home/x"}, {"XDG_STATE_HOME", "/s"}}}), "/s/levin/history");
  EXPECT_EQ(PromptHistory::default_file({{{"XDG_STATE_HOME", "relative"}}}), "");
  EXPECT_EQ(PromptHistory::default_file({}), "");
}

}  // namespace
}  // namespace levin::app
