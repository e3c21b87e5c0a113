#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <string>

#include "support/must.h"
#include "support/safetensors_bytes.h"

namespace levin::io {
namespace {

using test::as_bytes;
using test::must;
using test::safetensors_file;

TEST(StoredDtype, HasANameAndASize) {
  const std::pair<StoredDtype, std::pair<std::string_view, size_t>> rows[] = {
      {StoredDtype::kF64, {"F64", 8}},         {StoredDtype::kF32, {"F32", 4}},
      {StoredDtype::kF16, {"F16", 2}},         {StoredDtype::kBF16, {"BF16", 2}},
      {StoredDtype::kF8_E4M3, {"F8_E4M3", 1}}, {StoredDtype::kF8_E5M2, {"F8_E5M2", 1}},
      {StoredDtype::kF8_E8M0, {"F8_E8M0", 1}}, {StoredDtype::kI64, {"I64", 8}},
      {StoredDtype::kI32, {"I32", 4}},         {StoredDtype::kI16, {"I16", 2}},
      {StoredDtype::kI8, {"I8", 1}},           {StoredDtype::kU8, {"U8", 1}},
      {StoredDtype::kBool, {"BOOL", 1}},
  };
  for (const auto& [dtype, expected] : rows) {
    EXPECT_EQ(dtype_name(dtype), expected.first);
    EXPECT_EQ(dtype_bytes(dtype), expected.second) << expected.first;
    EXPECT_EQ(dtype_from_name(expected.first), dtype);
  }
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
}

TEST(TensorBytes, CountsOrRefuses) {
  EXPECT_EQ(tensor_bytes(StoredDtype::kBF16, std::vector<int64_t>{3, 5}), 30);
  EXPECT_EQ(tensor_bytes(StoredDtype::kF32, {}), 4);
  EXPECT_EQ(tensor_bytes(StoredDtype::kF32, std::vector<int64_t>{3, 0}), 0);
  EXPECT_EQ(tensor_bytes(StoredDtype::kU8, std::vector<int64_t>{-1}), std::nullopt);
  EXPECT_EQ(tensor_bytes(StoredDtype::kU8, std::vector<int64_t>{int64_t{1} << 32, int64_t{1} << 31}), std::nullopt);
  EXPECT_EQ(tensor_bytes(StoredDtype::kF64, std::vector<int64_t>{int64_t{1} << 60}), std::nullopt);
}

TEST(ParseSafetensors, ReadsTensorsAndMetadata) {
  const std::string file = safetensors_file(
      R"({"__metadata__": {"format": "pt"}, "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]},
          "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
          "none": {"dtype": "I64", "shape": [0, 7], "data_offsets": [16, 16]}}   )",
      16);
  const SafetensorsHeader header = must(parse_safetensors(as_bytes(file), "test"));
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.metadata, (std::vector<std::pair<std::string, std::string>>{{"format", "pt"}}));
  const StoredTensor& a = header.tensors[0];
  const StoredTensor& b = header.tensors[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_TRUE(a.shape.empty());
  EXPECT_EQ(a.bytes.size(), 4u);
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, StoredDtype::kBF16);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b.bytes.data(), a.bytes.data() + 4);
  EXPECT_EQ(b.bytes.data() + b.bytes.size(), as_bytes(file).data() + file.size());
  EXPECT_EQ(header.tensors[2].bytes.size(), 0u);
}

TEST(ParseSafetensors, AllowsNoTensors) {
  EXPECT_TRUE(must(parse_safetensors(as_bytes(safetensors_file("{}", 0)), "test")).tensors.empty());
}

struct Malformed {
  std::string_view name;
  std::string file;
  std::string_view message;
};

// A header with one tensor `w` of the given fields.
Malformed one(std::string_view name, std::string_view fields, size_t n_data_bytes, std::string_view message) {
  return {name, safetensors_file("{\"w\": {" + std::string(fields) + "}}", n_data_bytes), message};
}

// A header with two F32 tensors of the given elements and offsets.
Malformed two(std::string_view name, std::string_view a, std::string_view b, size_t n_data_bytes,
              std::string_view message) {
  const std::string header =
      "{\"a\": {\"dtype\": \"F32\", " + std::string(a) + "}, \"b\": {\"dtype\": \"F32\", " + std::string(b) + "}}";
  return {name, safetensors_file(header, n_data_bytes), message};
}

