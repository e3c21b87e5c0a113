#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "io/json.h"
#include "support/must.h"

namespace levin::io {
namespace {

using test::must;

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

struct Malformed {
  std::string_view name;
  std::string text;
  std::string_view message;  // part of the error
};

class MalformedJson : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedJson, IsAnErrorThatNamesTheFault) {
  const Result<JsonValue> result = parse_json(GetParam().text, "test.json", {.kind = ErrorKind::kUsage});
  ASSERT_FALSE(result.ok()) << dump_json(*result);
  EXPECT_EQ(result.error().kind, ErrorKind::kUsage);
  EXPECT_TRUE(result.error().message.starts_with("test.json: ")) << result.error().message;
  EXPECT_NE(result.error().message.find(GetParam().message), std::string::npos) << result.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Rows, MalformedJson,
    ::testing::Values(
        Malformed{"Empty", "", "empty"}, Malformed{"OnlySpace", " \n\t ", "empty"},
        Malformed{"ByteOrderMark", "\xEF\xBB\xBF{}", "byte order mark"},
        Malformed{"TwoNumbers", "1 2", "line 1, column 3: text follows"},
        Malformed{"TwoStrings", "\"a\" \"b\"", "text follows"},
        Malformed{"CommaAfterNull", "null,", "line 1, column 5: text follows"},
        Malformed{"TextAfterObject", "{\"a\": 1}}", "line 1, column 9: text follows"},
        Malformed{"TextAfterList", "[1]\n]", "line 2, column 1: text follows"},
        Malformed{"WordAfterList", "[1] x", "line 1, column 5: text follows"},
        Malformed{"OpenList", "[1, 2", "ends before"}, Malformed{"OpenInnerList", "[[1]", "line 1, column 5"},
        Malformed{"OpenObject", "{\"a\": 1", "ends before"}, Malformed{"OpenString", "{\"a\": \"b}", "not closed"},
        Malformed{"LoneClose", "]", "found ']'"}, Malformed{"LoneBrace", "}", "found '}'"},
        Malformed{"CrossedBrackets", "[{]}", "line 1"},
        Malformed{"TrailingComma", "[1,]", "line 1, column 4: expected a value, found ']'"},
        Malformed{"LeadingComma", "[,1]", "found ','"}, Malformed{"NoComma", "[1 2]", "comma"},
        Malformed{"NoColon", "{\"a\" 1}", "colon"}, Malformed{"NoValue", "{\"a\":}", "expected a value"},
        Malformed{"BareKey", "{a: 1}", "key in quotes"}, Malformed{"NumberKey", "{1: 1}", "key in quotes"},
        Malformed{"KeyOnly", "{\"a\"}", "colon"}, Malformed{"ObjectTrailingComma", "{\"a\": 1,}", "key in quotes"},
        Malformed{"SingleQuotes", "['a']", "found ''a''"}, Malformed{"Comment", "[1 /* one */]", "comma"},
        Malformed{"NaN", "{\"a\": NaN}", "line 1, column 7: NaN is not allowed"},
        Malformed{"Infinity", "[1,\n Infinity]", "line 2, column 2: Infinity is not allowed"},
        Malformed{"MinusInfinity", "-Infinity", "-Infinity is not allowed"},
        Malformed{"LeadingZero", "[01]", "found '01'"}, Malformed{"LeadingPlus", "[+1]", "found '+1'"},
        Malformed{"NoFraction", "[1.]", "found '1.'"}, Malformed{"NoWhole", "[.5]", "found '.5'"},
        Malformed{"NoExponent", "[1e]", "found '1e'"}, Malformed{"OnlyMinus", "[-]", "found '-'"},
        Malformed{"Hexadecimal", "[0x10]", "found '0x10'"}, Malformed{"CutWord", "[tru]", "found 'tru'"},
        Malformed{"CapitalTrue", "[True]", "found 'True'"}, Malformed{"LongWord", "[nullnull]", "found 'nullnull'"},
        Malformed{"ControlInString", "[\"a\nb\"]", "control character"},
        Malformed{"BadEscape", "[\"\\x\"]", "line 1, column 2: a string has an invalid escape"},
        Malformed{"BadKeyEscape", "{\"\\q\": 1}", "invalid escape"},
        Malformed{"CutUnicodeEscape", "[\"\\u12\"]", "invalid escape"},
        Malformed{"LoneSurrogate", "[\"\\ud800\"]", "invalid escape"},
        Malformed{"InvalidUtf8", "{\n\"a\": \"\xC3\x28\"}", "line 2, column 1: the text is not valid UTF-8"},
        Malformed{"OverlongUtf8", "[\"\xC0\xAF\"]", "not valid UTF-8"},
        Malformed{"Utf8Surrogate", "[\"\xED\xA0\x80\"]", "not valid UTF-8"},
        Malformed{"NullByte", std::string("[1,\0]", 5), "line 1"},
        Malformed{"DuplicateKey", "{\"a\": 1,\n \"b\": {\"x\": 1, \"x\": 2}}",
                  "line 2, column 7: the object that begins"},
        Malformed{"DuplicateEscapedKey", "{\"a\": 1, \"\\u0061\": 2}", "has the key \"a\" twice"},
        Malformed{"TextAfterAnObject", "{\"a\": \"}\\\"\"}\n x", "line 2, column 2: text follows the end of the value"},
        Malformed{"AnObjectAfterAList", "[1] {", "line 1, column 5: text follows the end of the value"},
        Malformed{"ObjectWithoutEnd", "{\"a\": [1]", "line 1, column 10: the text ends before"},
        Malformed{"TooDeep", nested(kMaxJsonDepth + 1), "deeper than 128"},
        Malformed{"FarTooDeep", nested(100000), "deeper than 128"},
        Malformed{"DeepAndOpen", std::string(100000, '[') + "]", "deeper than 128"}),
    [](const auto& test_info) { return std::string(test_info.param.name); });

TEST(ParseJson, KeepsTheOrderOfKeysAndTheTextOfNumbers) {
  const std::string text = R"({"z": 1.50, "a": [1E2, -0, 123456789012345678901234567890], "m": {"k": 1e999}})";
  EXPECT_EQ(dump_json(must(parse_json(text, "test"))), text);
}

TEST(ParseJson, DecodesEscapes) {
  const JsonValue value = must(parse_json(R"("\u00e9\ud83d\ude00\n\/\u0000x")", "test"));
  EXPECT_EQ(*value.as_string(), std::string("\xC3\xA9\xF0\x9F\x98\x80\n/\0x", 10));
}

TEST(ParseJson, TakesTheLastOfDuplicatesAtThePlaceOfTheFirst) {
  const JsonValue value =
      must(parse_json(R"({"a": 1, "b": 2, "a": 3})", "test", {.duplicates = DuplicateKeys::kLastWins}));
  EXPECT_EQ(dump_json(value), R"({"a": 3, "b": 2})");
}

TEST(ParseJson, TakesManyDuplicatesInReasonableTime) {
  std::string text = "{\"first\": 0";
  for (int i = 0; i < 400000; ++i) text += fmt::format(R"(,"{}":{})", i % 200000, i);
  const JsonValue value = must(parse_json(text + "}", "test", {.duplicates = DuplicateKeys::kLastWins}));
  ASSERT_EQ(value.as_object()->n_members(), 200001u);
  EXPECT_EQ(value.as_object()->members()[1].key, "0");
  EXPECT_EQ(value.as_object()->find("199999")->to_int64(), 399999);
}

TEST(ParseJson, NestsUpToTheLimit) { EXPECT_TRUE(parse_json(nested(kMaxJsonDepth), "test").ok()); }

TEST(ParseJson, FindsEveryKeyOfALargeObject) {
  std::string text = "{";
  for (int i = 0; i < 20000; ++i) text += fmt::format(R"({}"k{}": {})", i > 0 ? "," : "", i, i);
  const JsonValue value = must(parse_json(text + "}", "test"));
  ASSERT_EQ(value.as_object()->n_members(), 20000u);
  for (int i = 0; i < 20000; ++i) {
    const JsonValue* member = value.as_object()->find(fmt::format("k{}", i));
    ASSERT_NE(member, nullptr) << i;
    ASSERT_EQ(member->to_int64(), i);
  }
  EXPECT_FALSE(value.as_object()->contains("k20000"));
}

}  // namespace
}  // namespace levin::io
