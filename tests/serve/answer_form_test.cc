// Structured answers and forced calls over a socket, in every dialect, with the demonstration model: which knows nothing
// of schemas and is made to keep them.
#include <gtest/gtest.h>

#include <functional>

#include "serve/served_demo.h"

namespace levin::test {
namespace {

constexpr char kSchema[] =
    R"({"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}, "n": {"type": "integer",
        "minimum": 1, "maximum": 40}}, "required": ["city", "n"], "additionalProperties": false})";
constexpr char kParameters[] = R"({"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}},
                                   "required": ["city"]})";

std::string chat(const std::string& more) {
  return R"({"model": "demo", "max_tokens": 200, "messages": [{"role": "user", "content": "What is the capital of Japan?"}], )" +
         more + "}";
}
std::string responses(const std::string& more) {
  return R"({"model": "demo", "max_output_tokens": 200, "input": "What is the capital of Japan?", )" + more + "}";
}
const std::string kChatTools =
    std::string(R"("tools": [{"type": "function", "function": {"name": "now"}}, {"type": "function", "function":
        {"name": "weather", "parameters": )") +
    kParameters + "}}]";
const std::string kFlatTools =
    std::string(
        R"("tools": [{"type": "function", "name": "now"}, {"type": "function", "name": "weather", "parameters": )") +
    kParameters + "}]";
const std::string kInputTools =
    std::string(
        R"("tools": [{"name": "now", "input_schema": {"type": "object"}}, {"name": "weather", "input_schema": )") +
    kParameters + "}]";

class AnswerFormTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { demo_ = std::make_unique<ServedDemo>(); }
  static void TearDownTestSuite() { demo_ = nullptr; }
  static Reply post(const std::string& path, const std::string& body) { return ask(demo_->port(), path, body); }
  static io::JsonValue answer(const std::string& path, const std::string& body) {
    const Reply reply = post(path, body);
    EXPECT_EQ(reply.status, 200) << body << "\n" << reply.body;
    return json(reply.body);
  }
  static std::unique_ptr<ServedDemo> demo_;
};
std::unique_ptr<ServedDemo> AnswerFormTest::demo_;

std::string text_at(const io::JsonValue& document, std::string_view path) {
  const io::JsonValue value = at(document, path);
  return value.as_string() != nullptr ? *value.as_string() : "(" + io::dump_json(value) + ")";
}

void expect_city_and_number(const std::string& text) {
  const auto found = io::parse_json(text, "the answer");
  ASSERT_TRUE(found.ok()) << text;
  ASSERT_NE(at(*found, "city").as_string(), nullptr) << text;
  ASSERT_TRUE(at(*found, "n").to_int64()) << text;
  EXPECT_LE(*at(*found, "n").to_int64(), 40);
}

TEST_F(AnswerFormTest, HoldsInEveryDialect) {
  const std::string schema = kSchema;
  const auto named =
      R"({"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": )" + schema + "}}";
  const auto flat = R"({"type": "json_schema", "name": "x", "schema": )" + schema + "}";
  struct Case {
    std::string path, body, place;
  };
  for (const Case& c : {
           Case{"/v1/chat/completions", chat("\"response_format\": " + named), "choices.0.message.content"},
           Case{"/v1/chat/completions", chat("\"guided_json\": " + schema), "choices.0.message.content"},
           Case{"/v1/chat/completions", chat("\"guided_json\": " + io::dump_json(schema)), "choices.0.message.content"},
           Case{"/v1/chat/completions", chat(R"("structured_outputs": {"json": )" + schema + "}"),
                "choices.0.message.content"},
           Case{"/v1/completions", R"({"prompt": "a", "max_tokens": 200, "response_format": )" + named + "}",
                "choices.0.text"},
           Case{"/v1/responses", responses(R"("text": {"format": )" + flat + "}"), "output.0.content.0.text"},
           Case{"/v1/messages", chat(R"("output_config": {"format": )" + flat + "}"), "content.0.text"},
           Case{"/v1/messages", chat(R"("output_format": )" + flat), "content.0.text"},
       }) {
    SCOPED_TRACE(c.path + " " + c.body);
    expect_city_and_number(text_at(answer(c.path, c.body), c.place));
  }
}

