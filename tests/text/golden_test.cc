// Equality with Hugging Face tokenizers: goldens.jsonl, written by make_goldens.py.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "io/json.h"
#include "support/must.h"
#include "text/unicode.h"
#include "text/variants.h"

namespace levin::text {
namespace {

using io::JsonObject;
using io::JsonValue;
using test::must;

const std::vector<JsonValue>& goldens() {
  static const std::vector<JsonValue> lines = [] {
    std::vector<JsonValue> result;
    const std::string file = test::read_text_file("tests/text/golden/goldens.jsonl");
    for (size_t start = 0, end; start < file.size(); start = end + 1) {
      end = file.find('\n', start);
      result.push_back(must(io::parse_json(std::string_view(file).substr(start, end - start), "goldens.jsonl")));
    }
    return result;
  }();
  return lines;
}

const std::map<std::string, Tokenizer>& variants() {
  static const std::map<std::string, Tokenizer> tokenizers = [] {
    std::map<std::string, Tokenizer> result;
    for (const char* name : {"deepseek", "glm", "flags", "ignore_merges"}) {
      result.emplace(name, test::variant_tokenizer(name));
    }
    return result;
  }();
  return tokenizers;
}

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

uint64_t number(const JsonValue& value) { return *value.to_uint64(); }

uint64_t hash_of(const std::vector<TokenId>& ids) {
  test::Fnv hash;
  for (const TokenId id : ids) hash.add(static_cast<uint64_t>(id));
  return hash.value;
}

TEST(Golden, Texts) {
  int n_checked = 0;
  for (const JsonValue& line : goldens()) {
    const JsonObject& golden = *line.as_object();
    const std::string& first_key = golden.members()[0].key;
    if (first_key != "text" && first_key != "hex") continue;
    const std::string& field = *golden.members()[0].value.as_string();
    const std::string text = first_key == "hex" ? from_hex(field) : field;
    for (const auto& [name, tokenizer] : variants()) {
      const JsonValue* expected = golden.find(name);
      if (expected == nullptr) continue;
      std::vector<TokenId> ids;
      for (const JsonValue& id : *expected->as_array()) ids.push_back(static_cast<TokenId>(number(id)));
      EXPECT_EQ(must(tokenizer.encode(text)), ids) << name << ": " << io::dump_json(line);
      ++n_checked;
    }
  }
  EXPECT_GT(n_checked, 1900);
}

TEST(Golden, LongTexts) {
  int n_checked = 0;
  for (const JsonValue& line : goldens()) {
    const JsonObject& golden = *line.as_object();
    if (!golden.contains("recipe")) continue;
    std::vector<std::string> parts;
    for (const JsonValue& part : *golden.find("parts")->as_array()) parts.push_back(from_hex(*part.as_string()));
    test::Draw draw(number(*golden.find("seed")));
    std::string text;
    while (text.size() < number(*golden.find("n_bytes")))
      text += parts[draw.below(static_cast<uint32_t>(parts.size()))];
    for (const auto& [name, tokenizer] : variants()) {
      const io::JsonArray& expected = *golden.find(name)->as_array();
      const std::vector<TokenId> ids = must(tokenizer.encode(text));
      EXPECT_EQ(ids.size(), number(expected[0])) << name << ": " << *golden.find("recipe")->as_string();
      EXPECT_EQ(hash_of(ids), number(expected[1])) << name << ": " << *golden.find("recipe")->as_string();
      ++n_checked;
    }
  }
  EXPECT_EQ(n_checked, 44);
}

TEST(Golden, DecodingOfRandomIds) {
  int n_checked = 0;
  for (const JsonValue& line : goldens()) {
    const JsonObject& golden = *line.as_object();
    if (!golden.contains("decode")) continue;
    const Tokenizer& tokenizer = variants().at(*golden.find("variant")->as_string());
    test::Draw draw(number(*golden.find("seed")));
    std::vector<TokenId> ids(number(*golden.find("n_tokens")));
    for (TokenId& id : ids) id = static_cast<TokenId>(draw.below(static_cast<uint32_t>(tokenizer.n_ids())));
    for (const bool skip_special : {false, true}) {
      test::Fnv hash;
      for (const char byte : tokenizer.decode(ids, skip_special)) hash.add(static_cast<uint8_t>(byte));
      EXPECT_EQ(hash.value, number(*golden.find(skip_special ? "text_without_special" : "text")));
    }
    ++n_checked;
  }
  EXPECT_EQ(n_checked, 2);
}

TEST(Golden, CharacterClasses) {
  const std::map<std::string, CharClass> classes = {{"\\p{L}", kLetter},      {"\\p{M}", kMark},   {"\\p{N}", kNumber},
                                                    {"\\p{P}", kPunctuation}, {"\\p{S}", kSymbol}, {"\\s", kSpace}};
  int n_checked = 0;
  for (const JsonValue& line : goldens()) {
    const JsonObject& golden = *line.as_object();
    if (!golden.contains("class")) continue;
    const CharClass wanted = classes.at(*golden.find("class")->as_string());
    test::Fnv hash;
    uint64_t n_members = 0;
    for (char32_t point = 0; point < 0x110000; ++point) {
      if ((char_class(point) & wanted) == 0) continue;
      hash.add(point);
      ++n_members;
    }
    EXPECT_EQ(n_members, number(*golden.find("n"))) << *golden.find("class")->as_string();
    EXPECT_EQ(hash.value, number(*golden.find("hash"))) << *golden.find("class")->as_string();
    ++n_checked;
  }
  EXPECT_EQ(n_checked, 6);
}

}  // namespace
}  // namespace levin::text
