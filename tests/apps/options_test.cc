#include "apps/levin/options.h"

#include <gtest/gtest.h>

#include "base/closest.h"
#include "io/mapped_file.h"
#include "support/temp_dir.h"

namespace levin::app {
namespace {

// One command with an option of every kind.
struct Values {
  std::string model;
  std::string text = "none";
  bool flag = false;
  int64_t count = 7;
  int64_t tokens = 0;
  double number = 0.5;
  size_t choice = 0;
  std::vector<std::string> words;  // --word, repeatable
  bool ran = false;
};

struct Outcome {
  Values values;
  Status status;
};

Outcome run(const std::vector<std::string>& words, const Environment& environment = {}) {
  auto values = std::make_shared<Values>();
  CommandLine line("1.2.3");
  Command& command = line.add({.name = "go", .purpose = "Goes", .examples = "  levin go\n"});
  command.positional({.name = "MODEL", .aliases = "--model,--model-path", .purpose = "What"}, set_text(&values->model));
  command.option({.names = "-t,--text", .value = "TEXT", .purpose = "Text"}, set_text(&values->text));
  command.option({.names = "--flag", .purpose = "A flag"}, set_flag(&values->flag));
  command.option({.names = "--count", .value = "N", .purpose = "A count"},
                 set_int(&values->count, {.min = -5, .max = 10}));
  command.option({.names = "--tokens", .value = "N", .purpose = "Tokens"},
                 set_tokens(&values->tokens, {.min = 1, .max = 1 << 21}));
  command.option({.names = "--number", .value = "X", .purpose = "A number"},
                 set_number(&values->number, {.min = 0, .max = 2}));
  command.option({.names = "--choice", .value = "C", .purpose = "A choice"},
                 set_choice({"one", "two"}, [values](size_t i) { values->choice = i; }));
  command.option({.names = "--word,--other-word", .value = "W", .purpose = "A word", .repeatable = true},
                 [values](std::string_view word) -> std::optional<std::string> {
                   values->words.emplace_back(word);
                   return std::nullopt;
                 });
  command.action([values]() -> Status {
    values->ran = true;
    return {};
  });
  std::vector<std::string> all = {"go"};
  all.insert(all.end(), words.begin(), words.end());
  Outcome outcome{.values = {}, .status = line.run(all, environment)};
  outcome.values = *values;
  return outcome;
}

void expect_error(const Outcome& outcome, const std::string& message) {
  ASSERT_FALSE(outcome.status.ok());
  EXPECT_EQ(outcome.status.error().kind, ErrorKind::kUsage);
  EXPECT_NE(outcome.status.error().message.find(message), std::string::npos) << outcome.status.error().message;
  EXPECT_FALSE(outcome.values.ran);
}

TEST(OptionsTest, ReadsEveryKind) {
  const Outcome o = run(
      {"folder", "-t", "two words", "--flag", "--count=-3", "--tokens", "128k", "--number", "1.25", "--choice", "two"});
  ASSERT_TRUE(o.status.ok()) << o.status.error().message;
  EXPECT_TRUE(o.values.ran);
  EXPECT_EQ(o.values.model, "folder");
  EXPECT_EQ(o.values.text, "two words");
  EXPECT_TRUE(o.values.flag);
  EXPECT_EQ(o.values.count, -3);
  EXPECT_EQ(o.values.tokens, 131072);
  EXPECT_EQ(o.values.number, 1.25);
  EXPECT_EQ(o.values.choice, 1u);
}

TEST(OptionsTest, LeavesDefaultsAlone) {
  const Outcome o = run({});
  ASSERT_TRUE(o.status.ok());
  EXPECT_EQ(o.values.count, 7);
  EXPECT_EQ(o.values.text, "none");
}

TEST(OptionsTest, TheLastOfSeveralCounts) { EXPECT_EQ(run({"--count", "1", "--count", "2"}).values.count, 2); }

TEST(OptionsTest, TheModelMayBeAnOption) {
  EXPECT_EQ(run({"--model", "a"}).values.model, "a");
  EXPECT_EQ(run({"--model-path=b"}).values.model, "b");
}

TEST(OptionsTest, TextMayLookLikeAnOption) {
  EXPECT_EQ(run({"--text=--flag"}).values.text, "--flag");
  EXPECT_EQ(run({"--", "--odd-folder"}).values.model, "--odd-folder");
}

TEST(OptionsTest, FlagsMayBeSwitchedOff) {
  EXPECT_FALSE(run({"--flag=off"}).values.flag);
  EXPECT_TRUE(run({"--flag=on"}).values.flag);
  expect_error(run({"--flag=maybe"}), "--flag is 'maybe'");
}

TEST(OptionsTest, NamesTheValueAndWhatIsExpected) {
  expect_error(run({"--count", "11"}), "--count is '11', expected a whole number from -5 to 10");
  expect_error(run({"--count", "0x5"}), "--count is '0x5'");
  expect_error(run({"--tokens", "3M"}),
               "--tokens is '3M', expected a whole number from 1 to 2097152 (or a form like 128k or 1M)");
  expect_error(run({"--number", "nan"}), "--number is 'nan', expected a number from 0 to 2");
  expect_error(run({"--choice", "tow"}), "--choice is 'tow', expected one of one, two; did you mean 'two'?");
}

TEST(OptionsTest, ARangeMayLeaveOutItsLeast) {
  double share = 0.5;
  const Setter set = set_number(&share, {.min = 0, .max = 1, .above_min = true});
  EXPECT_EQ(set("0"), "a number above 0 and up to 1");
  EXPECT_EQ(set("-0"), "a number above 0 and up to 1");
  EXPECT_EQ(share, 0.5);
  EXPECT_EQ(set("1e-9"), std::nullopt);
  EXPECT_EQ(set("1"), std::nullopt);
  EXPECT_EQ(share, 1);
}

TEST(OptionsTest, SizesHaveUnits) {
  constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;
  int64_t size = 0;
  const Setter set = set_bytes(&size, {.min = kMiB, .max = 4096 * kGiB});
  const std::pair<const char*, int64_t> taken[] = {{"16", 16 * kGiB}, {"0.5", kGiB / 2},   {"512M", 512 * kMiB},
                                                   {"2G", 2 * kGiB},  {"2g", 2 * kGiB},    {"1.5GiB", 3 * kGiB / 2},
                                                   {"1024KB", kMiB},  {"4T", 4096 * kGiB}, {"0.05", 53687091}};
  for (const auto& [text, bytes] : taken) {
    EXPECT_EQ(set(text), std::nullopt) << text;
    EXPECT_EQ(size, bytes) << text;
  }
  for (const char* text :
       {"", "G", "M5", "1.5.2G", "2X", "2Gi", "2GB ", "-1", "1e3", "nan", "0", "1023K", "5T", "9e99"}) {
    EXPECT_EQ(set(text), "a size from 1M to 4T (as 512M, 1.5G, 2T or a number of GiB)") << text;
  }
}

TEST(OptionsTest, SplitsLists) {
  using List = std::vector<std::string>;
  EXPECT_EQ(*split_list("--names", "name", ""), List{});
  EXPECT_EQ(*split_list("--names", "name", "a"), List{"a"});
  EXPECT_EQ(*split_list("--names", "name", " a,\tb c , d"), (List{"a", "b c", "d"}));
  const std::pair<const char*, const char*> refused[] = {
      {",", "--names contains no name; write one"},      {" ", "--names contains no name; write one"},
      {"a,,b", "--names: name number 2 of 3 is empty;"}, {"a, ,b", "--names: name number 2 of 3 is empty;"},
      {",a", "--names: name number 1 of 2 is empty;"},   {"a,", "--names: name number 2 of 2 is empty;"}};
  for (const auto& [list, message] : refused) {
    const auto names = split_list("--names", "name", list);
    ASSERT_FALSE(names.ok()) << list;
    EXPECT_EQ(names.error().kind, ErrorKind::kUsage);
    EXPECT_TRUE(names.error().message.starts_with(message)) << names.error().message;
  }
}

TEST(OptionsTest, SuggestsTheNearestName) {
  expect_error(run({"--cuont", "1"}), "unknown option '--cuont'; did you mean '--count'?");
  expect_error(run({"--zzzzzz"}), "unknown option '--zzzzzz'\n");
}

TEST(OptionsTest, TakesTheEnvironmentWhenTheCommandLineIsSilent) {
  const Environment environment{{{"LEVIN_COUNT", "3"}, {"LEVIN_FLAG", "1"}, {"LEVIN_MODEL", "m"}, {"LEVIN_TEXT", ""}}};
  const Outcome o = run({}, environment);
  EXPECT_EQ(o.values.count, 3);
  EXPECT_TRUE(o.values.flag);
  EXPECT_EQ(o.values.model, "m");
  EXPECT_EQ(o.values.text, "none");  // empty is unset
  EXPECT_EQ(run({"--count", "4"}, environment).values.count, 4);
  expect_error(run({}, {{{"LEVIN_COUNT", "x"}}}), "the environment variable LEVIN_COUNT is 'x'");
}

// Of an option that may be repeated all values count, of any other the last; a section of the command comes first. Other long
// names of an option are as good as the main one.
TEST(OptionsTest, TakesAFileOfOptions) {
  const test::TempDir dir;
  const auto with_file = [&](const std::string& text, std::vector<std::string> words = {}) {
    const std::string file = (dir / "options").string();
    EXPECT_TRUE(io::write_file_atomically(file, text).ok());
    words.insert(words.end(), {"--config", file});
    return run(words);
  };
  using Words = std::vector<std::string>;
  const Outcome top = with_file(
      "\xEF\xBB\xBF"
      "count = 2\nword = a\nother-word = b\nword = c\ncount = 3\nmodel-path = m\n");
  EXPECT_EQ(top.values.count, 3);
  EXPECT_EQ(top.values.words, (Words{"a", "b", "c"}));
  EXPECT_EQ(top.values.model, "m");
  const Outcome section = with_file("word = a\ncount = 1\n[go]\nword = b\nword = c\ncount = 4\ncount = 5\n");
  EXPECT_EQ(section.values.count, 5);
  EXPECT_EQ(section.values.words, (Words{"b", "c"}));
  EXPECT_EQ(with_file("word = a\n", {"--word", "x"}).values.words, Words{"x"});
  expect_error(with_file("config = other\n"), ":1: a file of options cannot name another");
  expect_error(with_file("other-words = x\n"), "did you mean 'other-word'?");
  EXPECT_EQ(run({}, {{{"LEVIN_OTHER_WORD", "w"}}}).values.words, Words{"w"});
}

TEST(ClosestTest, FindsSlipsAndNothingElse) {
  const std::vector<std::string> known = {"--threads", "--temperature", "--numerics"};
  EXPECT_EQ(closest("--thread", known), "--threads");
  EXPECT_EQ(closest("--htreads", known), "--threads");
  EXPECT_EQ(closest("--temprature", known), "--temperature");
  EXPECT_EQ(closest("--help", known), std::nullopt);
  EXPECT_EQ(closest("", known), std::nullopt);
  EXPECT_EQ(closest(std::string(5000, 'x'), known), std::nullopt);
}

}  // namespace
}  // namespace levin::app