TEST_F(AnswerFormTest, KnowsOtherForms) {
  const auto content = [&](const std::string& more) {
    return text_at(answer("/v1/chat/completions", chat(more)), "choices.0.message.content");
  };
  EXPECT_TRUE(content(R"("response_format": {"type": "json_object"}, "max_tokens": 4)").starts_with("{"));
  const std::string choice = content(R"("guided_choice": ["Kyoto", "Tokyo bay"])");
  EXPECT_TRUE(choice == "Kyoto" || choice == "Tokyo bay") << choice;
  const std::string digits = content(R"("structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"})");
  EXPECT_EQ(digits.size(), 6u) << digits;
  EXPECT_EQ(content(R"("regex": "(Ja|ja)pan!")").substr(1), "apan!");
  EXPECT_EQ(content(R"("guided_choice": [""])"), "");
  EXPECT_EQ(content(R"("response_format": {"type": "text"})"), "The capital of Japan is Tokyo.");
}

TEST_F(AnswerFormTest, LeavesReasoningFree) {
  const io::JsonValue found = answer(
      "/v1/chat/completions", chat(R"("reasoning_effort": "high", "guided_choice": ["Kyoto"], "logprobs": true)"));
  EXPECT_EQ(text_at(found, "choices.0.message.reasoning"), "The country is Japan. Its capital is Tokyo.");
  EXPECT_EQ(text_at(found, "choices.0.message.content"), "Kyoto");
  EXPECT_EQ(text_at(found, "choices.0.finish_reason"), "stop");
}

// The model is told of a schema that its format has a place for.
TEST_F(AnswerFormTest, StandsInThePrompt) {
  const std::string with =
      R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer"}}})";
  EXPECT_NE(text_at(answer("/render", chat(with)), "prompt").find("## Response Format"), std::string::npos);
  EXPECT_EQ(text_at(answer("/render", chat(R"("guided_json": {"type": "integer"})")), "prompt").find("## Response"),
            std::string::npos);
}

TEST_F(AnswerFormTest, ForcesCallsInEveryDialect) {
  const io::JsonValue any = answer("/v1/chat/completions", chat(kChatTools + R"(, "tool_choice": "required")"));
  EXPECT_EQ(text_at(any, "choices.0.finish_reason"), "tool_calls");
  EXPECT_TRUE(at(any, "choices.0.message.content").is_null());
  const io::JsonValue named =
      answer("/v1/chat/completions",
             chat(kChatTools + R"(, "tool_choice": {"type": "function", "function": {"name": "weather"}})"));
  EXPECT_EQ(text_at(named, "choices.0.message.tool_calls.0.function.name"), "weather");
  EXPECT_TRUE(at(named, "choices.0.message.tool_calls.1").is_null());
  EXPECT_NE(at(json(text_at(named, "choices.0.message.tool_calls.0.function.arguments")), "city").as_string(), nullptr);

  const io::JsonValue item =
      answer("/v1/responses", responses(kFlatTools + R"(, "tool_choice": {"type": "function", "name": "weather"})"));
  EXPECT_EQ(text_at(item, "output.0.type"), "function_call");
  EXPECT_EQ(text_at(item, "output.0.name"), "weather");

  const io::JsonValue use =
      answer("/v1/messages", chat(kInputTools + R"(, "tool_choice": {"type": "tool", "name": "weather"})"));
  EXPECT_EQ(text_at(use, "stop_reason"), "tool_use");
  EXPECT_EQ(text_at(use, "content.0.type"), "tool_use");
  EXPECT_NE(at(use, "content.0.input.city").as_string(), nullptr);
  const io::JsonValue one = answer(
      "/v1/messages", chat(kInputTools + R"(, "tool_choice": {"type": "any", "disable_parallel_tool_use": true})"));
  EXPECT_TRUE(at(one, "content.1").is_null());
}

// Streamed as they form, with nothing next to them.
TEST_F(AnswerFormTest, StreamsForcedCallsWithoutMarkup) {
  const Reply reply =
      post("/v1/chat/completions",
           chat(kChatTools + R"(, "tool_choice": "required", "reasoning_effort": "high", "stream": true)"));
  EXPECT_EQ(reply.body.find("DSML"), std::string::npos);
  std::string content, name;
  for (const std::string& data : events_of(reply.body)) {
    if (data == "[DONE]") break;
    const io::JsonValue event = json(data);
    if (const auto piece = at(event, "choices.0.delta.content"); !piece.is_null()) content += *piece.as_string();
    if (const auto piece = at(event, "choices.0.delta.tool_calls.0.function.name"); !piece.is_null())
      name = *piece.as_string();
  }
  EXPECT_EQ(content, "");
  EXPECT_TRUE(name == "now" || name == "weather") << reply.body;
}

