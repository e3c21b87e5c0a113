// Forced calls: whatever a model chooses under the mask, the parser reads it as calls of the tools, without a fault and
// without text next to them.
#include "serve/call_grammar.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "io/json.h"
#include "io/mapped_file.h"
#include "serve/answer_form.h"
#include "support/must.h"
#include "text/chat_output.h"

namespace levin::test {
namespace {

using serve::AnswerForms;

constexpr char kTools[] = R"([
  {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {
     "city": {"type": "string", "minLength": 2, "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 12},
     "unit": {"type": "string", "enum": ["metric", "<imperial>"]},
     "where": {"type": "object", "properties": {"lat": {"type": "number", "minimum": -90, "maximum": 90}}, "required": ["lat"]},
     "tags": {"type": "array", "items": {"type": "string", "maxLength": 3, "uniqueLetters": true}, "maxItems": 2}},
     "required": ["city", "unit"], "patternProperties": {}}},
  {"name": "now"},
  {"name": "note", "parameters": {"type": "object", "properties": {"text": {"type": "string", "pattern": "^[a-z ]{1,9}$"}}}}])";

struct Family {
  const char* name;
  const char* folder;
  text::ChatMaker make_chat;
  const char* mark = nullptr;  // that the folder's tokenizer lacks
};

text::Tokenizer tokenizer_of(const Family& family) {
  const std::string folder = std::string(LEVIN_SOURCE_DIR) + "/models/" + family.folder;
  text::Tokenizer tokenizer = must(text::Tokenizer::load(folder));
  if (family.mark == nullptr) return tokenizer;
  io::JsonValue document = must(io::parse_json(must(io::read_file(folder + "/tokenizer.json")), "tokenizer.json"));
  document.as_object()
      ->find("added_tokens")
      ->as_array()
      ->push_back(io::JsonObject{{"id", tokenizer.n_ids()},
                                 {"content", family.mark},
                                 {"special", true},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false}});
  return must(text::Tokenizer::parse(io::dump_json(document), must(io::read_file(folder + "/tokenizer_config.json"))));
}

class CallGrammarTest : public ::testing::TestWithParam<Family> {
 protected:
  const text::Tokenizer tokenizer_ = tokenizer_of(GetParam());
  const text::ChatFormat format_ = must(text::ChatFormat::make(GetParam().make_chat, tokenizer_));
  const std::vector<io::JsonValue> tools_ = *must(io::parse_json(kTools, "tools")).as_array();
  AnswerForms forms_{tokenizer_, format_, tokenizer_.n_ids()};

  // An answer drawn under the mask, most often with a token that continues and not with a long one.
  std::vector<int32_t> draw(grammar::Structure structure, std::mt19937& random) const {
    grammar::Matcher matcher(structure, std::vector<int32_t>{*tokenizer_.eos()});
    std::vector<int32_t> out;
    while (!matcher.is_complete() && out.size() < 2000) {
      const std::span<const uint64_t> mask = matcher.mask();
      std::vector<int32_t> allowed;
      for (int32_t token = 0; token < tokenizer_.n_ids(); ++token) {
        if (((mask[static_cast<size_t>(token) / 64] >> (token % 64)) & 1) != 0) allowed.push_back(token);
      }
      if (allowed.empty()) return {};
      out.push_back(allowed[random() % allowed.size()]);
      if (out.back() == *tokenizer_.eos()) return out;
      EXPECT_TRUE(matcher.push(out.back()));
    }
    return out;
  }
};

struct Read {
  std::vector<std::pair<std::string, io::JsonValue>> calls;
  std::string text;
  int n_faults = 0;
};

Read read(const text::ChatFormat& format, const text::Tokenizer& tokenizer, std::span<const io::JsonValue> tools,
          const std::vector<int32_t>& ids) {
  text::ChatOutputParser parser(format, tokenizer, false, tools);
  Read out;
  std::string name, arguments;
  const auto take = [&](const std::vector<text::OutputEvent>& events) {
    for (const text::OutputEvent& event : events) {
      if (event.kind == text::OutputEvent::Kind::kContent) out.text += event.text;
      if (event.kind == text::OutputEvent::Kind::kCallBegin) name = event.text, arguments.clear();
      if (event.kind == text::OutputEvent::Kind::kArguments) arguments += event.text;
      if (event.kind == text::OutputEvent::Kind::kCallEnd)
        out.calls.emplace_back(name, must(io::parse_json(arguments, "arguments")));
    }
  };
  for (const int32_t id : ids) take(parser.push(id));
  take(parser.finish());
  out.n_faults = parser.n_faults();
  return out;
}

