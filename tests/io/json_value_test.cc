#include <fmt/core.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "io/json.h"

namespace levin::io {
namespace {

constexpr int64_t kMinInt64 = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr uint64_t kMaxUint64 = std::numeric_limits<uint64_t>::max();

struct NumberCase {
  std::string_view text;
  std::optional<int64_t> as_int64;
  std::optional<uint64_t> as_uint64;
  std::optional<double> as_double;
};

TEST(JsonNumber, ConvertsExactlyOrNotAtAll) {
  const NumberCase rows[] = {
      {"0", 0, 0, 0.0},
      {"-0", 0, 0, -0.0},
      {"61", 61, 61, 61.0},
      {"-61", -61, std::nullopt, -61.0},
      {"61.0", 61, 61, 61.0},
      {"6.1e1", 61, 61, 61.0},
      {"610e-1", 61, 61, 61.0},
      {"1e3", 1000, 1000, 1000.0},
      {"0e99999999999999999999", 0, 0, 0.0},
      {"61.5", std::nullopt, std::nullopt, 61.5},
      {"61.00000000000000000000000000001", std::nullopt, std::nullopt, 61.0},
      {"9223372036854775807", kMaxInt64, 9223372036854775807u, 9223372036854775807.0},
      {"9223372036854775808", std::nullopt, 9223372036854775808u, 9223372036854775808.0},
      {"-9223372036854775808", kMinInt64, std::nullopt, -9223372036854775808.0},
      {"-9223372036854775809", std::nullopt, std::nullopt, -9223372036854775809.0},
      {"18446744073709551615", std::nullopt, kMaxUint64, 18446744073709551615.0},
      {"18446744073709551616", std::nullopt, std::nullopt, 18446744073709551616.0},
      {"1.8446744073709551615e19", std::nullopt, kMaxUint64, 18446744073709551615.0},
      {"1e300", std::nullopt, std::nullopt, 1e300},
      {"1e999", std::nullopt, std::nullopt, std::nullopt},
      {"-1e999", std::nullopt, std::nullopt, std::nullopt},
      {"1e99999999999999999999", std::nullopt, std::nullopt, std::nullopt},
      {"1e-999", std::nullopt, std::nullopt, 0.0},
      {"-1e-99999999999999999999", std::nullopt, std::nullopt, -0.0},
      {"5e-324", std::nullopt, std::nullopt, 5e-324},
      {"0.000001e6", 1, 1, 1.0},
  };
  for (const NumberCase& row : rows) {
    const std::optional<JsonNumber> number = JsonNumber::from_text(row.text);
    ASSERT_TRUE(number) << row.text;
    EXPECT_EQ(number->text(), row.text);
    EXPECT_EQ(number->to_int64(), row.as_int64) << row.text;
    EXPECT_EQ(number->to_uint64(), row.as_uint64) << row.text;
    EXPECT_EQ(number->to_double(), row.as_double) << row.text;
    EXPECT_EQ(std::signbit(number->to_double().value_or(0)), std::signbit(row.as_double.value_or(0))) << row.text;
  }
}

TEST(JsonNumber, TakesOnlyJsonNumbers) {
  for (const std::string_view text : {"", "-", "+1", "01", "-01", "1.", ".1", "1e", "1e+", "1 ", " 1", "0x1", "1_000",
                                      "NaN", "Infinity", "--1", "1.5.2", "1e5.0"}) {
    EXPECT_FALSE(JsonNumber::from_text(text)) << text;
  }
}

TEST(JsonNumber, HasNoIntegerForInfinityAndNaN) {
  for (const double value : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    EXPECT_EQ(JsonNumber(value).to_int64(), std::nullopt);
    EXPECT_EQ(std::isnan(*JsonNumber(value).to_double()), std::isnan(value));
  }
  EXPECT_EQ(JsonNumber(HUGE_VAL).to_double(), HUGE_VAL);
  EXPECT_EQ(JsonNumber(-HUGE_VAL).to_double(), -HUGE_VAL);
}

TEST(JsonObject, KeepsPlacesWhenMembersAreReplacedAndErased) {
  JsonObject object = {{"b", 1}, {"a", "x"}, {"c", nullptr}, {"b", 2.5}};
  EXPECT_EQ(dump_json(object), R"({"b": 2.5, "a": "x", "c": null})");
  object.set("a", JsonArray{true, JsonObject{}});
  object.set("d", 4);
  EXPECT_EQ(dump_json(object), R"({"b": 2.5, "a": [true, {}], "c": null, "d": 4})");
  EXPECT_TRUE(object.erase("b"));
  EXPECT_FALSE(object.erase("b"));
  EXPECT_EQ(dump_json(object), R"({"a": [true, {}], "c": null, "d": 4})");
  EXPECT_EQ(object.find("d")->to_int64(), 4);
  EXPECT_EQ(object.find("b"), nullptr);
  EXPECT_TRUE(object.find("c")->is_null());
}

// Against a plain list of pairs.
RC_GTEST_PROP(JsonObject, BehavesLikeAListOfPairs, ()) {
  JsonObject object;
  std::vector<std::pair<std::string, int>> pairs;
  for (int step = *rc::gen::inRange(0, 60); step > 0; --step) {
    const std::string key(1, *rc::gen::inRange('a', 'm'));
    const auto place = std::find_if(pairs.begin(), pairs.end(), [&](const auto& pair) { return pair.first == key; });
    if (*rc::gen::arbitrary<bool>()) {
      object.set(key, step);
      if (place != pairs.end()) {
        place->second = step;
      } else {
        pairs.emplace_back(key, step);
      }
    } else {
      RC_ASSERT(object.erase(key) == (place != pairs.end()));
      if (place != pairs.end()) pairs.erase(place);
    }
  }
  RC_ASSERT(object.n_members() == pairs.size());
  for (size_t i = 0; i < pairs.size(); ++i) {
    RC_ASSERT(object.members()[i].key == pairs[i].first);
    RC_ASSERT(object.find(pairs[i].first) == &object.members()[i].value);
    RC_ASSERT(object.members()[i].value.to_int64() == pairs[i].second);
  }
}

TEST(JsonObject, ComparesByOrderToo) {
  const JsonObject ab = {{"a", 1}, {"b", 2}};
  const JsonObject ba = {{"b", 2}, {"a", 1}};
  EXPECT_EQ(ab, JsonObject(ab));
  EXPECT_FALSE(ab == ba);
}

TEST(JsonValue, GivesNothingForAnotherType) {
  const JsonValue text = "61";
  EXPECT_EQ(text.as_number(), nullptr);
  EXPECT_EQ(text.as_bool(), nullptr);
  EXPECT_EQ(text.as_array(), nullptr);
  EXPECT_EQ(text.as_object(), nullptr);
  EXPECT_EQ(text.to_int64(), std::nullopt);
  EXPECT_EQ(text.to_double(), std::nullopt);
  EXPECT_EQ(JsonValue(true).to_int64(), std::nullopt);
}

TEST(DescribeJson, IsShortAndCutsBetweenCharacters) {
  EXPECT_EQ(describe_json("61"), "\"61\" (a string)");
  EXPECT_EQ(describe_json(3.5), "3.5 (a number)");
  EXPECT_EQ(describe_json(JsonArray{1, 2, 3}), "a list of 3");
  EXPECT_EQ(describe_json(JsonObject{}), "an object");
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xC3\xA4";
  EXPECT_EQ(describe_json(umlauts), fmt::format("\"{}... (a string)", umlauts.substr(0, 58)));
}

}  // namespace
}  // namespace levin::io