std::string with_length(std::string_view length_le, std::string_view rest) {
  return std::string(length_le) + std::string(rest);
}

class MalformedSafetensors : public ::testing::TestWithParam<Malformed> {};

TEST_P(MalformedSafetensors, IsAnErrorThatNamesTheFault) {
  const Result<SafetensorsHeader> result = parse_safetensors(as_bytes(GetParam().file), "x.safetensors");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().kind, ErrorKind::kModelInvalid);
  EXPECT_TRUE(result.error().message.starts_with("x.safetensors")) << result.error().message;
  EXPECT_NE(result.error().message.find(GetParam().message), std::string::npos) << result.error().message;
}

using namespace std::string_view_literals;

INSTANTIATE_TEST_SUITE_P(
    Rows, MalformedSafetensors,
    ::testing::Values(
        Malformed{"Empty", "", "0 bytes are too few"}, Malformed{"SevenBytes", "1234567", "7 bytes are too few"},
        Malformed{"OnlyLength", with_length("\2\0\0\0\0\0\0\0"sv, ""), "header of 2 bytes reaches beyond"},
        Malformed{"HeaderCutOff", with_length("\x10\0\0\0\0\0\0\0"sv, "{}"), "header of 16 bytes reaches beyond"},
        Malformed{"HugeHeader", with_length("\1\xE1\xF5\5\0\0\0\0"sv, "{}"), "more than the 100000000"},
        Malformed{"HeaderOf64Bits", with_length("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"sv, "{}"), "header length is 184467"},
        Malformed{"NoHeader", safetensors_file("", 4), "the text is empty"},
        Malformed{"NoJson", safetensors_file("hello", 0), "expected a value"},
        Malformed{"JsonCutOff", safetensors_file("{\"w\": {", 0), "(header)"},
        Malformed{"NoUtf8", safetensors_file("{\"\xFF\": {}}", 0), "UTF-8"},
        Malformed{"List", safetensors_file("[]", 0), "a list of 0, expected an object"},
        Malformed{"TensorIsNumber", safetensors_file("{\"w\": 1}", 0), "tensor w is 1 (a number)"},
        Malformed{"MetadataIsList", safetensors_file("{\"__metadata__\": []}", 0), "__metadata__ is a list of 0"},
        Malformed{"MetadataOfNumber", safetensors_file("{\"__metadata__\": {\"n\": 1}}", 0), "__metadata__.n is 1"},
        Malformed{"TensorTwice",
                  safetensors_file("{\"w\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]}, "
                                   "\"w\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [1, 2]}}",
                                   2),
                  "has the key \"w\" twice"},
        one("NoDtype", R"("shape": [1], "data_offsets": [0, 4])", 4, "tensor w: dtype is missing"),
        one("NoShape", R"("dtype": "F32", "data_offsets": [0, 4])", 4, "shape is missing"),
        one("NoOffsets", R"("dtype": "F32", "shape": [1])", 4, "data_offsets is missing"),
        one("UnknownField", R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4], "scale": 2)", 4, "scale is 2"),
        one("UnknownDtype", R"("dtype": "F4", "shape": [1], "data_offsets": [0, 4])", 4,
            "tensor w: dtype is \"F4\" (a string), expected one of F64, F32"),
        one("DtypeIsNumber", R"("dtype": 4, "shape": [1], "data_offsets": [0, 4])", 4, "dtype is 4"),
        one("ShapeIsNumber", R"("dtype": "F32", "shape": 1, "data_offsets": [0, 4])", 4, "shape is 1"),
        one("ShapeOfText", R"("dtype": "F32", "shape": ["1"], "data_offsets": [0, 4])", 4, "shape[0] is \"1\""),
        one("ShapeOfHalves", R"("dtype": "F32", "shape": [0.5], "data_offsets": [0, 4])", 4, "shape[0] is 0.5"),
        one("NegativeDimension", R"("dtype": "F32", "shape": [-1], "data_offsets": [0, 4])", 4, "shape [-1] has"),
        one("NegativeTwice", R"("dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4])", 4, "shape [-1, -1] has"),
        one("HugeDimension", R"("dtype": "F32", "shape": [99999999999999999999], "data_offsets": [0, 4])", 4,
            "shape[0] is 99999999999999999999"),
        one("Overflow", R"("dtype": "U8", "shape": [4294967296, 4294967296], "data_offsets": [0, 0])", 0,
            "more elements than"),
        one("OverflowByDtype", R"("dtype": "F64", "shape": [2305843009213693952], "data_offsets": [0, 0])", 0,
            "more elements than"),
        one("OneOffset", R"("dtype": "F32", "shape": [1], "data_offsets": [0])", 4, "expected [begin, end]"),
        one("ThreeOffsets", R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8])", 4, "expected [begin, end]"),
        one("NegativeOffset", R"("dtype": "F32", "shape": [1], "data_offsets": [-4, 0])", 4, "data_offsets[0] is -4"),
        one("BackwardOffsets", R"("dtype": "F32", "shape": [1], "data_offsets": [4, 0])", 4, "run backwards"),
        one("BeyondEnd", R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])", 7, "the file is cut off"),
        one("FarBeyondEnd",
            R"("dtype": "F32", "shape": [1], "data_offsets": [18446744073709551611, 18446744073709551615])", 4,
            "the file is cut off"),
        one("TooFewBytes", R"("dtype": "F32", "shape": [2], "data_offsets": [0, 4])", 4,
            "hold 4 bytes, but F32 [2] takes 8"),
        one("TooManyBytes", R"("dtype": "BF16", "shape": [2], "data_offsets": [0, 8])", 8,
            "hold 8 bytes, but BF16 [2] takes 4"),
        one("HoleAtStart", R"("dtype": "F32", "shape": [1], "data_offsets": [4, 8])", 8,
            "tensor w begins at 4, which leaves a hole of 4 bytes"),
        one("BytesLeftOver", R"("dtype": "F32", "shape": [1], "data_offsets": [0, 4])", 9, "5 bytes follow"),
        Malformed{"DataWithoutTensors", safetensors_file("{}", 3), "3 bytes follow"},
        two("Overlap", R"("shape": [2], "data_offsets": [0, 8])", R"("shape": [2], "data_offsets": [4, 12])", 12,
            "tensor b begins at 4, inside tensor a"),
        two("SamePlace", R"("shape": [1], "data_offsets": [0, 4])", R"("shape": [1], "data_offsets": [0, 4])", 4,
            "tensor b begins at 0, inside tensor a"),
        two("Hole", R"("shape": [1], "data_offsets": [0, 4])", R"("shape": [1], "data_offsets": [8, 12])", 12,
            "a hole of 4 bytes after a"),
        two("EmptyInside", R"("shape": [2], "data_offsets": [0, 8])", R"("shape": [0], "data_offsets": [4, 4])", 8,
            "tensor b begins at 4, inside tensor a")),
    [](const auto& test_info) { return std::string(test_info.param.name); });

// No byte of the header decides over memory safety: what is accepted lies inside the file.
RC_GTEST_PROP(ParseSafetensors, AnswersToAnyBytes, ()) {
  std::string file = safetensors_file(
      R"({"a": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}, "b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]}})",
      11);
  for (int i = *rc::gen::inRange(0, 4); i > 0; --i) {
    file[*rc::gen::inRange<size_t>(0, file.size())] =
        *rc::gen::oneOf(rc::gen::elementOf(std::string("{}[],:\"0123456789-eF")), rc::gen::arbitrary<char>());
  }
  file.resize(*rc::gen::oneOf(rc::gen::just(file.size()), rc::gen::inRange<size_t>(0, file.size() + 10)));
  const Result<SafetensorsHeader> header = parse_safetensors(as_bytes(file), "any bytes");
  if (!header.ok()) return;
  for (const StoredTensor& t : header->tensors) {
    RC_ASSERT(t.bytes.data() >= as_bytes(file).data());
    RC_ASSERT(t.bytes.data() + t.bytes.size() <= as_bytes(file).data() + file.size());
    RC_ASSERT(static_cast<int64_t>(t.bytes.size()) == tensor_bytes(t.dtype, t.shape));
  }
}

}  // namespace
}  // namespace levin::io