void expect_fits(const std::string& name, const io::JsonObject& arguments) {
  if (name == "now") {
    EXPECT_EQ(arguments.n_members(), 0u);
  }
  if (name != "weather") return;
  const io::JsonValue* city = arguments.find("city");
  ASSERT_TRUE(city != nullptr && city->as_string() != nullptr);
  EXPECT_GE(city->as_string()->size(), 2u);
  const io::JsonValue* unit = arguments.find("unit");
  ASSERT_TRUE(unit != nullptr && unit->as_string() != nullptr);
  EXPECT_TRUE(*unit->as_string() == "metric" || *unit->as_string() == "<imperial>");
  if (const io::JsonValue* days = arguments.find("days")) {
    ASSERT_TRUE(days->to_int64());
    EXPECT_TRUE(*days->to_int64() >= 1 && *days->to_int64() <= 12);
  }
  if (const io::JsonValue* where = arguments.find("where")) {
    ASSERT_NE(where->as_object(), nullptr);
    EXPECT_LE(std::abs(*where->as_object()->find("lat")->to_double()), 90);
  }
}

TEST_P(CallGrammarTest, WhateverIsDrawnIsRead) {
  std::mt19937 random(3);
  for (const bool several : {true, false}) {
    const auto structure = must(forms_.make({.calls = {.required = true, .several = several}, .tools = tools_}));
    for (int round = 0; round < 15; ++round) {
      const std::vector<int32_t> ids = draw(*structure, random);
      const Read found = read(format_, tokenizer_, tools_, ids);
      const std::string shown = tokenizer_.decode(ids, false);
      EXPECT_EQ(found.n_faults, 0) << shown;
      EXPECT_EQ(found.text, "") << shown;
      EXPECT_GE(found.calls.size(), 1u) << shown;
      if (!several) {
        EXPECT_EQ(found.calls.size(), 1u) << shown;
      }
      for (const auto& [name, arguments] : found.calls) expect_fits(name, *arguments.as_object());
    }
  }
}

TEST_P(CallGrammarTest, TheNamedFunctionIsCalled) {
  std::mt19937 random(4);
  const auto structure =
      must(forms_.make({.calls = {.required = true, .name = "note", .several = false}, .tools = tools_}));
  for (int round = 0; round < 5; ++round) {
    const Read found = read(format_, tokenizer_, tools_, draw(*structure, random));
    ASSERT_EQ(found.calls.size(), 1u);
    EXPECT_EQ(found.calls[0].first, "note");
  }
}

TEST_P(CallGrammarTest, BesideAFormEitherIsGiven) {
  const auto structure = must(forms_.make({.text = {.kind = serve::TextForm::Kind::kChoice, .choices = {"yes", "no"}},
                                           .tools = tools_,
                                           .in_reasoning = true}));
  EXPECT_EQ(structure->begins_after, format_.output_marks().think_end);
  grammar::Structure at_once = *structure;
  at_once.begins_after = -1;
  std::mt19937 random(5);
  int n_texts = 0, n_calls = 0;
  for (int round = 0; round < 20; ++round) {
    const Read found = read(format_, tokenizer_, tools_, draw(at_once, random));
    n_texts += found.text == "yes" || found.text == "no" ? 1 : 0;
    n_calls += found.calls.empty() ? 0 : 1;
  }
  EXPECT_EQ(n_texts + n_calls, 20);
  EXPECT_GT(n_texts, 0);
  EXPECT_GT(n_calls, 0);
}

