#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>

#include "io/json.h"
#include "io/mapped_file.h"
#include "support/json_gen.h"
#include "support/must.h"

namespace levin::io {
namespace {

using test::must;

std::istringstream golden(std::string_view name) {
  return std::istringstream(must(read_file(std::string(LEVIN_SOURCE_DIR "/tests/io/golden/") + std::string(name))));
}

TEST(DumpJson, WritesWhatPythonWrites) {
  std::istringstream lines = golden("python_json.txt");
  std::string text, expected;
  int n_rows = 0;
  for (; std::getline(lines, text) && std::getline(lines, expected); ++n_rows) {
    const JsonValue value = must(parse_json(text, "golden", {.duplicates = DuplicateKeys::kLastWins}));
    EXPECT_EQ(dump_json(value, {.numbers = JsonNumbers::kAsPython}), expected) << text;
  }
  EXPECT_GE(n_rows, 50);
}

TEST(DumpJson, WritesNumbersTooLargeForAFloatAsPythonDoes) {
  const JsonValue value = must(parse_json("[1e400, -1e400]", "test"));
  EXPECT_EQ(dump_json(value, {.numbers = JsonNumbers::kAsPython}), "[Infinity, -Infinity]");
  EXPECT_EQ(dump_json(value), "[1e400, -1e400]");
}

TEST(DumpJson, HasACompactStyle) {
  const JsonValue value = must(parse_json(R"({"a": [1, 2, {"b": null}], "c, d: e": ""})", "test"));
  EXPECT_EQ(dump_json(value, {.compact = true}), R"({"a":[1,2,{"b":null}],"c, d: e":""})");
}

TEST(PythonFloatRepr, WritesWhatPythonWrites) {
  std::istringstream lines = golden("python_floats.txt");
  std::string bits, expected;
  int n_rows = 0;
  for (; lines >> bits >> expected; ++n_rows) {
    EXPECT_EQ(python_float_repr(std::bit_cast<double>(uint64_t{std::stoull(bits, nullptr, 16)})), expected) << bits;
  }
  EXPECT_GE(n_rows, 500);
}

RC_GTEST_PROP(PythonFloatRepr, ReadsBackTheSame, (uint64_t bits)) {
  const auto value = std::bit_cast<double>(bits);
  RC_PRE(std::isfinite(value));
  const auto number = JsonNumber::from_text(python_float_repr(value));
  RC_ASSERT(number.has_value());
  RC_ASSERT(std::bit_cast<uint64_t>(*number->to_double()) == bits);
}

RC_GTEST_PROP(DumpJson, ReadsBackTheSame, ()) {
  const JsonValue value = *test::arbitrary_json();
  for (const bool compact : {false, true}) {
    const Result<JsonValue> again = parse_json(dump_json(value, {.compact = compact}), "the dump");
    RC_ASSERT(again.ok());
    RC_ASSERT(*again == value);
  }
}

// Whatever the bytes are, the parser answers, and what it accepts it can write and read again.
RC_GTEST_PROP(ParseJson, AnswersToAnyBytes, ()) {
  std::string text = dump_json(*test::arbitrary_json());
  const auto n_edits = *rc::gen::inRange(0, 4);
  for (int i = 0; i < n_edits && !text.empty(); ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, text.size());
    text[at] = static_cast<char>(
        *rc::gen::oneOf(rc::gen::elementOf(std::string("{}[],:\"\\0-.eE tnf")), rc::gen::arbitrary<char>()));
  }
  const Result<JsonValue> value = parse_json(text, "any bytes");
  if (!value.ok()) return;
  const Result<JsonValue> again = parse_json(dump_json(*value), "the dump");
  RC_ASSERT(again.ok());
  RC_ASSERT(*again == *value);
}

}  // namespace
}  // namespace levin::io
