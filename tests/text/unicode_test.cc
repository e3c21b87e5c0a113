#include "text/unicode.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace levin::text {
namespace {

constexpr std::string_view kR = kReplacement;

std::string replaced(std::string_view bytes) {
  std::string storage;
  return std::string(valid_utf8(bytes, storage));
}

std::string times(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += kR;
  return text;
}

struct Case {
  std::string_view bytes;
  int n_replacements;  // the whole of `bytes` becomes so many U+FFFD
};

// Rows of the Unicode standard's tables 3-8 to 3-11 and their neighbours; Python's errors="replace" gives the same.
constexpr Case kIllFormed[] = {
    {"\x80", 1},
    {"\xBF\xBF", 2},
    {"\xC0\xAF", 2},
    {"\xC1\x80", 2},
    {"\xC2", 1},
    {"\xE0\x80\xBF", 3},
    {"\xE0\x9F\x80", 3},
    {"\xE0\xA0", 1},
    {"\xED\xA0\x80", 3},
    {"\xED\xBF\xBF", 3},
    {"\xE1\x80\xE2", 2},
    {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF", 4},
    {"\xF0\x80\x83\x92", 4},
    {"\xF0\x8F\xBF\xBF", 4},
    {"\xF0\x90\x80", 1},
    {"\xF4\x8F\xBF", 1},
    {"\xF4\x90\x80\x80", 4},
    {"\xF4\x91\x92\x93\xFF", 5},
    {"\xF5\x80\x80\x80", 4},
    {"\xF8\x88\x80\x80\x80", 5},
    {"\xFE\xFF", 2},
};

TEST(Utf8, IllFormedBytesAreReplacedByMaximalSubparts) {
  for (const Case& c : kIllFormed) {
    EXPECT_FALSE(is_valid_utf8(c.bytes));
    EXPECT_EQ(replaced(c.bytes), times(c.n_replacements)) << testing::PrintToString(c.bytes);
    EXPECT_EQ(replaced(fmt::format("a{}é", c.bytes)), fmt::format("a{}é", times(c.n_replacements)))
        << testing::PrintToString(c.bytes);
  }
}

TEST(Utf8, EveryCodePointSurvives) {
  for (char32_t point = 0; point < 0x110000; ++point) {
    if (point >= 0xD800 && point < 0xE000) continue;
    std::string text;
    append_utf8(point, text);
    ASSERT_TRUE(is_valid_utf8(text)) << uint32_t{point};
    const Utf8Char c = decode_utf8(text, 0);
    ASSERT_EQ(c.code_point, point);
    ASSERT_EQ(static_cast<size_t>(c.n_bytes), text.size());
    ASSERT_EQ(previous_char(text, text.size()), 0u);
  }
}

TEST(Utf8, ValidTextIsNotCopied) {
  const std::string text = "plain text and more of it, éà中😀";
  std::string storage;
  EXPECT_EQ(valid_utf8(text, storage).data(), text.data());
  EXPECT_TRUE(storage.empty());
}

TEST(Utf8, AnUnfinishedCharacterIsTold) {
  EXPECT_EQ(next_utf8("\xF0\x9F\x98").kind, Utf8Step::kIncomplete);
  EXPECT_EQ(next_utf8("\xF0\x9F\x98").n_bytes, 3);
  EXPECT_EQ(next_utf8("\xF0\x80").kind, Utf8Step::kInvalid);
  EXPECT_EQ(next_utf8("\xF0\x9F\x98\x80").kind, Utf8Step::kValid);
}

TEST(CharClass, OfSomeCharacters) {
  EXPECT_EQ(char_class(U'a'), kLetter | kWord);
  EXPECT_EQ(char_class(U'7'), kNumber | kWord);
  EXPECT_EQ(char_class(U'½'), kNumber);
  EXPECT_EQ(char_class(U'_'), kPunctuation | kWord);
  EXPECT_EQ(char_class(U'+'), kSymbol);
  EXPECT_EQ(char_class(U'\n'), kSpace | kNewline);
  EXPECT_EQ(char_class(U'\u0085'), kSpace);
  EXPECT_EQ(char_class(U'\u00A0'), kSpace);
  EXPECT_EQ(char_class(U'\u200B'), 0);      // zero width space is none
  EXPECT_EQ(char_class(U'\u200D'), kWord);  // joiners are word characters
  EXPECT_EQ(char_class(U'\u0301'), kMark | kWord);
  EXPECT_EQ(char_class(U'\u24B6'), kSymbol | kWord);      // circled A: a symbol, and alphabetic
  EXPECT_EQ(char_class(U'\U0002EBF0'), kLetter | kWord);  // since Unicode 15.1
  EXPECT_EQ(char_class(U'\U0010FFFF'), 0);
}

}  // namespace
}  // namespace levin::text
