#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "io/json.h"
#include "support/must.h"

namespace levin::io {
namespace {

using test::must;

constexpr const char* kConfig = R"({
  "n": 61, "text": "61", "flag": true, "theta": 10000, "nothing": null, "big": 1e30, "minus": -1,
  "list": [1, 2, 3], "mixed": [1, "2"], "names": ["a", "b"], "rope": {"factor": "40", "inner": {"x": []}}
})";

class JsonFieldsTest : public ::testing::Test {
 protected:
  JsonValue document_ = must(parse_json(kConfig, "config.json"));
  JsonFields fields_ = must(JsonFields::of(document_, "config.json"));
};

TEST_F(JsonFieldsTest, ReadsWhatIsThere) {
  EXPECT_EQ(must(fields_.get<int64_t>("n")), 61);
  EXPECT_EQ(must(fields_.get<uint64_t>("n")), 61u);
  EXPECT_EQ(must(fields_.get<double>("theta")), 10000.0);
  EXPECT_EQ(must(fields_.get<bool>("flag")), true);
  EXPECT_EQ(must(fields_.get<std::string>("text")), "61");
  EXPECT_EQ(must(fields_.get<std::vector<int64_t>>("list")), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(must(fields_.get<std::vector<std::string>>("names")), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(must(fields_.get<std::vector<double>>("list")), (std::vector<double>{1, 2, 3}));
}

TEST_F(JsonFieldsTest, FallsBackWhenAbsentOrNull) {
  EXPECT_EQ(must(fields_.get_or<int64_t>("absent", 7)), 7);
  EXPECT_EQ(must(fields_.get_or<int64_t>("nothing", 7)), 7);
  EXPECT_EQ(must(fields_.get_or<int64_t>("n", 7)), 61);
  EXPECT_EQ(must(fields_.get_or("absent", "x")), "x");
  EXPECT_EQ(must(fields_.get_optional<double>("nothing")), std::nullopt);
  EXPECT_EQ(must(fields_.get_optional<double>("theta")), 10000.0);
  EXPECT_TRUE(fields_.contains("nothing"));
  EXPECT_FALSE(fields_.has("nothing"));
}

TEST_F(JsonFieldsTest, NamesKeyFoundAndExpected) {
  const JsonFields rope = must(fields_.get_fields("rope"));
  const JsonFields inner = must(rope.get_fields("inner"));
  const std::pair<Error, std::string> rows[] = {
      {fields_.get<int64_t>("absent").error(), "config.json: absent is missing, expected an integer of 64 bits"},
      {fields_.get<int64_t>("nothing").error(), "config.json: nothing is null, expected an integer of 64 bits"},
      {fields_.get<int64_t>("text").error(), "config.json: text is \"61\" (a string), expected an integer of 64 bits"},
      {fields_.get_or<int64_t>("big", 1).error(),
       "config.json: big is 1e30 (a number), expected an integer of 64 bits"},
      {fields_.get<uint64_t>("minus").error(),
       "config.json: minus is -1 (a number), expected a non-negative integer of 64 bits"},
      {fields_.get<bool>("n").error(), "config.json: n is 61 (a number), expected true or false"},
      {fields_.get<std::string>("list").error(), "config.json: list is a list of 3, expected a string"},
      {fields_.get<std::vector<int64_t>>("mixed").error(),
       "config.json: mixed[1] is \"2\" (a string), expected an integer of 64 bits"},
      {fields_.get<std::vector<int64_t>>("rope").error(),
       "config.json: rope is an object, expected a list of integers"},
      {rope.get<double>("factor").error(),
       "config.json: rope.factor is \"40\" (a string), expected a number in the range of a double"},
      {inner.get<double>("x").error(),
       "config.json: rope.inner.x is a list of 0, expected a number in the range of a double"},
      {fields_.get_fields("n").error(), "config.json: n is 61 (a number), expected an object"},
  };
  for (const auto& [error, message] : rows) {
    EXPECT_EQ(error.message, message);
    EXPECT_EQ(error.kind, ErrorKind::kModelInvalid);
  }
}

TEST_F(JsonFieldsTest, NeedsAnObject) {
  const JsonValue list = JsonArray{1};
  const Result<JsonFields> fields = JsonFields::of(list, "the request", ErrorKind::kUsage);
  ASSERT_FALSE(fields.ok());
  EXPECT_EQ(fields.error().message, "the request is a list of 1, expected an object");
  EXPECT_EQ(fields.error().kind, ErrorKind::kUsage);
}

}  // namespace
}  // namespace levin::io