TEST_P(CallGrammarTest, StrictToolsAreTakenAtTheirWord) {
  const auto tool = [](const char* schema) {
    return std::vector<io::JsonValue>{
        io::JsonObject{{"name", "f"}, {"strict", true}, {"parameters", must(io::parse_json(schema, "s"))}}};
  };
  const auto refused =
      forms_.make({.calls = {.required = true},
                   .tools = tool(R"({"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}})")});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("the function f: parameters.properties.n has the keyword \"multipleOf\""),
            std::string::npos)
      << refused.error().message;
  const auto unnamed =
      forms_.make({.calls = {.required = true}, .tools = tool(R"({"type": "object", "properties": {"a\"b": {}}})")});
  ASSERT_FALSE(unnamed.ok());
  EXPECT_NE(unnamed.error().message.find("cannot stand in a call"), std::string::npos);
  const auto endless = forms_.make(
      {.calls = {.required = true}, .tools = {io::JsonObject{{"name", std::string(1001, 'f')}, {"strict", true}}}});
  ASSERT_FALSE(endless.ok());
  EXPECT_NE(endless.error().message.find("a name of 1001 characters"), std::string::npos) << endless.error().message;
}

// Keywords of a parameter that an answer in JSON obeys, a call obeys too, and refuses where that does.
TEST_P(CallGrammarTest, ParametersObeyWhatAnswersDo) {
  const auto ask = [&](const std::string& schema, bool strict) {
    const io::JsonValue parameters = must(io::parse_json(schema, "s"));
    return forms_.make({.calls = {.required = true, .several = false},
                        .tools = {io::JsonObject{{"name", "f"}, {"strict", strict}, {"parameters", parameters}}}});
  };
  const auto argument = [](const char* schema) {
    return fmt::format(R"({{"type": "object", "properties": {{"a": {}}}, "required": ["a"]}})", schema);
  };
  const std::pair<std::string, std::string> written[] = {
      {argument(R"({"enum": ["x", "y"], "const": "y"})"), R"("y")"},
      {argument(R"({"type": "integer", "enum": ["x", 1]})"), "1"},
      {argument(R"({"type": ["string", "null"], "enum": ["x", 1]})"), R"("x")"},
      {argument(R"({"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}], "type": "null"})"), "null"},
      {R"({"properties": {"a": {"enum": ["x", "y"]}}, "patternProperties": {"^a": {"enum": ["y"]}}, "required": ["a"]})",
       R"("y")"},
  };
  std::mt19937 random(6);
  for (const auto& [schema, value] : written) {
    for (const bool strict : {true, false}) {
      const auto structure = must(ask(schema, strict));
      const Read found = read(format_, tokenizer_, tools_, draw(*structure, random));
      ASSERT_EQ(found.calls.size(), 1u) << schema;
      EXPECT_EQ(io::dump_json(*found.calls[0].second.as_object()->find("a")), value) << schema;
    }
  }
  const std::pair<std::string, const char*> refused[] = {
      {argument(R"({"enum": ["x", "yy"], "minLength": 2})"), "has \"minLength\" together with enum or const"},
      {argument(R"({"oneOf": [{"type": "string"}, {"maxLength": 2}]})"), "may both be met by one value"},
      {argument(R"({"anyOf": 5})"), "has anyOf that is not a non-empty list"},
      {argument(R"({"type": []})"), "has a type that is an empty list"},
      {R"({"type": "object", "minProperties": 1})", "parameters has the keyword \"minProperties\""},
      {R"({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]})", "parameters has \"anyOf\""},
      {R"({"type": "string"})", "parameters is of type string, expected object"},
  };
  for (const auto& [schema, part] : refused) {
    const auto answer = ask(schema, true);
    ASSERT_FALSE(answer.ok()) << schema;
    EXPECT_NE(answer.error().message.find(part), std::string::npos) << answer.error().message;
    EXPECT_TRUE(ask(schema, false).ok()) << schema;
  }
}

// Forms that are the same share what is known of their states.
TEST_P(CallGrammarTest, TheSameFormIsMadeOnce) {
  const auto ask = [&](const char* name) {
    return must(forms_.make({.calls = {.required = true, .name = name}, .tools = tools_}));
  };
  EXPECT_EQ(ask("now")->constraint, ask("now")->constraint);
  EXPECT_NE(ask("now")->constraint, ask("note")->constraint);
}

INSTANTIATE_TEST_SUITE_P(Families, CallGrammarTest,
                         testing::Values(Family{"v32", "demo-v32", text::make_deepseek_v32_chat},
                                         Family{"v41", "demo-v32", text::make_deepseek_v41_chat, "<｜System｜>"},
                                         Family{"glm", "demo-glm", text::make_glm_chat}),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace levin::test