TEST_F(AnswerFormTest, RefusesByName) {
  struct Refused {
    std::string path, body, param, part;
  };
  const std::string schema = kSchema;
  for (
      const Refused& r : {
          Refused{"/v1/chat/completions",
                  chat(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}})"),
                  "response_format", "\\\"not\\\", which is not supported"},
          Refused{"/v1/chat/completions", chat(R"("response_format": {"type": "grammar"})"), "response_format",
                  "grammar"},
          Refused{"/v1/chat/completions", chat(R"("response_format": {"type": "json_schema"})"),
                  "response_format.schema", "expected a JSON schema"},
          Refused{"/v1/chat/completions", chat(R"("guided_json": 7)"), "guided_json", "expected a schema"},
          Refused{"/v1/chat/completions", chat(R"("guided_json": "{")"), "guided_json", "guided_json"},
          Refused{"/v1/chat/completions", chat(R"("guided_regex": "(?=a)b")"), "guided_regex", "look-around"},
          Refused{"/v1/chat/completions", chat(R"("guided_regex": ")" + std::string(3 << 20, 'x') + "\""),
                  "guided_regex", "at most 2097152 are allowed"},
          Refused{"/v1/chat/completions", chat(R"("guided_choice": [])"), "guided_choice", "has 0 entries"},
          Refused{"/v1/chat/completions", chat(R"("guided_regex": "a", "guided_choice": ["b"])"), "guided_choice",
                  "leave one out"},
          Refused{"/v1/chat/completions", chat(R"("structured_outputs": {"grammar": "x"})"),
                  "structured_outputs.grammar", "not supported"},
          Refused{"/v1/chat/completions", chat(R"("structured_outputs": {"regex": "("})"), "structured_outputs.regex",
                  "structured_outputs.regex cannot be used"},
          Refused{"/v1/chat/completions", chat(R"("structured_outputs": {"choice": ["a"], "json_object": true})"),
                  "structured_outputs.json_object", "leave one out"},
          Refused{"/v1/chat/completions", chat(R"("guided_regex": "a", "allowed_token_ids": [5])"), "",
                  "exclude each other"},
          Refused{"/v1/chat/completions", chat(R"("cache_salt": "x")"), "cache_salt", "not supported"},
          Refused{"/v1/chat/completions", chat(R"("tool_choice": "required")"), "tool_choice", "no tools"},
          Refused{"/v1/chat/completions", chat(kChatTools + R"(, "tool_choice": "sometimes")"), "tool_choice",
                  "sometimes"},
          Refused{"/v1/chat/completions",
                  chat(kChatTools + R"(, "tool_choice": {"type": "function", "function": {"name": "x"}})"),
                  "tool_choice", "names x"},
          Refused{
              "/v1/chat/completions",
              chat(
                  R"("tools": [{"type": "function", "function": {"name": "f", "strict": true, "parameters": {"type": "object",
                        "properties": {"a": {"not": {}}}}}}], "tool_choice": "required")"),
              "tools", "the function f"},
          Refused{"/v1/completions", R"({"prompt": "a", "guided_regex": "("})", "guided_regex", "without a )"},
          Refused{"/v1/responses", responses(R"("text": {"format": {"type": "json_schema"}})"), "text.format.schema",
                  "expected a JSON schema"},
          Refused{"/v1/responses", responses(R"("text": {"format": {"type": "json_schema", "schema": {"not": {}}}})"),
                  "text.format", "which is not supported"},
          Refused{"/v1/responses", responses(R"("tool_choice": {"type": "web_search"})"), "tool_choice", "by its name"},
      }) {
    const Reply reply = post(r.path, r.body);
    EXPECT_EQ(reply.status, 400) << r.body << "\n" << reply.body;
    EXPECT_NE(reply.body.find(r.part), std::string::npos) << reply.body;
    if (!r.param.empty()) {
      EXPECT_EQ(text_at(json(reply.body), "error.param"), r.param) << reply.body;
    }
  }
  for (const char* choice : {R"({"type": "tool", "name": "x"})", R"({"type": "most"})"}) {
    EXPECT_EQ(post("/v1/messages", chat(kInputTools + R"(, "tool_choice": )" + choice)).status, 400) << choice;
  }
}

}  // namespace
}  // namespace levin::test
