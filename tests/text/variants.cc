#include "text/variants.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "support/must.h"

namespace levin::test {
namespace {

using io::JsonArray;
using io::JsonObject;
using io::JsonValue;

JsonObject added_from_vocab(const std::string& name, const JsonValue& id) {
  return {{"id", id},        {"content", name}, {"special", false},   {"single_word", false},
          {"lstrip", false}, {"rstrip", false}, {"normalized", false}};
}

void replace_split(JsonObject& document, const JsonValue& pattern) {
  JsonArray& steps = *document.find("pre_tokenizer")->as_object()->find("pretokenizers")->as_array();
  JsonValue split = steps.front();
  split.as_object()->set("pattern", JsonObject{{"Regex", pattern}});
  steps = JsonArray{std::move(split), steps.back()};
}

void extend_added_tokens(JsonObject& document, const JsonObject& variant) {
  JsonArray& tokens = *document.find("added_tokens")->as_array();
  if (const JsonValue* list = variant.find("added_tokens")) {
    tokens.insert(tokens.end(), list->as_array()->begin(), list->as_array()->end());
  }
  if (const JsonValue* list = variant.find("added_from_vocab")) {
    const JsonObject& vocab = *document.find("model")->as_object()->find("vocab")->as_object();
    for (const JsonValue& name : *list->as_array()) {
      tokens.push_back(added_from_vocab(*name.as_string(), *vocab.find(*name.as_string())));
    }
  }
}

}  // namespace

std::string read_text_file(const std::string& path_in_project) {
  const std::string path = LEVIN_SOURCE_DIR "/" + path_in_project;
  std::ifstream file(path, std::ios::binary);
  LEVIN_CHECK(file.good(), "cannot open {}", path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

JsonValue variant_document(std::string_view name) {
  const JsonValue variants = must(io::parse_json(read_text_file("tests/text/golden/variants.json"), "variants.json"));
  const JsonObject& variant = *variants.as_object()->find(name)->as_object();
  JsonValue value = must(io::parse_json(read_text_file("models/demo-v32/tokenizer.json"), "tokenizer.json"));
  JsonObject& document = *value.as_object();
  if (const JsonValue* pattern = variant.find("split")) replace_split(document, *pattern);
  extend_added_tokens(document, variant);
  JsonObject& model = *document.find("model")->as_object();
  if (const JsonValue* n_merges = variant.find("n_merges")) {
    model.find("merges")->as_array()->resize(static_cast<size_t>(*n_merges->to_int64()));
  }
  if (const JsonValue* ignore_merges = variant.find("ignore_merges")) model.set("ignore_merges", *ignore_merges);
  return value;
}

text::Tokenizer variant_tokenizer(std::string_view name) {
  return must(text::Tokenizer::parse(io::dump_json(variant_document(name)), ""));
}

const text::Tokenizer& demo_tokenizer() {
  static const text::Tokenizer tokenizer = must(text::Tokenizer::load(LEVIN_SOURCE_DIR "/models/demo-v32"));
  return tokenizer;
}

}  // namespace levin::test
