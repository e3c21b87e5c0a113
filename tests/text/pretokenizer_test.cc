#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "support/must.h"
#include "text/unicode.h"
#include "text/variants.h"

namespace levin::text {
namespace {

using Pieces = std::vector<std::string>;

Pieces pieces(SplitPattern pattern, std::string_view text) {
  Pieces result;
  PieceSplitter splitter(pattern, text);
  for (std::string_view piece; splitter.next(piece);) result.emplace_back(piece);
  return result;
}

struct Case {
  std::string_view text;
  Pieces deepseek;
  Pieces glm;
};

const Case kCases[] = {
    {"", {}, {}},
    // Spaces before a piece cut by an earlier split stay together; before a letter the last one goes with it.
    {"x   1", {"x", "   ", "1"}, {"x", "  ", " ", "1"}},
    {"x   a", {"x", "  ", " a"}, {"x", "  ", " a"}},
    {"x   中", {"x", "   ", "中"}, {"x", "  ", " 中"}},
    {"x   ", {"x", "   "}, {"x", "   "}},
    {"12345", {"123", "45"}, {"123", "45"}},
    {"a1b", {"a", "1", "b"}, {"a", "1", "b"}},
    {"漢字かな", {"漢字かな"}, {"漢字かな"}},
    {"a漢b", {"a", "漢", "b"}, {"a漢b"}},
    {"漢・字", {"漢", "・", "字"}, {"漢", "・字"}},  // the third split works inside the CJK run
    {"!\n\nx", {"!\n\n", "x"}, {"!\n\n", "x"}},
    {"(abc", {"(abc"}, {"(abc"}},
    {"(été", {"(", "été"}, {"(été"}},  // ASCII punctuation takes ASCII letters only
    {"'café", {"'caf", "é"}, {"'café"}},
    {"don't", {"don", "'t"}, {"don", "'t"}},
    {"'LLama", {"'LLama"}, {"'LL", "ama"}},
    {"'\u017Fa", {"'", "\u017Fa"}, {"'\u017F", "a"}},
    {"\x01\x02zz", {"\x01", "\x02zz"}, {"\x01\x02", "zz"}},
    {"\x01\x02", {"\x01\x02"}, {"\x01\x02"}},
    {"e\u0301x", {"e\u0301x"}, {"e", "\u0301x"}},
    {" \n \n  x", {" \n \n", " ", " x"}, {" \n \n", " ", " x"}},
    {"\u00A0\u0085x", {"\u00A0", "\u0085x"}, {"\u00A0", "\u0085x"}},
    {" ?", {" ?"}, {" ?"}},
    {"  ?", {" ", " ?"}, {" ", " ?"}},
};

TEST(PieceSplitter, Cases) {
  for (const Case& c : kCases) {
    EXPECT_EQ(pieces(SplitPattern::kDeepSeek, c.text), c.deepseek) << c.text;
    EXPECT_EQ(pieces(SplitPattern::kGlm, c.text), c.glm) << c.text;
  }
}

TEST(PieceSplitter, PiecesAreTheText) {
  test::Draw draw(5);
  const std::u32string alphabet = U"aB1 \n\r\t.'(_é中゛・ア½\u0301\u00A0\u200B\x01😀s";
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (uint32_t n = draw.below(30); n > 0; --n) {
      append_utf8(alphabet[draw.below(static_cast<uint32_t>(alphabet.size()))], text);
    }
    for (const SplitPattern pattern : {SplitPattern::kDeepSeek, SplitPattern::kGlm}) {
      std::string joined;
      for (const std::string& piece : pieces(pattern, text)) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

Result<SplitPattern> recognise(std::string_view json) {
  const io::JsonValue value = test::must(io::parse_json(json, "test"));
  return recognise_pre_tokenizer(value, "tokenizer.json");
}

TEST(RecognisePreTokenizer, KnowsBothFamilies) {
  const auto of = [](std::string_view variant) {
    const io::JsonValue document = test::variant_document(variant);
    return recognise_pre_tokenizer(*document.as_object()->find("pre_tokenizer"), "tokenizer.json");
  };
  EXPECT_EQ(test::must(of("deepseek")), SplitPattern::kDeepSeek);
  EXPECT_EQ(test::must(of("glm")), SplitPattern::kGlm);
}

struct Refusal {
  std::string_view json;
  std::string_view message;  // a part of it
};

constexpr Refusal kRefusals[] = {
    {"null", "pre_tokenizer is null"},
    {"3", "expected an object"},
    {R"({"type":"Whitespace"})", R"(has type "Whitespace")"},
    {R"({"type":"Sequence"})", "pretokenizers"},
    {R"({"type":"Sequence","pretokenizers":[{"type":"Digits"}]})", R"(pretokenizers[0] has type "Digits")"},
    {R"({"type":"Sequence","pretokenizers":[]})", "does not end with ByteLevel"},
    {R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})",
     "unknown patterns"},
    {R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]})",
     "add_prefix_space true"},
    {R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":false}]})", "use_regex true"},
    {R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Removed"}]})",
     R"(behavior "Removed")"},
    {R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"String":" "},"behavior":"Isolated"}]})",
     "plain string"},
    {R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\w+"},"behavior":"Isolated"},
         {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})",
     R"(unknown patterns "\w+")"},
};

TEST(RecognisePreTokenizer, RefusesOthersByName) {
  for (const Refusal& refusal : kRefusals) {
    const Result<SplitPattern> result = recognise(refusal.json);
    ASSERT_FALSE(result.ok()) << refusal.json;
    EXPECT_EQ(result.error().kind, ErrorKind::kModelInvalid);
    EXPECT_NE(result.error().message.find(refusal.message), std::string::npos) << result.error().message;
  }
}

}  // namespace
}  // namespace levin::text
